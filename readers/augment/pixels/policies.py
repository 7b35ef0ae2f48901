"""RandAugment and TrivialAugment: random choices among many operations, as in torchvision."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from readers.arguments import as_count
from readers.augment.base import Sample, get_field
from readers.augment.geometry import move_geometry
from readers.augment.masks import masks_of
from readers.augment.paint import Fill, check_fill
from readers.augment.pixels.canvas import Canvas, Pixels, PixelTransform
from readers.augment.pixels.colors import (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    adjust_sharpness,
    autocontrast,
    check_channels,
    equalize,
    posterize,
    solarize,
)
from readers.seeding import uniforms
from shardspec.errors import UsageError

Change = tuple[str, float]
"""The name of an operation in torchvision, and its magnitude."""
FloatArray = npt.NDArray[np.float64]

_COLORS: Mapping[str, Callable[[Pixels, float], None]] = {
    "AutoContrast": lambda image, _: autocontrast(image),
    "Brightness": lambda image, magnitude: adjust_brightness(image, 1 + magnitude),
    "Color": lambda image, magnitude: adjust_saturation(image, 1 + magnitude),
    "Contrast": lambda image, magnitude: adjust_contrast(image, 1 + magnitude),
    "Equalize": lambda image, _: equalize(image),
    "Identity": lambda image, _: None,
    "Posterize": lambda image, magnitude: posterize(image, int(magnitude)),
    "Sharpness": lambda image, magnitude: adjust_sharpness(image, 1 + magnitude),
    "Solarize": lambda image, magnitude: solarize(image, 255 * magnitude),
}

_CHANGES = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast"),
    *("Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)
_BITS: Mapping[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16)}
"""Dtypes in which OpenCV moves masks, by item size; it might change wider items, which it treats as floats."""
_BINS = 31
"""Number of magnitudes, as torchvision has by default."""
_UNSIGNED = ("Identity", "Posterize", "Solarize", "AutoContrast", "Equalize")


class _Policy(PixelTransform[tuple[Change, ...]]):
    def __init__(self, fill: Fill = 0, p: float = 1.0, fill_mask: int = 0, masks: Sequence[str] | None = None) -> None:
        super().__init__(p, masks)
        self.fill = check_fill(fill, type(self).__name__)
        self.fill_mask = fill_mask

    def paint(self, canvas: Canvas, params: tuple[Change, ...]) -> None:
        """Apply the operations in order; those that move pixels move the geometry as well."""
        user = type(self).__name__
        for image in canvas.frames(user):
            check_channels(image, user)
        for name, magnitude in params:
            change = _COLORS.get(name)
            if change is None:
                height, width, _ = canvas.images[0].shape
                self._warp(canvas, _inverse(name, magnitude, height, width))
                continue
            for image in canvas.images:
                change(image, magnitude)

    def _warp(self, canvas: Canvas, inverse: FloatArray) -> None:
        """Move images, masks and geometry, given the matrix (2, 3) from new positions to old ones."""
        forward = cv2.invertAffineTransform(inverse)
        image = canvas.fields["image"]
        fields = move_geometry(canvas.fields, forward)
        for name in masks_of(fields, image, self.masks, type(self).__name__):
            mask = fields[name]
            if image.ndim == 4:
                fields[name] = np.stack([_picked(frame, inverse, self.fill_mask) for frame in mask])
            else:
                fields[name] = _picked(mask, inverse, self.fill_mask)
        canvas.fields = fields
        for pixels in canvas.images:
            channels = pixels.shape[-1]
            fill = self.fill if isinstance(self.fill, tuple) else (self.fill,) * channels
            if len(fill) != channels:
                raise UsageError(
                    place=type(self).__name__,
                    expected="one fill, or one per channel",
                    found=f"{len(fill)} for an image of {channels} channels",
                )
            pixels.replace(_warped(pixels.values(), inverse, fill))


def _warped(image: npt.NDArray[Any], inverse: FloatArray, fill: Sequence[float]) -> npt.NDArray[Any]:
    """Return the nearest pixels of an image, (H, W, ...), under the matrix from new positions to old ones."""
    centred = inverse.copy()  # OpenCV's pixel centres are integers
    centred[:, 2] += inverse[:, :2] @ (0.5, 0.5) - 0.5
    height, width = image.shape[:2]
    if inverse[0, 0] == inverse[1, 1] == 1 and inverse[0, 1] == inverse[1, 0] == 0:
        return _shifted(image, -round(inverse[0, 2]), -round(inverse[1, 2]), fill)
    flags = cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP
    warped = cv2.warpAffine(image, centred, (width, height), flags=flags, borderValue=fill)
    return np.asarray(warped).reshape(image.shape)


def _shifted(image: npt.NDArray[Any], right: int, down: int, fill: Sequence[float]) -> npt.NDArray[Any]:
    """Move an image by whole pixels, five times faster than `cv2.warpAffine`."""
    height, width = image.shape[:2]
    channels = np.asarray(fill, image.dtype)[: image.shape[2] if image.ndim == 3 else 1]
    moved = np.full_like(image, channels[0] if len(set(channels.tolist())) == 1 else channels)
    x, y = min(abs(right), width), min(abs(down), height)
    old = image[max(-down, 0) : height - max(down, 0), max(-right, 0) : width - max(right, 0)]
    if x < width and y < height:
        moved[max(down, 0) : height - max(-down, 0), max(right, 0) : width - max(-right, 0)] = old
    return moved


def _picked(mask: npt.NDArray[Any], inverse: FloatArray, fill: int) -> npt.NDArray[Any]:
    """Apply `_warped` to a mask (H, W) or (H, W, C) of any dtype."""
    outside = np.full((), fill, mask.dtype)
    bits = _BITS.get(mask.itemsize)
    if bits is not None and (mask.ndim == 2 or mask.shape[-1] <= 4):
        return _warped(mask.view(bits), inverse, (float(outside.view(bits)),) * 4).view(mask.dtype)
    height, width = mask.shape[:2]
    y, x = np.mgrid[:height, :width] + 0.5
    columns, rows = (np.rint(row[0] * x + row[1] * y + row[2] - 0.5).astype(np.int64) for row in inverse)
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    moved = np.full_like(mask, outside)
    moved[inside] = mask[rows[inside], columns[inside]]
    return moved


class RandAugment(_Policy):
    """Apply several operations drawn from fourteen, all of one magnitude, as torchvision's ``v2.RandAugment``.

    Shears, shifts and rotations take the nearest pixel and move masks, landmarks, hull, regions and matrix too. The
    other operations change colours.

    Parameters
    ----------
    num_ops : int
        Number of operations, 0 or more.
    magnitude : int
        From 0 to 30, as with torchvision's ``num_magnitude_bins=31``.
    fill : int or tuple of int, 0 to 255
        Value of pixels that come from outside the image.
    p : float, in [0, 1]
        Probability that the transform is applied.
    fill_mask : int
        As `fill`, for masks.
    masks : sequence of str or None
        Fields that move with the image; None: those named ``mask``, ``*_mask`` or ``*_image``, of the image's size.

    Raises
    ------
    UsageError
        When created: if an argument is out of range. When called: if the image is floating, or does not have one or
        three channels.

    Notes
    -----
    With the same operations and magnitudes, colours are within one grey level of torchvision's. After moves, a few
    pixels per thousand may be their neighbours.
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        fill: Fill = 0,
        p: float = 1.0,
        fill_mask: int = 0,
        masks: Sequence[str] | None = None,
    ) -> None:
        super().__init__(fill, p, fill_mask, masks)
        self.num_ops = as_count("RandAugment: num_ops", num_ops, least=0)
        self.magnitude = as_count("RandAugment: magnitude", magnitude, least=0)
        if self.magnitude >= _BINS:
            raise UsageError(place="RandAugment", expected=f"a magnitude from 0 to {_BINS - 1}", found=magnitude)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Change, ...]:
        """Draw the operations and their magnitudes."""
        height, width = get_field(sample, "image", "RandAugment").shape[-3:-1]
        tops = {"Shear": 0.3, "TranslateX": 150 / 331 * width, "TranslateY": 150 / 331 * height, "Rotate": 30.0}
        return tuple(_drawn(rng, tops, 0.9, 4, self.magnitude) for _ in range(self.num_ops))


