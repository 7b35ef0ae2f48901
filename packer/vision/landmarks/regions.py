"""The boxes of the eyes, the nose and the mouth, computed from the points of any layout."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from packer.vision.landmarks.similarity import FloatArray, check_points, five_points, place_mean_face, unit
from shardspec.points import REGIONS, get_layout

MARGIN = 0.1
"""Space on each side of a region's points, in frontal eye distances (`packer.vision.landmarks.similarity.unit`)."""

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
