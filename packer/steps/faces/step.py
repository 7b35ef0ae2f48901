"""``faces``: cut face crops out of frames, with landmarks, outline, regions, and the matrix from frame to crop.

With ``--refill``, a nearby frame replaces a sampled frame that has no face that counts.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from packer.recipe import Recipe
from packer.steps.chain import ITEM, NEIGHBOURS, REPORT, SAMPLED, Sample, Step, StepResources
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
from packer.steps.second_image import CompanionFile, CompanionImages, open_companion

Found = tuple[Sample, FrameFaces]
"""A frame with its faces."""


class Refill:
    """Possible substitutes for the sampled frames of one video, read in a separate pass over the file.

    The pass begins when the first substitute is needed. Frames that are damaged in this pass are left out.

    Parameters
    ----------
    first : dict
        A sample of the item.
    near : mapping of int to tuple of int
        Possible substitutes of each sampled frame, in ascending order (`packer.vision.decode.sampling.neighbours`).
    file : CompanionFile
        The item's file.
    search : ItemSearch
        Finds the faces of the substitutes.
    also : CompanionImages or None
        The companion images of the substitutes.
    """

    def __init__(
        self,
        first: Sample,
        near: Mapping[int, tuple[int, ...]],
        file: CompanionFile,
        search: ItemSearch,
        also: CompanionImages | None,
    ) -> None:
        self._first = first
        self._near = near
        self._file = file
        self._search = search
        self._waiting = iter(near)
        self._positions = {place: position for position, place in enumerate(near)}
        self.also = also

    def missing(self, frame: int | None) -> Iterator[int]:
        """Yield the sampled frames that the decoder left out before `frame`; None is the end of the video."""
        for place in self._waiting:
            if place == frame:
                return
            yield place

    def look(self, place: int, counts: Callable[[FrameFaces], bool]) -> tuple[Found | None, list[FrameFaces]]:
        """Search the frames near a sampled frame for faces. Sampled frames must be passed in order.

        Parameters
        ----------
        counts : callable
            Returns whether any of a frame's faces counts.

        Returns
        -------
        found : tuple or None
            The nearest frame with a face that counts (the earlier of two at the same distance); None if there is none.
        faces : list of FrameFaces
            The faces of all frames that were searched.
        """
        best: Found | None = None
        seen: list[FrameFaces] = []
        before = [index for index in self._near[place] if index < place]
        for sample, faces in self._faces(place, before):
            seen.append(faces)
            if counts(faces):
                best = sample, faces
        reach = None if best is None else place - best[0]["frame"]
        after = [index for index in self._near[place] if index > place and (reach is None or index - place < reach)]
        for sample, faces in self._faces(place, after):
            seen.append(faces)
            if counts(faces):
                return (sample, faces), seen
        return best, seen

    def _faces(self, place: int, indices: list[int]) -> list[Found]:
        """Return the frames with these indices whose faces are known, as samples with the position of `place`."""
        frames = [frame for frame in map(self._file.frame, indices) if frame is not None]
        first = {**self._first, "frame_position": self._positions[place]}
        samples = [{**first, "image": f.image, "frame": f.index, "time": f.time} for f in frames]
        found = self._search.faces(samples) if samples else []
        return [(s, faces) for s, faces in zip(samples, found, strict=True) if isinstance(faces, FrameFaces)]


@contextmanager
def refilling(recipe: Recipe, search: FaceSearch, given: ItemSearch, first: Sample) -> Iterator[Refill | None]:
    """Open the `Refill` of an item, if the recipe asks for it and the item is a video.

    `given` is the search for the sampled frames. If it looks up boxes from the user, substitutes use it too.
    """
    near: Mapping[int, tuple[int, ...]] | None = first.get(NEIGHBOURS)
    if near is None:
        yield None
        return
    item = first[ITEM]
    indices = tuple(chain.from_iterable(near.values()))
    file = CompanionFile("refill", item.file, indices)
    sample = {**first, SAMPLED: indices}
    try:
        with (
            search.of_item(item, indices) if recipe.boxes is None else nullcontext(given) as faces,
            open_companion(recipe, sample) as also,
        ):
            yield Refill(first, near, file, faces, also)
    finally:
        file.close()


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
        refilling(recipe, search, faces, first) as refill,
        open_waiting(recipe, first) as waiting,
    ):
        known = sampled if takes_decoded(recipe) else None
        missing = MissingFaces(report, recipe, refills=refill is not None)
        of_item = _ItemFaces(recipe, cutter, report, faces, also, refill, missing)
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
    refill: Refill | None
    missing: MissingFaces

    def places(self, frames: Iterator[Sample]) -> Iterator[FramePlace]:
        """Yield the sampled frames with the faces that count."""
        for place, sample, faces in self._searched(frames):
            found, seen = self._find(place, sample, faces)
            self.report.faces = (self.report.faces or 0) + sum(map(len, seen))
            reason = faces if isinstance(faces, str) else ""
            taken, known = found or (sample, NO_FACES if isinstance(faces, str) else faces)
            if taken is None:
                continue
            counting = known.take(counting_faces(known, self.recipe))
            counting = self.cutter.prepare(taken["image"], counting)
            yield FramePlace(place, taken, counting, seen, reason, taken is not sample)

    def crops(self, places: Iterator[FramePlace]) -> Iterator[Sample]:
        """Cut the faces of the frames."""
        faceless: list[Sample] = []
        any_face = False
        for place in places:
            crops: list[Sample] = []
            sample, also = place.sample, self.refill.also if self.refill and place.refilled else self.also
            if sample is not None and len(place.faces):
                crops = self._cut_all(sample, place.faces, also)
                self.report.refilled += place.refilled and bool(crops)
            elif sample is not None:
                self._report_missing(place)
            if crops:
                any_face = True
                faceless.clear()
                yield from crops
            elif self.recipe.keep_faceless and not any_face and sample is not None:
                whole = self.cutter.keep_whole(sample["image"])
                faceless.append({**sample, **whole, **self._cut_also(also, sample, whole, whole=True)})
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

    def _find(
        self, place: int, sample: Sample | None, faces: FrameFaces | str
    ) -> tuple[Found | None, list[FrameFaces]]:
        """Return the frame to cut for a sampled frame (itself, a substitute or None), and all faces that were found."""
        seen: list[FrameFaces] = []
        found: Found | None = None
        if sample is not None and isinstance(faces, FrameFaces):
            seen.append(faces)
            found = (sample, faces) if self._counts(faces) else None
        if found is None and self.refill is not None:
            found, more = self.refill.look(place, self._counts)
            seen += more
        return found, seen

    def _report_missing(self, place: FramePlace) -> None:
        if place.reason and not any(map(len, place.seen)):
            self.report.skip(place.frame, place.reason)
        else:
            self.missing.add(place.frame, place.seen)

    def _cut_all(self, sample: Sample, found: FrameFaces, also: CompanionImages | None) -> list[Sample]:
        """Return the samples of a frame with faces that count.

        If no face can be cut, the report says why. A face that cannot be cut does not affect the others.
        """
        frame = sample["frame"]
        faces = self._choose(sample, found, also)
        crops, failures = [], []
        for face in range(len(faces)):
            try:
                cut = self.cutter.cut(sample["image"], faces, face)
            except ValueError as error:  # a UsageError is one too
                failures.append(f"a face could not be cut: {error}")
                continue
            track = NO_TRACK if faces.tracks is None else int(faces.tracks[face])
            known = {"box": faces.boxes[face].astype(np.float32), "score": np.float32(faces.scores[face])}
            crops.append({**sample, **cut, **known, "track": track, **self._cut_also(also, sample, cut)})
        if failures and not crops:
            self.report.skip(frame, failures[0])
        elif failures:
            self.report.add_damage(f"frame {frame}: {failures[0]}")
        return crops

    def _cut_also(
        self, also: CompanionImages | None, sample: Sample, cut: Sample, *, whole: bool = False
    ) -> dict[str, object]:
        """Cut the companion image like the image in `cut`, which comes from `FaceCutter.keep_whole` if `whole`."""
        if also is None:
            return {}
        image, field = also.image(sample), self.recipe.also_field
        crop = self.cutter.cut_also(image, cut["matrix"], whole=whole)
        return {f"{field}": crop, f"{field}_valid": also.is_valid(image)}

    def _counts(self, found: FrameFaces) -> bool:
        return len(counting_faces(found, self.recipe)) > 0

    def _choose(self, sample: Sample, faces: FrameFaces, also: CompanionImages | None) -> FrameFaces:
        """Return all faces of one frame, or only the face that the recipe chooses."""
        choose = FRAME_RULES.get(self.recipe.choose)
        if choose is None:
            return faces
        mask = also.image(sample) if also is not None and self.recipe.choose == "masked" else None
        return faces.take([choose(faces, sample["image"], mask)])
