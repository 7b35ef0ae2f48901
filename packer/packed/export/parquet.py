"""An exported table as Parquet: every number in its dtype in the dataset."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packer.packed.export.tables import Row

_NO_NUMBERS = {"text": pa.string(), "intervals": pa.list_(pa.list_(pa.float64()))}


class ParquetExport:
    """A Parquet file. Invalid UTF-8 is escaped."""

    def __init__(self, path: Path, columns: Mapping[str, str]) -> None:
        kinds = {
            name: _NO_NUMBERS[kind] if kind in _NO_NUMBERS else pa.from_numpy_dtype(np.dtype(kind))
            for name, kind in columns.items()
        }
        self._schema = pa.schema(list(kinds.items()))
        self._writer = pq.ParquetWriter(path, self._schema)

    def write(self, rows: Sequence[Row]) -> None:
        """Append rows as a row group."""
        columns = {name: [_plain(row[name]) for row in rows] for name in self._schema.names}
        arrays = [_array(values, kind) for values, kind in zip(columns.values(), self._schema.types, strict=True)]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if kind in _NO_NUMBERS.values():
        return pa.array(values, kind)
    missing = np.array([value is None for value in values])
    return pa.array(
        np.array([0 if value is None else value for value in values], kind.to_pandas_dtype()), kind, mask=missing
    )


def _plain(value: Any) -> Any:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
