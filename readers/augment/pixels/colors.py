"""Changes of colour on given parameters, as torchvision v2 defines them for uint8 pictures.

What is a function of each value alone is a table; the others need the pixels. Where the arithmetic differs from
torchvision's (brightness of a pixel in whole numbers instead of floating ones), results are within one grey level.
"""

import cv2
import numpy as np
import numpy.typing as npt

from readers.augment.pixels.canvas import Pixels, Table
from shardspec.errors import UsageError

_GREY = np.array([0.2989, 0.587, 0.114])
"""Weights of red, green and blue in torchvision's grey."""
_FLOOR = -0.498
"""Added before OpenCV rounds to nearest, ties to even: torchvision cuts off, and whole numbers stay."""
_LEVELS = np.arange(256, dtype=np.float32)


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
    picture.look_up(_cut(_LEVELS * np.float32(factor)))


def adjust_contrast(picture: Pixels, factor: float) -> None:
    """Values spread about the picture's mean grey by a factor, 0 or more."""
    mean = np.float32(cv2.mean(_grey(picture.values()))[0])
    if picture.shape[-1] == 3:
        mean = max(mean - np.float32(0.5), np.float32(0))  # torchvision cuts each pixel's grey off
    picture.look_up(_cut(_LEVELS * np.float32(factor) + np.float32(1 - factor) * mean))


def adjust_saturation(picture: Pixels, factor: float) -> None:
    """Colours moved from each pixel's grey by a factor: 0 gives grey, 1 changes nothing."""
    if picture.shape[-1] == 1:
        return
    values = picture.values()
    grey = cv2.cvtColor(_grey(values), cv2.COLOR_GRAY2RGB)
    # half a level less, on the average, is the grey that torchvision has cut off
    shift = _FLOOR - (1 - factor) / 2
    picture.replace(np.asarray(cv2.addWeighted(values, factor, grey, 1 - factor, shift)))


def adjust_hue(picture: Pixels, shift: float) -> None:
    """Hue turned by a share of the colour circle, from -0.5 to 0.5."""
    if picture.shape[-1] == 1:
        return
    values = np.multiply(picture.values(), np.float32(1 / 255), dtype=np.float32)
    turned = cv2.cvtColor(values, cv2.COLOR_RGB2HSV, dst=values)
    turned = cv2.add(turned, (360.0 * (shift % 1.0), 0.0, 0.0, 0.0), dst=turned)
    colours = cv2.cvtColor(turned, cv2.COLOR_HSV2RGB, dst=turned)  # takes hues of more than one turn
    picture.replace(np.asarray(cv2.convertScaleAbs(colours, alpha=255.999, beta=_FLOOR)))


def _grey(values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The grey of each pixel, (H, W), rounded."""
    if values.shape[-1] == 1:
        return values[..., 0]
    return np.asarray(cv2.cvtColor(values, cv2.COLOR_RGB2GRAY))


def _cut(values: npt.NDArray[np.float32]) -> Table:
    """A table of values, cut off to whole numbers."""
    return np.clip(values, 0, 255).astype(np.uint8)
