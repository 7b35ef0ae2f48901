"""Match the rows of a table with the rows of a dataset by a key, and turn the table's other columns into fields."""

from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardspec.columns import Columns, IntArray
from shardspec.errors import UsageError
from shardspec.fields import field_name
from shardspec.schema import NAME, NO_CLASS, Field, Schema
from shardspec.typing.encoding import encode_column
from shardspec.typing.frames import BoolArray, ColumnValues, read_cells
from shardspec.wording import counted, did_you_mean, list_some, program, quote_some, shorten

NO_ROW = -1
_NAMED = 5
"""Maximum number of keys in a message."""
_IDENTITY_BYTES = 16
_AT_ONCE = 1 << 16
"""Number of keys to look up in one chunk."""


class JoinedColumns(NamedTuple):
    """Fields from a table, with a value for every row of a dataset.

    Attributes
    ----------
    fields : tuple of Field
    columns : dict
        The values in the form of `shardspec.columns`.
    rows : int
        Rows of the table that were used.
    missing : dict of str to int
        Number of rows of the dataset without a value, for each field with such rows. The field ``<field>_valid`` is
        false in these rows.
    unknown : int
        Rows of the table whose key is not in the dataset.
    notes : list of str
        Notes for the user about the values, one line each.
    """

    fields: tuple[Field, ...]
    columns: Columns
    rows: int
    missing: dict[str, int]
    unknown: int
    notes: Sequence[str]


class DatasetKeys(NamedTuple):
    """Index that finds the rows of a dataset by one field, or one of several fields used together.

    Attributes
    ----------
    field : Field
        A field of text or of single integers.
    values : ndarray, (n,), integer; or sequence of n str
    valid : ndarray, (n,), bool
        False where ``<field>_valid`` is false or the text is empty.
    """

    field: Field
    values: Any
    valid: BoolArray


def key_fields(schema: Schema, on: str | Sequence[str]) -> tuple[Field, ...]:
    """Return the fields `on`, which together identify a row.

    Raises
    ------
    UsageError
        If a field does not exist, is neither text nor a single integer, or is named twice.
    """
    fit = [f.name for f in schema if f.is_small and (f.kind == "text" or f.dtype[1] in "iu")]
    names: list[Any] = list(on) if isinstance(on, Sequence) and not isinstance(on, str) else [on]
    if not names:
        raise UsageError(option="on", expected="a field, or several", found="none")
    for name in names:
        if name not in fit:
            found = "another kind" if isinstance(name, str) and name in schema else "none"
            raise UsageError(
                option="on",
                expected="a field of text or integers",
                found=f"{found} named {shorten(name)}",
                hint=f"choose one of {list_some(fit)}{did_you_mean(str(name), fit)}",
            )
        if names.count(name) > 1:
            raise UsageError(option="on", expected="every field once", found=f"{shorten(name)} more than once")
    return tuple(schema[name] for name in names)


def key_columns(key: str | Sequence[str] | None, on: Sequence[str]) -> list[str]:
    """Return the table's columns to match with the fields `on`: `key`, or by default the columns of the same names.

    Raises
    ------
    UsageError
        If the number of columns differs from the number of fields.
    """
    columns = list(on) if key is None else [key] if isinstance(key, str) else list(key)
    if len(columns) != len(on):
        raise UsageError(
            option="key", expected=f"a column for each of {quote_some(on)}", found=quote_some(columns) or "none"
        )
    return columns


