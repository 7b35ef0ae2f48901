"""Images of a batch as arrays."""

from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]


def pixels_of(images: Any) -> Iterator[Pixels]:
    """Yield the images of a batch of the `Loader` as (H, W, 3) uint8.

    Parameters
    ----------
    images : tensor, (B, 3, H, W), uint8; or a list of tensors (3, H, W) if their sizes vary
        In channels_last memory, as the `Loader` makes them, they are not copied.
    """
    for image in images:
        yield np.ascontiguousarray(image.permute(1, 2, 0).cpu().numpy())


def scaled(image: npt.NDArray[Any], size: tuple[int, int]) -> npt.NDArray[Any]:
    """Resize to (width, height): averaged where it shrinks, bilinear where it grows."""
    while not any(
        side % 2 or side // 2 < least for side, least in zip(image.shape[:2], (size[1], size[0]), strict=True)
    ):
        image = np.asarray(
            cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
        )  # a quarter of the time
    shrinks = image.shape[1] >= size[0] and image.shape[0] >= size[1]
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR))
