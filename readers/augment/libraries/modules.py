"""Modules of other libraries, and functions, in a chain for batches: range of values, draws, and what they cannot do."""

import hashlib
import warnings
from collections.abc import Callable
from copy import deepcopy
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from readers.augment.draws import RowDraws
from readers.augment.libraries.draws import TorchDraws
from readers.transforms import library_of, refuse_bare
from shardspec.errors import UsageError
from shardspec.wording import cut, shorten


class Values(Enum):
    """The range of the values of pictures."""

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
"""Modules of torchvision and Kornia after which floating pictures may have another range than before."""

_NORMALIZES = ("Denormalize", "LinearTransformation", "Normalize")
"""Those of them after which pictures are normalised, whatever their values look like, unless they were so before."""


class OtherModule(nn.Module):
    """A module of another library, or a function, that gets the pictures of a batch, (B, C, H, W), and gives others.

    Parameters
    ----------
    function : nn.Module or callable

    Raises
    ------
    UsageError
        If it is not callable, or is a transform of samples.
    """

    def __init__(self, function: nn.Module | Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.name = getattr(function, "__name__", type(function).__name__)
        if not callable(function) or isinstance(function, type):
            raise UsageError(f"BatchCompose: expected modules and functions, found {shorten(function)}")
        self._library = library_of(function)
        if self._library == "albumentations":
            refuse_bare("batch_transform", function, batches=True)
        if self._library == "torchvision" and self.name in ("CutMix", "MixUp"):
            raise UsageError(
                f"BatchCompose: {self.name} of torchvision mixes labels too, and gets pictures alone here: "
                f"use readers.augment.Batch{self.name}"
            )
        if not isinstance(function, nn.Module) and getattr(function, "seeded", False) is True:
            raise UsageError(
                f"BatchCompose: expected modules for batches, found {self.name}, a transform of samples: give it to "
                f"transform= or sample_transform="
            )
        self.function = function
        parts = list(function.modules()) if isinstance(function, nn.Module) else []
        self._changes_range = self._library is None or any(type(part).__name__ in _CHANGES_RANGE for part in parts)
        self._normalizes = self._library is not None and any(type(part).__name__ in _NORMALIZES for part in parts)
        self._draws_once = self._library == "kornia" and any(
            # Kornia's Normalize and Denormalize say so too, and draw nothing
            getattr(part, "same_on_batch", None) is True and type(part).__name__ not in _NORMALIZES
            for part in parts
        )
        # with p of 0 or 1 it draws whether it acts, and the answer is always the same
        self._certain = getattr(function, "p", None) in (0, 1)
        self._warned = False

    def call(
        self, image: Tensor, values: Values, draws: RowDraws | None, path: tuple[int, ...]
    ) -> tuple[Values | None, Tensor]:
        """Call it with pictures in the range that it expects.

        Parameters
        ----------
        image : Tensor, (B, C, H, W)
        values : Values
            The range of the pictures' values.
        draws : RowDraws or None
            What its draws of torch depend on; None: on torch's generators.
        path : tuple of int
            Its place in the chain, after those of the chain in the chains around it.

        Returns
        -------
        values : Values or None
            The range of the result; None if it has to be looked at.
        image : Tensor

        Raises
        ------
        UsageError
            If it takes no pictures of uint8, or gives back no picture.
        """
        if values is not Values.NORMAL and self._wants_floats(image, values):
            image = image / 255 if image.is_floating_point() else image.to(torch.float32).div_(255)
            values = Values.UNIT
        with TorchDraws(None if draws is None else _seed(draws, path), len(image)) as watched:
            result = self._called(image)
        if not isinstance(result, Tensor):
            raise UsageError(
                f"BatchCompose: expected {self.name} to give back the image as a tensor, found {type(result).__name__}"
            )
        if self._draws_once or (self._library == "torchvision" and watched.small > self._certain):
            self._warn(len(image))
        if self._normalizes and values is not Values.NORMAL:  # once normalised, it may be turned back: look
            return Values.NORMAL, result
        kept = not self._changes_range and image.dtype == result.dtype
        return (values if kept else None), result

    def check_not_cut(self, before: Tensor, after: Tensor) -> None:
        """Refuse a module that has cut normalised pictures off to 0 to 1."""
        if self._library and float(before.amin()) < 0 <= float(after.amin()) and float(after.amax()) <= 1:
            raise UsageError(
                f"{self.name}: expected pictures from 0 to 1, found normalised ones, which it cuts off: put "
                "BatchNormalize after it"
            )

    def _wants_floats(self, image: Tensor, values: Values) -> bool:
        if image.is_floating_point():
            return values is Values.BYTES
        return self._library == "kornia" or type(self.function).__name__ == "Normalize"

    def _called(self, image: Tensor) -> Any:
        try:
            return self.function(image)
        except (IndexError, KeyError, TypeError) as error:
            if not isinstance(self.function, nn.Module):
                kind = str(image.dtype).removeprefix("torch.")
                hint = f"functions in BatchCompose get the image alone, (B, C, H, W), here {kind}, and give one back"
            elif image.dtype == torch.uint8 and isinstance(error, TypeError):
                hint = "put BatchNormalize((0, 0, 0), (1, 1, 1)) before it, which makes pictures of uint8 0 to 1"
            else:
                raise
            raise UsageError(f"BatchCompose: {self.name} failed with {cut(str(error), 200)!r}: {hint}") from error

    def _warn(self, rows: int) -> None:
        if self._warned or rows < 2:
            return
        self._warned = True
        if self._library == "kornia":
            remedy = "leave out same_on_batch=True"
        else:
            remedy = f"give it to transform= as readers.augment.Torchvision(v2.{self.name}(…))"
        warnings.warn(
            f"BatchCompose: {self.name} draws once for all pictures of a batch; to draw for each, {remedy}",
            stacklevel=2,
        )


def looked_at(image: Tensor) -> Values:
    """The range of the values of floating pictures, judged by the least and the greatest."""
    if not image.numel():
        return Values.ANY
    least, most = torch.stack(torch.aminmax(image.detach())).tolist()
    if least < -_ROUNDING:
        return Values.NORMAL
    if most <= _ROUNDING:
        return Values.ANY
    return Values.UNIT if most <= 1 + _ROUNDING else Values.BYTES


def _seed(draws: RowDraws, path: tuple[int, ...]) -> int:
    """A number from 0 to 2**63 - 1 for the draws of a module: a function of the rows' seeds and of its path."""
    numbers = deepcopy(draws).uniform(2).tobytes()  # of a copy: other modules draw as without this one
    places = b"".join(place.to_bytes(4) for place in path)
    return int.from_bytes(hashlib.blake2b(numbers + places, digest_size=8).digest()) >> 1
