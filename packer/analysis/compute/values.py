"""Values that a function returned for a batch, and files of them: the blocks of a computed column."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardspec.errors import UsageError
from shardspec.schema import DTYPES, NAME
from shardspec.typing.frames import ColumnValues
from shardspec.wording import counted, list_some, shorten

BoolArray = npt.NDArray[np.bool_]


class Kind(NamedTuple):
    """Type of the values of a column, the same in every batch.

    Attributes
    ----------
    form : {"array", "arrays", "texts"}
        Values of one shape, arrays of varying length, or text.
    dtype : str
    shape : tuple of int
        Of each value; of arrays of varying length, without the first axis.
    """

    form: str
    dtype: str = ""
    shape: tuple[int, ...] = ()

    def describe(self) -> str:
        """Describe the kind for an error message."""
        if self.form == "texts":
            return "text"
        what = "arrays of any length" if self.form == "arrays" else "values"
        return f"{what} of {self.dtype}{f' and shape {self.shape}' if self.shape else ''}"


class Values(NamedTuple):
    """Values of one column for some rows.

    Attributes
    ----------
    kind : Kind or None
        None if a list holds no value at all.
    data : ndarray, (n, *shape), or list of n arrays or texts, None where a value is missing
    valid : ndarray, (n,), bool
    """

    kind: Kind | None
    data: Any
    valid: BoolArray

    def cells(self) -> ColumnValues:
        """Return the values as a column of a table."""
        return ColumnValues(self.data, self.valid)


def read_result(result: Any, rows: int, function: str, name_row: Callable[[int], str]) -> dict[str, Values]:
    """Check what a function returned for a batch.

    Parameters
    ----------
    result : mapping of str to array, tensor, masked array or list
    rows : int
        Samples of the batch.
    name_row : callable
        Returns the name of a row of the batch for messages.

    Raises
    ------
    UsageError
        If it is not a mapping of names to `rows` values that a column can hold, or if a number is NaN.
    """
    place = f"function {function}"
    if not isinstance(result, Mapping) or not result:
        raise UsageError(place=place, expected="a dict of columns as its result", found=shorten(type(result).__name__))
    found = {}
    for name, column in result.items():
        if not isinstance(name, str) or not NAME.match(name):
            raise UsageError(
                place=place, expected="names of lower-case letters, digits and '_' in its result", found=shorten(name)
            )
        where = f"{place}, column {name!r}"
        values = _values_of(column, where, name_row)
        if len(values.valid) != rows:
            raise UsageError(
                place=where, expected=f"a value for each of {counted(rows, 'sample')}", found=len(values.valid)
            )
        _refuse_nan(values, where, name_row)
        found[name] = values
    return found


def _values_of(column: Any, where: str, name_row: Callable[[int], str]) -> Values:
    if isinstance(column, list | tuple):
        return _values_of_list(column, where, name_row)
    array = _as_array(column, where)
    if array.ndim == 0:
        raise UsageError(place=where, expected="a value for each sample", found="a single one")
    valid: BoolArray = np.ones(len(array), np.bool_)
    if isinstance(column, np.ma.MaskedArray):
        valid = np.logical_not(np.ma.getmaskarray(column).reshape(len(array), -1).any(axis=1))
    if array.dtype.kind in "UT":
        return Values(Kind("texts"), array.tolist(), valid)
    return Values(Kind("array", array.dtype.str, array.shape[1:]), array, valid)


def _values_of_list(column: Sequence[Any], where: str, name_row: Callable[[int], str]) -> Values:
    valid = np.fromiter((value is not None for value in column), np.bool_, len(column))
    known = [value for value in column if value is not None]
    if not known:
        return Values(None, list(column), valid)
    if all(isinstance(value, str) for value in known):
        return Values(Kind("texts"), list(column), valid)
    if all(isinstance(value, bool | int | float | np.generic) for value in known):
        numbers = _as_array([known[0] if value is None else value for value in column], where)
        return Values(Kind("array", numbers.dtype.str), numbers, valid)
    arrays = [None if value is None else _as_array(value, where) for value in column]
    kinds: dict[Kind, int] = {}
    for row, array in enumerate(arrays):
        if array is not None:
            if array.ndim == 0:
                raise UsageError(
                    place=f"{where}, {name_row(row)}", expected="text, numbers or arrays", found=shorten(column[row])
                )
            kinds.setdefault(Kind("arrays", array.dtype.str, array.shape[1:]), row)
    if len(kinds) > 1:
        (first, _), (other, row) = list(kinds.items())[:2]
        raise UsageError(place=f"{where}, {name_row(row)}", expected=first.describe(), found=other.describe())
    return Values(next(iter(kinds)), arrays, valid)


def _as_array(value: Any, where: str) -> npt.NDArray[Any]:
    if hasattr(value, "detach"):  # a tensor, of any device
        value = value.detach().cpu()
    try:
        array = np.asarray(value.data if isinstance(value, np.ma.MaskedArray) else value)
    except Exception as error:  # of any library
        raise UsageError(place=where, expected="arrays, numbers or text", hint=error) from error
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    if array.dtype.str not in DTYPES and array.dtype.kind not in "UT":
        raise UsageError(
            place=where,
            expected=f"text, or numbers of {', '.join(DTYPES)}",
            found=array.dtype if array.dtype.kind != "O" else shorten(value),
        )
    return array


def _refuse_nan(values: Values, where: str, name_row: Callable[[int], str]) -> None:
    for row, value in enumerate(values.data) if values.kind is None or values.kind.form != "array" else ():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and np.isnan(value).any():
            raise _nan_at(where, name_row(row))
    if values.kind is not None and values.kind.form == "array" and values.data.dtype.kind == "f":
        wrong = np.isnan(values.data).reshape(len(values.data), -1).any(axis=1) & values.valid
        if wrong.any():
            raise _nan_at(where, name_row(int(np.flatnonzero(wrong)[0])))


def _nan_at(where: str, row: str) -> UsageError:
    return UsageError(
        place=f"{where}, {row}",
        expected="numbers",
        found="NaN",
        hint="return a masked array (numpy.ma) or None where there is no value",
    )


def concatenate(batches: Sequence[Mapping[str, Values]], function: str) -> dict[str, Values]:
    """Join the results of consecutive batches.

    Raises
    ------
    UsageError
        If the batches differ in their names, types or shapes.
    """
    first = batches[0]
    for batch in batches:
        if batch.keys() != first.keys():
            raise UsageError(
                place=f"function {function}",
                expected=f"the columns {list_some(sorted(first))} in every batch, as in the first",
                found=list_some(sorted(batch)),
            )
    return {name: _join(f"function {function}, column {name!r}", [batch[name] for batch in batches]) for name in first}


def _join(place: str, parts: Sequence[Values]) -> Values:
    kind = common_kind(place, [part.kind for part in parts])
    valid = np.concatenate([part.valid for part in parts])
    if kind is None or kind.form != "array":
        return Values(kind, [value for part in parts for value in part.data], valid)
    empty = np.zeros(kind.shape, kind.dtype)
    data = [part.data if part.kind else np.broadcast_to(empty, (len(part.valid), *kind.shape)) for part in parts]
    return Values(kind, np.concatenate(data), valid)


def common_kind(place: str, kinds: Sequence[Kind | None]) -> Kind | None:
    """Return the one kind of all batches that have values; `UsageError` if there are several."""
    known = list(dict.fromkeys(kind for kind in kinds if kind is not None))
    if len(known) > 1:
        raise UsageError(
            place=place,
            expected=f"{known[0].describe()} in every batch, as in the first",
            found=f"{known[1].describe()} in a later one",
        )
    return known[0] if known else None


def save_block(path: Path, columns: Mapping[str, Values]) -> None:
    """Write values to a file of numpy's npz format, which has a CRC of every array."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, values in columns.items():
        arrays[f"{name}.kind"] = _json_bytes(values.kind)
        arrays[f"{name}.valid"] = values.valid
        if values.kind is None:
            continue
        if values.kind.form == "array":
            arrays[f"{name}.data"] = values.data
        elif values.kind.form == "texts":
            arrays[f"{name}.data"] = _json_bytes(values.data)
        else:
            known = [value for value in values.data if value is not None]
            arrays[f"{name}.data"] = np.concatenate(known)
            arrays[f"{name}.lengths"] = np.array([len(value) for value in known], np.int64)
    with path.open("xb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def load_block(path: Path) -> dict[str, Values]:
    """Read what `save_block` wrote.

    Raises
    ------
    ValueError, OSError, zipfile.BadZipFile
        If the file is damaged.
    """
    found = {}
    with np.load(path, allow_pickle=False) as file:
        for name in [entry.removesuffix(".kind") for entry in file.files if entry.endswith(".kind")]:
            kind, valid = json.loads(file[f"{name}.kind"].tobytes()), file[f"{name}.valid"]
            if kind is None:
                found[name] = Values(None, [None] * len(valid), valid)
                continue
            form, dtype, shape = kind
            data: Any = file[f"{name}.data"]
            if form == "texts":
                data = json.loads(data.tobytes())
            elif form == "arrays":
                parts = iter(np.split(data, np.cumsum(file[f"{name}.lengths"])[:-1]))
                data = [next(parts) if known else None for known in valid.tolist()]
            found[name] = Values(Kind(form, dtype, tuple(shape)), data, valid)
    return found


def _json_bytes(document: Any) -> npt.NDArray[np.uint8]:
    return np.frombuffer(json.dumps(document).encode(), np.uint8)
