"""Resize whole images, each axis independently: area averages when shrinking, bilinear when enlarging.

Label maps are resized by the nearest pixel.
"""

from collections.abc import Mapping
from typing import Any, TypeGuard

import cv2
import numpy as np
import numpy.typing as npt

from shardspec.fields import PIXEL_AXES

_MOST_AS_FLOATS = 1 << 22
"""Values of an image that is averaged as floats; of larger ones, these no longer stay in the processor's cache."""


def resize_shorter(image: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """Resize the shorter side of an image, (H, W, C), to `size` pixels and keep the aspect ratio.

    The longer side is rounded to the nearest pixel (half up). Returns the same object if nothing changes.
    """
    _check(size)
    height, width = image.shape[:2]
    shorter = min(height, width)
    longer = (2 * max(height, width) * size + shorter) // (2 * shorter)
    return resize_exact(image, (size, longer) if height <= width else (longer, size))


def resize_exact(image: npt.NDArray[np.uint8], size: int | tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Resize an image, (H, W, C), to a square or to a height and width without keeping its aspect ratio.

    Returns the same object if nothing changes.
    """
    height, width = (size, size) if isinstance(size, int) else size
    _check(height)
    _check(width)
    have_height, have_width = image.shape[:2]
    if (height, width) == (have_height, have_width):
        return image
    # OpenCV's area average works only if no axis grows, so axes that shrink are resized first.
    fewer = (min(width, have_width), min(height, have_height))
    if fewer != (have_width, have_height):
        image = _average(image, fewer)
    if fewer != (width, height):
        image = np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR), np.uint8)
    return image


def _average(image: npt.NDArray[np.uint8], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Average areas with OpenCV to a width and a height, neither of which is larger than the image's.

    Unless pixels are averaged whole, OpenCV adds up floats for bytes too. Starting with floats takes 0.75 of the time
    for a photo of 500 x 400, conversions included. The sums are the same.
    """
    whole = image.shape[1] % size[0] == image.shape[0] % size[1] == 0
    if whole or image.size > _MOST_AS_FLOATS:
        return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)
    means = cv2.resize(image.astype(np.float32), size, interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.convertScaleAbs(means), np.uint8)  # rounds half to even, as OpenCV does with bytes


def resize_nearest(image: npt.NDArray[Any], size: tuple[int, int]) -> npt.NDArray[Any]:
    """Resize a label map, (H, W) or (H, W, C), to a height and width without mixing pixels.

    Each pixel of the result is the one that contains its centre.
    """
    rows, columns = (
        (np.arange(new) * 2 + 1) * old // (2 * new) for new, old in zip(size, image.shape[:2], strict=True)
    )
    chosen: npt.NDArray[Any] = image[rows[:, None], columns]
    return chosen


def _check(size: int) -> None:
    if size < 1:
        raise ValueError(f"expected a size of at least 1 pixel, found {size}")


def scale_geometry(sample: Mapping[str, Any], old: tuple[int, int], new: tuple[int, int]) -> dict[str, Any]:
    """Return the fields that a resize of ``image`` changes, in the new image's pixels; none if the size stays the same.

    These are ``landmarks``, ``hull`` and ``regions``, and ``matrix``, which maps frame pixels to the image's. ``box``
    is in frame pixels and stays. Since pixel (0, 0) covers [0, 1) x [0, 1), points are multiplied by the ratio of the
    sizes. Fields that are not floating-point arrays of the expected shape belong to the user and are left alone.

    Parameters
    ----------
    old, new : (int, int)
        Height and width before and after.
    """
    if old == new:
        return {}
    ratios = np.array([new[1] / old[1], new[0] / old[0]])
    changed: dict[str, Any] = {}
    for name, axes in PIXEL_AXES.items():
        value = sample.get(name)
        if _is_floating(value) and value.shape[1] == len(axes):
            changed[name] = (value * ratios[list(axes)]).astype(value.dtype)
    matrix = sample.get("matrix")
    if _is_floating(matrix) and matrix.shape == (2, 3):
        changed["matrix"] = (matrix * ratios[:, None]).astype(matrix.dtype)
    return changed


def shift_geometry(sample: Mapping[str, Any], shift: tuple[int, int]) -> dict[str, Any]:
    """Return the fields that a move of the image's origin changes (`scale_geometry`), by `shift` in x and y, in pixels."""
    moved: dict[str, Any] = {}
    for name, axes in PIXEL_AXES.items():
        value = sample.get(name)
        if _is_floating(value) and value.shape[1] == len(axes):
            moved[name] = (value + np.array(shift)[list(axes)]).astype(value.dtype)
    matrix = sample.get("matrix")
    if _is_floating(matrix) and matrix.shape == (2, 3):
        moved["matrix"] = matrix.copy()
        moved["matrix"][:, 2] += shift
    return moved


def _is_floating(value: Any) -> TypeGuard[npt.NDArray[np.floating[Any]]]:
    return isinstance(value, np.ndarray) and value.ndim == 2 and np.issubdtype(value.dtype, np.floating)
