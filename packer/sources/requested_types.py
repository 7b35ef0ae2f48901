"""Types that the user requests for columns of a source: text, numbers or intervals; or to drop the column."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from packer.recipe import Recipe
from shardspec.errors import UsageError
from shardspec.typing.cells import BLANKS, is_no_number, spells_number
from shardspec.wording import LENGTH, cut, shorten

DROP = "drop"
TYPES = ("text", "int", "float", "intervals", DROP)
"""Options of a recipe that name columns, to set their type or to drop them."""

_INTEGER = re.compile(r"[+-]?[0-9]+(\.0*)?\Z")
_DURATION = re.compile(r"(-?)PT([0-9]+(\.[0-9]+)?)S\Z")
"""Format in which `shardspec.typing.dates` writes durations."""
_EXACT = 2**53
"""Up to this limit, 64-bit floats represent all whole numbers exactly."""


def column_types(recipe: Recipe) -> dict[str, str]:
    """Return the requested type of each column that a recipe names, or `DROP`.

    Raises
    ------
    UsageError
        If two options name the same column.
    """
    types: dict[str, str] = {}
    for kind in TYPES:
        for column in getattr(recipe, kind):
            if types.setdefault(column, kind) != kind:
                raise UsageError(
                    option=kind, expected=f"one option for column {shorten(column)}", found=f"{types[column]} as well"
                )
    return types


def convert(values: Sequence[Any], kind: str, column: str, where: Callable[[int], str], first: int = 0) -> list[Any]:
    """Convert the values of a column, from row `first` on, to a type of `TYPES`.

    Missing values (None and NaN) become None. Unless the type is text, so do blank texts and the text NaN.

    Raises
    ------
    UsageError
        If a value cannot be converted to that type.
    """
    one, expected = _CONVERTERS[kind]
    found = []
    for row, value in enumerate(values, first):
        missing = value is None or (isinstance(value, float) and math.isnan(value))
        missing |= kind != "text" and isinstance(value, str) and is_no_number(value)
        try:
            found.append(None if missing else one(value))
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise UsageError(
                place=f"column {shorten(column)}, {where(row)}",
                expected=f"{expected} (--{kind} {cut(column, LENGTH)})",
                found=shorten(value),
            ) from None
    return found


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, allow_nan=False)


def _as_integer(value: Any) -> int:
    if isinstance(value, str):
        if _INTEGER.match(value.strip(BLANKS)):
            return int(value.partition(".")[0])
        value = _as_float(value)  # 2.0000000e+00
        if abs(value) > _EXACT:
            raise ValueError(value)
    if not isinstance(value, int | float) or value != int(value):
        raise ValueError(value)
    return int(value)


def _as_float(value: Any) -> float:
    if isinstance(value, str) and (duration := _DURATION.match(value)):
        value = duration[1] + duration[2]
    if isinstance(value, str) and not spells_number(value):
        raise ValueError(value)
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def parse_intervals(value: Any) -> list[list[float]]:
    """Read a list of ``[start, end]``, or its JSON, in the given order. Raise `ValueError` for any other value."""
    found = np.asarray(json.loads(value) if isinstance(value, str) else value)
    if found.shape == (0,):
        return []
    if found.dtype.kind not in "iuf" or found.shape[1:] != (2,) or not np.isfinite(found).all():
        raise ValueError(value)
    if (found[:, 0] > found[:, 1]).any():
        raise ValueError(value)
    return [list(map(float, pair)) for pair in found]


_CONVERTERS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "text": (_as_text, "text"),
    "int": (_as_integer, "int"),
    "float": (_as_float, "float"),
    "intervals": (parse_intervals, "[[start, end], …] in seconds, start <= end"),
}
"""Converter of each type, and the name of the type in messages."""