def join_frame(
    frame: Any,
    keys: Sequence[DatasetKeys],
    *,
    taken: Collection[str],
    key: str | Sequence[str] | None = None,
    fields: Sequence[str] | None = None,
    allow_missing: bool = False,
    allow_unknown: bool = False,
    replaceable: Collection[str] = (),
    required: BoolArray | None = None,
    what: str = "table",
) -> JoinedColumns:
    """Match a table with a dataset, and make fields of its columns.

    Parameters
    ----------
    frame : table
        See `shardspec.typing.frames.read_cells`.
    keys : sequence of DatasetKeys
        A row of the table matches a row of the dataset if all keys are equal.
    taken : collection of str
        Names that the new fields must not use.
    key : str or sequence of str, optional
        The table's columns that hold the keys, in the order of `keys`; by default those with the names of the dataset's
        fields.
    fields : sequence of str, optional
        The table's columns to add; by default all except `key`.
    allow_missing : bool
        Whether rows of the dataset may lack a value. Every field then gets a validity field, even if no value is
        missing, so that the fields depend only on the call.
    allow_unknown : bool
        Whether the table may have keys that the dataset lacks.
    replaceable : collection of str
        The names in `taken` that the caller could replace with `replace`; the error message suggests it.
    required : ndarray, (n,), bool, optional
        The rows that need a value; all by default.
    what : str
        Name of the table in messages.

    Raises
    ------
    UsageError
        If the table cannot be read, or its rows cannot be matched. The message lists missing and unknown keys.
    """
    cells = read_cells(frame, what)
    on = [one.field.name for one in keys]
    columns_of_keys = key_columns(key, on)
    for column in columns_of_keys:
        if column not in cells:
            raise UsageError(
                place=what,
                expected=f"a column {shorten(column)} of keys",
                found=f"{quote_some(cells) or 'none'}{did_you_mean(column, cells)}",
                hint=f"call it so in the table, or name it with key ({program()} add --key COLUMN)",
            )
    given = [cells[column] for column in columns_of_keys]
    rows = len(given[0].valid)
    if not rows:
        raise UsageError(place=what, expected="a row for each key", found="no rows")
    names = _names(cells, columns_of_keys, fields, taken, replaceable, what)
    row_of, unknown = _match(given, keys, columns_of_keys, what)
    if len(unknown) and not allow_unknown:
        shown = _some(_key_at([column.values for column in given], row) for row in unknown.tolist())
        raise UsageError(
            place=what,
            expected=f"values of {quote_some(on)} that the dataset has",
            found=f"{len(unknown)} of {rows} that it has not ({shown})",
            hint="correct them, or leave these rows out with `allow_unknown`",
        )
    needed = np.ones(len(row_of), np.bool_) if required is None else required
    found, without, valid_of = [], {}, {}
    for column, name in names.items():
        found.append(encode_column(name, cells[column], f"{what}: column {shorten(column)}"))
        valid = (row_of != NO_ROW) & cells[column].valid[row_of]
        valid_of[name] = valid
        if not valid[needed].all():
            without[name] = valid
    if without and not allow_missing:
        name, valid = next(iter(without.items()))
        lacking = np.flatnonzero(~valid & needed)
        named = dict.fromkeys(_key_at([one.values for one in keys], row) for row in lacking[: 100 * _NAMED].tolist())
        more = f", and for other samples of {list_some(list(without)[1:])}" if len(without) > 1 else ""
        raise UsageError(
            place=what,
            expected=f"a value of {name!r} for each of {counted(int(needed.sum()), 'sample')}",
            found=f"none for {len(lacking)} ({list_some(on)} {_some(named)}){more}",
            hint=f"complete the table, or mark them in '{name}_valid' with `allow_missing`",
        )
    fields_of, columns = [], {}
    for typed in found:
        name = typed.field.name
        fields_of.append(typed.field)
        columns[name] = _spread(typed.values, row_of, typed.sentinel)
        if allow_missing or name in without:
            validity = f"{name}_valid"
            if validity in taken or validity in names.values():
                raise UsageError(
                    f"the field {validity!r} would mark the samples without {name!r}",
                    place=what,
                    hint="rename that one",
                )
            if name == "label" and typed.field.dtype[1] == "u" and typed.field.is_scalar:
                raise UsageError(
                    (
                        f"the integers of column {name!r} are unsigned ({typed.field.dtype}), but {NO_CLASS} "
                        "means a missing label"
                    ),
                    place=what,
                    hint="convert them to signed integers",
                )
            fields_of.append(Field(validity, "fixed", "|b1", ()))
            columns[validity] = valid_of[name]
    missing = {name: int(np.count_nonzero(~valid)) for name, valid in without.items()}
    notes = [note for typed in found for note in typed.notes]
    return JoinedColumns(tuple(fields_of), columns, rows - len(unknown), missing, len(unknown), notes)


def _names(
    cells: Iterable[str],
    keys: Collection[str],
    fields: Sequence[str] | None,
    taken: Collection[str],
    replaceable: Collection[str],
    what: str,
) -> dict[str, str]:
    """Return the name of the new field for each column to add."""
    have = list(cells)
    if isinstance(fields, str):
        raise UsageError(option="fields", expected="a list of columns", found=shorten(fields))
    for column in fields or ():
        if column not in have:
            raise UsageError(
                place=what,
                expected=f"a column {shorten(column)}",
                found=f"{quote_some(have)}{did_you_mean(str(column), have)}",
            )
    chosen = [column for column in have if column not in keys] if fields is None else list(dict.fromkeys(fields))
    if not chosen:
        raise UsageError(place=what, expected="a column besides the keys", found="none")
    names: dict[str, str] = {}
    for column in chosen:
        name = field_name(column)
        if not NAME.match(name) or not any(letter.isascii() and letter.isalnum() for letter in column):
            raise UsageError(
                place=what, expected="a name with letters a to z, at most 63", found=shorten(column), hint="rename it"
            )
        if name in names.values():
            raise UsageError(
                place=what, expected="columns of different names", found=f"{name!r} twice", hint="rename one"
            )
        if name in taken:
            only = list_some([other for other in chosen if field_name(other) not in taken])
            hint = f", or name the columns to take with fields (--fields {only.replace(' ', '')})" if only else ""
            hint += ", or replace it with `replace`" if name in replaceable else ""
            raise UsageError(f"the dataset has a field {name!r} already", place=what, hint=f"rename the column{hint}")
        names[column] = name
    return names


