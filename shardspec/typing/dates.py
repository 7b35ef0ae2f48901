"""Write values that no field can hold as text: dates and times in ISO 8601, decimals with all digits.

Every source of columns uses this rule. A date or time becomes the text that Python's ``isoformat`` returns, with nine
digits of a second if six are too few. A time with a time zone is written in UTC. A duration is written in seconds, such
as ``PT1.500000S``.
"""

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt

from shardspec.registry import import_target
from shardspec.wording import LONG, cut

_PLAIN = frozenset((bool, bytes, float, int, str, type(None)))
_MISSING = ("NAType", "NaTType")
"""Types of pandas' missing values, which equal nothing."""
_UTC = "+00:00"
_SECOND_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9, "ps": 12, "fs": 15, "as": 18}
_SECONDS = {"W": 604_800, "D": 86_400, "h": 3600, "m": 60}
_DAY = np.timedelta64(1, "D")
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
    """Return the values with those replaced that no field can hold (`plain_value`)."""
    return values if _PLAIN.issuperset(map(type, values)) else [plain_value(value) for value in values]


def plain_value(value: Any) -> Any:
    """Return a date, time, duration, decimal or UUID as text, and a scalar of numpy as a scalar of Python.

    Lists and mappings are searched for such values. A missing value of pandas or numpy becomes None. Any other value is
    returned unchanged.
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
    if isinstance(value, np.datetime64):
        return _stamps(np.array([value]))[0]
    if isinstance(value, timedelta | np.timedelta64):
        return _duration(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, datetime) and (offset := value.utcoffset()) is not None:
        # Not astimezone, which fails close to the years 1 and 9999. A pandas Timestamp has nanoseconds.
        exact = getattr(value, "to_datetime64", None)
        instant = exact() if exact else np.datetime64(value.replace(tzinfo=None)) - np.timedelta64(offset)
        return _stamps(np.array([instant]), _UTC)[0]
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return None if value.is_nan() else format(value, "f")
    return str(value) if isinstance(value, UUID) else value


def plain_arrow(column: Any) -> list[Any]:
    """Return the values of a column of pyarrow as Python values that fields can hold; None where one is missing.

    Parameters
    ----------
    column : pyarrow.Array or pyarrow.ChunkedArray

    Raises
    ------
    RowError
        If a value cannot be read.
    """
    try:
        return _from_arrow(column)
    except ARROW_ERRORS as error:
        for row in range(len(column)):
            try:
                _from_arrow(column.slice(row, 1))
            except ARROW_ERRORS as of_row:
                raise RowError(row, cut(str(of_row), LONG)) from of_row
        raise RowError(0, cut(str(error), LONG)) from error


def _from_arrow(column: Any) -> list[Any]:
    if hasattr(column, "chunks"):
        return [value for chunk in column.chunks for value in _from_arrow(chunk)]
    types = import_target("pyarrow:types", what="a column", extra="parquet")
    kind = column.type
    if types.is_dictionary(kind):
        values = _from_arrow(column.dictionary)
        return [None if place is None else values[place] for place in column.indices.to_pylist()]
    if types.is_timestamp(kind):
        return _stamps(_as_numpy(column), "" if kind.tz is None else _UTC)
    if types.is_date(kind):
        return _stamps(_as_numpy(column).astype("datetime64[D]"))
    if types.is_time(kind):
        since_midnight = column.cast(f"int{kind.bit_width}").cast("int64").cast(f"duration[{kind.unit}]")
        return _times(_as_numpy(since_midnight))
    if types.is_duration(kind):
        return [_duration(value) for value in _as_numpy(column)]
    # pyarrow's own Python values of lists and objects have no nanoseconds, unless pandas is installed.
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        lengths = import_target("pyarrow.compute:list_value_length", what="a column", extra="parquet")(column)
        entries = iter(_from_arrow(column.flatten()))
        return [None if length is None else list(islice(entries, length)) for length in lengths.to_pylist()]
    if types.is_struct(kind) and kind.num_fields:
        names = [field.name for field in kind]
        rows = zip(*map(_from_arrow, column.flatten()), strict=True)
        valid = column.is_valid().to_pylist()
        return [dict(zip(names, row, strict=True)) if ok else None for row, ok in zip(rows, valid, strict=True)]
    return list(plain_values(column.to_pylist()))


def _as_numpy(array: Any) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found


def _stamps(values: npt.NDArray[np.datetime64], zone: str = "") -> list[str | None]:
    return [_stamp(text, zone) for text in np.datetime_as_string(values).tolist()]


def _stamp(text: str, zone: str) -> str | None:
    """Return numpy's text of a date or time in ISO 8601, in which a year of five digits or more has a sign."""
    if text == "NaT":
        return None
    sign = "-" if text.startswith("-") else ""
    year, dash, rest = text.removeprefix("-").partition("-")
    sign = "+" if not sign and len(year) > 4 else sign
    rest, _, digits = rest.partition(".")
    return f"{sign}{year.zfill(4)}{dash}{rest}{_fraction(digits)}{zone}"


def _times(values: npt.NDArray[np.timedelta64]) -> list[str | None]:
    strange = values[(values < 0) | (values >= _DAY)]
    if len(strange):
        raise ValueError(f"expected a time of day, found {_duration(strange[0])} after midnight")
    stamps = _stamps(np.datetime64(0, "s") + values)
    return [None if stamp is None else stamp.partition("T")[2] for stamp in stamps]


def _duration(value: timedelta | np.timedelta64) -> Any:
    exact = getattr(value, "to_timedelta64", lambda: value)()  # of pandas
    if isinstance(exact, timedelta):
        count, unit = exact // timedelta(microseconds=1), "us"
    else:
        if np.isnat(exact):
            return None
        unit, factor = np.datetime_data(exact.dtype)
        count = int(exact.astype(np.int64)) * factor
    if unit in _SECONDS:
        count, unit = count * _SECONDS[unit], "s"
    if unit not in _SECOND_DIGITS:  # months and years have no length
        return count
    places = _SECOND_DIGITS[unit]
    seconds, rest = divmod(abs(count), 10**places)
    return f"{'-' if count < 0 else ''}PT{seconds}{_fraction(str(rest).zfill(places))}S"


def _fraction(digits: str) -> str:
    """Return the digits of a second as Python writes them: none if all are zero, else six or nine."""
    digits = digits.rstrip("0")
    return f".{digits.ljust(6 if len(digits) <= 6 else 9, '0')}" if digits else ""
