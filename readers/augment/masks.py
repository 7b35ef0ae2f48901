"""Masks: fields of a sample that are aligned with its image pixel by pixel and move with it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from shardspec.errors import UsageError
from shardspec.fields import is_mask_name
from shardspec.wording import shorten

MaskNames = tuple[str, ...] | None
"""The fields that a caller listed; None for all fields that are masks by their names and sizes."""


def as_mask_names(masks: Sequence[str] | None, user: str) -> MaskNames:
    """Check that ``masks`` is a list of names or None."""
    if masks is None:
        return None
    names = tuple(masks) if isinstance(masks, Iterable) and not isinstance(masks, str) else (masks,)
    if isinstance(masks, str) or not all(isinstance(name, str) for name in names):
        raise UsageError(
            place=user,
            expected="masks to be a list of names, or None for all that the sample has",
            found=shorten(masks),
        )
    return names


def masks_of(sample: Mapping[str, Any], image: npt.NDArray[Any], names: MaskNames, user: str) -> list[str]:
    """Return the names of a sample's masks (`choose_masks`), which share the image's (H, W), in a clip (T, H, W)."""
    sides = image.shape[:-1]
    axes = len(sides)

    def fits(value: Any) -> bool:
        return isinstance(value, np.ndarray) and value.shape[:axes] == sides and value.ndim <= axes + 1

    return choose_masks(sample, names, user, fits, f"an array {sides} or {(*sides, 'C')}, aligned with the image")


def choose_masks(
    sample: Mapping[str, Any], names: MaskNames, user: str, fits: Callable[[Any], bool], wanted: str
) -> list[str]:
    """Return the named masks, or all fields called ``mask``, ``*_mask`` or ``*_image`` that fit if no names are given.

    Parameters
    ----------
    fits : callable
        Whether a value has the image's size. A named mask that does not is refused.
    wanted : str
        Description of such a value, for messages.
    """
    if names is None:
        return [name for name in _mask_names(tuple(sample)) if fits(sample[name])]
    for name in names:
        value = sample.get(name)
        if not fits(value):
            others = ", ".join(n for n, v in sample.items() if n != "image" and fits(v)) or "none"
            raise UsageError(
                f"masks: expected {name!r} to be {wanted}, found {describe_value(value)}; fields that are: {others}",
                place=user,
            )
    return list(names)


@lru_cache(maxsize=256)
def _mask_names(fields: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in fields if is_mask_name(name))


def describe_value(value: Any) -> str:
    """Describe a field's value for messages: dtype and shape, or its type."""
    if value is None:
        return "none of that name"
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{value.dtype} {tuple(shape)}"
