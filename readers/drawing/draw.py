"""Draw geometry and masks onto a picture, for people to look at."""

from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from readers.drawing.geometry import COLOURS, MASKS, Points, Shape, is_valid, shapes_of

_TINT = 0.45
_LABELS_MAX = 32
"""Values of a label map; a mask of more values is a soft one."""

_SUBPIXEL = 4  # fractional bits of OpenCV's drawing coordinates


def draw(
    image: npt.NDArray[np.uint8],
    sample: Mapping[str, Any],
    masks: Sequence[npt.NDArray[Any]] = (),
    *,
    plain: bool = False,
    scale: int = 1,
) -> npt.NDArray[np.uint8]:
    """Draw a sample's masks, boxes, outline and points onto a copy of its picture.

    The person's left is drawn in blue, the right in red, so that a wrong flip shows at once.

    Parameters
    ----------
    image : ndarray, (H, W, 3), uint8, RGB
    sample : mapping
        See `readers.drawing.geometry.shapes_of`. If ``landmarks_valid`` is false, the picture has a red frame.
    masks : sequence of ndarray, (H, W)
        Label maps, which tint the picture in one colour for each value above 0; or soft masks (floating, or of more
        than 32 values), which tint it by their share of 1 or 255.
    plain : bool
        Whether to leave out geometry and masks.
    scale : int, >= 1
        How many times larger the drawing is than the picture.

    Returns
    -------
    ndarray, (H * scale, W * scale, 3), uint8, RGB
    """
    height, width = image.shape[:2]
    for mask in () if plain else masks:
        image = _tinted(image, mask)
    canvas = np.ascontiguousarray(
        cv2.resize(image, (width * scale, height * scale), interpolation=cv2.INTER_NEAREST), np.uint8
    )
    weight = max(1, round(min(canvas.shape[:2]) / 300))
    shapes = [] if plain else shapes_of(sample)
    points = sum(len(shape.points) for shape in shapes if shape.layer == "points")
    radius = weight + (2 if points <= 5 else 1 if points <= 68 else 0)
    for shape in shapes:
        _draw_shape(canvas, shape, scale, weight, radius)
    if not is_valid(sample):
        cv2.rectangle(canvas, (0, 0), (canvas.shape[1] - 1, canvas.shape[0] - 1), (255, 0, 0), 3 * weight)
    return canvas


def _draw_shape(canvas: npt.NDArray[np.uint8], shape: Shape, scale: int, weight: int, radius: int) -> None:
    colour, found = COLOURS[shape.kind], _fixed(shape.points, scale)
    if shape.layer != "points":
        cv2.polylines(canvas, [found], True, colour, weight, cv2.LINE_AA, _SUBPIXEL)
    if shape.layer == "outline":  # its corner 0
        found, radius = found[:1], 2 * weight
    if shape.layer in ("points", "outline"):
        for centre in found.tolist():
            cv2.circle(canvas, centre, radius << _SUBPIXEL, colour, -1, cv2.LINE_AA, _SUBPIXEL)


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


def _fixed(points: Points, scale: int) -> npt.NDArray[np.int32]:
    """Pixels of the picture as OpenCV's fixed-point coordinates, whose whole numbers are pixel centres."""
    far = 2.0**20  # outside of every picture; OpenCV's integers hold no more than 2**31
    return np.rint(np.clip(points * scale - 0.5, -far, far) * (1 << _SUBPIXEL)).astype(np.int32)
