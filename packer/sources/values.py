"""The values of a table's columns: converted to the type that a recipe asks for, and lists of numbers as arrays."""

import json
import math
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import filterfalse
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.recipe import Recipe
from shardspec.errors import UsageError
from shardspec.schema import AXES_MAX
from shardspec.wording import LENGTH, counted, cut, shorten

DROP = "drop"
TYPES = ("text", "int", "float", DROP)
"""Options of a recipe that name columns: the type that a column gets whatever its values look like, or that it is left
out."""

ArrayType = tuple[Any, ...]
"""The type of a column of lists: the dtype, and the sizes of all axes but the first."""

_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)?(\.[0-9]+|(?<=[0-9])\.)?([eE][+-]?[0-9]{1,2})?\Z")
_PLAIN = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,2})?\Z")
_INTEGER = re.compile(r"[+-]?[0-9]+(\.0*)?\Z")
_DURATION = re.compile(r"(-?)PT([0-9]+(\.[0-9]+)?)S\Z")
"""How `shardspec.frames.plain` writes durations."""
_FLOAT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\Z")
_TEXTS = 10_000
"""After so many cells of texts, a column with hardly a number among them is one of texts."""
_EXACT = 2**53
"""Up to this, a float of 64 bits is the whole number that it was written as."""
BLANKS = " \t"
"""What does not count beside a number in a cell, or beside the name of a column in a header."""
_NO_NUMBERS = frozenset(("", "nan", "NaN", "NAN"))
_INT64 = np.iinfo(np.int64)
_FLOAT64_MAX = float(np.finfo(np.float64).max)
_DTYPES: Mapping[frozenset[type], str] = {
    frozenset((bool,)): "|b1",
    frozenset((int,)): "<i8",
    frozenset((float,)): "<f8",
    frozenset((int, float)): "<f8",
}


def column_types(recipe: Recipe) -> dict[str, str]:
    """The type of each column that a recipe names; `DROP` if the column is left out.

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
                    f"{kind}: expected one option for column {shorten(column)}, found {types[column]} as well"
                )
    return types


def parse_numbers(cells: Iterable[str]) -> npt.NDArray[Any] | None:
    """Return the values of `parse_cells` as an array of 64-bit numbers, (n,), if possible; otherwise None."""
    for parse, code in ((_parse_integer, "q"), (_parse_decimal, "d")):
        try:
            return np.frombuffer(array(code, map(parse, cells)), code)
        except ValueError:
            continue
        except OverflowError:  # a larger integer; if all are integers, a list holds them
            if all(map(_is_integer, cells)):
                break
    return None


def parse_cells(cells: Iterable[str]) -> list[Any]:
    """Texts as integers or as floats if all of them are such numbers; one that is blank or NaN is missing (None)."""
    if not all(map(is_no_number, cells)):
        for parse in (_parse_integer, _parse_decimal):
            try:
                return [None if is_no_number(cell) else parse(cell) for cell in cells]
            except ValueError:
                continue
    return keep_cells(cells)


def keep_cells(cells: Iterable[str]) -> list[Any]:
    """Texts as they are; an empty one is missing (None)."""
    return [cell or None for cell in cells]


def _parse_integer(cell: str) -> int:
    """An integer in its usual spelling; with leading zeros it is a text, since 007 is a name."""
    number = int(cell)
    if str(number) != cell.strip(BLANKS):
        raise ValueError(cell)
    return number


def _is_integer(cell: str) -> bool:
    try:
        _parse_integer(cell)
    except ValueError:
        return False
    return True


def is_no_number(cell: str) -> bool:
    """Return whether a text is missing among numbers.

    Blanks, or how programs write NaN; alone it is a text like any other.
    """
    return cell.strip(BLANKS) in _NO_NUMBERS


def is_decimal(cell: str) -> bool:
    """Return whether a text is a number in its usual spelling; the sign alone passes, too, and so do blanks."""
    return _DECIMAL.match(cell.strip(BLANKS)) is not None


def _parse_decimal(cell: str) -> float:
    """A number in its usual spelling, for the same reason; Python's ``float`` also accepts 1_0, 007 and nan."""
    if not is_decimal(cell):
        raise ValueError(cell)
    return float(cell)


def spells_number(cell: str) -> bool:
    """Return whether a text is a finite number in any spelling, as ``--float`` takes it."""
    return _FLOAT.match(cell.strip(BLANKS)) is not None


