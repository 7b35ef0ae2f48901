"""Pictures resized whole: shrinking averages areas, enlarging is bilinear, along each axis by itself; label maps by the nearest pixel."""

import cv2
import numpy as np
from numpy.typing import NDArray


def resize_shorter(image: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Bring the shorter side to `size` pixels and keep the proportions.

    Parameters
    ----------
    image : ndarray, (H, W, C), uint8
    size : int, pixels

    Returns
    -------
    ndarray, (H', W', C), uint8
        The longer side is rounded to the nearest pixel (half up). The same object if nothing changes.
    """
    _check(size)
    height, width = image.shape[:2]
    shorter = min(height, width)
    longer = (2 * max(height, width) * size + shorter) // (2 * shorter)
    return resize_exact(image, (size, longer) if height <= width else (longer, size))


def resize_exact(image: NDArray[np.uint8], size: int | tuple[int, int]) -> NDArray[np.uint8]:
    """Bring a picture to a size, whatever becomes of its proportions.

    Parameters
    ----------
    image : ndarray, (H, W, C), uint8
    size : int or (int, int), pixels
        Side of a square, or height and width.

    Returns
    -------
    ndarray, (H', W', C), uint8
        The same object if nothing changes.
    """
    height, width = (size, size) if isinstance(size, int) else size
    _check(height)
    _check(width)
    have_height, have_width = image.shape[:2]
    if (height, width) == (have_height, have_width):
        return image
    # OpenCV's area average works only if no axis grows, so what shrinks goes first.
    fewer = (min(width, have_width), min(height, have_height))
    if fewer != (have_width, have_height):
        image = np.asarray(cv2.resize(image, fewer, interpolation=cv2.INTER_AREA), np.uint8)
    if fewer != (width, height):
        image = np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR), np.uint8)
    return image


def resize_nearest(image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Bring a label map to a size: each pixel is the one in which its centre lies, none is mixed.

    Parameters
    ----------
    image : ndarray, (H, W, C), uint8
    size : (int, int), pixels
        Height and width.

    Returns
    -------
    ndarray, (H', W', C), uint8
    """
    rows, columns = (
        (np.arange(new) * 2 + 1) * old // (2 * new) for new, old in zip(size, image.shape[:2], strict=True)
    )
    return np.asarray(image[rows[:, None], columns], np.uint8)


def _check(size: int) -> None:
    if size < 1:
        raise ValueError(f"expected a size of at least 1 pixel, found {size}")
