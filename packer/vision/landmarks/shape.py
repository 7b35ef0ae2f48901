"""The shape of a face from the points of any layout: its five points, the mean face, the outline, and the regions.

The *mean frame* is the frame of that mean face. Its origin is the centre of the five points, x points right and y down
as in the image, and its unit is the distance between the eyes of a face seen from the front. The unit stays a good
measure in profile, where the actual distance between the eyes goes to zero.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from shardspec.errors import UsageError
from shardspec.points import REGIONS, get_layout, hull_flip_permutation

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


_MIRROR = hull_flip_permutation("5")
_SMALLEST = 1e-9  # pixels in a frontal eye distance; below it points coincide, and their differences mean nothing
# the points whose coefficients are stored: one of each mirrored pair, and the chin
_HALF = np.arange(len(_MIRROR)) <= _MIRROR


# How five points move the outline of 68 (`estimate_outline`).
#
# They were fitted by `benchmarks/hull_template.py` of commit 01cfbf4a. The fit is a ridge regression from MTCNN's
# five points to the jaw and the eyebrows of MediaPipe's face mesh (Apache-2.0), on 121 faces of six photographs and a
# video, with ten copies of each mesh turned by up to 0.6 rad to the side and 0.35 rad up or down. Every source has the
# same weight, and the meshes are mirrored too, so that the result is symmetric. The meshes were found in an image 1.6
# boxes wide around the five points, not in the image of `packer.vision.landmarks.mesh`, which depends on these numbers.
# dlib's predictor, whose training data excludes commercial use, has no part in them.
#
# The table shows intersection over union of the convex hulls, with the face's own source left out of the fit:
#
# ===============================  =====================  =====================
# estimate                         dlib's 68, 136 faces   the mesh, 121 faces
# ===============================  =====================  =====================
# this                             0.853 (p5 0.780)       0.866 (p5 0.765)
# the mean shape, only placed      0.745 (p5 0.484)       0.795 (p5 0.649)
# the mesh's jaw and eyebrows      0.861 (p5 0.704)       1
# ===============================  =====================  =====================
#
# Integers are thousandths of the mean frame's unit. One of each mirrored pair of points is stored: positions 0 to 8 (jaw
# from the right ear to the chin) and 17 to 21 (left eyebrow, from outside) of the hull.
# fmt: off
# The mean outline, then what one unit of each symmetric feature adds: nose down, mouth wider, mouth down.
_SYMMETRIC = (
    (
        (-1134, -557), (-1123, -303), (-1111, -45), (-1008, 516), (-908, 749), (-787, 921), (-495, 1177),
        (-200, 1335), (0, 1358), (921, -832), (815, -914), (652, -955), (451, -936), (228, -904),
    ),
    (
        (38, -1420), (52, -1519), (52, -1535), (38, -1381), (34, -1161), (24, -902), (-1, -485),
        (-8, -163), (0, -118), (-21, -302), (-4, -95), (10, 64), (10, 203), (3, 285),
    ),
    (
        (-334, 862), (-304, 870), (-265, 842), (-213, 702), (-176, 583), (-151, 458), (-103, 356),
        (-50, 331), (0, 332), (351, 259), (355, 122), (322, 40), (252, -17), (144, -29),
    ),
    (
        (438, 67), (422, 135), (397, 188), (336, 275), (293, 286), (240, 287), (134, 279),
        (51, 250), (0, 241), (-395, -91), (-362, -107), (-307, -133), (-226, -153), (-124, -171),
    ),
)
# What one unit of each tilted feature adds: nose to the image's right, mouth to the right, its left corner down.
_TILTED = (
    (
        (-1700, -55), (-1825, -38), (-1846, -20), (-1666, 21), (-1411, 39), (-1117, 52), (-637, 52),
        (-271, 25), (-213, 0), (-388, 52), (-141, 52), (69, 47), (252, 35), (355, 22),
    ),
    (
        (279, -422), (364, -417), (427, -412), (499, -375), (479, -339), (443, -292), (386, -185),
        (343, -74), (338, 0), (-119, 373), (-195, 343), (-243, 280), (-270, 195), (-282, 100),
    ),
    (
        (-124, -416), (-72, -415), (-15, -412), (106, -378), (150, -342), (184, -295), (232, -188),
        (272, -76), (279, 0), (-189, 345), (-211, 308), (-219, 247), (-212, 170), (-206, 85),
    ),
)
# fmt: on
_LIMITS = (
    (440, 170, 210),
    (543, 252, 147),
)  # the 99th percentile of each feature's absolute value; beyond it the fit was not tested

_SYMMETRIC_PARTS = np.array(_SYMMETRIC) / 1000
_MEAN_HALF, _SYMMETRIC_HALF = _SYMMETRIC_PARTS[0], _SYMMETRIC_PARTS[1:]  # (14, 2), (3, 14, 2)
_TILTED_HALF = np.array(_TILTED) / 1000  # (3, 14, 2)
_FEATURE_LIMITS = np.array(_LIMITS) / 1000  # (2, 3): of the symmetric and of the tilted features


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
    each point of the mean outline. A mirrored face gives the mirrored outline.
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
        np.clip(found, -limit, limit) for found, limit in zip(features(known, placed), _FEATURE_LIMITS, strict=True)
    )
    half = _MEAN_HALF + np.tensordot(symmetric, _SYMMETRIC_HALF, 1)
    skew = np.tensordot(tilted, _TILTED_HALF, 1)
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


MARGIN = 0.1
"""Space on each side of a region's points, in frontal eye distances (`packer.vision.landmarks.shape.unit`)."""

