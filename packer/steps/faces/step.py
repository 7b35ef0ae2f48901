"""``faces``: cut face crops out of frames, with landmarks, outline, regions, and the matrix from frame to crop."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.recipe import DEFAULT_FACE_SIZE, Recipe
from packer.steps.chain import ITEM, REPORT, SAMPLED, Sample, Step, StepResources
from packer.steps.faces.frame import (
    FRAME_RULES,
    NO_FACES,
    NO_TRACK,
    FrameFaces,
    FramePlace,
    Image,
    MissingFaces,
    counting_faces,
    is_steady,
    known_points,
)
from packer.steps.faces.search import BATCH_FRAMES, FaceSearch, ItemSearch, as_frame, takes_decoded
from packer.steps.faces.smoothing import SteadyTracks, open_waiting
from packer.steps.faces.tracks import VideoTracks
from packer.steps.report import ItemReport
from packer.steps.second_image import CompanionImages, open_companion
from packer.vision.geometry.affine import apply, invert
from packer.vision.geometry.align import DEFINITIONS, align_matrix, likeness_matrix, part_matrix, warp
from packer.vision.geometry.crop import bilinear, crop_matrix, cut, pick
from packer.vision.landmarks import make_provider
from packer.vision.landmarks.shape import hull, regions
from shardspec.points import REGIONS, get_layout, hull_size

LARGEST_CROP = 4
"""Largest side of an aligned crop, relative to the frame's side. With a larger one, the points cannot be a face's, and
the warp would need too much memory."""

FARTHEST_POINT = 2
"""Largest distance of a point from the centre of its box, in sides of the box. MTCNN's points reach about one half."""

_WHOLE_MARGIN = 0.3
"""Margin of the crop for dense landmarks, used if the packed crop does not contain the whole face."""

ROUNDING = 1e-3
"""Largest shift, in pixels of the crop, that counts as rounding of stored points; float32 keeps them to 1e-4."""


def make(recipe: Recipe, resources: StepResources) -> Step:
    """Make the step of a recipe. Load the landmark model, and the detector if none is passed, once per worker."""
    search, cutter = FaceSearch(recipe, resources.detector), FaceCutter(recipe)

    def faces(samples: Iterator[Sample]) -> Iterator[Sample]:
        return _crops(recipe, search, cutter, map(as_frame, samples))

    return faces


