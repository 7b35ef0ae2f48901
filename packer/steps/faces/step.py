"""``faces``: cut face crops out of frames, with landmarks, outline, regions, and the matrix from frame to crop."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from packer.recipe import Recipe
from packer.steps.chain import ITEM, REPORT, SAMPLED, Sample, Step, StepResources
from packer.steps.faces.crop import FaceCutter
from packer.steps.faces.frame import (
    FRAME_RULES,
    NO_FACES,
    NO_TRACK,
    FrameFaces,
    FramePlace,
    MissingFaces,
    counting_faces,
)
from packer.steps.faces.search import BATCH_FRAMES, FaceSearch, ItemSearch, as_frame, takes_decoded
from packer.steps.faces.smoothing import SteadyTracks, is_steady, open_waiting
from packer.steps.faces.tracks import VideoTracks
from packer.steps.report import ItemReport
from packer.steps.second_image import CompanionImages, open_companion


def make(recipe: Recipe, resources: StepResources) -> Step:
    """Make the step of a recipe. Load the landmark model, and the detector if none is passed, once per worker."""
    search, cutter = FaceSearch(recipe, resources.detector), FaceCutter(recipe)

    def faces(samples: Iterator[Sample]) -> Iterator[Sample]:
        return _crops(recipe, search, cutter, map(as_frame, samples))

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
        open_waiting(recipe, first) as waiting,
    ):
        known = sampled if takes_decoded(recipe) else None
        missing = MissingFaces(report, recipe)
        of_item = _ItemFaces(recipe, cutter, report, faces, also, missing)
        places = of_item.places(chain([first], frames))
        if item.medium.is_sequence:
            places = VideoTracks(known, report, recipe.fill).follow(places)
            if is_steady(recipe):
                places = SteadyTracks(recipe, waiting, report).steady(places)
        yield from of_item.crops(places)
        report.unused_boxes = faces.unused()


@dataclass(frozen=True, slots=True, eq=False)
class _ItemFaces:
    """Finds, chooses and cuts the faces of one item's frames, frame after frame."""

    recipe: Recipe
    cutter: FaceCutter
    report: ItemReport
    search: ItemSearch
    also: CompanionImages | None
    missing: MissingFaces

    def places(self, frames: Iterator[Sample]) -> Iterator[FramePlace]:
        """Yield the sampled frames with the faces that count."""
        while batch := list(islice(frames, BATCH_FRAMES)):
            for sample, found in zip(batch, self.search.faces(batch), strict=True):
                faces, reason = (NO_FACES, found) if isinstance(found, str) else (found, "")
                self.report.faces = (self.report.faces or 0) + len(faces)
                counting = faces.take(counting_faces(faces, self.recipe))
                counting = self.cutter.prepare(sample["image"], counting)
                yield FramePlace(sample["frame"], sample, counting, faces, reason)

    def crops(self, places: Iterator[FramePlace]) -> Iterator[Sample]:
        """Cut the faces of the frames."""
        faceless: list[Sample] = []
        any_face = False
        for place in places:
            crops: list[Sample] = []
            sample = place.sample
            if sample is not None and len(place.faces):
                crops = self._cut_all(sample, place.faces)
            elif sample is not None:
                self._report_missing(place)
            if crops:
                any_face = True
                faceless.clear()
                yield from crops
            elif self.recipe.keep_faceless and not any_face and sample is not None:
                whole = self.cutter.keep_whole(sample["image"])
                faceless.append({**sample, **whole, **self._cut_also(sample, whole, whole=True)})
        if not any_face and faceless:
            self.report.skipped.clear()
            yield from faceless

    def _report_missing(self, place: FramePlace) -> None:
        if place.reason:
            self.report.skip(place.frame, place.reason)
        else:
            self.missing.add(place.frame, place.found)

    def _cut_all(self, sample: Sample, found: FrameFaces) -> list[Sample]:
        """Return the samples of a frame with faces that count.

        If no face can be cut, the report says why. A face that cannot be cut does not affect the others.
        """
        frame = sample["frame"]
        faces = self._choose(sample, found)
        crops, failures = [], []
        for face in range(len(faces)):
            try:
                cut = self.cutter.cut(sample["image"], faces, face)
            except ValueError as error:  # a UsageError is one too
                failures.append(f"a face could not be cut: {error}")
                continue
            track = NO_TRACK if faces.tracks is None else int(faces.tracks[face])
            known = {"box": faces.boxes[face].astype(np.float32), "score": np.float32(faces.scores[face])}
            crops.append({**sample, **cut, **known, "track": track, **self._cut_also(sample, cut)})
        if failures and not crops:
            self.report.skip(frame, failures[0])
        elif failures:
            self.report.add_damage(f"frame {frame}: {failures[0]}")
        return crops

    def _cut_also(self, sample: Sample, cut: Sample, *, whole: bool = False) -> dict[str, object]:
        """Cut the companion image like the image in `cut`, which comes from `FaceCutter.keep_whole` if `whole`."""
        also = self.also
        if also is None:
            return {}
        image, field = also.image(sample), self.recipe.also_field
        crop = self.cutter.cut_also(image, cut["matrix"], whole=whole)
        return {f"{field}": crop, f"{field}_valid": also.is_valid(image)}

    def _choose(self, sample: Sample, faces: FrameFaces) -> FrameFaces:
        """Return all faces of one frame, or only the face that the recipe chooses."""
        choose = FRAME_RULES.get(self.recipe.choose)
        if choose is None:
            return faces
        mask = self.also.image(sample) if self.also is not None and self.recipe.choose == "masked" else None
        return faces.take([choose(faces, sample["image"], mask)])
