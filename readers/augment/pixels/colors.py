"""Changes of colour on given parameters, as torchvision v2 defines them for uint8 pictures.

What is a function of each value alone is a table; the others need the pixels. Where the arithmetic differs from
torchvision's (brightness of a pixel in whole numbers instead of floating ones), results are within one grey level.
"""

import math
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from readers.augment.pixels.canvas import Pixels, Table
from shardspec.errors import UsageError

_RED, _GREEN, _BLUE = 0.2989, 0.587, 0.114
"""Weights of red, green and blue in torchvision's grey."""
_CENTRE, _AROUND = 4 / 13, 9 / 13
"""Torchvision's smoothing weights, of a pixel 5 / 13 and of its neighbours 1 / 13, by the pixel and the mean of nine."""
_FLOOR = -0.498
"""Added before OpenCV rounds to nearest, ties to even: torchvision cuts off, and whole numbers stay."""
_HALF, _LAST, _ERROR = -0.4999, 0.9998, 5e-5
"""The same, with room for more numbers just below a whole one; the largest fraction for which that is exact; and what
errors of rounding are below.
"""
_MOST = 2.0
"""Largest factor for which they are."""
_LEVELS = np.arange(256, dtype=np.float32)
_ROW = np.arange(256, dtype=np.uint8)[None]


def check_channels(picture: Pixels, user: str) -> None:
    """Refuse pictures that are neither grey nor RGB.

    Raises
    ------
    UsageError
        If there are not one or three channels.
    """
    if picture.shape[-1] not in (1, 3):
        raise UsageError(f"{user}: expected pictures of 1 or 3 channels, found {picture.shape[-1]}")


def adjust_brightness(picture: Pixels, factor: float) -> None:
    """Values times a factor, 0 or more."""
    _scale(picture, factor, 0.0)


def adjust_contrast(picture: Pixels, factor: float) -> None:
    """Values spread about the picture's mean grey by a factor, 0 or more."""
    means = cv2.mean(picture.values())
    mean = means[0]
    if picture.shape[-1] == 3:  # torchvision cuts each pixel's grey off
        mean = max(_RED * means[0] + _GREEN * means[1] + _BLUE * means[2] - 0.5, 0.0)
    _scale(picture, factor, (1 - factor) * mean)


def _scale(picture: Pixels, factor: float, shift: float) -> None:
    """Values times a factor, plus a shift, cut off to whole numbers: as a table, or by vector code if that is exact."""
    levels = _LEVELS * float(factor)  # in float32
    if shift:
        levels += np.float32(shift)
    picture.look_up(lambda: _cut(levels), lambda values: _scaled(values, factor, shift, levels))


def _scaled(
    values: npt.NDArray[Any], factor: float, shift: float, levels: npt.NDArray[np.float32]
) -> npt.NDArray[Any] | None:
    """Apply the table of `_scale` for `levels` to values with vector code; None if that might not be exact.

    OpenCV rounds floating numbers where torchvision cuts them off. A little less than half a level less makes that the
    same, unless one of the levels is just below a whole number.
    """
    if factor > _MOST or (levels - np.floor(levels)).max() > _LAST:
        return None
    if shift >= -_ERROR:  # it takes absolute values, of -0.49995 and more here
        return np.asarray(cv2.convertScaleAbs(values, alpha=factor, beta=shift + _HALF))
    return np.asarray(cv2.addWeighted(values, factor, values, 0, shift + _HALF))


def adjust_saturation(picture: Pixels, factor: float) -> None:
    """Colours moved from each pixel's grey by a factor: 0 gives grey, 1 changes nothing."""
    if picture.shape[-1] == 1:
        return
    rest = 1 - factor
    red, green, blue = rest * _RED, rest * _GREEN, rest * _BLUE
    shift = _FLOOR - rest / 2  # half a level less, on the average, is the grey that torchvision has cut off
    rows = ((factor + red, green, blue, shift), (red, factor + green, blue, shift), (red, green, factor + blue, shift))
    picture.replace(np.asarray(cv2.transform(picture.values(), np.array(rows, np.float32))))


