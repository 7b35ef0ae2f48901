"""Resizing: images linearly or cubically, antialiased as Pillow does it, or by the nearest pixels, as masks need."""

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
        Let all pixels count by Pillow's filter of that name, as wide as a pixel of the result. Otherwise whole numbers
        of pixels are averaged, and the filter interpolates for the remaining factor, which is below two.
    """
    if part.shape == out.shape:
        out[...] = part
    elif interpolation == "nearest":
        out[...] = nearest(part, *out.shape[:2])
    elif antialias:
        out[...] = _antialiased(part, out.shape, interpolation)
    else:
        # Averaging over whole numbers of pixels is fast; over fractions of pixels it would take ten times as long.
        y, x = max(1, part.shape[0] // out.shape[0]), max(1, part.shape[1] // out.shape[1])
        if y > 1 or x > 1:
            rows, columns = part.shape[0] // y, part.shape[1] // x
            # Bilinear interpolation gives the average of two pixels, by vector code even if only one axis is halved.
            how = cv2.INTER_LINEAR if max(y, x) == 2 else cv2.INTER_AREA
            part = np.asarray(cv2.resize(part[: rows * y, : columns * x], (columns, rows), interpolation=how))
        cv2.resize(part, (out.shape[1], out.shape[0]), dst=out, interpolation=_FILTERS[interpolation])


def _antialiased(part: npt.NDArray[np.uint8], shape: tuple[int, ...], interpolation: str) -> npt.NDArray[np.uint8]:
    """The resized image, by torch's vector code: a quarter of Pillow's time."""
    import torch  # takes seconds to load, and all else of this package works without it

    source = torch.from_numpy(np.array(part, order="C")).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(
        source, shape[:2], mode=interpolation, align_corners=False, antialias=True
    )
    found: npt.NDArray[np.uint8] = resized[0].permute(1, 2, 0).numpy()
    return found


def nearest_in(values: npt.NDArray[Any], box: tuple[float, ...], height: int, width: int) -> npt.NDArray[Any]:
    """`nearest` for a part of some values, whose edges (left, top, right, bottom) need not be whole pixels."""
    left, top, right, bottom = box
    rows, columns = (
        np.clip(np.floor(begin + (np.arange(side) + 0.5) * ((end - begin) / side)), 0, before - 1).astype(np.intp)
        for begin, end, side, before in (
            (top, bottom, height, values.shape[0]),
            (left, right, width, values.shape[1]),
        )
    )
    found: npt.NDArray[Any] = values.take(rows, axis=0).take(columns, axis=1)
    return found


def nearest(values: npt.NDArray[Any], height: int, width: int) -> npt.NDArray[Any]:
    """The values at the nearest pixels, (h, w, ...) of any dtype as (height, width, ...): no new value appears."""
    rows, columns = (
        (2 * np.arange(side) + 1) * before // (2 * side)
        for side, before in zip((height, width), values.shape[:2], strict=True)
    )
    found: npt.NDArray[Any] = values.take(rows, axis=0).take(columns, axis=1)
    return found
