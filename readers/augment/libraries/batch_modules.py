"""Modules of other libraries, and functions, in a chain of batch transforms."""

import hashlib
import warnings
from collections.abc import Callable
from copy import deepcopy
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from readers.augment.libraries.torch_random import TorchDraws
from readers.augment.row_random import RowDraws
from readers.transforms import library_of, refuse_bare
from shardspec.errors import UsageError
from shardspec.wording import cut, shorten


class ValueRange(Enum):
    """Range of image values."""

    BYTES = "from 0 to 255"
    UNIT = "from 0 to 1"
    NORMAL = "normalised"
    ANY = "black"


_ROUNDING = 1e-3
_CHANGES_RANGE = (
    "ConvertImageDtype",
    "Denormalize",
    "Lambda",
    "LinearTransformation",
    "Normalize",
    "ToDtype",
    "ToTensor",
)
"""Modules of torchvision and Kornia that may change the range of floating images."""

_NORMALIZES = ("Denormalize", "LinearTransformation", "Normalize")
"""Modules after which images count as normalised, regardless of their values, unless they were normalised before."""


class OtherModule(nn.Module):
    """A module of another library, or a function, that maps the images of a batch, (B, C, H, W), to new images."""

    def __init__(self, function: nn.Module | Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.name = getattr(function, "__name__", type(function).__name__)
        if not callable(function) or isinstance(function, type):
            raise UsageError(place="BatchCompose", expected="modules and functions", found=shorten(function))
        self._library = library_of(function)
        if self._library == "albumentations":
            refuse_bare("batch_transform", function, batches=True)
        if self._library == "torchvision" and self.name in ("CutMix", "MixUp"):
            raise UsageError(
                f"{self.name} of torchvision mixes labels too, but modules here get only images",
                place="BatchCompose",
                hint=f"use readers.augment.Batch{self.name}",
            )
        if not isinstance(function, nn.Module) and getattr(function, "seeded", False) is True:
            raise UsageError(
                place="BatchCompose",
                expected="modules for batches",
                found=f"{self.name}, a transform of samples",
                hint="give it to transform= or sample_transform=",
            )
        self.function = function
        parts = list(function.modules()) if isinstance(function, nn.Module) else []
        self._changes_range = self._library is None or any(type(part).__name__ in _CHANGES_RANGE for part in parts)
        self._normalizes = self._library is not None and any(type(part).__name__ in _NORMALIZES for part in parts)
        self._draws_once = self._library == "kornia" and any(
            # Kornia's Normalize and Denormalize have the attribute too, but draw nothing
            getattr(part, "same_on_batch", None) is True and type(part).__name__ not in _NORMALIZES
            for part in parts
        )
        # with a p of 0 or 1, the draw that decides whether to act always gives the same answer
        self._certain = getattr(function, "p", None) in (0, 1)
        self._warned = False

    def call(
        self, image: Tensor, values: ValueRange, draws: RowDraws | None, place: int
    ) -> tuple[ValueRange | None, Tensor]:
        """Call the module with images in the range that it expects; return the range of the result and the result.

        Parameters
        ----------
        image : Tensor, (B, C, H, W)
        values : ValueRange
            Range of the image values. That of the result is None if it has to be examined.
        draws : RowDraws or None
            Source of torch draws in the module; None for torch's global generators.
        place : int
            Position in the chain.
        """
        if values is not ValueRange.NORMAL and self._wants_floats(image, values):
            image = image / 255 if image.is_floating_point() else image.to(torch.float32).div_(255)
            values = ValueRange.UNIT
        with TorchDraws(None if draws is None else _seed(draws, place), len(image)) as watched:
            result = self._called(image)
        if not isinstance(result, Tensor):
            raise UsageError(
                place="BatchCompose",
                expected=f"{self.name} to give back the image as a tensor",
                found=type(result).__name__,
            )
        if self._draws_once or (self._library == "torchvision" and watched.small > self._certain):
            self._warn(len(image))
        if self._normalizes and values is not ValueRange.NORMAL:  # a second one may undo the first: examine the values
            return ValueRange.NORMAL, result
        kept = not self._changes_range and image.dtype == result.dtype
        return (values if kept else None), result

    def check_not_cut(self, before: Tensor, after: Tensor) -> None:
        """Refuse a module that has clipped normalised images to 0 to 1."""
        if self._library and float(before.amin()) < 0 <= float(after.amin()) and float(after.amax()) <= 1:
            raise UsageError(
                place=self.name,
                expected="images from 0 to 1",
                found="normalised ones, which it clips",
                hint="put BatchNormalize after it",
            )

    def _wants_floats(self, image: Tensor, values: ValueRange) -> bool:
        if image.is_floating_point():
            return values is ValueRange.BYTES
        return self._library == "kornia" or type(self.function).__name__ == "Normalize"

    def _called(self, image: Tensor) -> Any:
        try:
            return self.function(image)
        except (IndexError, KeyError, TypeError) as error:
            if not isinstance(self.function, nn.Module):
                kind = str(image.dtype).removeprefix("torch.")
                hint = f"functions in BatchCompose get the image alone, (B, C, H, W), here {kind}, and give one back"
            elif image.dtype == torch.uint8 and isinstance(error, TypeError):
                hint = "put BatchNormalize((0, 0, 0), (1, 1, 1)) before it, which makes images of uint8 0 to 1"
            else:
                raise
            raise UsageError(
                f"{self.name} failed with {cut(str(error), 200)!r}: {hint}", place="BatchCompose"
            ) from error

    def _warn(self, rows: int) -> None:
        if self._warned or rows < 2:
            return
        self._warned = True
        if self._library == "kornia":
            remedy = "leave out same_on_batch=True"
        else:
            remedy = f"give it to transform= as readers.augment.Torchvision(v2.{self.name}(…))"
        warnings.warn(
            f"BatchCompose: {self.name} draws once for all images of a batch; to draw for each, {remedy}",
            stacklevel=2,
        )


def looked_at(image: Tensor) -> ValueRange:
    """Return the range of floating images, judged by their smallest and largest value."""
    if not image.numel():
        return ValueRange.ANY
    least, most = torch.stack(torch.aminmax(image.detach())).tolist()
    if least < -_ROUNDING:
        return ValueRange.NORMAL
    if most <= _ROUNDING:
        return ValueRange.ANY
    return ValueRange.UNIT if most <= 1 + _ROUNDING else ValueRange.BYTES


def _seed(draws: RowDraws, place: int) -> int:
    """Return a seed, 0 to 2**63 - 1, for the draws of a module: a function of the rows' seeds and its place."""
    numbers = deepcopy(draws).uniform(2).tobytes()  # from a copy, so that this module does not change later draws
    return int.from_bytes(hashlib.blake2b(numbers + place.to_bytes(4), digest_size=8).digest()) >> 1