def adjust_hue(picture: Pixels, shift: float) -> None:
    """Hue turned by a share of the colour circle, from -0.5 to 0.5."""
    if picture.shape[-1] == 1:
        return
    values = np.multiply(picture.values(), np.float32(1 / 255), dtype=np.float32)
    turned = cv2.cvtColor(values, cv2.COLOR_RGB2HSV, dst=values)
    turned = cv2.add(turned, (360.0 * (shift % 1.0), 0.0, 0.0, 0.0), dst=turned)
    colours = cv2.cvtColor(turned, cv2.COLOR_HSV2RGB, dst=turned)  # takes hues of more than one turn
    picture.replace(np.asarray(cv2.convertScaleAbs(colours, alpha=255.999, beta=_FLOOR)))


def _cut(values: npt.NDArray[np.float32]) -> Table:
    """A table of values, cut off to whole numbers."""
    return np.minimum(np.maximum(values, 0), 255).astype(np.uint8)


def adjust_sharpness(picture: Pixels, factor: float) -> None:
    """Pixels moved from a smoothed picture by a factor: 0 gives that one, 1 changes nothing; the rim stays."""
    height, width, _ = picture.shape
    if height <= 2 or width <= 2:
        return
    values = picture.values()
    mean = cv2.blur(values, (3, 3))  # in a quarter of the time of the weights themselves
    rest = 1 - factor
    sharp = np.asarray(cv2.addWeighted(values, factor + rest * _CENTRE, mean, rest * _AROUND, _FLOOR))
    sharp = sharp.reshape(values.shape)
    sharp[[0, -1]] = values[[0, -1]]
    sharp[:, [0, -1]] = values[:, [0, -1]]
    picture.replace(sharp)


def posterize(picture: Pixels, bits: int) -> None:
    """Only the upper bits of each value, from 0 to 8 of them."""
    kept = 0xFF00 >> bits & 0xFF
    picture.look_up(_ROW[0] & np.uint8(kept), lambda values: np.asarray(cv2.bitwise_and(values, (kept,) * 4)))


def solarize(picture: Pixels, threshold: float) -> None:
    """Values from a threshold on turned into 255 minus the value."""
    levels = _ROW[0]
    picture.look_up(
        lambda: np.where(levels >= threshold, 255 - levels, levels), lambda values: _solarized(values, threshold)
    )


def _solarized(values: npt.NDArray[Any], threshold: float) -> npt.NDArray[Any]:
    """The same by vector code: 255 minus a value has all its bits turned over."""
    turned = np.asarray(cv2.threshold(values, math.ceil(threshold) - 1, 255, cv2.THRESH_BINARY)[1])
    return np.asarray(cv2.bitwise_xor(values, turned, dst=turned))


def autocontrast(picture: Pixels) -> None:
    """Each channel spread from 0 to 255; one of a single value stays."""
    rows = picture.values().reshape(picture.shape[0], -1)  # numpy has vector code for the axis of rows
    least, most = (found.reshape(-1, picture.shape[-1]) for found in (rows.min(0), rows.max(0)))
    least, most = least.min(0).astype(np.float32), most.max(0).astype(np.float32)
    flat = most == least
    scale = np.where(flat, 1, (most - least) * np.float32(1 / 255)).astype(np.float32)
    picture.look_up(_cut((_LEVELS[:, None] - np.where(flat, 0, least).astype(np.float32)) / scale))


def equalize(picture: Pixels) -> None:
    """Each channel's values as evenly frequent as PIL makes them."""
    values = picture.values()
    channels = range(values.shape[-1])
    found = [cv2.calcHist([values], [channel], None, [256], [0, 256]) for channel in channels]
    counts = np.stack(found).reshape(len(found), 256).astype(np.int64)
    most = 255 - (counts[:, ::-1] > 0).argmax(axis=1)
    until = counts.cumsum(axis=1)
    steps = ((until[:, -1] - counts[channels, most]) // 255)[:, None]
    table = np.minimum((until - counts + steps // 2) // np.maximum(steps, 1), 255).astype(np.uint8)
    table[:, 0] = 0
    picture.look_up(np.where(steps == 0, _ROW, table).T)
