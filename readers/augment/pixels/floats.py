"""Conversion of uint8 images to floating numbers by one look-up table: 0 to 1, or normalised."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from readers.arguments import as_number
from readers.augment.pixels.canvas import Canvas, PixelTransform, Table
from readers.decode.values import BFLOAT16
from shardspec.columns import PIXEL_STATISTICS, channel_statistics
from shardspec.errors import SchemaError, UsageError
from shardspec.wording import shorten

_DTYPES: Mapping[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
}


class ToFloat(PixelTransform[None]):
    """Convert uint8 images to floating numbers from 0 to 1, as torchvision's ``v2.ToDtype(dtype, scale=True)``.

    Parameters
    ----------
    dtype : str or dtype
        ``"float32"``, ``"float16"`` or ``"bfloat16"``, or the dtype of torch or numpy with that name. numpy has no
        bfloat16: in a sample, it is an array of dtype ``V2`` with the bits; in a batch it is torch's.

    Notes
    -----
    The numbers of every dtype are those of float32, rounded once. Put it last in a chain: only `RandomErasing` may
    follow. In a `Compose`, its table is merged with the one before it, for example that of `ColorJitter`.
    """

    def __init__(self, dtype: Any = "float32") -> None:
        super().__init__(1.0)
        self.dtype = as_float_name("ToFloat", dtype)

    def paint(self, canvas: Canvas, params: None) -> None:
        """Add the table to the images."""
        for image in canvas.frames("ToFloat"):
            image.look_up(_unit_table(self.dtype))


class Normalize(PixelTransform[None]):
    """Convert uint8 images to (x / 255 - mean) / std.

    float32 results equal torchvision's ``v2.ToDtype(torch.float32, scale=True)`` followed by ``v2.Normalize(mean,
    std)`` bit for bit.

    Parameters
    ----------
    mean, std : sequence of float
        One per channel, or one for all, for images from 0 to 1; ImageNet's by default.
    dtype : str or dtype
        As for `ToFloat`.
    stats : dataset, optional
        Take mean and standard deviation of this dataset or part, whose column ``pixel_statistics`` ``packer inspect
        --statistics`` has stored.

    Raises
    ------
    UsageError
        When created: if the dataset lacks that column, or if the numbers are not finite, or a std is not above 0. When called: if the image has another
        number of channels, or is floating already.
    """

    def __init__(
        self,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
        dtype: Any = "float32",
        stats: Any = None,
    ) -> None:
        super().__init__(1.0)
        if stats is not None:
            mean, std = _statistics_of(stats)
        self.mean, self.std = _numbers("mean", mean), _numbers("std", std)
        if len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise UsageError(
                place="Normalize", expected="as many means as positive stds", found=f"{shorten(mean)} and {std!r}"
            )
        self.dtype = as_float_name("Normalize", dtype)

    def paint(self, canvas: Canvas, params: None) -> None:
        """Add the table to the images."""
        for image in canvas.frames("Normalize"):
            if len(self.mean) not in (1, image.shape[-1]):
                raise UsageError(
                    place="Normalize",
                    expected="as many means and stds as channels",
                    found=f"{len(self.mean)} for an image of {image.shape[-1]}",
                )
            image.look_up(_normal_table(self.mean, self.std, self.dtype))


def as_float_name(user: str, dtype: Any) -> str:
    """Return the name of float32, float16 or bfloat16, given by name or as a dtype of numpy or torch."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype))
    name = name.removeprefix("torch.")
    if name not in _DTYPES:
        raise UsageError(place=user, expected=f"dtype to be one of {', '.join(_DTYPES)}", found=shorten(dtype))
    return name


def encoded(values: npt.ArrayLike, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Convert finite numbers to float32, float16 or bfloat16 (its bits), rounded to nearest, ties to even."""
    numbers = np.asarray(values, np.float32)
    if dtype != BFLOAT16:
        with np.errstate(over="ignore"):  # infinity beyond float16's largest number, as in torch
            return numbers.astype(dtype)
    bits = np.ascontiguousarray(numbers).view(np.uint32).reshape(numbers.shape)
    upper = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    return upper.astype(np.uint16).view(BFLOAT16)


@lru_cache(maxsize=16)
def _unit_table(dtype: str) -> Table:
    return encoded(_unit(), _DTYPES[dtype])


@lru_cache(maxsize=16)
def _normal_table(mean: tuple[float, ...], std: tuple[float, ...], dtype: str) -> Table:
    table = (_unit()[:, None] - np.array(mean, np.float32)) / np.array(std, np.float32)
    return encoded(table[:, 0] if len(mean) == 1 else table, _DTYPES[dtype])


def _unit() -> npt.NDArray[np.float32]:
    """Return 0 to 1 as torchvision computes it: x * (1 / 255), which differs from x / 255."""
    return np.arange(256, dtype=np.float32) * np.float32(1 / 255)


def _statistics_of(dataset: Any) -> tuple[Sequence[float], Sequence[float]]:
    """Return mean and standard deviation of a dataset's images from its column of sums."""
    try:
        found = channel_statistics(dataset.column(PIXEL_STATISTICS))
    except (AttributeError, SchemaError, ValueError) as error:
        raise UsageError(
            option="stats",
            expected=f"a dataset with images and the column {PIXEL_STATISTICS!r}",
            found=shorten(dataset),
            hint="store the column with packer inspect --statistics",
        ) from error
    return found.mean, found.std


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    try:
        numbers = tuple(as_number(f"Normalize: {name}", value) for value in values)
    except TypeError:
        numbers = (as_number(f"Normalize: {name}", values),)
    if not numbers or not np.isfinite(numbers).all():
        raise UsageError(place="Normalize", expected=f"{name} as one finite number per channel", found=shorten(values))
    return numbers
