"""Read the columns of a table as numpy arrays or lists, with a mask of missing values."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardspec.errors import UsageError
from shardspec.registry import import_target
from shardspec.typing.dates import ARROW_ERRORS, plain_arrow, plain_values
from shardspec.wording import LONG, cut, shorten

_INDEX = re.compile(r"__index_level_[0-9]+__\Z")
"""Names under which pandas hands on an index without a name."""

BoolArray = npt.NDArray[np.bool_]


class ColumnValues(NamedTuple):
    """One column of a table.

    Attributes
    ----------
    values : ndarray, (n, *shape), of numbers or truth values; or a sequence of n Python values or arrays
    valid : ndarray, (n,), bool
        False for a missing value. NaN counts as missing in a column of numbers, but not inside an array.
    """

    values: Any
    valid: BoolArray


def read_cells(frame: Any, what: str) -> dict[str, ColumnValues]:
    """Read the columns of a table by name.

    Parameters
    ----------
    frame : mapping of str to array, list or `ColumnValues`; or a table with Arrow's C stream interface
        Tables of pandas, polars, pyarrow and DuckDB have it. pyarrow reads them. The index of pandas is no column.
    what : str
        Name of the table in messages.

    Raises
    ------
    UsageError
        If `frame` is none of these, a column cannot be read, or the columns differ in length.
    """
    columns = {str(name): cells for name, cells in _columns(frame, what)}
    if not columns:  # of JSON lines without rows, for example
        raise UsageError(place=what, expected="a row for each key", found="no rows")
    lengths = {name: len(cells.valid) for name, cells in columns.items()}
    if len(set(lengths.values())) > 1:
        name, other = next(iter(lengths)), next(n for n in lengths if lengths[n] != next(iter(lengths.values())))
        raise UsageError(
            place=what,
            expected="columns of one length",
            found=f"{lengths[name]} values of {name!r} and {lengths[other]} of {other!r}",
        )
    return columns


def _columns(frame: Any, what: str) -> Iterable[tuple[Any, ColumnValues]]:
    if isinstance(frame, Mapping):
        return [(name, _from_values(f"{what}: column {name!r}", values)) for name, values in frame.items()]
    if not hasattr(frame, "__arrow_c_stream__"):
        raise UsageError(
            place=what,
            expected="a mapping of columns, or a table of pandas, polars, pyarrow or another library of Arrow",
            found=type(frame).__name__,
        )
    table = _import_arrow("table", frame, what)
    names = [name for name in table.column_names if not _INDEX.match(name)]
    if len(set(names)) != len(names):
        raise UsageError(place=what, expected="every column once", found="one more than once", hint="rename it")
    return [(name, _read_arrow(f"{what}: column {name!r}", table[name])) for name in names]


def _import_arrow(kind: str, values: Any, place: str) -> Any:
    """Import a table (``"table"``) or a column (``"chunked_array"``) of another library into pyarrow."""
    read = import_target(f"pyarrow:{kind}", what=place, extra="parquet")
    try:
        return read(values)
    except (
        ARROW_ERRORS
    ) as error:  # only now does pandas make Arrow's columns, and some of its values have no type there
        raise UsageError(f"cannot be read: {cut(str(error), LONG)}", place=place, hint="convert it") from error


def _from_values(place: str, values: Any) -> ColumnValues:
    """Read a column from an array, an object that NumPy can convert to one, or a list of Python values."""
    if isinstance(values, ColumnValues):
        return values
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__"):
        raise UsageError(place=place, expected="an array or a list of values", found=shorten(values))
    if isinstance(values, list | tuple):
        return _from_list(values)
    if hasattr(values, "__arrow_c_stream__"):
        return _read_arrow(place, _import_arrow("chunked_array", values, place))
    masked = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # from any library, for example a torch tensor on a GPU
        raise UsageError(place=place, expected="an array in this machine's memory", hint=error) from error
    if array.ndim == 0:
        raise UsageError(place=place, expected="a value for each row", found=shorten(values))
    cells = _from_array(place, array)
    if masked is None:
        return cells
    return cells._replace(valid=cells.valid & ~masked.reshape(len(array), -1).any(axis=1))


def _from_array(place: str, array: npt.NDArray[Any]) -> ColumnValues:
    if array.dtype.kind in "OUSTmM":
        return _from_list([*array])
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise UsageError(
            place=place, expected="numbers, truth values, text or lists of them", found=array.dtype, hint="convert it"
        )
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    valid = ~np.isnan(array) if array.dtype.kind == "f" and array.ndim == 1 else np.ones(len(array), np.bool_)
    return ColumnValues(array, valid)


def _from_list(values: Sequence[Any]) -> ColumnValues:
    plain = plain_values(values)
    missing = (value is None or (isinstance(value, float) and value != value) for value in plain)
    return ColumnValues(plain, ~np.fromiter(missing, np.bool_, len(plain)))


def _read_arrow(place: str, column: Any) -> ColumnValues:
    try:
        return _from_arrow(place, column)
    except UsageError:
        raise
    except (NotImplementedError, TypeError, ValueError) as error:
        raise UsageError(f"cannot be read: {cut(str(error), LONG)}", place=place, hint="convert it") from error


def _from_arrow(place: str, column: Any) -> ColumnValues:
    types = import_target("pyarrow:types", what=place, extra="parquet")
    kind = column.type
    valid = np.asarray(column.is_valid().to_numpy(), np.bool_)
    if types.is_null(kind):
        return ColumnValues([None] * len(valid), valid)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        whole = column if column.null_count == 0 else column.fill_null(False if types.is_boolean(kind) else 0)
        cells = _from_array(place, whole.to_numpy())
        return cells._replace(valid=cells.valid & valid)
    leaf, axes = kind, 0
    while _is_list(types, leaf):
        leaf, axes = leaf.value_type, axes + 1
    if axes and (types.is_boolean(leaf) or types.is_integer(leaf) or types.is_floating(leaf)):
        return _from_arrow_lists(place, column, np.dtype(leaf.to_pandas_dtype()), axes, valid)
    return _from_list(plain_arrow(column))


def _is_list(types: Any, kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _from_arrow_lists(place: str, column: Any, dtype: np.dtype[Any], axes: int, valid: BoolArray) -> ColumnValues:
    """Read lists of numbers, without making Python objects if all have the same length and no value is missing."""
    if axes == 1 and valid.all() and len(column):
        lengths = import_target("pyarrow.compute:list_value_length", what=place, extra="parquet")(column).to_numpy()
        if (lengths == lengths[0]).all():
            parts = [chunk.flatten() for chunk in column.chunks if len(chunk)]
            if not any(part.null_count for part in parts):
                flat = np.concatenate([part.to_numpy(zero_copy_only=False) for part in parts])
                return _from_array(place, flat.reshape(len(column), int(lengths[0])))
    values = []
    for row, value in enumerate(column.to_pylist()):
        try:
            values.append(None if value is None else np.array(value, dtype))
        except (TypeError, ValueError) as error:
            raise UsageError(
                place=f"{place}, row {row} (counted from 0)", expected="lists of numbers", found=shorten(value)
            ) from error
    return ColumnValues(_with_axes(values, axes), valid)


def _with_axes(values: Sequence[Any], axes: int) -> list[Any]:
    """Give arrays of empty lists, which have fewer axes, the missing ones, as long as those of the first full array."""
    full = next((value.shape for value in values if value is not None and value.size), (0,) * axes)
    return [value if value is None else value.reshape(*value.shape, *full[value.ndim :]) for value in values]