def _match(
    table: Sequence[ColumnValues], keys: Sequence[DatasetKeys], columns: Sequence[str], what: str
) -> tuple[IntArray, IntArray]:
    """Return the table row that matches each row of the dataset, or `NO_ROW`, and the table rows without a match."""
    given = []
    for cells, one, column in zip(table, keys, columns, strict=True):
        place = f"{what}: column {shorten(column)}"
        if not cells.valid.all():
            raise UsageError(
                place=place, expected="a key in every row", found=f"none in {np.count_nonzero(~cells.valid)}"
            )
        given.append(_as_keys(cells, one.field, place))
    known = _identities(given)
    order = np.argsort(known, kind="stable")
    pairs = _twice(known, order)
    if pairs:
        first, other = min(pairs, key=itemgetter(1))
        raise UsageError(
            (
                f"{'column' if len(columns) == 1 else 'columns'} {quote_some(columns)}: expected every "
                f"key once, found {shorten(_key_at(given, other))} in rows {first} and {other} (counted "
                "from 0)"
            ),
            place=what,
        )
    valid = np.logical_and.reduce([one.valid for one in keys])
    row_of = np.full(len(valid), NO_ROW, np.int64)
    for start in range(0, len(row_of), _AT_ONCE):
        some = [one.values[start : start + _AT_ONCE] for one in keys]
        sought = _identities([part.tolist() if isinstance(part, np.ndarray) else part for part in some])
        row = order[np.minimum(np.searchsorted(known, sought, sorter=order), len(order) - 1)]
        row_of[start : start + len(row)] = np.where(known[row] == sought, row, NO_ROW)
    row_of[~valid] = NO_ROW
    used = np.zeros(len(order), np.bool_)
    used[row_of[row_of != NO_ROW]] = True
    return row_of, np.flatnonzero(~used)


def _twice(known: npt.NDArray[np.bytes_], order: IntArray) -> list[tuple[int, int]]:
    """Return pairs of rows with the same key, given the order of the keys."""
    pairs = []
    for start in range(0, len(order), _AT_ONCE):
        some = order[start : start + _AT_ONCE + 1]
        same = np.flatnonzero(known[some[1:]] == known[some[:-1]])
        pairs += [(int(some[at]), int(some[at + 1])) for at in same.tolist()]
    return pairs


def _identities(columns: Sequence[Iterable[Any]]) -> npt.NDArray[np.bytes_]:
    """Return a digest per key, (n,); digests take less memory than keys, and equal keys have equal digests.

    For keys in several columns, each digest is computed from the digests of the columns.
    """
    if len(columns) == 1:
        return np.frombuffer(_digests(columns[0]), f"S{_IDENTITY_BYTES}")
    parts = [np.frombuffer(_digests(values), np.uint8).reshape(-1, _IDENTITY_BYTES) for values in columns]
    return np.frombuffer(_digests(row.tobytes() for row in np.hstack(parts)), f"S{_IDENTITY_BYTES}")


def _digests(values: Iterable[Any]) -> bytearray:
    found = bytearray()
    for value in values:
        if isinstance(value, bytes):
            data = value
        else:
            data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else b"%d" % value
        found += blake2b(data, digest_size=_IDENTITY_BYTES).digest()
    return found


def _key_at(columns: Sequence[Sequence[Any]], row: int) -> Any:
    """Return the key of a row for a message, as a tuple if there are several columns."""
    values = (column[row] for column in columns)
    key = tuple(value.item() if isinstance(value, np.generic) else value for value in values)
    return key[0] if len(key) == 1 else key


def _as_keys(cells: ColumnValues, field: Field, place: str) -> Sequence[Any]:
    values = cells.values
    if isinstance(values, np.ndarray) and (values.ndim != 1 or values.dtype.kind not in "iu"):
        raise UsageError(place=place, expected="keys, text or integers", found=f"{values.dtype} of {values.ndim} axes")
    plain: Sequence[Any] = values.tolist() if isinstance(values, np.ndarray) else values
    expected = str if field.kind == "text" else int
    wrong = next((value for value in plain if type(value) is not expected), None)
    if wrong is not None:
        raise UsageError(
            place=place,
            expected=f"{'text' if expected is str else 'integers'} as in the dataset's field {field.name!r}",
            found=shorten(wrong),
        )
    return plain


def _some(keys: Iterable[Any]) -> str:
    first = [shorten(key) for key in islice(keys, _NAMED + 1)]
    return ", ".join(first[:_NAMED]) + (", …" if len(first) > _NAMED else "")


def _spread(values: Any, row_of: IntArray, sentinel: Any) -> Any:
    if isinstance(values, list):
        return [sentinel if row == NO_ROW else values[row] for row in row_of.tolist()]
    if not len(values):
        return np.full((len(row_of), *values.shape[1:]), sentinel, values.dtype)
    spread: npt.NDArray[Any] = values[row_of]
    spread[row_of == NO_ROW] = sentinel
    return spread
