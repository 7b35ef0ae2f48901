"""A contact sheet: pictures with their geometry, each above its caption."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from readers.drawing.draw import draw
from shardspec.errors import UsageError

CAPTION_LINES = 2

_MAX_SHEET_PIXELS = 200 * 10**6
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
    """Draw a sample's geometry onto its picture (`readers.drawing.draw.draw`), and fit it into a square.

    Parameters
    ----------
    image : ndarray, (H, W, 3), uint8, RGB
    sample : mapping
    cell : int
        Side of the square, in pixels. A small picture is enlarged by a whole factor, a large one is reduced.
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


def fit(picture: npt.NDArray[np.uint8], cell: int) -> npt.NDArray[np.uint8]:
    """Reduce a picture that is larger than a square of `cell` pixels, by averaging areas."""
    height, width = picture.shape[:2]
    if max(height, width) <= cell:
        return picture
    share = cell / max(height, width)
    size = (max(1, round(width * share)), max(1, round(height * share)))
    return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), np.uint8)


def columns_for(count: int) -> int:
    """The pictures in a row of a sheet that is about as broad as high."""
    return min(count, max(1, round(math.sqrt(count * 1.4))))


class Sheet:
    """Cells in rows, each with two lines of text below.

    Parameters
    ----------
    across, down : int
        Cells in a row, and rows.
    cell : int or (int, int)
        Side of the square of each picture, or its height and width, in pixels.

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
        if size[0] * size[1] > _MAX_SHEET_PIXELS:
            raise UsageError(
                f"expected a sheet of {_MAX_SHEET_PIXELS // 10**6} megapixels at most, found {size[0]} x {size[1]}: "
                "ask for fewer samples (count), or smaller ones (cell)"
            )
        self.image = Image.new("RGB", size, _BACKGROUND)
        self._pen = ImageDraw.Draw(self.image)

    def put(self, place: int, picture: npt.NDArray[np.uint8], caption: Sequence[str]) -> None:
        """Fill one cell, counted row by row.

        Parameters
        ----------
        place : int
        picture : ndarray, (H, W, 3), uint8, RGB
            At most as large as the cell.
        caption : sequence of str
            One line or two; a line that is too wide loses its middle.
        """
        left = _GAP + place % self._across * self._pitch[0]
        top = _GAP + place // self._across * self._pitch[1]
        height, width = picture.shape[:2]
        corner = (left + (self._width - width) // 2, top + (self._height - height) // 2)
        self.image.paste(Image.fromarray(picture), corner)
        for number, text in enumerate(caption[:CAPTION_LINES]):
            where = (left, top + self._height + 1 + number * self._line)
            self._pen.text(where, self._fit(text), fill=_FAINT if number else _TEXT, font=self._font)

    def _fit(self, text: str) -> str:
        """The text on one line, without its middle if it is too wide."""
        text = textwrap.shorten(text.encode("utf-8", "replace").decode(), 400, placeholder="…")
        if self._font.getlength(text) <= self._width:
            return text
        for kept in range(len(text) - 1, 1, -1):
            shorter = f"{text[: kept // 2]}…{text[len(text) - (kept - kept // 2) :]}"
            if self._font.getlength(shorter) <= self._width:
                return shorter
        return text[:1]
