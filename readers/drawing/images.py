"""Images of samples and batches, in whatever form a network gets them, as uint8 (H, W, 3)."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardspec.errors import UsageError
from shardspec.wording import shorten

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_BFLOAT16 = np.dtype("V2")
_ROUNDING = 0.01
"""By how much images from 0 to 1 may leave that range: resampling overshoots, and half precision rounds."""


class ImageFrames(NamedTuple):
    """One sample's image, before its values are brought to 0 … 255.

    Attributes
    ----------
    frames : ndarray, (T, H, W, C)
    strip : bool
        Whether the sample has an axis of frames, or of views.
    """

    frames: npt.NDArray[Any]
    strip: bool


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of torch."""
    return hasattr(value, "detach")


def as_array(value: Any) -> Any:
    """A tensor of any device, or an array of bfloat16's bits, as an array of numpy; anything else as it is."""
    if is_tensor(value):
        value = value.detach().cpu()
        return (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
    if isinstance(value, np.ndarray) and value.dtype == _BFLOAT16:
        return (np.ascontiguousarray(value).view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return value


def as_image(value: Any, name: str) -> ImageFrames:
    """A value of an image field: (H, W, 3), (3, H, W) or (H, W), for clips and views after one more axis.

    Where both axes could be that of the channels, a tensor has them first, an array last.

    Raises
    ------
    UsageError
        If it is not an image.
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
    """The mean and std that a transform, or the last of its ``transforms`` with both, normalises by; None where unknown."""
    parts = getattr(transform, "transforms", None)
    if isinstance(parts, Sequence):
        known = [found for part in parts if (found := normalisation_of(part)) != (None, None)]
        return known[-1] if known else (None, None)
    found = getattr(transform, "mean", None), getattr(transform, "std", None)
    return (None, None) if None in found or any(map(callable, found)) else found


class Scale:
    """How values become 0 … 255, one way for all images of a call.

    Integers are taken as they are, and floating numbers by their range: 0 to 1, 0 to 255, or normalised.

    Parameters
    ----------
    images : iterable of ndarray
    mean, std : sequence of float or None
        What the images were normalised by; ImageNet's if they have values below 0.

    Raises
    ------
    UsageError
        If `mean` and `std` do not fit each other, or the images.
    """

    def __init__(
        self,
        images: Iterable[npt.NDArray[Any]],
        mean: Sequence[float] | float | None = None,
        std: Sequence[float] | float | None = None,
    ) -> None:
        low, high, channels = 0.0, 0.0, 1
        for picture in images:
            if picture.dtype.kind == "f":
                finite = picture[np.isfinite(picture)]
                low, high = min(low, float(finite.min(initial=0))), max(high, float(finite.max(initial=0)))
            channels = max(channels, picture.shape[-1])
        normalised = mean is not None or std is not None or low < -_ROUNDING
        if not normalised:
            self._mean, self._std = np.zeros(1), np.ones(1)
        elif mean is None and std is None and channels == 1:  # of grey images nobody's are known
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

    def __call__(self, picture: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """An image (H, W, C) as uint8 (H, W, 3)."""
        if picture.dtype == np.bool_:
            picture = picture.astype(np.uint8) * np.uint8(255)
        elif picture.dtype.kind == "f":
            values = picture.astype(np.float64) * self._std + self._mean
            picture = np.rint(np.clip(np.nan_to_num(values), 0, 255 / self._factor) * self._factor).astype(np.uint8)
        elif picture.dtype != np.uint8:
            picture = np.clip(picture, 0, 255).astype(np.uint8)
        return np.ascontiguousarray(np.broadcast_to(picture, (*picture.shape[:2], 3)))
