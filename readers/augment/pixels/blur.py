"""Random Gaussian blur."""

from typing import Any

import cv2
import numpy as np

from readers.arguments import as_count, as_pair
from readers.augment.base import Sample
from readers.augment.pixels.canvas import Canvas, PixelTransform
from shardspec.errors import UsageError
from shardspec.wording import shorten


class GaussianBlur(PixelTransform[float]):
    """Blur with a Gaussian kernel of random width; within one grey level of torchvision's ``v2.GaussianBlur``.

    Parameters
    ----------
    kernel_size : int or (int, int), pixels
        Width and height of the kernel, odd.
    sigma : float or (float, float), pixels
        Bounds, above 0, of the uniformly drawn standard deviation; one number fixes it.
    p : float, in [0, 1]
        Probability of blurring.

    Raises
    ------
    UsageError
        When created: if an argument is out of range. When called: if the image is floating, or at most half as large as
        the kernel.
    """

    def __init__(
        self, kernel_size: int | tuple[int, int], sigma: float | tuple[float, float] = (0.1, 2.0), p: float = 1.0
    ) -> None:
        super().__init__(p)
        self.kernel_size = _kernel(kernel_size)
        self.sigma = as_pair("GaussianBlur: sigma", sigma if hasattr(sigma, "__len__") else (sigma, sigma))
        if not 0 < self.sigma[0] <= self.sigma[1] < np.inf:
            raise UsageError(place="GaussianBlur", expected="sigma as (least, largest) above 0", found=shorten(sigma))

    def draw(self, sample: Sample, rng: np.random.Generator) -> float:
        """Draw the standard deviation."""
        return float(self.sigma[0] + rng.random() * (self.sigma[1] - self.sigma[0]))

    def paint(self, canvas: Canvas, params: float) -> None:
        """Blur the images; beyond the edges they continue mirrored."""
        for image in canvas.frames("GaussianBlur"):
            values = image.values()
            if any(
                side <= kernel // 2 for side, kernel in zip(values.shape[:2], reversed(self.kernel_size), strict=True)
            ):
                raise UsageError(
                    place="GaussianBlur",
                    expected="images larger than half the kernel",
                    found=f"{values.shape[1]} x {values.shape[0]} for a kernel of {self.kernel_size}",
                )
            # cv2.GaussianBlur rounds the kernel and takes twice as long
            across, down = (cv2.getGaussianKernel(side, params, cv2.CV_32F) for side in self.kernel_size)
            blurred = cv2.sepFilter2D(values, -1, across, down, borderType=cv2.BORDER_REFLECT_101)
            image.replace(np.asarray(blurred))


def _kernel(value: Any) -> tuple[int, int]:
    sides = tuple(value) if hasattr(value, "__len__") else (value, value)
    if len(sides) != 2:
        raise UsageError(
            place="GaussianBlur", expected="kernel_size as pixels, or (width, height)", found=shorten(value)
        )
    width, height = (as_count("GaussianBlur: kernel_size", side, unit="pixel") for side in sides)
    if width % 2 == 0 or height % 2 == 0:
        raise UsageError(place="GaussianBlur", expected="an odd kernel_size", found=shorten(value))
    return width, height
