"""Point layouts: names of the points of a face, the pairs that a mirror swaps, and the points of outline and regions.

Left and right are the *person's*: the right eye of a person who looks at the camera is in the left half of the image.
Indices start at 0.

======  ======  ==================================================================================================
layout  points  origin
======  ======  ==================================================================================================
"5"     5       MTCNN, in the order of facenet-pytorch: right eye, left eye, nose tip, right and left
                corner of the mouth
"68"    68      iBUG 300-W (Sagonas et al. 2013), in the order of dlib's predictor
"468"   468     MediaPipe Face Mesh
"478"   478     the same, then five points per iris: centre, and edge at the image's right, top, left, bottom
======  ======  ==================================================================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from shardspec.errors import UsageError
from shardspec.wording import shorten

REGIONS = ("left_eye", "right_eye", "nose", "mouth")
"""Regions of a face, in the order of the rows of a ``regions`` field."""


@dataclass(frozen=True)
class PointLayout:
    """A set of points on a face.

    Attributes
    ----------
    name : str
        ``"5"``, ``"68"``, ``"468"`` or ``"478"``.
    names : tuple of str
        Name of each point. Numbered points of iBUG and MediaPipe are called by group (or ``vertex``) and number.
    pairs : tuple of (int, int)
        Points that a mirror swaps: (the person's right, the person's left). All others are on the midline.
    outline : tuple of int
        Points of the ``hull`` field, in order around the face. Empty for ``"5"``, whose hull is an estimate of the
        outline of `hull_layout`.
    hull_layout : str
        Layout whose outline the ``hull`` field follows, point by point.
    regions : mapping of str to tuple of int
        Points of each of `REGIONS`.
    """

    name: str
    names: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    outline: tuple[int, ...]
    hull_layout: str
    regions: Mapping[str, tuple[int, ...]]

    @property
    def count(self) -> int:
        """Number of points, K."""
        return len(self.names)


def _span(first: int, last: int) -> tuple[int, ...]:
    """Return the integers from `first` to `last`, both included, in ascending or descending order."""
    step = 1 if last >= first else -1
    return tuple(range(first, last + step, step))


def _numbered(*groups: tuple[str, int]) -> tuple[str, ...]:
    return tuple(f"{group}_{k}" for group, count in groups for k in range(count))


def _mirrored(*pairs: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[tuple[int, int], ...]:
    return tuple((a, b) for right, left in pairs for a, b in zip(right, left, strict=True))


def _regions(
    left_eye: tuple[int, ...], right_eye: tuple[int, ...], nose: tuple[int, ...], mouth: tuple[int, ...]
) -> Mapping[str, tuple[int, ...]]:
    return MappingProxyType(dict(zip(REGIONS, (left_eye, right_eye, nose, mouth), strict=True)))


_FIVE = PointLayout(
    name="5",
    names=("right_eye", "left_eye", "nose_tip", "mouth_right", "mouth_left"),
    pairs=((0, 1), (3, 4)),
    outline=(),
    hull_layout="68",
    regions=_regions((1,), (0,), (2,), (3, 4)),
)

_IBUG = PointLayout(
    name="68",
    names=_numbered(
        ("jaw", 17),
        ("right_eyebrow", 5),
        ("left_eyebrow", 5),
        ("nose_bridge", 4),
        ("nostrils", 5),
        ("right_eye", 6),
        ("left_eye", 6),
        ("outer_lip", 12),
        ("inner_lip", 8),
    ),
    pairs=_mirrored(
        (_span(0, 7), _span(16, 9)),  # jaw
        (_span(17, 21), _span(26, 22)),  # eyebrows
        ((31, 32), (35, 34)),  # nostrils
        (_span(36, 41), (45, 44, 43, 42, 47, 46)),  # eyes
        ((48, 49, 50, 58, 59), (54, 53, 52, 56, 55)),  # outer lip
        ((60, 61, 67), (64, 63, 65)),  # inner lip
    ),
    outline=_span(0, 16) + _span(26, 17),
    hull_layout="68",
    regions=_regions(_span(42, 47), _span(36, 41), _span(27, 35), _span(48, 67)),
)

# The mesh numbers its right half and midline first, then the left half in the order of the right one. The published
# tesselation confirms this: its mirror image has all but three of its 1,322 edges, and these three are the other
# diagonals of the same quadrilaterals.
_MESH_MIDLINE = (0, 1, 2, 4, 5, 6, *range(8, 20), 94, 151, 152, 164, 168, 175, 195, 197, 199, 200)
_MESH_LEFT = 248
_MESH_PAIRS = tuple(zip((i for i in range(_MESH_LEFT) if i not in _MESH_MIDLINE), range(_MESH_LEFT, 468), strict=True))
# MediaPipe's contours (`face_mesh_connections`): face oval (from the top of the forehead down the person's left side),
# eyes, nose, lips.
# fmt: off
_MESH_OVAL = (
    10, 338, 297, 332, 284, 251, 389, 356, 454, 323, 361, 288, 397, 365, 379, 378, 400, 377,
    152, 148, 176, 149, 150, 136, 172, 58, 132, 93, 234, 127, 162, 21, 54, 103, 67, 109,
)
_MESH_REGIONS = _regions(
    left_eye=(249, 263, 362, 373, 374, 380, 381, 382, 384, 385, 386, 387, 388, 390, 398, 466),
    right_eye=(7, 33, 133, 144, 145, 153, 154, 155, 157, 158, 159, 160, 161, 163, 173, 246),
    nose=(1, 2, 4, 5, 6, 19, 45, 48, 64, 94, 97, 98, 115, 168, 195, 197, 220, 275, 278, 294, 326, 327, 344, 440),
    mouth=(
        0, 13, 14, 17, 37, 39, 40, 61, 78, 80, 81, 82, 84, 87, 88, 91, 95, 146, 178, 181, 185, 191,
        267, 269, 270, 291, 308, 310, 311, 312, 314, 317, 318, 321, 324, 375, 402, 405, 409, 415,
    ),
)
# fmt: on
_MESH = PointLayout("468", _numbered(("vertex", 468)), _MESH_PAIRS, _MESH_OVAL, "468", _MESH_REGIONS)
_IRIS = ("centre", "image_right", "top", "image_left", "bottom")
_MESH_IRIS = PointLayout(
    name="478",
    names=_MESH.names + tuple(f"{side}_iris_{edge}" for side in ("right", "left") for edge in _IRIS),
    # Edge points of an iris are named by the image's directions, so a mirror swaps the right edge of one iris with the
    # left edge of the other.
    pairs=(*_MESH_PAIRS, (468, 473), (469, 476), (470, 475), (471, 474), (472, 477)),
    outline=_MESH_OVAL,
    hull_layout="478",
    regions=_MESH_REGIONS,
)

LAYOUTS: Mapping[str, PointLayout] = MappingProxyType({x.name: x for x in (_FIVE, _IBUG, _MESH, _MESH_IRIS)})
"""All layouts by name."""

REGION_FLIP: npt.NDArray[np.int64] = np.array([1, 0, 2, 3])
"""Rows of a ``regions`` field after a mirror: ``flipped = mirrored_boxes[REGION_FLIP]``."""
REGION_FLIP.setflags(write=False)


def get_layout(name: str) -> PointLayout:
    """Return the layout with a name; `UsageError` if there is none."""
    try:
        return LAYOUTS[name]
    except KeyError:
        raise UsageError(f"unknown point layout {shorten(name)}: expected one of {', '.join(LAYOUTS)}") from None


def layout_of(count: int) -> PointLayout:
    """Return the layout with a number of points; `UsageError` if there is none."""
    try:
        return LAYOUTS[str(count)]
    except KeyError:
        raise UsageError(f"no point layout has {count} points: expected one of {', '.join(LAYOUTS)}") from None


@cache
def flip_permutation(layout: str) -> npt.NDArray[np.int64]:
    """Return the order of points after a mirror.

    Mirror every point (``x -> width - x``), then take the points in this order, so that the k-th again has the k-th name
    of the layout. The permutation is its own inverse.

    Parameters
    ----------
    layout : str
        A name in `LAYOUTS`.

    Returns
    -------
    ndarray, (K,), int64
        Read-only. ``flipped = mirrored[flip_permutation(layout)]``.
    """
    entry = get_layout(layout)
    order = np.arange(entry.count)
    right, left = np.array(entry.pairs).T
    order[right], order[left] = left, right
    order.setflags(write=False)
    return order


def hull_size(layout: str) -> int:
    """Return the number of points, P, of the ``hull`` field for landmarks of a layout."""
    return len(get_layout(get_layout(layout).hull_layout).outline)


@cache
def hull_flip_permutation(layout: str) -> npt.NDArray[np.int64]:
    """Return the order of hull points after a mirror, like `flip_permutation` for landmarks.

    Parameters
    ----------
    layout : str
        Layout of the landmarks.

    Returns
    -------
    ndarray, (P,), int64
        Read-only.
    """
    entry = get_layout(get_layout(layout).hull_layout)
    place = {point: at for at, point in enumerate(entry.outline)}
    mirrored = flip_permutation(entry.name)[list(entry.outline)]
    order = np.array([place[int(point)] for point in mirrored])
    order.setflags(write=False)
    return order


@cache
def hull_flip_of(count: int) -> npt.NDArray[np.int64]:
    """Return `hull_flip_permutation` by the number of hull points, for samples without landmarks."""
    for name in LAYOUTS:
        if hull_size(name) == count:
            return hull_flip_permutation(name)
    sizes = sorted({hull_size(name) for name in LAYOUTS})
    raise UsageError(f"no point layout has a hull of {count} points: expected {' or '.join(map(str, sizes))}")
