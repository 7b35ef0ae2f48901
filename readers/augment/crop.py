"""A random crop of the stored image."""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from readers.arguments import as_count, as_number, as_range
from readers.augment.base import Image, Sample, Transform, get_image
from readers.augment.geometry import move_geometry
from readers.augment.masks import masks_of
from readers.decode.resample import nearest
from shardspec.errors import UsageError


@dataclass(frozen=True)
class _CropWindow:
    left: int
    top: int
    side: int


class CropJitter(Transform[_CropWindow]):
    """Cut a random square out of the stored crop and resize it, so that face and margin move and scale.

    Landmarks, hull, regions, masks and matrix follow. The square has whole pixels. The image is resized bilinearly, or
    by averaging areas if it shrinks to less than half; masks take the nearest pixel. The square is inside the image
    even if the image is not square.

    Parameters
    ----------
    scale : tuple of float, in (0, 1]
        Smallest and largest side of the square, as a share of the image's shorter side. A crop stored with a margin of
        0.3 is 1.6 times as wide as the box, so 0.625 leaves the box without a margin, and 0.875 leaves a margin of 0.2.
    shift : float, in [0, 1]
        How far the square may move from the middle, as a share of the room on each side; 1 allows every position.
    size : int or None, pixels
        Side of the result; None keeps the shorter side of the image.
    p : float, in [0, 1]
        Probability of a random square. Otherwise, if `size` is given, the largest square in the middle is resized to
        it, so that all results have one size.
    masks : sequence of str or None
        Fields that move with the image; None: those named ``mask``, ``*_mask`` or ``*_image``, of the image's size.
    """

    def __init__(
        self,
        scale: tuple[float, float] = (0.8, 1.0),
        shift: float = 1.0,
        size: int | None = None,
        p: float = 1.0,
        masks: Sequence[str] | None = None,
    ) -> None:
        super().__init__(p, masks)
        self.scale = as_range("CropJitter", "scale", scale)
        self.shift = as_number("CropJitter: shift", shift)
        if not 0 <= self.shift <= 1:
            raise UsageError(place="CropJitter", expected="a shift from 0 to 1", found=shift)
        self.size = None if size is None else as_count("CropJitter: size", size, unit="pixel")

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample with a new crop."""
        if rng.random() < self.p:
            return self.apply(sample, self.draw(sample, rng))
        if self.size is None:
            return sample
        return self.apply(sample, _place(sample, 1.0, 0.0, 0.0))

    def draw(self, sample: Sample, rng: np.random.Generator) -> _CropWindow:
        """Draw the square."""
        size, x, y = rng.random(3).tolist()
        share = self.scale[0] + size * (self.scale[1] - self.scale[0])
        return _place(sample, share, self.shift * (2 * x - 1), self.shift * (2 * y - 1))

    def apply(self, sample: Sample, params: _CropWindow) -> Sample:
        """Cut the square out of image and masks, and move the geometry."""
        image = get_image(sample, "CropJitter")
        size = min(image.shape[-3:-1]) if self.size is None else self.size
        k = size / params.side
        out = move_geometry(sample, np.array([[k, 0.0, -k * params.left], [0.0, k, -k * params.top]]))
        clip = image.ndim == 4
        # down to a half, bilinear interpolation uses every pixel, in a third of the time of averaging areas
        smooth = cv2.INTER_AREA if k < 0.5 else cv2.INTER_LINEAR
        out["image"] = _cut(image, params, size, smooth, clip)
        for name in masks_of(sample, image, self.masks, "CropJitter"):
            out[name] = _cut(sample[name], params, size, None, clip)
        return out


def _place(sample: Sample, share: float, x: float, y: float) -> _CropWindow:
    """Return a square in whole pixels, given its share of the shorter side and its shift from the middle (-1 to 1)."""
    height, width = get_image(sample, "CropJitter").shape[-3:-1]
    side = min(max(round(share * min(height, width)), 1), min(height, width))
    left, top = (width - side) * (1 + x) / 2, (height - side) * (1 + y) / 2
    return _CropWindow(round(left), round(top), side)


def _cut(
    image: Image, window: _CropWindow, size: int, interpolation: int | None, clip: bool
) -> npt.NDArray[np.generic]:
    """Cut a square out of an image, or out of each frame of a clip, and resize it; by nearest pixels for None."""
    if clip:
        return np.stack([_cut(frame, window, size, interpolation, False) for frame in image])
    square = image[window.top : window.top + window.side, window.left : window.left + window.side]
    if window.side == size:
        return square.copy()
    if interpolation is None:
        return nearest(square, size, size)
    resized = np.asarray(cv2.resize(square, (size, size), interpolation=interpolation))
    return resized.reshape(size, size, *image.shape[2:])
