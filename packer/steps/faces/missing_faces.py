"""Reasons for frames without a sample, which describe the faces that were too small or too uncertain."""

import math
import re
from collections.abc import Iterable, Sequence

import numpy as np

from packer.recipe import Recipe
from packer.steps.faces.frame import NO_TRACK, FrameFaces, shorter_sides
from packer.steps.report import ItemReport

Seen = tuple[float, float]
"""A face: the shorter side of its box in pixels, and its score."""


_SEEN = re.compile(r"largest face (\d+) px \(score ([\d.]+)\)(?:, highest score ([\d.]+) \((\d+) px\))?")


class MissingFaces:
    """Records the frames of one item without a face that counts.

    Frames in which no face was found share one reason. Frames with faces share another, which describes the largest and
    the most certain of these faces. So there are two reasons per item, for any number of frames.

    Parameters
    ----------
    refills : bool
        Whether other frames may replace these.
    """

    def __init__(self, report: ItemReport, recipe: Recipe, *, refills: bool = False) -> None:
        self._report = report
        self._wanted = (
            f"no face of {recipe.min_face} px and more with a score of {recipe.min_score:g} and more"
            f"{' in it or nearby' if refills else ''}"
        )
        self._seen: list[Seen] = []
        self._reason = ""

    def add(self, frame: int, found: Iterable[FrameFaces]) -> None:
        """Record a frame. `found` has the faces of the frame and of its possible substitutes."""
        faces = [face for each in found for face in _finite(each)]
        if not faces:
            self._report.skip(frame, f"{self._wanted}: found none")
            return
        self._seen = _extremes([*self._seen, *faces])
        frames = self._report.skipped.pop(self._reason, [])
        self._reason = f"{self._wanted}: {_describe(self._seen)}"
        self._report.skipped[self._reason] = frames
        frames.append(frame)


def advise(reasons: Iterable[str], recipe: Recipe) -> str:
    """Return advice to lower the options that excluded the faces described in `reasons`; empty if there are none."""
    lower = set()
    for match in (match for reason in reasons for match in _SEEN.finditer(reason)):
        side, score, best, other_side = match.groups()
        if min(int(side), int(other_side or side)) < recipe.min_face:
            lower.add("--min-face")
        if min(float(score), float(best or score)) < recipe.min_score:
            lower.add("--min-score")
    return f"a lower {' or '.join(sorted(lower))} keeps more faces" if lower else ""


def describe_largest(found: Sequence[FrameFaces]) -> str:
    """Describe the largest face of some frames; of equal faces, the first. There must be at least one face."""
    sides = np.concatenate([shorter_sides(faces.boxes) for faces in found])
    tracks = [track for faces in found for track in ([NO_TRACK] * len(faces) if faces.tracks is None else faces.tracks)]
    largest = int(np.argmax(sides))
    track = "no track" if tracks[largest] == NO_TRACK else f"track {tracks[largest]}"
    return f"largest other face {_pixels(float(sides[largest]))} px ({track})"


def _finite(found: FrameFaces) -> list[Seen]:
    pairs = zip(shorter_sides(found.boxes).tolist(), found.scores.tolist(), strict=True)
    return [pair for pair in pairs if all(map(math.isfinite, pair))]


def _extremes(faces: list[Seen]) -> list[Seen]:
    """Return the largest face and the one with the best score. The other property breaks ties."""
    return [max(faces), max(faces, key=lambda face: face[::-1])]


def _describe(extremes: list[Seen]) -> str:
    (side, score), (other_side, best) = extremes
    largest = f"largest face {_pixels(side)} px (score {_score(score)})"
    if _score(score) == _score(best):
        return largest
    return f"{largest}, highest score {_score(best)} ({_pixels(other_side)} px)"


def _pixels(side: float) -> int:
    """Round down to whole pixels, so that a face that was too small does not look large enough."""
    return max(0, math.floor(side))


def _score(score: float) -> str:
    """Format a score with three digits, rounded down after allowing for float32."""
    return f"{math.floor(score * 1000 + 1e-4) / 1000:g}"
