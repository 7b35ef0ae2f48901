"""lmdb: a shard is one single-file LMDB environment."""

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from packer.assembly.writers.base import ShardSize, block_rows_of, check_rows, count_rows
from packer.assembly.writers.index import IndexWriter
from packer.assembly.writers.lmdb_pages import LMDBPages
from shardspec.columns import Buffer, Columns, fixed_bytes
from shardspec.errors import BuildError
from shardspec.schema import Schema

BLOCK_BYTES = 1 << 20
"""Encoded bytes per block. Any single row is cheap to read here; a block only makes disk reads sequential."""

_KEY_DIGITS = 8
_ROWS_MAX = 10**_KEY_DIGITS


class LMDBShardWriter:
    """Writes one LMDB file (`packer.assembly.writers.base`): key ``00000042/landmarks`` → the value's encoded bytes."""

    def __init__(self, folder: Path, name: str, schema: Schema, size: ShardSize) -> None:
        if size.samples >= _ROWS_MAX:
            raise BuildError(place=name, expected=f"less than {_ROWS_MAX} rows in a shard", found=size.samples)
        self.block_rows = block_rows_of(size, BLOCK_BYTES)
        self._name = name
        self._size = size
        self._schema = schema
        self._names = sorted(schema.names)
        self._rows = 0
        self._index = IndexWriter("lmdb", schema, size.samples)
        self._path = folder / f"{name}.lmdb"
        with self._writing():
            self._file = self._path.open("xb", buffering=0)
            self._pages = LMDBPages(self._file.fileno(), mmap.PAGESIZE)

    def write(self, rows: Columns) -> None:
        """Append rows."""
        count = count_rows(self._schema, rows)
        with self._writing():
            self._pages.put(self._entries(rows, count))
        self._rows += count

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn write errors into a `BuildError`."""
        try:
            yield
        except OSError as error:
            raise BuildError(f"cannot be written: {error.strerror or error}", place=self._path) from error

    def _entries(self, rows: Columns, count: int) -> Iterator[tuple[bytes, Buffer]]:
        """Keys and values of some rows, in the order of the keys."""
        columns = [
            (name.encode(), _split(fixed_bytes(rows[name]), count) if self._schema[name].is_fixed else rows[name])
            for name in self._names
        ]
        for row in range(count):
            prefix = b"%08d/" % (self._rows + row)
            for name, values in columns:
                yield prefix + name, values[row]

    def close(self) -> None:
        """Finish the files."""
        with self._writing(), self._file:
            self._pages.finish()
        check_rows(self._name, self._size, self._rows)
        with self._writing():
            self._write_index()

    def _write_index(self) -> None:
        shape = (self._rows, len(self._names))
        starts, sizes = (
            np.array(numbers, np.int64).reshape(shape) for numbers in (self._pages.starts, self._pages.sizes)
        )
        for column, name in enumerate(self._names):
            varying = {} if self._schema[name].is_fixed else {"sizes": sizes[:, column]}
            self._index.add(name, starts=starts[:, column], **varying)
        self._index.write(self._path, self.block_rows)


def _split(data: memoryview, count: int) -> list[memoryview]:
    """Cut bytes into equal parts."""
    step = len(data) // count if count else 0
    return [data[row * step : (row + 1) * step] for row in range(count)]
