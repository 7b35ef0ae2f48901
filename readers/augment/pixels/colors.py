"""Colour operations with given parameters, as torchvision v2 defines them for uint8 images.

Operations that depend on each value alone are look-up tables; the others need the pixels. Where arithmetic differs from
torchvision's (the brightness of a pixel as an integer instead of a float), results are within one grey level.
"""

import math
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from readers.augment.pixels.canvas import Pixels, Table
from shardspec.errors import UsageError

_RED, _GREEN, _BLUE = 0.2989, 0.587, 0.114
"""Weights of red, green and blue in torchvision's greyscale."""
_CENTRE, _AROUND = 4 / 13, 9 / 13
"""Torchvision's smoothing kernel (pixel 5 / 13, neighbours 1 / 13 each) as weights of the pixel and of a 3x3 mean."""
_FLOOR = -0.498
"""Added before OpenCV rounds to nearest, ties to even, so that the result is truncated as in torchvision."""
_HALF, _LAST, _ERROR = -0.4999, 0.9998, 5e-5
"""For exact truncation: the shift, the largest fraction below an integer that it allows, and a bound of rounding errors
for factors up to `_MOST`.
"""
_MOST = 2.0
_LEVELS = np.arange(256, dtype=np.float32)
_ROW = np.arange(256, dtype=np.uint8)[None]


def check_channels(image: Pixels, user: str) -> None:
    """Check that an image has one or three channels."""
    if image.shape[-1] not in (1, 3):
        raise UsageError(place=user, expected="images of 1 or 3 channels", found=image.shape[-1])


def adjust_brightness(image: Pixels, factor: float) -> None:
    """Multiply values by a factor, 0 or more."""
    _scale(image, factor, 0.0)


def adjust_contrast(image: Pixels, factor: float) -> None:
    """Scale the distance of values from the image's mean grey by a factor, 0 or more."""
    means = cv2.mean(image.values())
    mean = means[0]
    if image.shape[-1] == 3:  # torchvision truncates each pixel's grey
        mean = max(_RED * means[0] + _GREEN * means[1] + _BLUE * means[2] - 0.5, 0.0)
    _scale(image, factor, (1 - factor) * mean)


def _scale(image: Pixels, factor: float, shift: float) -> None:
    """Multiply values by a factor, add a shift and truncate: by a table, or by vector code where that is exact."""
    levels = _LEVELS * float(factor)  # in float32
    if shift:
        levels += np.float32(shift)
    image.look_up(lambda: _cut(levels), lambda values: _scaled(values, factor, shift, levels))


def _scaled(
    values: npt.NDArray[Any], factor: float, shift: float, levels: npt.NDArray[np.float32]
) -> npt.NDArray[Any] | None:
    """Apply the table of `_scale` for `levels` with vector code, or return None if that might not be exact.

    OpenCV rounds floating numbers where torchvision truncates. Subtracting slightly less than 0.5 makes both equal,
    unless one of the levels is just below an integer.
    """
    if factor > _MOST or (levels - np.floor(levels)).max() > _LAST:
        return None
    if shift >= -_ERROR:  # convertScaleAbs takes absolute values, here of -0.49995 or more
        return np.asarray(cv2.convertScaleAbs(values, alpha=factor, beta=shift + _HALF))
    return np.asarray(cv2.addWeighted(values, factor, values, 0, shift + _HALF))


def adjust_saturation(image: Pixels, factor: float) -> None:
    """Scale the distance of colours from each pixel's grey by a factor: 0 gives grey, 1 changes nothing."""
    if image.shape[-1] == 1:
        return
    rest = 1 - factor
    red, green, blue = rest * _RED, rest * _GREEN, rest * _BLUE
    shift = _FLOOR - rest / 2  # torchvision truncates the grey, by half a level on average
    rows = ((factor + red, green, blue, shift), (red, factor + green, blue, shift), (red, green, factor + blue, shift))
    image.replace(np.asarray(cv2.transform(image.values(), np.array(rows, np.float32))))