class NumbersAmongTexts:
    """How many cells of a column of texts are numbers, and which is the first that is none.

    Attributes
    ----------
    first : tuple of int and str, or None
        The row of the first cell that is no number, and the cell.
    """

    def __init__(self) -> None:
        self.first: tuple[int, str] | None = None
        self._numbers = self._others = 0
        self._ended = False

    def add_numbers(self, count: int) -> None:
        """Take in so many cells that are numbers, all of them."""
        self._numbers += count

    def scan(self, cells: Sequence[str], row: int) -> None:
        """Take in the next cells, of which the first is in that row. Cells without a number do not count.

        Numbers with zeros before them are names, so nothing more is counted beside one, and neither where hardly a cell
        is a number: texts cost next to nothing.
        """
        if self._ended:
            return
        strange = list(filterfalse(_PLAIN.match, cells))
        others = [cell for cell in strange if not is_no_number(cell) and not _PLAIN.match(cell.strip(BLANKS))]
        self._numbers += len(cells) - len(others) - sum(map(is_no_number, strange))
        self._others += len(others)
        if others and self.first is None:
            self.first = row + cells.index(others[0]), others[0]
        self._ended = any(cell.strip(BLANKS).isdecimal() for cell in others)
        self._ended |= self._others >= _TEXTS and self._numbers < _TEXTS / 10

    def describe(self, what: str, where: Callable[[int], str]) -> str | None:
        """Describe how many cells are numbers, and which is none; None if all are, or fewer than half.

        Parameters
        ----------
        what : str
            The column, and what it is.
        where : callable
            Names a row in messages.
        """
        if self.first is None or self._ended or self._numbers < self._others:
            return None
        row, cell = self.first
        found = f"{self._numbers} of {counted(self._numbers + self._others, 'cell')}"
        return f"{what}: {found} are numbers, but not {shorten(cell)} ({where(row)})"


def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object from its pairs, for `json.loads`.

    Raises
    ------
    ValueError
        If a name occurs twice: Python would take the last value, and others the first.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"expected every name once, found {counted(len(pairs) - len(found), 'name')} again")
    return found


def convert(values: Sequence[Any], kind: str, column: str, where: Callable[[int], str]) -> list[Any]:
    """A column's values as texts, integers or floats.

    Missing ones are None: None and NaN, and where numbers are asked for, texts of blanks or NaN.

    Raises
    ------
    UsageError
        If a value cannot be converted to that type.
    """
    one = {"text": _as_text, "int": _as_integer, "float": _as_float}[kind]
    found = []
    for row, value in enumerate(values):
        plain = value.item() if isinstance(value, np.generic) else value
        missing = plain is None or (isinstance(plain, float) and math.isnan(plain))
        missing |= kind != "text" and isinstance(plain, str) and is_no_number(plain)
        try:
            found.append(None if missing else one(plain))
        except (TypeError, ValueError, OverflowError):
            raise UsageError(
                f"column {shorten(column)}, {where(row)}: expected {kind} (--{kind} {cut(column, LENGTH)}), "
                f"found {shorten(value)}"
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
    if isinstance(value, str) and not _FLOAT.match(value.strip(BLANKS)):
        raise ValueError(value)
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def array_type(values: Sequence[Any]) -> ArrayType | None:
    """The type of a column of lists of numbers that differ at most in their lengths; None for any other column."""
    kinds: set[type] = set()
    tails: set[tuple[int, ...]] = set()
    for value in values:
        if not isinstance(value, list | tuple):
            return None
        array = np.array(value, object)  # lists of several lengths stay lists in it
        kinds.update(map(type, array.flat))
        if array.size:
            tails.add(array.shape[1:])
        elif value:
            return None
        if not kinds <= {bool, int, float}:
            return None
    dtype = _DTYPES.get(frozenset(kinds))
    if dtype is None or len(tails) != 1 or len(*tails) >= AXES_MAX:
        return None
    if dtype != "|b1" and not all(_fits(value, dtype) for value in values):
        return None
    return (dtype, *tails.pop())


def _fits(value: Any, dtype: str) -> bool:
    """Return whether all numbers of a list fit into 64 bits, as integers or as floats."""
    least, most = (_INT64.min, _INT64.max) if dtype == "<i8" else (-_FLOAT64_MAX, _FLOAT64_MAX)
    return all(least <= number <= most for number in np.array(value, object).flat)


def missing_list(values: Sequence[Any], dtype: str) -> list[Any]:
    """Return the placeholder for a missing list, given the known lists and the dtype of their `array_type`.

    It is a list of zeros, or of false, if all known lists have the same length, otherwise an empty list.
    """
    shapes = {np.shape(value) for value in values}
    return np.zeros(shapes.pop(), dtype).tolist() if len(shapes) == 1 else []


def with_arrays(columns: Mapping[str, Any], arrays: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """An item's columns, with the lists of those in `arrays` as arrays of the given type."""
    return {name: _as_array(value, *arrays[name]) if name in arrays else value for name, value in columns.items()}


def _as_array(value: Any, dtype: str, *tail: int) -> Any:
    return np.array(value, dtype).reshape(-1, *tail)
