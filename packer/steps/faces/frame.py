"""The faces of one frame, the rules that choose one of them, and the reasons for frames without a sample."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packer.recipe import Recipe
from packer.steps.chain import Sample
from packer.steps.report import ItemReport

if TYPE_CHECKING:
    from packer.steps.faces.tracks import Thumbnail

NO_TRACK = -1

DETECT_FIELDS = ("box", "box_valid", "score", "track", "landmarks", "landmarks_valid", "frame_size", "source_bytes")
"""The fields that the step ``detect`` adds to the fields of a frame."""

FloatArray = npt.NDArray[np.float32]

Image = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class FrameFaces:
    """The faces of one frame, in frame pixels.

    Attributes
    ----------
    boxes : ndarray, (N, 4), float32
        Left, top, right, bottom.
    scores : ndarray, (N,), float32
    points : ndarray, (N, 5, 2), float32 or float64
        Right eye, left eye, nose, right and left corner of the mouth (the person's). NaN where a face has none.
    tracks : ndarray, (N,), int64, or None
        `NO_TRACK` for a face without one; None where no tracks were looked for.
    shape : tuple of int or None
        Shape of the frame in which the faces were found, (H, W, 3); None if unknown for faces from the user.
    time : float or None
        Presentation time of the frame in seconds, if known for faces from the user.
    matrices : ndarray, (N, 2, 3), float32, or None
        The matrices of earlier crops of the faces; None if they were not cut before.
    interpolated : ndarray, (N,), bool, or None
        True for faces that were not found in this frame, but interpolated from neighbouring frames. None: no such face.
    dense : ndarray, (N, K, 2), float64, or None
        Landmarks found before the cut, if the cut needs them; otherwise None. NaN if a face has no points.
    dense_valid : ndarray, (N,), bool, or None
        Whether `dense` agrees with `points`.
    cut_boxes : ndarray, (N, 4), float64, or None
        The boxes for the cut; None to use `boxes`.
    cut_points : ndarray, (N, P, 2), float64, or None
        The points for the alignment; None to use `dense`, or `points` if `dense` is None.
    thumbnail : Thumbnail or None
        Thumbnail of the frame in which the faces were found.
    """

    boxes: FloatArray
    scores: FloatArray
    points: npt.NDArray[np.floating]
    tracks: npt.NDArray[np.int64] | None = None
    shape: tuple[int, ...] | None = None
    time: float | None = None
    matrices: FloatArray | None = None
    interpolated: npt.NDArray[np.bool_] | None = None
    dense: npt.NDArray[np.float64] | None = None
    dense_valid: npt.NDArray[np.bool_] | None = None
    cut_boxes: npt.NDArray[np.float64] | None = None
    cut_points: npt.NDArray[np.float64] | None = None
    thumbnail: "Thumbnail | None" = None

    def __len__(self) -> int:
        return len(self.boxes)

    def take(self, faces: npt.ArrayLike) -> "FrameFaces":
        """Select some of the faces by their numbers."""
        rows = np.asarray(faces, np.intp)
        some: dict[str, Any] = {
            name: None if values is None else values[rows] for name in _PER_FACE for values in (getattr(self, name),)
        }
        return replace(self, **some)

    @property
    def aligning(self) -> npt.NDArray[np.floating]:
        """Points in frame pixels by which the faces are aligned, (N, P, 2), before smoothing."""
        return self.points if self.dense is None else self.dense

    @property
    def areas(self) -> FloatArray:
        """Area of each box, (N,), in square pixels."""
        return (self.boxes[:, 2] - self.boxes[:, 0]) * (self.boxes[:, 3] - self.boxes[:, 1])


_PER_FACE = (
    *("boxes", "scores", "points", "tracks", "matrices", "interpolated", "dense", "dense_valid"),
    *("cut_boxes", "cut_points"),
)

NO_FACES = FrameFaces(np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty((0, 5, 2), np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class FramePlace:
    """One of the sampled frames of an item, and the faces in it.

    Attributes
    ----------
    frame : int
        Index of the sampled frame.
    sample : dict or None
        The frame with its image; None if a second pass could not read it.
    faces : FrameFaces
        The faces that count (`counting_faces`), largest first.
    found : FrameFaces
        All faces of the frame.
    reason : str
        Why the faces are unknown; empty if they are known.
    number : int
        Number of the frame among all sampled frames of the video, including damaged frames.
    shot : int
        Number of hard cuts before it.
    """

    frame: int
    sample: Sample | None
    faces: FrameFaces
    found: FrameFaces = NO_FACES
    reason: str = ""
    number: int = 0
    shot: int = 0


def shorter_sides(boxes: FloatArray) -> FloatArray:
    """Return the shorter side of each box, (N,), in pixels."""
    return np.asarray(np.minimum(boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]), np.float32)


def counting_faces(found: FrameFaces, recipe: Recipe) -> npt.NDArray[np.intp]:
    """Return which faces of a frame are large and certain enough, (n,)."""
    good = np.isfinite(found.boxes).all(axis=1) & (shorter_sides(found.boxes) >= recipe.min_face)
    return np.flatnonzero(good & (found.scores >= recipe.min_score))


def known_points(points: npt.NDArray[np.floating]) -> npt.NDArray[np.floating] | None:
    """Return the points of a face; None if it has none."""
    return points if np.isfinite(points).all() else None


def _largest(faces: FrameFaces, _frame: Image, _mask: Image | None) -> int:
    return int(np.argmax(faces.areas))


def _best(faces: FrameFaces, _frame: Image, _mask: Image | None) -> int:
    return int(np.argmax(faces.scores))


def _central(faces: FrameFaces, frame: Image, _mask: Image | None) -> int:
    boxes = faces.boxes.astype(np.float64)
    twice_off = boxes[:, :2] + boxes[:, 2:] - (frame.shape[1], frame.shape[0])
    return int(np.argmin(np.square(twice_off).sum(axis=1)))


def _masked(faces: FrameFaces, frame: Image, mask: Image | None) -> int:
    """Choose the face whose box has the largest sum of mask values; the largest face if all sums are 0."""
    if mask is None:
        return _largest(faces, frame, mask)
    height, width = mask.shape[:2]
    sides = np.rint(faces.boxes).clip(0, [width, height, width, height]).astype(np.int64).tolist()
    held = [int(mask[top:bottom, left:right].sum(dtype=np.int64)) for left, top, right, bottom in sides]
    return max(range(len(faces)), key=lambda face: (held[face], faces.areas[face]))


FRAME_RULES: Mapping[str, Callable[[FrameFaces, Image, Image | None], int]] = {
    "largest": _largest,
    "best": _best,
    "central": _central,
    "masked": _masked,
}
"""Rules that choose one face of a frame; of equal faces, the first. Arguments: faces, frame, and companion image."""

TRACK_RULES: Mapping[str, Callable[[list[float]], float]] = {"track": len, "main": sum}
"""Rules that choose one track of a video: the weight of a track from the areas of its boxes."""


def is_steady(recipe: Recipe) -> bool:
    """Return whether the faces of a frame depend on those of other frames."""
    return recipe.smooth is not None or recipe.fill is not None or waits_for_end(recipe)


def waits_for_end(recipe: Recipe) -> bool:
    """Return whether the faces of a frame depend on all frames of the video."""
    return recipe.crop_per != "frame" or recipe.choose in TRACK_RULES


Seen = tuple[float, float]
"""A face: the shorter side of its box in pixels, and its score."""


class MissingFaces:
    """Records the frames of one item without a face that counts.

    Frames in which no face was found share one reason. Frames with faces share another, which describes the largest and
    the most certain of these faces. So there are two reasons per item, for any number of frames.
    """

    def __init__(self, report: ItemReport, recipe: Recipe) -> None:
        self._report = report
        self._wanted = f"no face of {recipe.min_face} px and more with a score of {recipe.min_score:g} and more"
        self._seen: list[Seen] = []
        self._reason = ""

    def add(self, frame: int, found: FrameFaces) -> None:
        """Record a frame with the faces that were found in it."""
        faces = _finite(found)
        if not faces:
            self._report.skip(frame, f"{self._wanted}: found none")
            return
        self._seen = _extremes([*self._seen, *faces])
        frames = self._report.skipped.pop(self._reason, [])
        self._reason = f"{self._wanted}: {_describe(self._seen)}"
        self._report.skipped[self._reason] = frames
        frames.append(frame)


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
