"""Match the rows of a table with the rows of a dataset by a key, and make fields of the table's other columns."""

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
from shardspec.frames.cells import BoolArray, Cells, read_cells
from shardspec.frames.typed import type_column
from shardspec.schema import NAME, Field, Schema
from shardspec.wording import counted, did_you_mean, list_some, quote_some, shorten

NO_ROW = -1
_NAMED = 5
"""Keys that a message names."""
_IDENTITY_BYTES = 16
_AT_ONCE = 1 << 16
"""Keys that are sought at once."""


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
        For each field that has any, the rows of the dataset without a value; a field ``<field>_valid`` says which.
    unknown : int
        Rows of the table whose key no row of the dataset has.
    """

    fields: tuple[Field, ...]
    columns: Columns
    rows: int
    missing: dict[str, int]
    unknown: int


class DatasetKeys(NamedTuple):
    """What the rows of a dataset are found by.

    Attributes
    ----------
    field : Field
        Of text, or a scalar of integers.
    values : ndarray, (n,), integer; or sequence of n str
    valid : ndarray, (n,), bool
        False where ``<field>_valid`` is, or the text is empty.
    """

    field: Field
    values: Any
    valid: BoolArray


def key_field(schema: Schema, on: str) -> Field:
    """The field by which rows are found.

    Raises
    ------
    UsageError
        If there is no such field, or one that is neither text nor a single integer.
    """
    fit = [f for f in schema if f.is_small and (f.kind == "text" or f.dtype[1] in "iu")]
    if on not in {field.name for field in fit}:
        found = "another kind" if on in schema else "none"
        names = [field.name for field in fit]
        raise UsageError(
            f"on: expected a field of text or integers, found {found} named {shorten(on)}: choose one of "
            f"{list_some(names)}{did_you_mean(on, names)}"
        )
    return schema[on]


def join_frame(
    frame: Any,
    keys: DatasetKeys,
    *,
    taken: Collection[str],
    key: str | None = None,
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
        See `shardspec.frames.cells.read_cells`.
    keys : DatasetKeys
    taken : collection of str
        Names that the new fields must not have.
    key : str, optional
        The table's column that holds the keys; by default the one with the name of the dataset's field.
    fields : sequence of str, optional
        The table's columns to take; by default all but `key`.
    allow_missing : bool
        Whether rows of the dataset may be without a value. Every field then gets one that says where it has a value,
        whether any is missing or not, so that the fields follow from the call alone.
    allow_unknown : bool
        Whether the table may have keys that the dataset has not.
    replaceable : collection of str
        Those of `taken` that the caller could replace; a message says so.
    required : ndarray, (n,), bool, optional
        The rows that need a value; all by default.
    what : str
        What messages call the table.

    Raises
    ------
    UsageError
        If the table cannot be read or matched; the message names what is missing or too much.
    """
    cells = read_cells(frame, what)
    key = keys.field.name if key is None else key
    if key not in cells:
        raise UsageError(
            f"{what}: expected a column {shorten(key)} of keys, found {quote_some(cells) or 'none'}"
            f"{did_you_mean(key, cells)}: call it so in the table, or name it with key (packer add --key COLUMN)"
        )
    if not len(cells[key].valid):
        raise UsageError(f"{what}: expected a row for each key, found no rows")
    names = _names(cells, key, fields, taken, replaceable, what)
    row_of, unknown = _match(cells[key], keys, f"{what}: column {shorten(key)}")
    if len(unknown) and not allow_unknown:
        shown = _some(cells[key].values[row] for row in unknown.tolist())
        raise UsageError(
            f"{what}: expected values of {keys.field.name!r} that the dataset has, found {len(unknown)} of "
            f"{len(cells[key].valid)} that it has not ({shown}): correct them, or leave these rows out "
            "with allow_unknown (--allow-unknown)"
        )
    needed = np.ones(len(row_of), np.bool_) if required is None else required
    found, without, valid_of = [], {}, {}
    for column, name in names.items():
        found.append(type_column(name, cells[column], f"{what}: column {shorten(column)}"))
        valid = (row_of != NO_ROW) & cells[column].valid[row_of]
        valid_of[name] = valid
        if not valid[needed].all():
            without[name] = valid
    if without and not allow_missing:
        name, valid = next(iter(without.items()))
        lacking = np.flatnonzero(~valid & needed)
        named = dict.fromkeys(keys.values[row] for row in lacking[: 100 * _NAMED].tolist())
        more = f", and for other samples of {list_some(list(without)[1:])}" if len(without) > 1 else ""
        raise UsageError(
            f"{what}: expected a value of {name!r} for each of {counted(int(needed.sum()), 'sample')}, found none for "
            f"{len(lacking)} ({keys.field.name} {_some(named)}){more}: complete the table, or mark them in "
            f"'{name}_valid' with allow_missing (--allow-missing)"
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
                    f"{what}: the field {validity!r} would mark the samples without {name!r}: rename that one"
                )
            fields_of.append(Field(validity, "fixed", "|b1", ()))
            columns[validity] = valid_of[name]
    missing = {name: int(np.count_nonzero(~valid)) for name, valid in without.items()}
    return JoinedColumns(tuple(fields_of), columns, len(cells[key].valid) - len(unknown), missing, len(unknown))


