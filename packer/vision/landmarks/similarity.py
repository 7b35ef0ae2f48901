"""The five points of any layout, and the similarity that places a mean face on them.

The *mean frame* is the frame of that mean face. Its origin is the centre of the five points, x points right and y down
as in the image, and its unit is the distance between the eyes of a face seen from the front. The unit stays a good
measure in profile, where the actual distance between the eyes goes to zero.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from shardspec.errors import UsageError
from shardspec.points import get_layout

FloatArray = npt.NDArray[np.float64]

MEAN_FIVE: FloatArray = np.array([[-0.5, -0.587], [0.5, -0.587], [0.0, 0.0515], [-0.417, 0.562], [0.417, 0.562]])
"""Right eye, left eye, nose tip, right and left corner of the mouth in the mean frame.

The generalized Procrustes mean of MTCNN's points on 139 faces (`benchmarks/hull_template.py` of commit
01cfbf4a), made symmetric.
"""
MEAN_FIVE.setflags(write=False)

BOX_SIDE = 2.95
"""The longer side of MTCNN's box in units of the mean frame: median of the same 139 faces."""

_MESH_FIVE = (
    get_layout("468").regions["right_eye"],
    get_layout("468").regions["left_eye"],
    (1, 4),
    (61,),
    (291,),
)
_FIVE_OF: Mapping[str, tuple[tuple[int, ...], ...]] = MappingProxyType(
    {
        "5": ((0,), (1,), (2,), (3,), (4,)),
        "68": (get_layout("68").regions["right_eye"], get_layout("68").regions["left_eye"], (30,), (48,), (54,)),
        "468": _MESH_FIVE,
        "478": _MESH_FIVE,
    }
)


def check_points(points: npt.ArrayLike, layout: str) -> FloatArray:
    """Return points as (K, 2) float64; a `UsageError` if they do not fit the layout, or are not finite."""
    out = np.asarray(points, np.float64)
    expected = (get_layout(layout).count, 2)
    if out.shape != expected:
        raise UsageError(place=f"landmarks of layout {layout!r}", expected=f"shape {expected}", found=out.shape)
    if not np.isfinite(out).all():
        raise UsageError(
            place=f"landmarks of layout {layout!r}", expected="finite values", found=out[~np.isfinite(out)][0]
        )
    return out


def five_points(points: npt.ArrayLike, layout: str) -> FloatArray:
    """Return the five points that MTCNN would find, (5, 2), from those of any layout.

    An eye is the mean of its contour; the tip of the nose and the corners of the mouth are points of the layout.
    """
    known = check_points(points, layout)
    return np.stack([known[list(indices)].mean(axis=0) for indices in _FIVE_OF[get_layout(layout).name]])


def place_mean_face(points5: npt.ArrayLike) -> FloatArray:
    """Return the similarity, (2, 3), that brings `MEAN_FIVE` closest to five points: mean frame to their frame.

    It minimises squared distances over rotation, one scale and translation, without reflection. Its scale, `unit`, is
    the distance between the eyes that a face of this size would have from the front. It has no inverse if all points
    are the same.
    """
    z = MEAN_FIVE @ (1, 1j)
    w = check_points(points5, "5") @ (1, 1j)
    z -= z.mean()
    factor = (np.conj(z) * (w - w.mean())).sum() / (np.abs(z) ** 2).sum()
    return np.array([[factor.real, -factor.imag, w.mean().real], [factor.imag, factor.real, w.mean().imag]])


def unit(matrix: FloatArray) -> float:
    """Return the length of one unit of the mean frame: the scale of a matrix from `place_mean_face`."""
    return float(np.hypot(matrix[0, 0], matrix[1, 0]))


def upright_matrix(points5: npt.ArrayLike, centre: tuple[float, float], side: float, size: int) -> FloatArray:
    """Return the matrix, (2, 3), that maps a crop onto an upright square around the face, for predictors that need one.

    Parameters
    ----------
    points5 : array_like, (5, 2)
        In crop pixels.
    centre : tuple of float
        Centre of the square in the mean frame.
    side : float
        Side of the square, in units of the mean frame.
    size : int, pixels
        Side of the square when it is cut, in pixels.

    Raises
    ------
    UsageError
        If the five points are within a hundredth of a pixel, so that they do not show which way is up.
    """
    placed = place_mean_face(points5)
    scale = unit(placed)
    if scale < 0.01:
        raise UsageError(expected="five points that differ", found=np.asarray(points5).tolist())
    turn = (
        placed[:, :2].T / scale**2 * (size / side)
    )  # the inverse of a similarity is its transpose over the squared scale
    middle = placed[:, :2] @ centre + placed[:, 2]
    return np.column_stack([turn, size / 2 - turn @ middle])