class TrivialAugment(_Policy):
    """Apply one operation drawn from fourteen, of random magnitude, as torchvision's ``v2.TrivialAugmentWide``.

    Parameters
    ----------
    fill, p, fill_mask, masks
        As for `RandAugment`.

    Raises
    ------
    UsageError
        As for `RandAugment`.
    """

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Change, ...]:
        """Draw the operation and its magnitude."""
        tops = {"Shear": 0.99, "TranslateX": 32.0, "TranslateY": 32.0, "Rotate": 135.0}
        bin_ = int(rng.integers(_BINS))
        return (_drawn(rng, tops, 0.99, 6, bin_),)


def _drawn(rng: np.random.Generator, tops: Mapping[str, float], color: float, bits: int, bin_: int) -> Change:
    """Draw one operation at a given magnitude bin, with a random sign if it has one.

    Parameters
    ----------
    tops : dict of str to float
        Largest magnitudes of the operations that move pixels.
    color : float
        Largest magnitude of colour operations.
    bits : int
        Most bits that Posterize drops.
    """
    which, sign = uniforms(rng, 2)
    name = _CHANGES[int(which * len(_CHANGES))]
    share = bin_ / (_BINS - 1)
    if name == "Posterize":
        return name, float(round(8 - share * bits))
    if name == "Solarize":
        return name, 1 - share
    if name in _UNSIGNED:
        return name, 0.0
    top = tops.get(name, tops["Shear"] if name.startswith("Shear") else color)
    return name, top * share * (-1 if sign <= 0.5 else 1)


def _inverse(name: str, magnitude: float, height: int, width: int) -> FloatArray:
    """Return the matrix (2, 3) from new positions to old ones; pixel (0, 0) covers [0, 1) x [0, 1)."""
    if name == "ShearX":  # about the upper left corner
        return np.array([[1.0, magnitude, 0.0], [0.0, 1.0, 0.0]])
    if name == "ShearY":
        return np.array([[1.0, 0.0, 0.0], [magnitude, 1.0, 0.0]])
    if name == "TranslateX":
        return np.array([[1.0, 0.0, -int(magnitude)], [0.0, 1.0, 0.0]])
    if name == "TranslateY":
        return np.array([[1.0, 0.0, 0.0], [0.0, 1.0, -int(magnitude)]])
    cosine, sine = math.cos(math.radians(magnitude)), math.sin(math.radians(magnitude))  # about the middle
    turn = np.array([[cosine, -sine], [sine, cosine]])
    middle = np.array([width / 2, height / 2])
    return np.column_stack([turn, middle - turn @ middle])
