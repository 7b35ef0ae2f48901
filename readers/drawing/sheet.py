"""Draw samples, and contact sheets of images above their captions."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from readers.drawing.geometry import COLOURS, MASKS, Points, Shape, is_valid, shapes_of
from shardspec.errors import UsageError

CAPTION_LINES = 2

MAX_SHEET_PIXELS = 200 * 10**6
_BACKGROUND, _TEXT, _FAINT = (24, 24, 24), (240, 240, 240), (170, 170, 170)
_FONT_PX = 13
_GAP = 6


def draw_sample(
    image: npt.NDArray[np.uint8],
    sample: Mapping[str, Any],
    cell: int,
    *,
    masks: Sequence[npt.NDArray[Any]] = (),
    plain: bool = False,
) -> npt.NDArray[np.uint8]:
    """Draw a sample's geometry onto its image (`draw`), and fit it into a square.

    Parameters
    ----------
    image : ndarray, (H, W, 3), uint8, RGB
    sample : mapping
    cell : int
        Side of the square in pixels. A small image is enlarged by a whole factor, and a large one is reduced.
    masks : sequence of ndarray, (H, W)
    plain : bool
        Whether to leave out geometry and masks.

    Returns
    -------
    ndarray, (H', W', 3), uint8, RGB
        H' and W' are at most `cell`.
    """
    scale = max(1, cell // max(*image.shape[:2], 1))
    return fit(draw(image, sample, masks, plain=plain, scale=scale), cell)


def fit(image: npt.NDArray[np.uint8], cell: int) -> npt.NDArray[np.uint8]:
    """Reduce an image to a square of `cell` pixels, by averaging areas, if it is larger."""
    height, width = image.shape[:2]
    if max(height, width) <= cell:
        return image
    share = cell / max(height, width)
    size = (max(1, round(width * share)), max(1, round(height * share)))
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)


def columns_for(count: int) -> int:
    """Return the number of columns of a sheet that is about as wide as high."""
    return min(count, max(1, round(math.sqrt(count * 1.4))))


class Sheet:
    """A grid of images, each with two lines of text below.

    Parameters
    ----------
    across, down : int
        Number of columns and rows.
    cell : int or (int, int)
        Side of the square for each image, or height and width, in pixels.

    Attributes
    ----------
    image : PIL.Image.Image

    Raises
    ------
    UsageError
        If the sheet would have more than 200 megapixels.
    """

    def __init__(self, across: int, down: int, cell: int | tuple[int, int]) -> None:
        self._across = across
        self._height, self._width = (cell, cell) if isinstance(cell, int) else cell
        self._font = ImageFont.load_default(_FONT_PX)
        self._line = _FONT_PX + 3
        self._pitch = (self._width + _GAP, self._height + CAPTION_LINES * self._line + _GAP)
        size = (across * self._pitch[0] + _GAP, down * self._pitch[1] + _GAP)
        if size[0] * size[1] > MAX_SHEET_PIXELS:
            raise UsageError(
                expected=f"a sheet of {MAX_SHEET_PIXELS // 10**6} megapixels at most",
                found=f"{size[0]} x {size[1]}",
                hint="ask for fewer samples (count), or smaller ones (cell)",
            )
        self.image = Image.new("RGB", size, _BACKGROUND)
        self._pen = ImageDraw.Draw(self.image)

    def put(self, place: int, image: npt.NDArray[np.uint8], caption: Sequence[str]) -> None:
        """Fill a cell. Cells are numbered row by row.

        Parameters
        ----------
        place : int
        image : ndarray, (H, W, 3), uint8, RGB
            At most as large as the cell.
        caption : sequence of str
            One or two lines; the middle of a line that is too wide is left out.
        """
        left = _GAP + place % self._across * self._pitch[0]
        top = _GAP + place // self._across * self._pitch[1]
        height, width = image.shape[:2]
        corner = (left + (self._width - width) // 2, top + (self._height - height) // 2)
        self.image.paste(Image.fromarray(image), corner)
        for number, text in enumerate(caption[:CAPTION_LINES]):
            where = (left, top + self._height + 1 + number * self._line)
            self._pen.text(where, self._fit(text), fill=_FAINT if number else _TEXT, font=self._font)

    def _fit(self, text: str) -> str:
        """Return a text as one line, without its middle if it is too wide."""
        text = textwrap.shorten(text.encode("utf-8", "replace").decode(), 400, placeholder="…")
        if self._font.getlength(text) <= self._width:
            return text
        for kept in range(len(text) - 1, 1, -1):
            shorter = f"{text[: kept // 2]}…{text[len(text) - (kept - kept // 2) :]}"
            if self._font.getlength(shorter) <= self._width:
                return shorter
        return text[:1]


_TINT = 0.45
_LABELS_MAX = 32
"""Largest number of values in a label map; a mask with more values is a soft mask."""

_SUBPIXEL = 4  # fractional bits of OpenCV's drawing coordinates


def draw(
    image: npt.NDArray[np.uint8],
    sample: Mapping[str, Any],
    masks: Sequence[npt.NDArray[Any]] = (),
    *,
    plain: bool = False,
    scale: int = 1,
) -> npt.NDArray[np.uint8]:
    """Draw a sample's masks, boxes, outline and points onto a copy of its image.

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
    scale : int, >= 1
        Factor by which the drawing is larger than the image.

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
    if shape.layer == "outline":  # mark corner 0
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
    """Convert pixels of the image to OpenCV's fixed-point coordinates, in which integers are pixel centres."""
    far = 2.0**20  # outside of every image, and within OpenCV's 32-bit integers
    return np.rint(np.clip(points * scale - 0.5, -far, far) * (1 << _SUBPIXEL)).astype(np.int32)
