"""Contact sheets: images above their captions."""

import math
import textwrap
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from shardspec.errors import UsageError

CAPTION_LINES = 2

MAX_SHEET_PIXELS = 200 * 10**6
_BACKGROUND, _TEXT, _FAINT = (24, 24, 24), (240, 240, 240), (170, 170, 170)
_FONT_PX = 13
_GAP = 6


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
