"""Draw geometry and masks onto a picture, for people to look at."""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from readers.drawing.geometry import BOX, HULL, LEFT, MASKS, MIDDLE, REGION_COLOURS, RIGHT
from shardspec.points import REGIONS, layout_of

_TINT = 0.45
_LABELS_MAX = 32
"""Values of a label map; a mask of more values is a soft one."""

_SUBPIXEL = 4  # fractional bits of OpenCV's drawing coordinates


def draw(
    image: npt.NDArray[np.uint8],
    landmarks: npt.ArrayLike | None = None,
    hull: npt.ArrayLike | None = None,
    regions: npt.ArrayLike | None = None,
    boxes: npt.ArrayLike | None = None,
    masks: Sequence[npt.NDArray[Any]] = (),
    *,
    valid: bool = True,
    scale: int = 1,
) -> npt.NDArray[np.uint8]:
    """Draw masks, boxes, outline and points onto a copy of a picture.

    The person's left is drawn in blue, the right in red, so that a wrong flip shows at once.

    Parameters
    ----------
    image : ndarray, (H, W, 3), uint8, RGB
    landmarks : array_like, (K, 2), or None
        In pixels of the picture, of a layout known by its number of points; any other number is drawn in one colour.
    hull : array_like, (P, 2), or None
        In pixels of the picture: the polygon as stored, with its corner 0 marked.
    regions : array_like, (4, 4), or None
        Boxes (left, top, right, bottom) in pixels of the picture, in the order of `shardspec.points.REGIONS`.
    boxes : array_like, (N, 4), or None
        Further boxes, in white.
    masks : sequence of ndarray, (H, W)
        Label maps, which tint the picture in one colour for each value above 0; or soft masks (floating, or of more
        than 32 values), which tint it by their share of 1 or 255.
    valid : bool
        False draws a red frame around the picture.
    scale : int, >= 1
        How many times larger the drawing is than the picture.

    Returns
    -------
    ndarray, (H * scale, W * scale, 3), uint8, RGB
    """
    height, width = image.shape[:2]
    for mask in masks:
        image = _tinted(image, mask)
    canvas = np.ascontiguousarray(
        cv2.resize(image, (width * scale, height * scale), interpolation=cv2.INTER_NEAREST), np.uint8
    )
    weight = max(1, round(min(canvas.shape[:2]) / 300))
    outlined = [] if boxes is None else [(box, BOX) for box in np.asarray(boxes, np.float64).reshape(-1, 4)]
    if regions is not None:
        colours = [REGION_COLOURS[name] for name in REGIONS]
        outlined += zip(np.asarray(regions, np.float64), colours, strict=True)
    for box, colour in outlined:
        first, last = _fixed(box.reshape(2, 2), scale)
        cv2.rectangle(canvas, first, last, colour, weight, cv2.LINE_AA, _SUBPIXEL)
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


def _tinted(image: npt.NDArray[np.uint8], mask: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    values = np.unique(mask)
    if mask.dtype.kind == "f" or len(values) > _LABELS_MAX:
        share = np.clip(mask / (1.0 if values[-1] <= 1 else 255.0), 0, 1)
        colours = np.array(MASKS[:1], np.float64)
    else:
        share = (mask != 0).astype(np.float64)
        colours = np.array(MASKS, np.float64)[(mask.astype(np.int64) - 1) % len(MASKS)]
    share = share[..., None] * _TINT
    return np.asarray(np.rint(image * (1 - share) + colours * share), np.uint8)


def _fixed(points: npt.NDArray[np.float64], scale: int) -> list[tuple[int, int]]:
    """Pixels of the picture as OpenCV's fixed-point coordinates, whose whole numbers are pixel centres."""
    far = 2.0**20  # outside of every picture; OpenCV's integers hold no more than 2**31
    known = np.clip(np.nan_to_num(points, nan=-far), -far, far)
    limited = np.clip(known * scale - 0.5, -far, far)
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
