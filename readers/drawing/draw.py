"""Draw a face's geometry onto its crop, for people to look at."""

import cv2
import numpy as np
import numpy.typing as npt

from shardspec.points import REGIONS, layout_of

RIGHT, LEFT, MIDDLE = (255, 80, 80), (90, 170, 255), (255, 225, 80)
"""RGB of points on the person's right, on the left, and on the midline."""
HULL = (90, 255, 130)
REGION_COLOURS = {"left_eye": LEFT, "right_eye": RIGHT, "nose": MIDDLE, "mouth": (255, 140, 255)}
"""RGB of each region's box."""

_SUBPIXEL = 4  # fractional bits of OpenCV's drawing coordinates


def draw(
    image: npt.NDArray[np.uint8],
    landmarks: npt.ArrayLike | None = None,
    hull: npt.ArrayLike | None = None,
    regions: npt.ArrayLike | None = None,
    *,
    valid: bool = True,
    scale: int = 1,
) -> npt.NDArray[np.uint8]:
    """Draw points, outline and boxes onto a copy of a crop.

    The person's left is drawn in blue, the right in red, so that a wrong flip shows at once.

    Parameters
    ----------
    image : ndarray, (H, W, 3), uint8, RGB
    landmarks : array_like, (K, 2), or None
        In crop pixels, of a layout known by its number of points; any other number is drawn in one colour.
    hull : array_like, (P, 2), or None
        In crop pixels: the polygon as stored, with its corner 0 marked.
    regions : array_like, (4, 4), or None
        Boxes (left, top, right, bottom) in crop pixels, in the order of `shardspec.points.REGIONS`.
    valid : bool
        False draws a red frame around the picture.
    scale : int, >= 1
        How many times larger the drawing is than the crop.

    Returns
    -------
    ndarray, (H * scale, W * scale, 3), uint8, RGB
    """
    height, width = image.shape[:2]
    canvas = np.ascontiguousarray(
        cv2.resize(image, (width * scale, height * scale), interpolation=cv2.INTER_NEAREST), np.uint8
    )
    weight = max(1, round(min(canvas.shape[:2]) / 300))
    if regions is not None:
        for name, (left, top, right, bottom) in zip(REGIONS, np.asarray(regions, np.float64), strict=True):
            corners = np.array([[left, top], [right, bottom]])
            first, last = _fixed(corners, scale)
            cv2.rectangle(canvas, first, last, REGION_COLOURS[name], weight, cv2.LINE_AA, _SUBPIXEL)
    if hull is not None:
        polygon = np.array(_fixed(np.asarray(hull, np.float64), scale), np.int32)
        cv2.polylines(canvas, [polygon], True, HULL, weight, cv2.LINE_AA, _SUBPIXEL)
        cv2.circle(canvas, tuple(polygon[0].tolist()), weight * 2 << _SUBPIXEL, HULL, -1, cv2.LINE_AA, _SUBPIXEL)
    if landmarks is not None:
        points = np.asarray(landmarks, np.float64)
        radius = weight + (2 if len(points) <= 5 else 1 if len(points) <= 68 else 0) << _SUBPIXEL
        for centre, colour in zip(_fixed(points, scale), _colours(len(points)), strict=True):
            cv2.circle(canvas, centre, radius, colour, -1, cv2.LINE_AA, _SUBPIXEL)
    if not valid:
        cv2.rectangle(canvas, (0, 0), (canvas.shape[1] - 1, canvas.shape[0] - 1), (255, 0, 0), 3 * weight)
    return canvas


def _fixed(points: npt.NDArray[np.float64], scale: int) -> list[tuple[int, int]]:
    """Crop pixels to OpenCV's fixed-point coordinates, whose whole numbers are pixel centres."""
    limited = np.clip(points * scale - 0.5, -(2.0**20), 2.0**20)  # OpenCV's integers hold no more than 2**31
    return [(x, y) for x, y in np.rint(limited * (1 << _SUBPIXEL)).astype(int).tolist()]


def _colours(count: int) -> list[tuple[int, int, int]]:
    try:
        layout = layout_of(count)
    except ValueError:
        return [MIDDLE] * count
    colours = [MIDDLE] * count
    for right, left in layout.pairs:
        colours[right], colours[left] = RIGHT, LEFT
    return colours
