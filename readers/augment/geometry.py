"""Geometry of a face sample under a 2x3 matrix: landmarks, hull, boxes, and the matrix of the crop.

Pixel (0, 0) covers [0, 1) x [0, 1) in all coordinates, so a mirror image is ``x -> width - x``.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from readers.augment.base import Sample, boxes_of, present
from shardspec.points import REGION_FLIP, flip_permutation, hull_flip_of, layout_of

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]


def moved_points(points: npt.NDArray[Any], matrix: FloatArray) -> npt.NDArray[Any]:
    """Map points (..., 2) by a matrix and keep their dtype."""
    moved: npt.NDArray[Any] = points @ matrix[:, :2].T
    moved += matrix[:, 2]
    return moved.astype(points.dtype)


def moved_boxes(boxes: npt.NDArray[Any], matrix: FloatArray) -> npt.NDArray[Any]:
    """Map boxes (..., 4), left, top, right, bottom, to the upright boxes around them; the dtype is kept."""
    if matrix[0, 1] == 0 and matrix[1, 0] == 0:  # upright boxes stay upright: two corners suffice
        corners = boxes.reshape(*boxes.shape[:-1], 2, 2)
    else:
        corners = boxes[..., [0, 1, 2, 1, 2, 3, 0, 3]].reshape(*boxes.shape[:-1], 4, 2)
    mapped = moved_points(corners.astype(np.float64), matrix)
    return enclosing(mapped, boxes.dtype)


def enclosing(corners: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the upright boxes (..., 4) around corners (..., C, 2)."""
    out = np.empty((*corners.shape[:-2], 4), corners.dtype)
    corners.min(axis=-2, out=out[..., :2])
    corners.max(axis=-2, out=out[..., 2:])
    return out.astype(dtype)


def move_geometry(sample: Sample, matrix: FloatArray) -> Sample:
    """Return a new dict in which the geometry follows a change of the image. Image and masks are left to the caller.

    Parameters
    ----------
    matrix : ndarray, (2, 3), float64
        Maps old crop pixels to new ones. If it mirrors, left and right are swapped: points, hull and regions are
        renumbered.
    """
    out = dict(sample)
    for name in present(sample, ("landmarks", "hull")):
        out[name] = moved_points(sample[name], matrix)
    for name in boxes_of(sample):
        out[name] = moved_boxes(sample[name], matrix)
    for name in present(sample, ("matrix",)):
        old = sample[name]
        new = matrix[:, :2] @ old
        new[..., 2] += matrix[:, 2]
        out[name] = new.astype(old.dtype)
    mirrors = matrix[0, 0] * matrix[1, 1] < matrix[0, 1] * matrix[1, 0]
    return relabel(out) if mirrors else out


def relabel(sample: Sample) -> Sample:
    """Return a new dict in which the person's left and right are swapped, as in a mirror image."""
    return sample | {name: sample[name][..., order, :] for name, order in mirror_orders(sample).items()}


def mirror_orders(sample: Sample, kind: type = np.ndarray) -> dict[str, IntArray]:
    """Return the order of the points of each field in a mirror image; `kind` is that of the values."""
    orders: dict[str, IntArray] = {}
    for name in present(sample, ("landmarks", "hull", "regions"), kind):
        count = sample[name].shape[-2]
        if name == "landmarks":
            orders[name] = flip_permutation(layout_of(count).name)
        else:
            orders[name] = hull_flip_of(count) if name == "hull" else REGION_FLIP
    return orders
