"""Infer the type of a column of Python values in one pass."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any

import numpy as np

from shardspec.errors import SchemaError, UsageError
from shardspec.schema import NO_CLASS
from shardspec.typing.field_types import INT64, FieldType, infer, infer_list, join
from shardspec.wording import shorten

Where = Callable[[int], str]
"""Returns the name of a row for messages, given the row's index."""

FLOAT_MAX = float(np.finfo(np.float64).max)

_OF_PYTHON: Mapping[type, FieldType] = {
    bool: FieldType("array", "|b1"),
    int: FieldType("array", "<i8"),
    float: FieldType("array", "<f8"),
    str: FieldType("text"),
    bytes: FieldType("blob"),
    dict: FieldType("json"),
}
"""Field types that follow from the Python type alone; ``bool`` is first, since it is a subclass of ``int``."""


class NumberLimits:
    """Records the first value of a column that exceeds each of some limits, with its row.

    The limits are ``int64``, ``float64`` (for integers), ``finite`` (for floats) and ``class`` (the smallest label).
    """

    _OF_KIND: Mapping[type, Mapping[str, tuple[float, float]]] = {
        int: {
            "int64": (INT64.min, INT64.max),
            "float64": (-FLOAT_MAX, FLOAT_MAX),
            "class": (NO_CLASS, float("inf")),
        },
        float: {"finite": (-FLOAT_MAX, FLOAT_MAX)},
    }

    def __init__(self) -> None:
        self.beyond: dict[str, tuple[int, Any]] = {}

    def scan(self, numbers: Sequence[Any], given: Sequence[Any], values: Sequence[Any], first: int) -> None:
        """Scan numbers of one kind, int or float without NaN.

        Parameters
        ----------
        numbers : sequence
            At least one.
        given : sequence
            The original value of each number.
        values : sequence
            The column's next values, which include `given`.
        first : int
            Row of the first value.
        """
        least, most = min(numbers), max(numbers)
        for limit, (low, high) in self._OF_KIND[type(least)].items():
            if limit not in self.beyond and (least < low or most > high):
                at = next(at for at, number in enumerate(numbers) if not low <= number <= high)
                self.beyond[limit] = first + _index(values, given[at]), given[at]

    def check(self, kind: type, place: str, where: Where, *, remedy: str = "", finite: bool = False) -> None:
        """Check that a column of 64-bit integers or floats can hold all numbers.

        Raises
        ------
        UsageError
            If a number is beyond the limit.
        """
        if kind is int and "int64" in self.beyond:
            row, number = self.beyond["int64"]
            raise UsageError(
                place=f"{place}, {where(row)}", expected="signed 64-bit integers", found=f"{shorten(number)}{remedy}"
            )
        for limit in ("float64", "finite") if finite else ("float64",):
            if kind is float and limit in self.beyond:
                row, number = self.beyond[limit]
                raise UsageError(place=f"{place}, {where(row)}", expected="finite numbers", found=shorten(number))


class ColumnTyper:
    """Infers the type of a column from its values, in chunks. None and NaN are missing values.

    Attributes
    ----------
    type : FieldType or None
        The type of the values so far; None if all are missing.
    first_missing : int or None
        The row of the first missing value, if any is missing.
    lengths : set of int
        Up to two lengths of lists.
    """

    def __init__(self) -> None:
        self.type: FieldType | None = None
        self.first_missing: int | None = None
        self.lengths: set[int] = set()
        self.limits = NumberLimits()
        self._rows: dict[type, int] = {}
        self._errors: dict[int, str] = {}
        self._is_mixed = False

    @property
    def missing(self) -> bool:
        """True if any value is missing."""
        return self.first_missing is not None

    @property
    def python_type(self) -> type | None:
        """Python type of the values: float if any value is a float; None if all are missing."""
        return float if float in self._rows else next(iter(self._rows), None)

    def scan(self, values: Sequence[Any], first: int = 0) -> None:
        """Scan the next values; the first one is in row `first`."""
        kinds = set(map(type, values))
        for kind in kinds:
            some = values if len(kinds) == 1 else [value for value in values if type(value) is kind]
            known = some if kind is not float else [value for value in some if value == value]
            if (kind is NoneType or len(known) < len(some)) and self.first_missing is None:
                self.first_missing = first + _index(values, next(v for v in some if v is None or v != v))
            if kind is NoneType or not known:
                continue
            some = known
            if kind is int or kind is float:
                self.limits.scan(some, some, values, first)
            if kind not in self._rows:
                self._rows[kind] = first + _index(values, some[0])
            self._add(kind, some, values, first)

    def _add(self, kind: type, some: Sequence[Any], values: Sequence[Any], first: int) -> None:
        """Join the type of `some`, the values of one Python type, to the type of the column."""
        simple = next((found for of, found in _OF_PYTHON.items() if issubclass(kind, of)), None)
        if simple is not None:
            self._join(simple)
            return
        if not issubclass(kind, list | tuple | np.ndarray):
            self._errors.setdefault(
                self._rows[kind], f"expected numbers, texts, lists, objects, bytes or arrays, found {kind.__name__}"
            )
            return
        for value in self._with_new_types(kind, some):
            known = self.type
            try:
                found = infer("", value)
            except SchemaError as error:
                self._errors.setdefault(first + _index(values, value), str(error))
                return
            if not self._join(found) and len(self._rows) == 1 and known is not None:
                self._errors.setdefault(
                    first + _index(values, value),
                    f"expected {known.describe()}, as in the rows before, found {found.describe()}",
                )

    def _with_new_types(self, kind: type, some: Sequence[Any]) -> Iterator[Any]:
        """Yield the lists or arrays whose type differs from the type of the previous one."""
        last: Any = None
        is_array = issubclass(kind, np.ndarray)
        for value in some:
            if is_array:
                found: Any = (value.dtype, value.ndim)
            else:
                found = infer_list(value)
                if len(self.lengths) < 2:
                    self.lengths.add(len(value))
            if found is not last and found != last:
                yield value
            last = found

    def _join(self, found: FieldType) -> bool:
        """Join one more type; return whether that is possible."""
        if self._is_mixed:
            return True  # the type cannot get more general
        joined = found if self.type is None else join(self.type, found)
        self._is_mixed = joined is None
        self.type = joined or self.type
        return joined is not None

    def settle(self, place: str, where: Where, *, remedy: str = "", finite: bool = False) -> FieldType | None:
        """Return the type of all values; None if all are missing.

        Parameters
        ----------
        place : str
            Name of the column in messages.
        where : callable
            Names a row in messages.
        remedy : str
            Advice for integers of more than 64 bits.
        finite : bool
            Whether infinite numbers are refused.

        Raises
        ------
        UsageError
            If the values have several types, or no field can hold one of them.
        """
        if self._errors:
            row = min(self._errors)
            raise UsageError(self._errors[row], place=f"{place}, {where(row)}")
        if self._is_mixed:
            rows = sorted(self._rows.items(), key=lambda of: of[1])
            found = ", ".join(f"{kind.__name__} in {where(row)}" for kind, row in rows)
            raise UsageError(place=place, expected="values of one type", found=found)
        kind = self.python_type
        if kind is not None:
            self.limits.check(kind, place, where, remedy=remedy, finite=finite)
        return self.type


def _index(values: Sequence[Any], sought: Any) -> int:
    """Return the first position of an object, by identity, since some values cannot be compared."""
    return next(place for place, value in enumerate(values) if value is sought)