def adjust_hue(image: Pixels, shift: float) -> None:
    """Rotate the hue by a share of the colour circle, from -0.5 to 0.5."""
    if image.shape[-1] == 1:
        return
    values = np.multiply(image.values(), np.float32(1 / 255), dtype=np.float32)
    turned = cv2.cvtColor(values, cv2.COLOR_RGB2HSV, dst=values)
    turned = cv2.add(turned, (360.0 * (shift % 1.0), 0.0, 0.0, 0.0), dst=turned)
    colours = cv2.cvtColor(turned, cv2.COLOR_HSV2RGB, dst=turned)  # accepts hues beyond 360
    image.replace(np.asarray(cv2.convertScaleAbs(colours, alpha=255.999, beta=_FLOOR)))


def _cut(values: npt.NDArray[np.float32]) -> Table:
    return np.minimum(np.maximum(values, 0), 255).astype(np.uint8)


def adjust_sharpness(image: Pixels, factor: float) -> None:
    """Blend with a smoothed image: factor 0 gives the smoothed image, 1 changes nothing. The border is kept."""
    height, width, _ = image.shape
    if height <= 2 or width <= 2:
        return
    values = image.values()
    mean = cv2.blur(values, (3, 3))  # four times faster than a filter with the weights
    rest = 1 - factor
    sharp = np.asarray(cv2.addWeighted(values, factor + rest * _CENTRE, mean, rest * _AROUND, _FLOOR))
    sharp = sharp.reshape(values.shape)
    sharp[[0, -1]] = values[[0, -1]]
    sharp[:, [0, -1]] = values[:, [0, -1]]
    image.replace(sharp)


def posterize(image: Pixels, bits: int) -> None:
    """Keep only the upper `bits` bits of each value, 0 to 8."""
    kept = 0xFF00 >> bits & 0xFF
    image.look_up(_ROW[0] & np.uint8(kept), lambda values: np.asarray(cv2.bitwise_and(values, (kept,) * 4)))


def solarize(image: Pixels, threshold: float) -> None:
    """Invert values from a threshold on."""
    levels = _ROW[0]
    image.look_up(
        lambda: np.where(levels >= threshold, 255 - levels, levels), lambda values: _solarized(values, threshold)
    )


def _solarized(values: npt.NDArray[Any], threshold: float) -> npt.NDArray[Any]:
    """Apply `solarize` with vector code: inverting a value flips all of its bits."""
    turned = np.asarray(cv2.threshold(values, math.ceil(threshold) - 1, 255, cv2.THRESH_BINARY)[1])
    return np.asarray(cv2.bitwise_xor(values, turned, dst=turned))


def autocontrast(image: Pixels) -> None:
    """Stretch each channel to 0 … 255; a channel with a single value is kept."""
    rows = image.values().reshape(image.shape[0], -1)  # numpy vectorises along the first axis
    least, most = (found.reshape(-1, image.shape[-1]) for found in (rows.min(0), rows.max(0)))
    least, most = least.min(0).astype(np.float32), most.max(0).astype(np.float32)
    flat = most == least
    scale = np.where(flat, 1, (most - least) * np.float32(1 / 255)).astype(np.float32)
    image.look_up(_cut((_LEVELS[:, None] - np.where(flat, 0, least).astype(np.float32)) / scale))


def equalize(image: Pixels) -> None:
    """Equalise the histogram of each channel as PIL does."""
    values = image.values()
    channels = range(values.shape[-1])
    found = [cv2.calcHist([values], [channel], None, [256], [0, 256]) for channel in channels]
    counts = np.stack(found).reshape(len(found), 256).astype(np.int64)
    most = 255 - (counts[:, ::-1] > 0).argmax(axis=1)
    until = counts.cumsum(axis=1)
    steps = ((until[:, -1] - counts[channels, most]) // 255)[:, None]
    table = np.minimum((until - counts + steps // 2) // np.maximum(steps, 1), 255).astype(np.uint8)
    table[:, 0] = 0
    image.look_up(np.where(steps == 0, _ROW, table).T)
