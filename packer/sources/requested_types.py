"""The types that a user requests for columns of a source: text, int or float, or to leave the column out."""

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from packer.recipe import Recipe
from shardspec.errors import UsageError
from shardspec.typing.cells import BLANKS, is_no_number, spells_number
from shardspec.wording import LENGTH, cut, shorten

DROP = "drop"
TYPES = ("text", "int", "float", DROP)
"""Options of a recipe that name columns: the type of a column regardless of its values, or that it is left out."""

_INTEGER = re.compile(r"[+-]?[0-9]+(\.0*)?\Z")
_DURATION = re.compile(r"(-?)PT([0-9]+(\.[0-9]+)?)S\Z")
"""How `shardspec.typing.dates` writes durations."""
_EXACT = 2**53
"""Up to this, a float of 64 bits is the whole number that it was written as."""


def column_types(recipe: Recipe) -> dict[str, str]:
    """Return the type of each column that a recipe names; `DROP` if the column is left out.

    Raises
    ------
    UsageError
        If two options name a column.
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
    """Convert a column's values to text, integers or floats; the first one is in row `first`.

    None and NaN are missing and become None; for numbers, so do blank texts and the text NaN.

    Raises
    ------
    UsageError
        If a value cannot be converted to that type.
    """
    one = {"text": _as_text, "int": _as_integer, "float": _as_float}[kind]
    found = []
    for row, value in enumerate(values, first):
        missing = value is None or (isinstance(value, float) and math.isnan(value))
        missing |= kind != "text" and isinstance(value, str) and is_no_number(value)
        try:
            found.append(None if missing else one(value))
        except (TypeError, ValueError, OverflowError):
            raise UsageError(
                place=f"column {shorten(column)}, {where(row)}",
                expected=f"{kind} (--{kind} {cut(column, LENGTH)})",
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
