"""The outline of the face: a polygon of a fixed number of points."""

import numpy as np
import numpy.typing as npt

from packer.vision.landmarks.outline5 import FEATURE_LIMITS, MEAN_HALF, SYMMETRIC_HALF, TILTED_HALF
from packer.vision.landmarks.similarity import MEAN_FIVE, FloatArray, check_points, place_mean_face, unit
from shardspec.points import get_layout, hull_flip_permutation

_MIRROR = hull_flip_permutation("5")
_SMALLEST = 1e-9  # pixels in a frontal eye distance; below it points coincide, and their differences mean nothing
# the points whose coefficients are stored: one of each mirrored pair, and the chin
_HALF = np.arange(len(_MIRROR)) <= _MIRROR


def hull(points: npt.ArrayLike, layout: str) -> npt.NDArray[np.float32]:
    """Return the polygon that the ``hull`` field stores, (P, 2) float32 in crop pixels, in order around the face.

    68 points: jaw and eyebrows. 468 and 478 points: MediaPipe's face oval, including the forehead. 5 points: an
    estimate of the outline of 68 points (`estimate_outline`). P is `shardspec.points.hull_size`. The polygon is not
    clipped to the crop and not always convex; code that draws it takes its convex hull.
    """
    known = check_points(points, layout)
    outline = get_layout(layout).outline
    found = known[list(outline)] if outline else estimate_outline(known)
    return found.astype(np.float32)


def estimate_outline(points5: npt.ArrayLike) -> FloatArray:
    """Estimate the outline of 68 points, (27, 2), from five points in crop pixels.

    A mean face is placed on the points by a similarity. The remaining differences between the points and the mean face,
    six numbers, show how the head is turned, how it nods, and how long the face is. A linear function of the six moves
    each point of the mean outline (`packer.vision.landmarks.outline5` says where the numbers come from and how good
    they are). A mirrored face gives the mirrored outline.
    """
    known = check_points(points5, "5")
    placed = place_mean_face(known)
    return _outline(known, placed) @ placed[:, :2].T + placed[:, 2]


def upright_outline(points5: npt.ArrayLike) -> FloatArray:
    """Return the outline of `estimate_outline` in the mean frame: upright, and of one size for faces of any size."""
    known = check_points(points5, "5")
    return _outline(known, place_mean_face(known))


def _outline(known: FloatArray, placed: FloatArray) -> FloatArray:
    """Return the outline in the mean frame, given points and the mean face placed on them."""
    symmetric, tilted = (
        np.clip(found, -limit, limit) for found, limit in zip(features(known, placed), FEATURE_LIMITS, strict=True)
    )
    half = MEAN_HALF + np.tensordot(symmetric, SYMMETRIC_HALF, 1)
    skew = np.tensordot(tilted, TILTED_HALF, 1)
    outline = np.empty((len(_MIRROR), 2))
    # the other half is this one mirrored, with what is tilted the other way; the chin is its own mirror image
    outline[_MIRROR[_HALF]] = (half - skew) * (-1, 1)
    outline[_HALF] = half + skew
    return outline


def features(points5: FloatArray, placed: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the differences between five points and the mean face placed on them, in units of the mean frame.

    Returns
    -------
    symmetric : ndarray, (3,)
        Equal in a mirror image: nose up or down, mouth wider or narrower, mouth up or down.
    tilted : ndarray, (3,)
        Negated in a mirror image: nose aside, mouth aside, mouth turned.
    """
    scale = unit(placed)
    if scale < _SMALLEST:
        return np.zeros(3), np.zeros(3)
    rest = (points5 - placed[:, 2]) @ placed[:, :2] / scale**2 - (MEAN_FIVE - MEAN_FIVE.mean(axis=0))
    _, _, nose, right, left = rest
    symmetric = np.array([nose[1], (left[0] - right[0]) / 2, (left[1] + right[1]) / 2])
    tilted = np.array([nose[0], (left[0] + right[0]) / 2, (left[1] - right[1]) / 2])
    return symmetric, tilted
