"""Resize images by interpolation, antialiased like Pillow if asked for, and masks by nearest pixels."""

from collections.abc import Mapping
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

Interpolation = Literal["bilinear", "bicubic", "nearest"]
INTERPOLATIONS = ("bilinear", "bicubic", "nearest")

_FILTERS: Mapping[str, int] = {"bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}


def resize(
    part: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8], interpolation: Interpolation, antialias: bool
) -> None:
    """Resize an image, (h, w, 3), into `out`, (H, W, 3).

    Parameters
    ----------
    interpolation : {"bilinear", "bicubic", "nearest"}
    antialias : bool
        Weight all pixels by Pillow's filter of that name, which is as wide as a pixel of the result. Otherwise whole
        numbers of pixels are averaged, and the rest of the factor, below two, is interpolated.
    """
    if part.shape == out.shape:
        out[...] = part
    elif interpolation == "nearest":
        out[...] = nearest(part, *out.shape[:2])
    elif antialias:
        out[...] = _antialiased(part, out.shape, interpolation)
    else:
        # Averaging whole numbers of pixels takes a tenth of the time that fractions would.
        y, x = max(1, part.shape[0] // out.shape[0]), max(1, part.shape[1] // out.shape[1])
        if y > 1 or x > 1:
            rows, columns = part.shape[0] // y, part.shape[1] // x
            # Bilinear interpolation averages two pixels, with vector code even if only one axis is halved.
            how = cv2.INTER_LINEAR if max(y, x) == 2 else cv2.INTER_AREA
            part = np.asarray(cv2.resize(part[: rows * y, : columns * x], (columns, rows), interpolation=how))
        cv2.resize(part, (out.shape[1], out.shape[0]), dst=out, interpolation=_FILTERS[interpolation])


def _antialiased(part: npt.NDArray[np.uint8], shape: tuple[int, ...], interpolation: str) -> npt.NDArray[np.uint8]:
    """Resize an image with torch's vector code, in a quarter of Pillow's time."""
    import torch  # takes seconds to load, and nothing else in this package needs it

    source = torch.from_numpy(np.array(part, order="C")).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(
        source, shape[:2], mode=interpolation, align_corners=False, antialias=True
    )
    found: npt.NDArray[np.uint8] = resized[0].permute(1, 2, 0).numpy()
    return found


def nearest(
    values: npt.NDArray[Any], height: int, width: int, box: tuple[float, ...] | None = None
) -> npt.NDArray[Any]:
    """Resize an array, (h, w, ...), of any dtype to (height, width, ...) by taking the nearest pixels.

    Parameters
    ----------
    box : (float, float, float, float), optional
        Left, top, right and bottom of the part to take, in pixels; the whole array by default.
    """
    before_y, before_x = values.shape[:2]
    left, top, right, bottom = (0, 0, before_x, before_y) if box is None else box
    rows, columns = (
        # Without a box, the quotient is exact where the centre of a new pixel is on the edge of an old one.
        np.clip(np.floor(start + (2 * np.arange(side) + 1) * (end - start) / (2 * side)), 0, before - 1).astype(np.intp)
        for start, end, side, before in ((top, bottom, height, before_y), (left, right, width, before_x))
    )
    found: npt.NDArray[Any] = values.take(rows, axis=0).take(columns, axis=1)
    return found
