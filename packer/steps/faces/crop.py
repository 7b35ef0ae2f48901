"""Cut the crop of a face, and compute its geometry."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.recipe import DEFAULT_FACE_SIZE, Recipe
from packer.steps.faces.frame import FrameFaces, known_points
from packer.vision.geometry.affine import apply, invert
from packer.vision.geometry.align import DEFINITIONS, align_matrix, likeness_matrix, part_matrix, warp
from packer.vision.geometry.crop import bilinear, crop_matrix, cut, pick
from packer.vision.landmarks import make_provider
from packer.vision.landmarks.regions import hull, regions
from shardspec.points import REGIONS, get_layout, hull_size

Image = npt.NDArray[np.uint8]

LARGEST_CROP = 4
"""Largest side of an aligned crop, relative to the frame's side. With a larger one, the points cannot be a face's, and
the warp would need too much memory."""

FARTHEST_POINT = 2
"""Largest distance of a point from the centre of its box, in sides of the box. MTCNN's points reach about one half."""

_WHOLE_MARGIN = 0.3
"""Margin of the crop for dense landmarks, used if the packed crop does not contain the whole face."""

ROUNDING = 1e-3
"""Largest shift, in pixels of the crop, that counts as rounding of stored points; float32 keeps them to 1e-4."""


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