# Layout "5" has one or two points per region. There the box of a region encloses smaller boxes around these points,
# drawn in the mean frame with the margin of 0.1 included: left, top, right, bottom relative to the point, in frontal
# eye distances. The values are close to the medians of the mesh's regions on 121 faces (`benchmarks/hull_template.py`
# of commit 01cfbf4a), made symmetric. The mouth's box extends lower, since smiling lifts the corners. The nose's box
# extends from between the eyes to below the tip, for any turn of the head.
_RIGHT_EYE, _LEFT_EYE, _NOSE, _MOUTH_RIGHT, _MOUTH_LEFT, _BETWEEN_EYES = range(6)
_EYE = (-0.33, -0.16, 0.33, 0.16)
_CORNER = (-0.12, -0.22, 0.12, 0.36)
_AROUND: Mapping[str, tuple[tuple[int, tuple[float, float, float, float]], ...]] = {
    "left_eye": ((_LEFT_EYE, _EYE),),
    "right_eye": ((_RIGHT_EYE, _EYE),),
    "nose": ((_NOSE, (-0.36, -0.2, 0.36, 0.25)), (_BETWEEN_EYES, (-0.25, -0.14, 0.25, 0.1))),
    "mouth": ((_MOUTH_RIGHT, _CORNER), (_MOUTH_LEFT, _CORNER)),
}


def regions(points: npt.ArrayLike, layout: str) -> npt.NDArray[np.float32]:
    """Return the boxes of the four regions, (4, 4) float32: left, top, right, bottom in crop pixels.

    They are the person's left eye, right eye, nose and mouth (`shardspec.points.REGIONS`). A box may reach outside the
    crop. If a layout outlines its regions (68, 468, 478), a box encloses the region's points and `MARGIN` more on each
    side. For five points, typical boxes in the upright face are drawn around the region's points, and the result is the
    upright rectangle that encloses them, even if the face is tilted.
    """
    known = check_points(points, layout)
    five = five_points(known, layout)
    placed = place_mean_face(five)
    entry = get_layout(layout)
    out = np.empty((len(REGIONS), 4), np.float32)
    for row, name in zip(out, REGIONS, strict=True):
        if entry.outline:
            own, reach = known[list(entry.regions[name])], MARGIN * unit(placed)
            row[:2], row[2:] = own.min(axis=0) - reach, own.max(axis=0) + reach
        else:
            corners = _corners(five, placed, name)
            row[:2], row[2:] = corners.min(axis=0), corners.max(axis=0)
    return out


def _corners(five: FloatArray, placed: FloatArray, name: str) -> FloatArray:
    """Return the corners, (n, 2), of the boxes around the points of a region, turned and scaled like the face."""
    anchors = np.vstack([five, five[:2].mean(axis=0)])
    return np.concatenate(
        [
            anchors[at] + np.array([[left, top], [right, top], [right, bottom], [left, bottom]]) @ placed[:, :2].T
            for at, (left, top, right, bottom) in _AROUND[name]
        ]
    )
