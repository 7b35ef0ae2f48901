"""Bilinear values of a frame at the pixel centres of a crop."""

import cv2
import numpy as np
from numpy.typing import NDArray

MAX_SIDE = 32766
"""Largest side of a crop, in pixels: OpenCV's warps index their destination with 16 bits."""


def bilinear(frame: NDArray[np.uint8], matrix: NDArray[np.float64], size: int) -> NDArray[np.uint8]:
    """Sample what a matrix maps onto (0, 0, size, size), black outside the frame.

    Parameters
    ----------
    frame : ndarray, (H, W, 3), uint8
    matrix : ndarray, (2, 3), float64
        Frame to crop, pixel (0, 0) covering [0, 1) x [0, 1) in both.
    size : int, pixels, at most `MAX_SIDE`

    Returns
    -------
    ndarray, (size, size, 3), uint8
        With OpenCV 5 within one level of the exact value; before, coordinates are rounded to 1/32 pixel.
    """
    centred = matrix.copy()
    # OpenCV's whole numbers are pixel centres: half a pixel is added before the mapping and taken away after it.
    centred[:, 2] += matrix[:, :2].sum(axis=1) / 2 - 0.5
    sampled = cv2.warpAffine(frame, centred, (size, size), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT)
    return np.asarray(sampled, np.uint8)
