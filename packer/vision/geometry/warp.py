"""Sample a frame at the pixel centres of a crop: bilinear for images, the nearest pixel for label maps."""

import cv2
import numpy as np
import numpy.typing as npt

from packer.vision.geometry.affine import apply, check_frame, invert

MAX_SIDE = 32766
"""Largest side of a crop, in pixels: OpenCV's warps index their destination with 16 bits."""


def bilinear(frame: npt.NDArray[np.uint8], matrix: npt.NDArray[np.float64], size: int) -> npt.NDArray[np.uint8]:
    """Sample the area that a matrix, frame to crop, maps onto (0, 0, size, size); black outside the frame.

    With OpenCV 5 the values are within one level of the exact ones. Older versions round coordinates to 1/32 pixel.
    """
    centred = matrix.copy()
    # OpenCV counts pixel centres as whole numbers: half a pixel is added before the mapping and subtracted after it.
    centred[:, 2] += matrix[:, :2].sum(axis=1) / 2 - 0.5
    sampled = cv2.warpAffine(frame, centred, (size, size), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT)
    return np.asarray(sampled, np.uint8)


def pick(frame: npt.NDArray[np.uint8], matrix: npt.ArrayLike, size: int) -> npt.NDArray[np.uint8]:
    """Cut the area that a matrix maps onto (0, 0, size, size), including rotation; black outside the frame.

    Each crop pixel is the frame's pixel that contains its centre.
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