class FaceCutter:
    """Cuts faces out of frames. Made once per worker: loads the landmarks' model."""

    def __init__(self, recipe: Recipe) -> None:
        self._size = recipe.size or DEFAULT_FACE_SIZE
        self._margin = recipe.margin
        self._align = recipe.align
        self._likeness = recipe.align_as
        self._fills = recipe.fill is not None
        self._nearest = recipe.also_resample == "nearest"
        self._landmarks = make_provider(recipe.landmarks, recipe.landmark_model)
        self._layout = self._landmarks.layout
        self._part = recipe.crop
        self._aligns_by = "5" if self._part == "face" else DEFINITIONS[str(self._likeness)].layout

    def cut(self, frame: Image, faces: FrameFaces, face: int) -> dict[str, Any]:
        """Cut the crop of a face. Return ``image``, ``matrix``, and the landmark fields.

        Without points there are no landmarks: they are zero, and ``landmarks_valid`` is false. An aligned crop that
        differs from an earlier one only by the rounding of the points reuses its matrix.

        Parameters
        ----------
        frame : ndarray, (H, W, 3), uint8
        faces : FrameFaces
        face : int
            Number of the face to cut.

        Raises
        ------
        ValueError
            If the box or the points cannot belong to a face. `UsageError` is a `ValueError` too.
        """
        height, width = frame.shape[:2]
        box, points5 = faces.boxes[face], known_points(faces.points[face])
        if box[0] >= width or box[1] >= height or box[2] <= 0 or box[3] <= 0:
            raise ValueError(f"expected a box that touches the frame ({width} x {height}), found {box.tolist()}")
        if self._align or self._likeness is not None:
            before = None if faces.matrices is None else faces.matrices[face]
            aligning = faces.aligning if faces.cut_points is None else faces.cut_points
            matrix = self._align_matrix(frame, known_points(aligning[face]), before)
        else:
            matrix = crop_matrix(box if faces.cut_boxes is None else faces.cut_boxes[face], self._margin, self._size)
        if self._likeness is not None:
            image = bilinear(frame, matrix, self._size)
        else:
            image = warp(frame, matrix, self._size) if self._align else cut(frame, matrix, self._size)
        interpolated = faces.interpolated is not None and bool(faces.interpolated[face])
        out = {"image": image, "matrix": matrix.astype(np.float32), **self._interpolated(interpolated)}
        if points5 is None:
            return {**out, **self._no_landmarks()}
        points, valid = self._find_landmarks(frame, image, matrix, faces, face)
        return {
            **out,
            "landmarks": points,
            "landmarks_valid": bool(valid) and not interpolated,
            "hull": hull(points, self._layout),
            "regions": regions(points, self._layout),
        }

    def _find_landmarks(
        self, frame: Image, image: Image, matrix: npt.NDArray[np.float64], faces: FrameFaces, face: int
    ) -> tuple[npt.NDArray[np.float32], bool]:
        """Return the landmarks of a face in its crop, and whether they are valid."""
        if faces.dense is not None and faces.dense_valid is not None:
            return apply(matrix, faces.dense[face]).astype(np.float32), bool(faces.dense_valid[face])
        if self._part != "face" and self._layout != "5":
            points, valid = self._find_in_face(frame, faces, face)
            return apply(matrix, points).astype(np.float32), valid
        return self._landmarks(image, apply(matrix, faces.points[face]).astype(np.float32))

    def _find_in_face(self, frame: Image, faces: FrameFaces, face: int) -> tuple[npt.NDArray[np.float64], bool]:
        """Find the landmarks in the usual crop of the whole face, and return them in frame pixels."""
        matrix = crop_matrix(faces.boxes[face], _WHOLE_MARGIN, DEFAULT_FACE_SIZE)
        image = cut(frame, matrix, DEFAULT_FACE_SIZE)
        points, valid = self._landmarks(image, apply(matrix, faces.points[face]).astype(np.float32))
        return apply(invert(matrix), points), valid

    def prepare(self, frame: Image, faces: FrameFaces) -> FrameFaces:
        """Drop points far from their boxes, and add dense landmarks if faces are aligned by them."""
        faces = replace(faces, points=np.where(_are_astray(faces), np.nan, faces.points))
        if self._aligns_by == "5":
            return faces
        dense = np.full((len(faces), get_layout(self._aligns_by).count, 2), np.nan)
        valid = np.zeros(len(faces), np.bool_)
        for face in range(len(faces)):
            if known_points(faces.points[face]) is not None:
                try:
                    dense[face], valid[face] = self._find_in_face(frame, faces, face)
                except ValueError:  # for example all points are the same; the face cannot be cut then
                    continue
        return replace(faces, dense=dense, dense_valid=valid)

    def keep_whole(self, frame: Image) -> dict[str, Any]:
        """Return all fields of a frame without a face: the frame centred on black, geometry zero."""
        height, width = frame.shape[:2]
        box = np.array([0, 0, width, height], np.float32)
        matrix = crop_matrix(box, 0, self._size)
        image = cut(frame, matrix, self._size)
        known = {"box": box, "score": np.float32(0), "track": -1, "matrix": matrix.astype(np.float32)}
        return {"image": image, **known, **self._interpolated(False), **self._no_landmarks()}

    def _interpolated(self, is_so: bool) -> dict[str, bool]:
        return {"interpolated": is_so} if self._fills else {}

    def cut_also(self, frame: Image | None, matrix: npt.NDArray[np.float32], *, whole: bool = False) -> Image:
        """Cut a companion image by the matrix of the face's crop; if there is none, return a black crop.

        If `whole` is true, the matrix comes from `keep_whole`.
        """
        if frame is None:
            return np.zeros((self._size, self._size, 3), np.uint8)
        if self._nearest:
            return pick(frame, matrix, self._size)
        if self._likeness is not None and not whole:
            return bilinear(frame, matrix.astype(np.float64), self._size)
        return cut(frame, matrix, self._size) if matrix[0, 1] == 0 == matrix[1, 0] else warp(frame, matrix, self._size)

    def _align_matrix(
        self, frame: Image, points: npt.NDArray[np.floating] | None, before: npt.NDArray[np.float32] | None
    ) -> npt.NDArray[np.float64]:
        if points is None:
            raise ValueError("expected five points near the box, which an aligned crop needs, found none")
        if self._likeness is None:
            matrix = align_matrix(points, self._size, self._margin)
        elif self._part == "face":
            matrix = likeness_matrix(points, self._likeness, self._size)
        else:
            matrix = part_matrix(points, self._likeness, self._part, self._size)
        if before is not None and np.abs(apply(before, points) - apply(matrix, points)).max() <= ROUNDING:
            matrix = before.astype(np.float64)
        side = self._size / float(np.hypot(matrix[0, 0], matrix[1, 0]))
        if side > LARGEST_CROP * max(frame.shape[:2]):
            raise ValueError(
                f"expected a face that fits into the frame, found a crop {side:.0f} px wide for its points"
            )
        return matrix

    def _no_landmarks(self) -> dict[str, Any]:
        return {
            "landmarks": np.zeros((len(get_layout(self._layout).names), 2), np.float32),
            "landmarks_valid": False,
            "hull": np.zeros((hull_size(self._layout), 2), np.float32),
            "regions": np.zeros((len(REGIONS), 4), np.float32),
        }


def _are_astray(faces: FrameFaces) -> npt.NDArray[np.bool_]:
    """Return for each face whether a point is unknown or too far from the box to belong to it: (N, 1, 1)."""
    away = np.abs(faces.points - faces.boxes.reshape(-1, 2, 2).mean(axis=1, keepdims=True)).max(axis=(1, 2))
    side = (faces.boxes[:, 2:] - faces.boxes[:, :2]).max(axis=1)
    return np.asarray(~(away <= FARTHEST_POINT * side)[:, None, None], np.bool_)


def _crops(recipe: Recipe, search: FaceSearch, cutter: FaceCutter, frames: Iterator[Sample]) -> Iterator[Sample]:
    """Yield the face samples of one item, frame by frame; within a frame in the detector's order, largest first."""
    first = next(frames, None)
    if first is None:
        return
    item, report, sampled = first[ITEM], first[REPORT], first.get(SAMPLED)
    report.faces = 0
    with search.of_item(item, sampled) as faces, ExitStack() as stack:
        also = None if recipe.also is None else stack.enter_context(open_companion(recipe, first))
        known = sampled if takes_decoded(recipe) else None
        missing = MissingFaces(report, recipe)
        of_item = _ItemFaces(recipe, cutter, report, faces, also, missing)
        places = of_item.places(chain([first], frames))
        if item.medium.is_sequence:
            places = VideoTracks(known, report, recipe.fill).follow(places)
            if is_steady(recipe):
                waiting = stack.enter_context(open_waiting(recipe, first))
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
