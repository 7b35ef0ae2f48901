"""Convert images of samples and batches, in any form that a network takes, to uint8 (H, W, 3)."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardspec.errors import UsageError
from shardspec.wording import shorten

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_BFLOAT16 = np.dtype("V2")
_ROUNDING = 0.01
"""Tolerance around the range 0 to 1, because resampling overshoots and half precision rounds."""


class ImageFrames(NamedTuple):
    """Image of a sample before scaling to 0 … 255.

    Attributes
    ----------
    frames : ndarray, (T, H, W, C)
    strip : bool
        Whether the image has an axis of frames or views.
    """

    frames: npt.NDArray[Any]
    strip: bool


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of torch."""
    return hasattr(value, "detach")


def as_array(value: Any) -> Any:
    """Convert a tensor on any device, or an array of bfloat16 bits, to a numpy array; return other values unchanged."""
    if is_tensor(value):
        value = value.detach().cpu()
        return (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
    if isinstance(value, np.ndarray) and value.dtype == _BFLOAT16:
        return (np.ascontiguousarray(value).view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return value


def as_image(value: Any, name: str) -> ImageFrames:
    """Convert a value of an image field: (H, W, 3), (3, H, W) or (H, W), with a leading axis for clips and views.

    If two axes could hold the channels, it is the first one in a tensor and the last one in an array.

    Raises
    ------
    UsageError
        If the value is not an image.
    """
    first = is_tensor(value)
    array = as_array(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):  # frames of a clip that vary in size
        frames = [as_image(frame, name).frames[0] for frame in value]
        if len({frame.shape for frame in frames}) != 1:
            raise UsageError(
                place=name, expected="frames of one size in each sample", found="several", hint="resize them"
            )
        return ImageFrames(np.stack(frames), True)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf" or array.ndim not in (2, 3, 4):
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else shorten(value)
        raise UsageError(place=name, expected="images (H, W, 3) or (3, H, W)", found=found)
    if array.size == 0:
        raise UsageError(place=name, expected="images of one pixel or more", found=f"shape {array.shape}")
    if array.ndim == 2:
        return ImageFrames(array[None, ..., None], False)
    leads, trails = array.shape[-3] in (1, 3), array.shape[-1] in (1, 3)
    if not leads and not trails:
        raise UsageError(place=name, expected="one channel or three", found=f"shape {array.shape}")
    if leads and (first or not trails):
        array = np.moveaxis(array, -3, -1)
    strip = array.ndim == 4
    return ImageFrames(array if strip else array[None], strip)


def normalisation_of(transform: Any) -> tuple[Any, Any]:
    """Return the mean and std of a transform, or of the last of its ``transforms`` with both; (None, None) if unknown."""
    parts = getattr(transform, "transforms", None)
    if isinstance(parts, Sequence):
        known = [found for part in parts if (found := normalisation_of(part)) != (None, None)]
        return known[-1] if known else (None, None)
    found = getattr(transform, "mean", None), getattr(transform, "std", None)
    return (None, None) if None in found or any(map(callable, found)) else found


class Scale:
    """Scales the values of all images of a call to 0 … 255 in the same way.

    Integers are unchanged. Floating-point images are interpreted by their range: 0 to 1, 0 to 255, or normalised.

    Parameters
    ----------
    images : iterable of ndarray
    mean, std : sequence of float or None
        Normalisation of the images; by default ImageNet's if they have values below 0.

    Raises
    ------
    UsageError
        If the lengths of `mean` and `std` differ, or do not fit the channels.
    """

    def __init__(
        self,
        images: Iterable[npt.NDArray[Any]],
        mean: Sequence[float] | float | None = None,
        std: Sequence[float] | float | None = None,
    ) -> None:
        low, high, channels = 0.0, 0.0, 1
        for image in images:
            if image.dtype.kind == "f":
                finite = image[np.isfinite(image)]
                low, high = min(low, float(finite.min(initial=0))), max(high, float(finite.max(initial=0)))
            channels = max(channels, image.shape[-1])
        normalised = mean is not None or std is not None or low < -_ROUNDING
        if not normalised:
            self._mean, self._std = np.zeros(1), np.ones(1)
        elif mean is None and std is None and channels == 1:  # no usual mean and std exist for grey images
            self._mean, self._std = np.full(1, low), np.full(1, max(high - low, 1e-9))
        else:
            self._mean = np.atleast_1d(np.asarray(IMAGENET_MEAN if mean is None else mean, np.float64))
            self._std = np.atleast_1d(np.asarray(IMAGENET_STD if std is None else std, np.float64))
        if self._mean.shape != self._std.shape or len(self._mean) not in (1, channels):
            raise UsageError(
                option="mean, std",
                expected=f"one number for each of {channels} channels, or one for all",
                found=f"{shorten(mean)} and {shorten(std)}",
            )
        whole = self._mean.max() > 1 or self._std.max() > 2 if normalised else high > 1 + _ROUNDING
        self._factor = 1.0 if whole else 255.0

    def __call__(self, image: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """Convert an image (H, W, C) to uint8 (H, W, 3)."""
        if image.dtype == np.bool_:
            image = image.astype(np.uint8) * np.uint8(255)
        elif image.dtype.kind == "f":
            values = image.astype(np.float64) * self._std + self._mean
            image = np.rint(np.clip(np.nan_to_num(values), 0, 255 / self._factor) * self._factor).astype(np.uint8)
        elif image.dtype != np.uint8:
            image = np.clip(image, 0, 255).astype(np.uint8)
        return np.ascontiguousarray(np.broadcast_to(image, (*image.shape[:2], 3)))
