"""Computed columns as a Parquet table, as `packer add` reads it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packer.analysis.compute.job import VALID, ComputedColumns
from shardspec.codecs import codec_for
from shardspec.schema import Field

_NOTE = b"facepack.computed"


def write_table(path: Path, keys: list[str], found: ComputedColumns, note: str) -> None:
    """Write keys and columns. Missing values are null.

    Parameters
    ----------
    note : str
        What was computed from which dataset, as JSON, for `read_note`.
    """
    by_name = {field.name: field for field in found.fields}
    arrays = {"key": pa.array(keys, pa.string())}
    for name in found.names:
        valid = found.columns.get(f"{name}{VALID}") if name in found.missing else None
        arrays[name] = _arrow(by_name[name], found.columns[name], None if valid is None else ~valid)
    table = pa.table(arrays)
    pq.write_table(table.replace_schema_metadata({_NOTE: note}), path)


def read_note(path: Path) -> Any:
    """Return the note of a table that `write_table` wrote; None of another file."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowInvalid):
        return None
    return json.loads(metadata[_NOTE]) if _NOTE in metadata else None


def _arrow(field: Field, values: Any, missing: Any) -> pa.Array:
    if not field.is_fixed:
        codec = codec_for(field)
        gone = np.zeros(len(values), np.bool_) if missing is None else missing
        decoded = [None if away else codec.decode(value) for value, away in zip(values, gone.tolist(), strict=True)]
        plain = [value.tolist() if isinstance(value, np.ndarray) else value for value in decoded]
        kind = pa.string() if field.kind == "text" else _list_type(field.dtype, len(field.shape))
        return pa.array(plain, kind)
    if field.classes is not None:
        names = np.array([*field.classes, ""], dtype=object)
        return pa.array(names[values].tolist(), pa.string(), mask=values < 0)
    if not field.fixed_shape:
        return pa.array(np.asarray(values), mask=missing)
    if len(field.fixed_shape) == 1:
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        mask = None if missing is None else pa.array(missing)
        return pa.FixedSizeListArray.from_arrays(flat, field.fixed_shape[0], mask=mask)
    lists = [None if missing is not None and missing[row] else value.tolist() for row, value in enumerate(values)]
    return pa.array(lists, _list_type(field.dtype, len(field.fixed_shape)))


def _list_type(dtype: str, axes: int) -> pa.DataType:
    kind = pa.from_numpy_dtype(np.dtype(dtype))
    for _ in range(axes):
        kind = pa.list_(kind)
    return kind
