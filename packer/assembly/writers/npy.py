"""Write shards in the format npy: one folder of plain numpy files per shard."""

from pathlib import Path
from typing import IO, Any

import numpy as np

from packer.assembly.writers.base import ShardSize, block_rows_of, check_rows, count_rows
from shardspec.columns import Buffer, Columns, fixed_bytes
from shardspec.formats.npy import npy_header
from shardspec.schema import Field, Schema

BLOCK_BYTES = 1 << 20
"""Encoded bytes per block, which only makes disk reads sequential. Reading a single row is cheap in this format."""


class NpyShardWriter:
    """Writes a folder of ``.npy`` files (`packer.assembly.writers.base`).

    A fixed field is stored as ``<field>.npy``, (N, …). A ragged field is stored as ``<field>.npy``, the concatenated
    rows of all values, (total, …), and ``<field>.offsets.npy``, int64 (N + 1,), in rows. Any other field is stored as
    ``<field>.bin``, the concatenated encoded values, and ``<field>.offsets.npy``, int64 (N + 1,), in bytes.
    """

    def __init__(self, folder: Path, name: str, schema: Schema, size: ShardSize) -> None:
        self.block_rows = block_rows_of(size, BLOCK_BYTES)
        self._name = name
        self._size = size
        self._rows = 0
        self._folder = folder / name
        self._folder.mkdir()
        self._schema = schema
        self._columns = [_ColumnFiles(self._folder, f, size) for f in schema]

    def write(self, rows: Columns) -> None:
        """Append rows."""
        self._rows += count_rows(self._schema, rows)
        for column in self._columns:
            column.write(rows[column.field.name])

    def close(self) -> None:
        """Finish the files."""
        for column in self._columns:
            column.close()
        check_rows(self._name, self._size, self._rows)


class _ColumnFiles:
    """The files of one field."""

    def __init__(self, folder: Path, field: Field, size: ShardSize) -> None:
        self.field = field
        self._unit = field.row_bytes if field.kind == "ragged" else 1
        self._end = 0
        self._values: IO[bytes]
        if field.kind in ("fixed", "ragged"):
            self._values = (folder / f"{field.name}.npy").open("xb")
            total = size.field_bytes[field.name] // self._unit if self._unit else 0
            count = size.samples if field.is_fixed else total
            self._values.write(npy_header(field.dtype, (count, *field.fixed_shape)))
        else:
            self._values = (folder / f"{field.name}.bin").open("xb")
        self._offsets: IO[bytes] | None = None
        if not field.is_fixed:
            self._offsets = (folder / f"{field.name}.offsets.npy").open("xb")
            self._offsets.write(npy_header("<i8", (size.samples + 1,)))
            self._offsets.write(bytes(8))

    def write(self, values: Any) -> None:
        if self._offsets is None:
            self._values.write(fixed_bytes(values))
            return
        self._values.writelines(values)
        lengths = np.fromiter((_length(value) for value in values), np.int64, len(values))
        ends = self._end + np.cumsum(lengths)
        self._end = int(ends[-1]) if len(ends) else self._end
        self._offsets.write((ends // max(1, self._unit)).astype("<i8").tobytes())

    def close(self) -> None:
        self._values.close()
        if self._offsets is not None:
            self._offsets.close()


def _length(value: Buffer) -> int:
    return value.nbytes if isinstance(value, memoryview) else len(value)
