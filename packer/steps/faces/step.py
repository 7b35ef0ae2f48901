"""``faces``: frames become face crops, with landmarks, outline, regions and the matrix that leads back to the frame."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from packer.recipe import Recipe
from packer.steps.chain import ITEM, REPORT, SAMPLED, Sample, Step, StepResources
from packer.steps.faces.crop import CompanionCutter, FaceCutter, cutting_companion
from packer.steps.faces.frame import (
    FRAME_RULES,
    NO_TRACK,
    Face,
    FrameFaces,
    choose_face,
    counting_faces,
    known_points,
)
from packer.steps.faces.missing_faces import MissingFaces, describe_largest
from packer.steps.faces.refill import Found, Refill, refilling
from packer.steps.faces.search import BATCH_FRAMES, FaceSearch, ItemSearch, as_frame, takes_decoded
from packer.steps.faces.tracks import VideoTracks
from packer.steps.report import ItemReport
from packer.vision.detect.detections import FaceDetector


def make(recipe: Recipe, resources: StepResources) -> Step:
    """The step of a recipe. Loads the landmarks' model, and the detector if none is given, once per worker."""
    finder = FaceFinder(recipe, resources.detector)
    weigh = _WEIGHTS.get(recipe.choose)

    def faces(samples: Iterator[Sample]) -> Iterator[Sample]:
        found = finder.crops(map(as_frame, samples))
        return found if weigh is None else _one_track(found, weigh)

    return faces


