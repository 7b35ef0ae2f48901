"""``faces``: frames become face crops, with landmarks, outline, regions and the matrix that leads back to the frame."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np

from packer.recipe import Recipe
from packer.steps.chain import ITEM, REPORT, SAMPLED, Sample, Step, StepResources
from packer.steps.companion import CompanionImages, open_companion
from packer.steps.faces.crop import FaceCutter
from packer.steps.faces.frame import FRAME_RULES, NO_TRACK, FrameFaces, counting_faces, known_points
from packer.steps.faces.missing_faces import MissingFaces, describe_largest
from packer.steps.faces.refill import Found, Refill, refilling
from packer.steps.faces.search import BATCH_FRAMES, FaceSearch, ItemSearch, as_frame, takes_decoded
from packer.steps.faces.tracks import VideoTracks
from packer.steps.report import ItemReport


def make(recipe: Recipe, resources: StepResources) -> Step:
    """Make the step of a recipe. Loads the landmarks' model, and the detector if none is given, once per worker."""
    search, cutter = FaceSearch(recipe, resources.detector), FaceCutter(recipe)
    weigh = _WEIGHTS.get(recipe.choose)

    def faces(samples: Iterator[Sample]) -> Iterator[Sample]:
        found = _crops(recipe, search, cutter, map(as_frame, samples))
        return found if weigh is None else _one_track(found, weigh)

    return faces


def _crops(recipe: Recipe, search: FaceSearch, cutter: FaceCutter, frames: Iterator[Sample]) -> Iterator[Sample]:
    """Yield the face samples of one item, frame by frame; within a frame in the detector's order, largest first."""
    first = next(frames, None)
    if first is None:
        return
    item, report, sampled = first[ITEM], first[REPORT], first.get(SAMPLED)
    report.faces = 0
    with (
        search.of_item(item, sampled) as faces,
        open_companion(recipe, first) as also,
        refilling(recipe, search, faces, first) as refill,
    ):
        known = sampled if takes_decoded(recipe) else None
        tracker = VideoTracks(known, report) if item.medium.is_sequence else None
        missing = MissingFaces(report, recipe, refills=refill is not None)
        of_item = _ItemFaces(recipe, cutter, report, faces, also, refill, tracker, missing)
        yield from of_item.crops(chain([first], frames))
        report.unused_boxes = faces.unused()


@dataclass(frozen=True, slots=True, eq=False)
class _ItemFaces:
    """Finds, chooses and cuts the faces of one item's frames, frame after frame."""

    recipe: Recipe
    cutter: FaceCutter
    report: ItemReport
    search: ItemSearch
    also: CompanionImages | None
    refill: Refill | None
    tracker: VideoTracks | None
    missing: MissingFaces

    def crops(self, frames: Iterator[Sample]) -> Iterator[Sample]:
        faceless: list[Sample] = []
        any_face = False
        for place, sample, faces in self._searched(frames):
            found = self._find(place, sample, faces)
            crops: list[Sample] = []
            if found is not None:
                substitute = found[0] is not sample
                crops = self._cut_all(place, *found, self.refill.also if self.refill and substitute else self.also)
                self.report.refilled += substitute and bool(crops)
            elif sample is not None and self.tracker is not None:
                self.tracker.update(place, np.empty((0, 4), np.float32))
            if crops:
                any_face = True
                faceless.clear()
                yield from crops
            elif self.recipe.keep_faceless and not any_face and sample is not None:
                whole = self.cutter.keep_whole(sample["image"])
                faceless.append({**sample, **whole, **self._cut_also(self.also, sample, whole, whole=True)})
        if not any_face and faceless:
            self.report.skipped.clear()
            yield from faceless

    def _searched(self, frames: Iterator[Sample]) -> Iterator[tuple[int, Sample | None, FrameFaces | str]]:
        """Yield the index of each sampled frame, the frame (None if the decoder left it out), and its faces."""
        refill = self.refill
        while batch := list(islice(frames, BATCH_FRAMES)):
            for sample, faces in zip(batch, self.search.faces(batch), strict=True):
                yield from ((place, None, "") for place in (refill.missing(sample["frame"]) if refill else ()))
                yield sample["frame"], sample, faces
        yield from ((place, None, "") for place in (refill.missing(None) if refill else ()))

    def _find(self, place: int, sample: Sample | None, faces: FrameFaces | str) -> Found | None:
        """Return the frame that gives the samples of a place. If none does, the report says why."""
        seen: list[FrameFaces] = []
        found: Found | None = None
        if sample is not None and isinstance(faces, FrameFaces):
            seen.append(faces)
            found = (sample, faces) if self._counts(faces) else None
        if found is None and self.refill is not None:
            found, more = self.refill.look(place, self._counts)
            seen += more
        self.report.faces = (self.report.faces or 0) + sum(map(len, seen))
        if found is None and sample is not None:
            if isinstance(faces, str) and not any(map(len, seen)):
                self.report.skip(place, faces)
            else:
                self.missing.add(place, seen)
        return found

    def _cut_all(self, place: int, sample: Sample, found: FrameFaces, also: CompanionImages | None) -> list[Sample]:
        """Return the samples of a frame with faces that count.

        If there are none, the report says why. A face that cannot be cut affects no other. `place` is the sampled frame
        in whose place this one is.
        """
        frame = sample["frame"]
        faces = self._choose(place, sample, found, also)
        crops, failures = [], []
        for face in range(len(faces)):
            box, points = faces.boxes[face], known_points(faces.points[face])
            before = None if faces.matrices is None else faces.matrices[face]
            try:
                cut = self.cutter.cut(sample["image"], box, points, before)
            except ValueError as error:  # a UsageError is one too
                failures.append(f"a face could not be cut: {error}")
                continue
            track = NO_TRACK if faces.tracks is None else int(faces.tracks[face])
            known = {"box": box.astype(np.float32), "score": np.float32(faces.scores[face]), "track": track}
            crops.append({**sample, **cut, **known, **self._cut_also(also, sample, cut)})
        if failures and not crops:
            self.report.skip(frame, failures[0])
        elif failures:
            self.report.add_damage(f"frame {frame}: {failures[0]}")
        return crops

    def _cut_also(
        self, also: CompanionImages | None, sample: Sample, cut: Sample, *, whole: bool = False
    ) -> dict[str, object]:
        """Cut the companion image as the first was cut, by `cut` or (`whole`) `FaceCutter.keep_whole`."""
        if also is None:
            return {}
        image, field = also.picture(sample), self.recipe.also_field
        crop = self.cutter.cut_also(image, cut["matrix"], whole=whole)
        return {f"{field}": crop, f"{field}_valid": also.is_valid(image)}

    def _counts(self, found: FrameFaces) -> bool:
        return len(counting_faces(found, self.recipe)) > 0

    def _choose(self, place: int, sample: Sample, found: FrameFaces, also: CompanionImages | None) -> FrameFaces:
        """Return the faces of one frame that count, or the one of them that the recipe chooses."""
        faces = found.take(counting_faces(found, self.recipe))
        if faces.tracks is None and self.tracker is not None:
            faces = replace(faces, tracks=self.tracker.update(place, faces.boxes))
        choose = FRAME_RULES.get(self.recipe.choose)
        if choose is None:
            return faces
        mask = also.picture(sample) if also is not None and self.recipe.choose == "masked" else None
        return faces.take([choose(faces, sample["image"], mask)])


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
