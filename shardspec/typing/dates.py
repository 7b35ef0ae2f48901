"""Convert values that no field can hold to text: dates and times in ISO 8601, decimals with all digits.

Every source of columns uses these rules. A date or time becomes the text that Python's ``isoformat`` returns. A time
with a time zone is written in UTC. A duration is written in seconds, such as ``PT1.500000S``. The range is that of
Python's types: years 1 to 9999, with a resolution of microseconds.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from shardspec.errors import UsageError
from shardspec.wording import LONG, cut, shorten

_PLAIN = frozenset((bool, bytes, float, int, str, type(None)))
_MISSING = ("NAType", "NaTType")
"""Types of pandas' missing values, which are not equal to anything."""
_MICROSECOND = timedelta(microseconds=1)
ARROW_ERRORS = (ArithmeticError, LookupError, NotImplementedError, OSError, TypeError, ValueError)
"""Errors that pyarrow raises when it reads a file or makes Python values. They have no common base class."""


class RowError(ValueError):
    """A value of an Arrow column cannot be read.

    Attributes
    ----------
    row : int
        The row in the column, counted from 0.
    reason : str
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row} (counted from 0): {reason}")
        self.row = row
        self.reason = reason


def plain_values(values: Sequence[Any]) -> Sequence[Any]:
    """Apply `plain_value` to each value."""
    return values if _PLAIN.issuperset(map(type, values)) else [plain_value(value) for value in values]


def plain_value(value: Any) -> Any:
    """Return a date, time, duration, decimal or UUID as text, and a NumPy scalar as a Python scalar.

    Lists and mappings are searched for such values. A missing value of pandas or numpy becomes None. Any other value is
    returned unchanged.

    Raises
    ------
    UsageError
        If a date, time or duration is outside of Python's range or has a finer resolution than a microsecond.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list | tuple):
        found = plain_values(value)
        return tuple(found) if isinstance(value, tuple) and found is not value else found
    if isinstance(value, dict):
        return {name: plain_value(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray):
        return [plain_value(entry) for entry in value] if value.dtype.kind in "mM" else value
    if type(value).__name__ in _MISSING:
        return None
    if isinstance(value, np.datetime64 | np.timedelta64):
        value = _from_numpy(value)
    elif isinstance(value, np.generic):
        return value.item()
    if isinstance(value, timedelta):
        seconds, rest = divmod(abs(value) // _MICROSECOND, 10**6)
        return f"{'-' if value < timedelta() else ''}PT{seconds}{f'.{rest:06}' if rest else ''}S"
    if isinstance(value, datetime) and value.tzinfo is not None:
        try:
            return value.astimezone(UTC).isoformat()
        except OverflowError:
            raise _out_of_range(value) from None
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return None if value.is_nan() else format(value, "f")
    return str(value) if isinstance(value, UUID) else value


def _from_numpy(value: np.datetime64 | np.timedelta64) -> date | timedelta | None:
    """Convert a NumPy scalar to Python; a date without a time becomes a ``date``."""
    if np.isnat(value):
        return None
    is_date = isinstance(value, np.datetime64) and np.datetime_data(value.dtype)[0] in ("Y", "M", "W", "D")
    exact = value.astype(f"{value.dtype.kind}8[{'D' if is_date else 'us'}]")
    found = exact.item()
    if exact != value or isinstance(found, int):
        raise _out_of_range(value)
    return found  # type: ignore[no-any-return] # numpy's stub knows no types of items


def _out_of_range(value: Any) -> UsageError:
    return UsageError(
        expected="dates and times in microseconds of the years 1 to 9999, and durations in microseconds",
        found=shorten(str(value)),
        hint="convert the column to texts or integers",
    )


def plain_arrow(column: Any) -> Sequence[Any]:
    """Return the values of a pyarrow column as Python values that fields can hold, with None for missing values.

    Parameters
    ----------
    column : pyarrow.Array or pyarrow.ChunkedArray

    Raises
    ------
    RowError
        If a value cannot be read.
    """
    try:
        return plain_values(column.to_pylist())
    except ARROW_ERRORS as error:
        for row in range(len(column)):
            try:
                plain_value(column[row].as_py())
            except ARROW_ERRORS as of_row:
                raise RowError(row, cut(str(of_row), LONG)) from of_row
        raise RowError(0, cut(str(error), LONG)) from error