class FaceFinder:
    """Finds, chooses and cuts the faces of one item's frames, frame after frame."""

    def __init__(self, recipe: Recipe, detector: FaceDetector | None = None) -> None:
        self._recipe = recipe
        self._search = FaceSearch(recipe, detector)
        self._cutter = FaceCutter(recipe)

    def crops(self, frames: Iterator[Sample]) -> Iterator[Sample]:
        """Yield the face samples of one item, frame by frame; within a frame in the detector's order, largest first."""
        first = next(frames, None)
        if first is None:
            return
        item, report, sampled = first[ITEM], first[REPORT], first.get(SAMPLED)
        report.faces = 0
        with (
            self._search.of_item(item, sampled) as search,
            cutting_companion(self._recipe, self._cutter, first) as second,
            refilling(self._recipe, self._search, search, self._cutter, first) as refill,
        ):
            known = sampled if takes_decoded(self._recipe) else None
            tracker = VideoTracks(known, report) if item.medium.is_sequence else None
            looks = self._looks(chain([first], frames), search, refill, report)
            yield from self._crops(looks, second, refill, tracker, report)
            report.unused_boxes = search.unused()

    def _looks(
        self, frames: Iterator[Sample], search: ItemSearch, refill: Refill | None, report: ItemReport
    ) -> "Iterator[_Look]":
        """Search the sampled frames, and those that may stand in for them."""
        missing = MissingFaces(report, self._recipe, refills=refill is not None)
        while batch := list(islice(frames, BATCH_FRAMES)):
            for sample, faces in zip(batch, search.faces(batch), strict=True):
                for place in refill.missing(sample["frame"]) if refill else ():
                    yield self._look(place, None, "", refill, missing, report)
                yield self._look(sample["frame"], sample, faces, refill, missing, report)
        for place in refill.missing(None) if refill else ():
            yield self._look(place, None, "", refill, missing, report)

    def _look(
        self,
        place: int,
        sample: Sample | None,
        faces: FrameFaces | str,
        refill: Refill | None,
        missing: MissingFaces,
        report: ItemReport,
    ) -> "_Look":
        """Decide which frame gives the samples of a place. If none does, the report says why."""
        seen: list[FrameFaces] = []
        found: Found | None = None
        if sample is not None and isinstance(faces, FrameFaces):
            seen.append(faces)
            found = (sample, faces) if self._counts(faces) else None
        if found is None and refill is not None:
            found, more = refill.look(place, self._counts)
            seen += more
        report.faces = (report.faces or 0) + sum(map(len, seen))
        if found is None and sample is not None:
            if isinstance(faces, str) and not any(map(len, seen)):
                report.skip(place, faces)
            else:
                missing.add(place, seen)
        return _Look(place, sample, found)

    def _crops(
        self,
        looks: "Iterator[_Look]",
        second: CompanionCutter | None,
        refill: Refill | None,
        tracker: VideoTracks | None,
        report: ItemReport,
    ) -> Iterator[Sample]:
        faceless: list[Sample] = []
        any_face = False
        for look in looks:
            crops: list[Sample] = []
            if look.found is not None:
                stands_in = look.found[0] is not look.sample
                cuts = refill.second if refill is not None and stands_in else second
                crops = self._cut_all(look.place, *look.found, cuts, tracker, report)
                report.refilled += stands_in and bool(crops)
            elif look.sample is not None and tracker is not None:
                tracker.update(look.place, np.empty((0, 4), np.float32))
            if crops:
                any_face = True
                faceless.clear()
                yield from crops
            elif self._recipe.keep_faceless and not any_face and look.sample is not None:
                whole = self._cutter.keep_whole(look.sample["image"])
                also = second.cut(look.sample, whole["matrix"], whole=True) if second else {}
                faceless.append({**look.sample, **whole, **also})
        if not any_face and faceless:
            report.skipped.clear()
            yield from faceless

    def _cut_all(
        self,
        place: int,
        sample: Sample,
        found: FrameFaces,
        second: CompanionCutter | None,
        tracker: VideoTracks | None,
        report: ItemReport,
    ) -> list[Sample]:
        """The samples of a frame with faces that count.

        If there are none, the report says why. A face that cannot be cut affects no other. `place` is the sampled frame
        in whose place this one is.
        """
        frame = sample["frame"]
        wanted = self._wanted(place, sample, found, second, tracker)
        crops, failures = [], []
        for face in wanted:
            try:
                cut = self._cutter.cut(sample["image"], face.box, face.points, face.matrix)
            except ValueError as error:  # a UsageError is one too
                failures.append(f"a face could not be cut: {error}")
                continue
            known = {"box": face.box.astype(np.float32), "score": np.float32(face.score), "track": face.track}
            crops.append({**sample, **cut, **known, **(second.cut(sample, cut["matrix"]) if second else {})})
        if failures and not crops:
            report.skip(frame, failures[0])
        elif failures:
            report.add_damage(f"frame {frame}: {failures[0]}")
        return crops

    def _counts(self, found: FrameFaces) -> bool:
        return len(counting_faces(found, self._recipe)) > 0

    def _wanted(
        self,
        place: int,
        sample: Sample,
        found: FrameFaces,
        second: CompanionCutter | None,
        tracker: VideoTracks | None,
    ) -> list[Face]:
        """The faces of one frame that count, or the one of them that the recipe chooses."""
        keep = counting_faces(found, self._recipe)
        if found.tracks is not None:
            tracks = found.tracks[keep]
        else:
            tracks = np.full(len(keep), NO_TRACK) if tracker is None else tracker.update(place, found.boxes[keep])
        faces = [
            Face(
                found.boxes[i],
                float(found.scores[i]),
                known_points(found.points[i]),
                int(track),
                None if found.matrices is None else found.matrices[i],
            )
            for i, track in zip(keep.tolist(), tracks.tolist(), strict=True)
        ]
        if self._recipe.choose not in FRAME_RULES:
            return faces
        mask = second.picture(sample) if second is not None and self._recipe.choose == "masked" else None
        return [choose_face(self._recipe.choose, faces, sample["image"], mask)]


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """Result of searching one sampled frame and its possible substitutes.

    Attributes
    ----------
    place : int
        Index of the sampled frame.
    sample : dict or None
        The sampled frame; None where the decoder left it out.
    found : tuple or None
        The frame that gives the samples, with its faces; None if there is none.
    """

    place: int
    sample: Sample | None
    found: Found | None


def _box_area(sample: Sample) -> float:
    left, top, right, bottom = sample["box"].tolist()
    return float((right - left) * (bottom - top))


_WEIGHTS: dict[str, Callable[[list[Sample]], float]] = {
    "track": len,
    "main": lambda samples: sum(map(_box_area, samples)),
}


def _one_track(samples: Iterable[Sample], weigh: Callable[[list[Sample]], float]) -> Iterator[Sample]:
    """Yield the samples of the track with the greatest weight, the first of equals; without tracks, all samples.

    Holds the crops of one video in memory.
    """
    tracks: dict[int, list[Sample]] = {}
    for sample in samples:
        tracks.setdefault(sample["track"], []).append(sample)
    untracked = tracks.pop(NO_TRACK, [])
    if not tracks:
        yield from untracked
        return
    chosen = max(tracks.values(), key=weigh)
    kept = {sample["frame"] for sample in chosen}
    others = chain(*(samples for samples in tracks.values() if samples is not chosen), untracked)
    left_out = [sample for sample in others if sample["frame"] not in kept]
    for frame in sorted({sample["frame"] for sample in left_out}):
        reason = f"no face of track {chosen[0]['track']}, which is kept: {describe_largest(left_out)}"
        chosen[0][REPORT].skip(frame, reason)
    yield from chosen
