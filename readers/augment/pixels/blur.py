"""A random blur."""

from typing import Any

import cv2
import numpy as np

from readers.arguments import as_count, as_number, as_pair
from readers.augment.base import Sample
from readers.augment.pixels.canvas import Canvas, PixelTransform
from shardspec.errors import UsageError
from shardspec.wording import shorten


class GaussianBlur(PixelTransform[float]):
    """Blurs with a Gaussian kernel of random width, as torchvision's ``v2.GaussianBlur``, within one grey level.

    Parameters
    ----------
    kernel_size : int or (int, int), pixels
        Width and height of the kernel, odd.
    sigma : float or (float, float), pixels
        The standard deviation is drawn evenly from these bounds, above 0; one number is always that.
    p : float

    Raises
    ------
    UsageError
        When made: if an argument is out of range. When called: if the picture is floating, or no larger than half the
        kernel.
    """

    def __init__(
        self, kernel_size: int | tuple[int, int], sigma: float | tuple[float, float] = (0.1, 2.0), p: float = 1.0
    ) -> None:
        super().__init__(p)
        self.kernel_size = _kernel(kernel_size)
        self.sigma = as_pair("GaussianBlur: sigma", sigma) if _is_pair(sigma) else _twice(sigma)
        if not 0 < self.sigma[0] <= self.sigma[1] < np.inf:
            raise UsageError(f"GaussianBlur: expected sigma as (least, largest) above 0, found {shorten(sigma)}")

    def draw(self, sample: Sample, rng: np.random.Generator) -> float:
        """The standard deviation."""
        return float(self.sigma[0] + rng.random() * (self.sigma[1] - self.sigma[0]))

    def paint(self, canvas: Canvas, params: float) -> None:
        """Blur the pictures; beyond their edges they are continued as a mirror shows them."""
        for picture in canvas.frames("GaussianBlur"):
            values = picture.values()
            if any(
                side <= kernel // 2 for side, kernel in zip(values.shape[:2], reversed(self.kernel_size), strict=True)
            ):
                raise UsageError(
                    f"GaussianBlur: expected pictures larger than half the kernel, found "
                    f"{values.shape[1]} x {values.shape[0]} for a kernel of {self.kernel_size}"
                )
            # not cv2.GaussianBlur, which rounds the kernel and takes twice as long
            across, down = (cv2.getGaussianKernel(side, params, cv2.CV_32F) for side in self.kernel_size)
            blurred = cv2.sepFilter2D(values, -1, across, down, borderType=cv2.BORDER_REFLECT_101)
            picture.replace(np.asarray(blurred))


def _is_pair(value: Any) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, str)


def _twice(value: Any) -> tuple[float, float]:
    number = as_number("GaussianBlur: sigma", value)
    return number, number


def _kernel(value: Any) -> tuple[int, int]:
    """Width and height of a kernel."""
    sides = tuple(value) if _is_pair(value) else (value, value)
    if len(sides) != 2:
        raise UsageError(f"GaussianBlur: expected kernel_size as pixels, or (width, height), found {shorten(value)}")
    width, height = (as_count("GaussianBlur: kernel_size", side, unit="pixel") for side in sides)
    if width % 2 == 0 or height % 2 == 0:
        raise UsageError(f"GaussianBlur: expected an odd kernel_size, found {shorten(value)}")
    return width, height