def _names(
    cells: Iterable[str],
    key: str,
    fields: Sequence[str] | None,
    taken: Collection[str],
    replaceable: Collection[str],
    what: str,
) -> dict[str, str]:
    """The field of each column that is taken."""
    have = list(cells)
    if isinstance(fields, str):
        raise UsageError(f"fields: expected a list of columns, found {shorten(fields)}")
    for column in fields or ():
        if column not in have:
            raise UsageError(
                f"{what}: expected a column {shorten(column)}, found {quote_some(have)}{did_you_mean(str(column), have)}"
            )
    chosen = [column for column in have if column != key] if fields is None else list(dict.fromkeys(fields))
    if not chosen:
        raise UsageError(f"{what}: expected a column beside the keys, found none")
    names: dict[str, str] = {}
    for column in chosen:
        name = field_name(column)
        if not NAME.match(name) or not any(letter.isascii() and letter.isalnum() for letter in column):
            raise UsageError(
                f"{what}: expected a name with letters a to z, at most 63, found {shorten(column)}: rename it"
            )
        if name in names.values():
            raise UsageError(f"{what}: expected columns of different names, found {name!r} twice: rename one")
        if name in taken:
            only = list_some([other for other in chosen if field_name(other) not in taken])
            hint = f", or name the columns to take with fields (--fields {only.replace(' ', '')})" if only else ""
            hint += ", or replace it with replace (--replace)" if name in replaceable else ""
            raise UsageError(f"{what}: the dataset has a field {name!r} already: rename the column{hint}")
        names[column] = name
    return names


def _match(cells: Cells, keys: DatasetKeys, place: str) -> tuple[IntArray, IntArray]:
    """The table's row of each row of the dataset, `NO_ROW` for none; and the rows of the table that are left over."""
    if not cells.valid.all():
        raise UsageError(f"{place}: expected a key in every row, found none in {np.count_nonzero(~cells.valid)}")
    given = _as_keys(cells, keys.field, place)
    known = _identities(given)
    order = np.argsort(known, kind="stable")
    pairs = _twice(known, order)
    if pairs:
        one, other = min(pairs, key=itemgetter(1))
        raise UsageError(
            f"{place}: expected every key once, found {shorten(given[other])} in rows {one} and {other} "
            "(counted from 0)"
        )
    row_of = np.full(len(keys.valid), NO_ROW, np.int64)
    for start in range(0, len(row_of), _AT_ONCE):
        some = keys.values[start : start + _AT_ONCE]
        sought = _identities(some.tolist() if isinstance(some, np.ndarray) else some)
        row = order[np.minimum(np.searchsorted(known, sought, sorter=order), len(order) - 1)]
        row_of[start : start + len(row)] = np.where(known[row] == sought, row, NO_ROW)
    row_of[~keys.valid] = NO_ROW
    used = np.zeros(len(given), np.bool_)
    used[row_of[row_of != NO_ROW]] = True
    return row_of, np.flatnonzero(~used)


def _twice(known: npt.NDArray[np.bytes_], order: IntArray) -> list[tuple[int, int]]:
    """The rows of each key that is there more than once, by twos, given the order of the keys."""
    pairs = []
    for start in range(0, len(order), _AT_ONCE):
        some = order[start : start + _AT_ONCE + 1]
        same = np.flatnonzero(known[some[1:]] == known[some[:-1]])
        pairs += [(int(some[at]), int(some[at + 1])) for at in same.tolist()]
    return pairs


def _identities(values: Iterable[Any]) -> npt.NDArray[np.bytes_]:
    """Digests of keys, (n,), which take less memory than the keys: they are equal exactly where the keys are."""
    found = bytearray()
    for value in values:
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else b"%d" % value
        found += blake2b(data, digest_size=_IDENTITY_BYTES).digest()
    return np.frombuffer(found, f"S{_IDENTITY_BYTES}")


def _as_keys(cells: Cells, field: Field, place: str) -> Sequence[Any]:
    """The table's keys as the dataset's field has them."""
    values = cells.values
    if isinstance(values, np.ndarray) and (values.ndim != 1 or values.dtype.kind not in "iu"):
        raise UsageError(f"{place}: expected keys, text or integers, found {values.dtype} of {values.ndim} axes")
    plain: Sequence[Any] = values.tolist() if isinstance(values, np.ndarray) else values
    expected = str if field.kind == "text" else int
    wrong = next((value for value in plain if type(value) is not expected), None)
    if wrong is not None:
        raise UsageError(
            f"{place}: expected {'text' if expected is str else 'integers'} as in the dataset's field {field.name!r}, "
            f"found {shorten(wrong)}"
        )
    return plain


def _some(keys: Iterable[Any]) -> str:
    """The first of some keys, for a message."""
    first = [shorten(key.item() if isinstance(key, np.generic) else key) for key in islice(keys, _NAMED + 1)]
    return ", ".join(first[:_NAMED]) + (", …" if len(first) > _NAMED else "")


def _spread(values: Any, row_of: IntArray, sentinel: Any) -> Any:
    """The values of a table's rows at the rows of the dataset."""
    if isinstance(values, list):
        return [sentinel if row == NO_ROW else values[row] for row in row_of.tolist()]
    if not len(values):
        return np.full((len(row_of), *values.shape[1:]), sentinel, values.dtype)
    spread: npt.NDArray[Any] = values[row_of]
    spread[row_of == NO_ROW] = sentinel
    return spread
