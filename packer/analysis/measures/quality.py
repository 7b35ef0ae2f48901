"""Quality of an image: sharpness, brightness, contrast, clipped pixels, colourfulness."""

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from packer.analysis.measures.pixels import pixels_of, scaled

SIDE = 256
"""Longer side, in pixels, at which sharpness is measured."""

_DARK, _BRIGHT = 2, 253
"""Levels of luma up to which, and from which on, a pixel is clipped."""


class Quality:
    """Measure the quality of images.

    ``sharpness``: variance of the Laplacian (3 x 3, 4 neighbours) of luma, at a longer side of 256 pixels, in squared
    levels; 0 for a flat image, below about 100 if it is blurred (Pech-Pacheco et al. 2000).
    ``brightness``: mean of luma, 0 to 255. ``contrast``: standard deviation of luma, 0 to 127.5.
    ``clipped``: share of pixels with a luma of at most 2 or at least 253, 0 to 1.
    ``colourfulness``: M3 of Hasler and Süsstrunk (2003), 0 for grey, above 59 if "quite colourful".

    Luma is that of ITU-R BT.601.
    """

    version = "2"

    def __call__(self, image: Any) -> dict[str, npt.NDArray[np.float32]]:
        """Measure each image of a batch."""
        found = np.array([_measure(one) for one in pixels_of(image)], np.float32).reshape(-1, 5)
        names = ("sharpness", "brightness", "contrast", "clipped", "colourfulness")
        return {name: found[:, place] for place, name in enumerate(names)}


def _measure(image: npt.NDArray[np.uint8]) -> tuple[float, ...]:
    luma = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    height, width = luma.shape
    factor = SIDE / max(height, width)
    at_scale = scaled(luma, (max(1, round(width * factor)), max(1, round(height * factor))))
    sharpness = _moments(cv2.Laplacian(at_scale, cv2.CV_16S))[1] ** 2
    clipped = 1 - cv2.countNonZero(cv2.inRange(luma, _DARK + 1, _BRIGHT - 1)) / luma.size
    return sharpness, *_moments(luma), clipped, _colourfulness(image)


def _colourfulness(image: npt.NDArray[np.uint8]) -> float:
    """Return M3 of Hasler and Süsstrunk, "Measuring colourfulness in natural images" (2003)."""
    red, green, blue = cv2.split(image)
    means = cv2.mean(image)
    # Mean squares of the differences of two channels. That of R + G - 2 B, which is twice the paper's yellow-blue, follows.
    pairs = ((red, green), (red, blue), (green, blue))
    of_red_green, of_red_blue, of_green_blue = (cv2.norm(*pair, cv2.NORM_L2) ** 2 / red.size for pair in pairs)
    red_green, yellow_blue = means[0] - means[1], (means[0] + means[1]) / 2 - means[2]
    square = (2 * (of_red_blue + of_green_blue) - of_red_green) / 4
    variance = max(0.0, of_red_green - red_green**2) + max(0.0, square - yellow_blue**2)
    return float(variance**0.5 + 0.3 * np.hypot(red_green, yellow_blue))


def _moments(values: Any) -> tuple[float, float]:
    """Return mean and standard deviation, in a third of the time of ``cv2.meanStdDev`` for 16 bits."""
    mean = cv2.mean(values)[0]
    square = cv2.norm(values, cv2.NORM_L2) ** 2 / values.size
    return mean, max(0.0, square - mean**2) ** 0.5
