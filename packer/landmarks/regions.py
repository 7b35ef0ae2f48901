"""The boxes of the eyes, the nose and the mouth, from whatever points there are."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer.landmarks.similarity import check_points, five_points, place_mean_face, unit
from shardspec.points import REGIONS, get_layout

MARGIN = 0.1
"""What is added on each side of the points of a region, in frontal eye distances (`packer.landmarks.similarity.unit`)."""

# Layout "5" has one or two points per region. There a box is laid around each point in the mean frame, with the margin of 0.1
# included: left, top, right, bottom of the point, in frontal eye distances. Medians of the mesh's regions on 136 faces
# (`benchmarks/hull_template.py`), made symmetric and rounded to 0.01.
_EYE = (-0.33, -0.16, 0.33, 0.16)
_NOSE = (-0.42, -0.78, 0.42, 0.27)
_MOUTH = (-0.12, -0.25, 0.12, 0.28)
_AROUND = {"left_eye": _EYE, "right_eye": _EYE, "nose": _NOSE, "mouth": _MOUTH}


def regions(points: ArrayLike, layout: str) -> NDArray[np.float32]:
    """The boxes of the four regions.

    Where a layout outlines its regions (68, 468, 478), a box encloses the region's points and `MARGIN` more on each side. For
    five points, a typical box in the upright face is laid around the region's points, and the result is the upright rectangle
    that encloses it when the face is tilted.

    Parameters
    ----------
    points : array_like, (K, 2)
        Landmarks in crop pixels.
    layout : str

    Returns
    -------
    ndarray, (4, 4), float32
        Left, top, right, bottom in crop pixels of the person's left eye, right eye, nose, mouth (`shardspec.points.REGIONS`).
        Not clipped: a box may reach outside the crop.
    """
    known = check_points(points, layout)
    placed = place_mean_face(five_points(known, layout))
    entry = get_layout(layout)
    out = np.empty((len(REGIONS), 4), np.float32)
    for row, name in zip(out, REGIONS, strict=True):
        own = known[list(entry.regions[name])]
        if entry.outline:
            reach = np.full(2, MARGIN * unit(placed))
            row[:2], row[2:] = own.min(axis=0) - reach, own.max(axis=0) + reach
        else:
            left, top, right, bottom = _AROUND[name]
            offsets = np.array([[left, top], [right, top], [right, bottom], [left, bottom]]) @ placed[:, :2].T
            corners = (own[:, None] + offsets).reshape(-1, 2)
            row[:2], row[2:] = corners.min(axis=0), corners.max(axis=0)
    return out
