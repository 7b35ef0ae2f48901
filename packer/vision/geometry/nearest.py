"""Crops of label maps: pixels are picked, never mixed."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer.vision.geometry.affine import apply, check_frame, invert
from packer.vision.geometry.bilinear import MAX_SIDE


def pick(frame: NDArray[np.uint8], matrix: ArrayLike, size: int) -> NDArray[np.uint8]:
    """Cut what a matrix maps onto (0, 0, size, size): the frame's pixel in which the centre of a crop pixel lies.

    Parameters
    ----------
    frame : ndarray, (H, W, 3), uint8
    matrix : array_like, (2, 3)
        Frame to crop, rotation and all.
    size : int, pixels

    Returns
    -------
    ndarray, (size, size, 3), uint8
        Black outside the frame.
    """
    check_frame(frame)
    if not 1 <= size <= MAX_SIDE:
        raise ValueError(f"expected a crop size from 1 to {MAX_SIDE} pixels, found {size}")
    centres = np.arange(size) + 0.5
    places = apply(invert(matrix), np.stack(np.meshgrid(centres, centres), axis=-1))
    x, y = np.floor(places[..., 0]), np.floor(places[..., 1])
    height, width = frame.shape[:2]
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    out = np.zeros((size, size, 3), np.uint8)
    out[inside] = frame[y[inside].astype(np.intp), x[inside].astype(np.intp)]
    return out
