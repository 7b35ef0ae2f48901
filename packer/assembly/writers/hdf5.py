"""Write shards in the format hdf5: one HDF5 file per shard."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from packer.assembly.writers.base import BlockBuffer, IndexWriter, ShardSize, block_rows_of, check_rows, count_rows
from shardspec.columns import Columns
from shardspec.errors import BuildError, SchemaError
from shardspec.formats.hdf5 import HDF5Array, hdf5_arrays
from shardspec.schema import Field, Schema

BLOCK_BYTES = 1 << 20
"""Encoded bytes per block, which only makes disk reads sequential. A chunk holds one image or many numbers."""

_ERRNO = re.compile(r"errno = (\d+)")


class HDF5ShardWriter:
    """Writes one HDF5 file (`packer.assembly.writers.base`).

    A fixed field is a dataset (N, …). A ragged field is stored as the concatenated rows of all values plus offsets, any
    other field as the concatenated bytes plus offsets. Chunks split the first axis. They have Fletcher-32 checksums, no
    compression (images do not shrink) and no timestamps. Version v110 of the file format also adds checksums to the
    metadata.
    """

    def __init__(self, folder: Path, name: str, schema: Schema, size: ShardSize) -> None:
        self.block_rows = block_rows_of(size, BLOCK_BYTES)
        self._name = name
        self._size = size
        self._schema = schema
        self._rows = 0
        self._blocks = BlockBuffer(schema, self.block_rows)
        self._index = IndexWriter("hdf5", schema, size.samples, summed=schema.names)
        datasets = [d for f in schema for d in hdf5_arrays(f, size.samples, _total(f, size))]
        names = [d.name for d in datasets]
        doubled = sorted({n for n in names if names.count(n) > 1})
        if doubled:
            raise SchemaError(
                expected="fields with different names in HDF5",
                found=f"two datasets {', '.join(doubled)}",
                hint="rename a field",
            )
        # Write each chunk as soon as it is full, so that the order in the file does not depend on a cache.
        # No lock is needed, since no other process knows this file yet, and some file systems refuse locks.
        how = {"libver": ("v110", "v110"), "rdcc_nbytes": 0, "track_order": False, "locking": False}
        self._path = folder / f"{name}.h5"
        self._ends = {field.name: 0 for field in schema if not field.is_fixed}
        with self._writing():
            self._file = h5py.File(self._path, "x", **how)
            self._columns = {d.name: _ColumnDatasets(self._file, d) for d in datasets}
            for field in self._ends:
                self._columns[f"{field}_offsets"].write(np.zeros(1, "<i8"))

    def write(self, rows: Columns) -> None:
        """Append rows."""
        count = count_rows(self._schema, rows)
        self._rows += count
        with self._writing():
            for block in self._blocks.add(rows, count):
                self._write(block)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn the library's write errors, which have several classes and long texts, into a `BuildError`."""
        try:
            yield
        except (OSError, RuntimeError, ValueError) as error:
            number = _ERRNO.search(str(error))
            if number is None:
                raise
            raise BuildError(f"cannot be written: {os.strerror(int(number[1]))}", place=self._path) from error

    def _write(self, block: Columns) -> None:
        """Append a block field by field. The chunks in the file have the same order."""
        for field in self._schema:
            values = block[field.name]
            if field.is_fixed:
                self._columns[field.name].write(values)
                continue
            joined = np.frombuffer(b"".join(values), np.uint8)
            unit = field.row_bytes if field.kind == "ragged" else 1
            lengths = np.fromiter((memoryview(value).nbytes for value in values), np.int64, len(values))
            ends = self._ends[field.name] + np.cumsum(lengths // max(1, unit))
            self._ends[field.name] = int(ends[-1]) if len(ends) else self._ends[field.name]
            self._columns[f"{field.name}_offsets"].write(ends)
            sizes = lengths // max(1, unit) * unit
            self._index.add(field.name, starts=ends * unit - sizes, sizes=sizes)
            if field.kind != "ragged":
                self._columns[f"{field.name}_bytes"].write(joined)
            elif unit:
                self._columns[field.name].write(joined.view(field.numpy_dtype).reshape(-1, *field.fixed_shape))

    def close(self) -> None:
        """Finish the file."""
        with self._writing():
            try:
                for block in self._blocks.rest():
                    self._write(block)
                for column in self._columns.values():
                    column.close()
            finally:
                self._file.close()
        check_rows(self._name, self._size, self._rows)
        self._write_index()

    def _write_index(self) -> None:
        """Ask the library for the position of each chunk in the finished file, and write the index."""
        with h5py.File(self._path, "r", locking=False) as file:
            for field in self._schema:
                dataset = file[field.name if field.kind in ("fixed", "ragged") else f"{field.name}_bytes"]
                places: dict[int, int] = {}
                if dataset.chunks is not None:
                    dataset.id.chunk_iter(lambda c, places=places: places.update({c.chunk_offset[0]: c.byte_offset}))
                self._index.add(field.name, runs=[places[row] for row in sorted(places)])
        self._index.write(self._path, self.block_rows)


def _total(field: Field, size: ShardSize) -> int:
    """Return the total rows of a ragged field, or the total bytes of any other varying field."""
    unit = field.row_bytes if field.kind == "ragged" else 1
    return size.field_bytes[field.name] // unit if unit else 0


class _ColumnDatasets:
    """One HDF5 dataset, written chunk by chunk."""

    def __init__(self, file: Any, dataset: HDF5Array) -> None:
        self._chunk_rows = dataset.chunk_rows
        self._pending: list[npt.NDArray[Any]] = []
        self._pending_rows = 0
        self._end = 0
        chunks = (dataset.chunk_rows, *dataset.shape[1:]) if dataset.chunk_rows else None
        self._dataset = file.create_dataset(
            dataset.name,
            shape=dataset.shape,
            dtype=dataset.dtype,
            chunks=chunks,
            fletcher32=chunks is not None,
            track_times=False,
        )

    def write(self, values: npt.NDArray[Any]) -> None:
        start = 0
        while self._chunk_rows and start < len(values):
            end = min(len(values), start + self._chunk_rows - self._pending_rows)
            self._pending.append(values[start:end])
            self._pending_rows += end - start
            start = end
            if self._pending_rows == self._chunk_rows:
                self._flush()

    def _flush(self) -> None:
        self._dataset[self._end : self._end + self._pending_rows] = np.concatenate(self._pending)
        self._end += self._pending_rows
        self._pending, self._pending_rows = [], 0

    def close(self) -> None:
        if self._pending_rows:
            self._flush()
