"""Draw a sample: its image, or the frames of its clip, with points, outline, boxes and masks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from readers.drawing.geometry import COLOURS, GEOMETRY, MASKS, Shape, is_valid, of_frame, shapes_of
from readers.drawing.images import ImageFrames, Scale, as_array
from shardspec.fields import is_mask_name

FRAMES_MAX = 16
"""Largest number of frames of a clip that are shown."""
_TINT = 0.45
_LABELS_MAX = 32
"""Largest number of values in a label map; a mask with more values is a soft mask."""

_SMOOTHED = 4
"""Factor by which shapes are drawn larger before they are reduced."""
_FAR = 2.0**18
"""Largest coordinate that is drawn: outside of every sheet, and within Pillow's integers."""


def draw(
    sample: Mapping[str, Any],
    image: ImageFrames,
    scale: Scale,
    cell: int,
    field: str = "image",
    *,
    plain: bool = False,
) -> npt.NDArray[np.uint8]:
    """Draw a sample: its image, or the frames of its clip side by side, with its geometry and masks.

    A small image is enlarged by a whole factor, and a large one is reduced.

    Parameters
    ----------
    sample : mapping
        Numpy arrays or tensors.
    image : ImageFrames
        Image of the sample's `field`.
    scale : Scale
    cell : int
        Side of the square for each frame in pixels.
    plain : bool
        Whether to leave out geometry and masks.

    Returns
    -------
    ndarray, (H', W', 3), uint8, RGB
    """
    length = len(image.frames)
    shown = np.unique(np.linspace(0, length - 1, min(length, FRAMES_MAX)).round().astype(int)).tolist()
    side = max(*image.frames.shape[1:3], 1)
    factor = cell // side if side <= cell else cell / side
    fields = {name: as_array(sample[name]) for name in (*GEOMETRY, "landmarks_valid") if name in sample}
    masks = [mask for name in sample if name != field and is_mask_name(name) for mask in _masks(sample[name], image)]
    drawn = []
    for t in shown:
        geometry = {name: of_frame(name, value, t, length) for name, value in fields.items()}
        tints = [mask[t] for mask in masks]
        drawn.append(draw_frame(scale(image.frames[t]), geometry, tints, plain=plain, scale=factor))
    return np.concatenate(drawn, axis=1)


def _masks(value: Any, image: ImageFrames) -> list[npt.NDArray[Any]]:
    """Return a field's mask for each frame, (T, H, W), if it has the sides of the image and equal channels."""
    mask, sides = as_array(value), image.frames.shape[1:3]
    if not isinstance(mask, np.ndarray) or mask.dtype.kind not in "biuf":
        return []
    if mask.shape[-2:] != sides:  # not (H, W) or (C, H, W)
        mask = np.moveaxis(mask, -1, -3) if mask.ndim >= 3 else mask
    if mask.ndim < 2 or mask.shape[-2:] != sides:
        return []
    channels = mask.ndim - 2 - image.strip
    if channels not in (0, 1):
        return []
    if channels and (mask != mask[..., :1, :, :]).any():
        return []
    mask = mask[..., 0, :, :] if channels else mask
    mask = mask if image.strip else mask[None]
    return [mask] if len(mask) == len(image.frames) else []


def draw_frame(
    image: npt.NDArray[np.uint8],
    sample: Mapping[str, Any],
    masks: Sequence[npt.NDArray[Any]] = (),
    *,
    plain: bool = False,
    scale: float = 1,
) -> npt.NDArray[np.uint8]:
    """Draw masks, boxes, outline and points onto a copy of an image.

    The person's left is blue and the right is red, which makes a wrong flip visible.

    Parameters
    ----------
    image : ndarray, (H, W, 3), uint8, RGB
    sample : mapping
        Fields for `readers.drawing.geometry.shapes_of`. If ``landmarks_valid`` is false, the image gets a red frame.
    masks : sequence of ndarray, (H, W)
        Label maps tint the image in one colour for each value above 0. Soft masks (floating-point, or with more than 32
        values) tint it in proportion to their value, of 1 or of 255.
    plain : bool
        Whether to leave out geometry and masks.
    scale : float, > 0
        Factor by which the drawing is larger than the image. Pixels are repeated to enlarge, and averaged to reduce.

    Returns
    -------
    ndarray, (H * scale, W * scale, 3), uint8, RGB
    """
    for mask in () if plain else masks:
        image = _tinted(image, mask)
    height, width = image.shape[:2]
    size = max(1, round(width * scale)), max(1, round(height * scale))
    canvas = Image.fromarray(image).resize(size, Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX)
    weight = max(1, round(min(canvas.size) / 300))
    shapes = [] if plain else shapes_of(sample)
    points = sum(len(shape.points) for shape in shapes if shape.layer == "points")
    radius = weight + (2 if points <= 5 else 1 if points <= 68 else 0)
    for shape in shapes:
        _draw_shape(canvas, shape, scale, weight, radius)
    if not is_valid(sample):
        edges = (0, 0, canvas.width - 1, canvas.height - 1)
        ImageDraw.Draw(canvas).rectangle(edges, outline=(255, 0, 0), width=2 * weight)
    return np.array(canvas)


def _draw_shape(canvas: Image.Image, shape: Shape, scale: float, weight: int, radius: int) -> None:
    """Draw a shape with smooth edges: larger than the canvas, and then reduced."""
    ink = Image.new("L", (canvas.width * _SMOOTHED, canvas.height * _SMOOTHED))
    pen = ImageDraw.Draw(ink)
    # Pillow's integers are the centres of pixels.
    places = np.clip(shape.points * (scale * _SMOOTHED) - 0.5, -_FAR, _FAR).tolist()
    if shape.layer != "points":
        corners = [tuple(place) for place in (*places, *places[:2])]
        pen.line(corners, fill=255, width=weight * _SMOOTHED, joint="curve")
    if shape.layer == "outline":  # mark corner 0
        places, radius = places[:1], 2 * weight
    if shape.layer in ("points", "outline"):
        half = (radius + 0.5) * _SMOOTHED
        for x, y in places:
            pen.ellipse((x - half, y - half, x + half, y + half), fill=255)
    canvas.paste(COLOURS[shape.kind], None, ink.reduce(_SMOOTHED))


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
