"""hdf5: a shard is one HDF5 file."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from readers.formats.checks import check_offsets, corrupt, distinct, gather_bytes
from readers.formats.hdf5.chunks import Chunks, read_chunks
from readers.formats.hdf5.file import HDF5Error, HDF5File
from readers.formats.mapping import ByteArray, Extents, map_file
from shardspec.columns import Columns, IntArray
from shardspec.entries import Shard
from shardspec.errors import DatasetError, ShardCorruptError
from shardspec.formats.hdf5 import hdf5_arrays
from shardspec.schema import Field, Schema


class HDF5ShardReader:
    """Reads one HDF5 file (`readers.formats.base`).

    HDF5's library, whose process a crafted file can crash, is not used. The places of a dataset's chunks are looked up
    when a field is first read. Values are copied once, from the mapped file into the batch. With `checksums`, a chunk's
    Fletcher-32 is compared when the chunk is first touched; the metadata's checksums are always compared. Encoded
    values are views of the mapping and keep it alive, except those that a chunk's end cuts, which are copies. Memory:
    eight bytes per row and varying field, and eight per chunk. Safe to use from several threads, and after a fork.
    """

    threads = True
    views = True

    def __init__(self, path: Path, shard: Shard, schema: Schema, *, checksums: bool = True) -> None:
        self._path = path
        self._rows = shard.samples
        self._schema = schema
        self._checksums = checksums
        self._data: ByteArray | None = map_file(path)
        self._lock = threading.Lock()
        self._values: dict[str, Chunks] = {}
        self._offsets: dict[str, IntArray] = {}
        datasets = [dataset.name for field in schema for dataset in hdf5_arrays(field, self._rows, 0)]
        try:
            self._file: HDF5File | None = HDF5File(self._data, datasets)
        except HDF5Error as error:
            raise self._not_readable(error) from error

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Gather rows (`readers.formats.base.ShardReader.read`)."""
        if self._data is None:
            raise DatasetError(f"{self._path}: expected an open reader, found a closed one")
        missing = [name for name in fields if name not in self._values]
        if missing:
            self._learn(missing)
        for name in fields:
            field, chunks = self._schema[name], self._values[name]
            if field.is_fixed:
                if field.row_bytes:
                    gather_bytes(self._data, self._places(chunks, rows), field, out[name], at)
                continue
            offsets = self._offsets[name]
            starts, ends = offsets[rows].tolist(), offsets[rows + 1].tolist()
            for place, start, end in zip(at.tolist(), starts, ends, strict=True):
                out[name][place] = self._span(chunks, start, end)

    def extents(self, rows: IntArray, fields: Sequence[str]) -> Iterator[Extents]:
        """Where rows are (`readers.formats.base.MappedReader`)."""
        if self._data is None:
            return
        missing = [name for name in fields if name not in self._values]
        if missing:
            self._learn(missing)
        for name in fields:
            chunks = self._values[name]
            if not chunks.row_bytes or not len(chunks.starts):
                continue
            if self._schema[name].is_fixed:
                yield self._parts(self._data, chunks, rows, rows + 1)
            else:
                starts, stops = self._offsets[name][rows], self._offsets[name][rows + 1]
                some = stops > starts
                yield self._parts(self._data, chunks, starts[some], stops[some])

    def _parts(self, data: ByteArray, chunks: Chunks, starts: IntArray, stops: IntArray) -> Extents:
        """Where runs of a dataset's rows begin and end: whole chunks if checksums are still to be compared."""
        first, last = starts // chunks.rows, (stops - 1) // chunks.rows
        begin = chunks.starts[first] + (starts - first * chunks.rows) * chunks.row_bytes
        end = chunks.starts[last] + (stops - last * chunks.rows) * chunks.row_bytes
        if self._checksums:
            begin = np.where(chunks.known[first], begin, chunks.starts[first])
            end = np.where(chunks.known[last], end, chunks.starts[last] + chunks.rows * chunks.row_bytes)
        cut = first != last  # there may be anything between two chunks
        first_ends = np.where(cut, chunks.starts[first] + chunks.rows * chunks.row_bytes, end)
        last_begins = np.where(cut, chunks.starts[last], end)
        return Extents(data, np.concatenate([begin, last_begins]), np.concatenate([first_ends, end]))

    def close(self) -> None:
        """Drop the mapping, which ends with the last view of it."""
        self._data = self._file = None

    def _places(self, chunks: Chunks, rows: IntArray) -> IntArray:
        """Where rows of a dataset begin in the file, after a check of their chunks."""
        numbers = rows // chunks.rows
        self._check(chunks, numbers)
        places: IntArray = chunks.starts[numbers] + (rows - numbers * chunks.rows) * chunks.row_bytes
        return places

    def _span(self, chunks: Chunks, start: int, end: int) -> memoryview:
        """Rows of a dataset as one run of bytes."""
        data = self._data
        if start == end or not chunks.row_bytes or data is None:
            return memoryview(b"")
        first, last = start // chunks.rows, (end - 1) // chunks.rows
        self._check(chunks, np.arange(first, last + 1))
        pieces = []
        for number in range(first, last + 1):
            base = int(chunks.starts[number])
            low = max(start - number * chunks.rows, 0) * chunks.row_bytes
            high = min(end - number * chunks.rows, chunks.rows) * chunks.row_bytes
            pieces.append(data[base + low : base + high].data)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def _check(self, chunks: Chunks, numbers: IntArray) -> None:
        """Compare the checksums of chunks that have not been touched before."""
        if not self._checksums or self._data is None or chunks.known[numbers].all():
            return
        for number in distinct(numbers[~chunks.known[numbers]]):
            if not chunks.is_sound(self._data, number):
                raise self._corrupt(f"the Fletcher-32 of chunk {number} of dataset {chunks.name!r}", "another")
            chunks.known[number] = True

    def _learn(self, names: list[str]) -> None:
        """Find the chunks of some fields."""
        with self._lock:
            if self._file is None:
                return
            try:
                for name in names:
                    if name not in self._values:
                        self._learn_field(self._file, self._schema[name])
            except HDF5Error as error:
                raise self._not_readable(error) from error

    def _learn_field(self, file: HDF5File, field: Field) -> None:
        if field.is_fixed:
            (dataset,) = hdf5_arrays(field, self._rows, 0)
            self._values[field.name] = read_chunks(file, dataset)
            return
        name = f"{field.name}_offsets"
        _, expected = hdf5_arrays(field, self._rows, 0)
        where = read_chunks(file, expected)
        offsets = np.frombuffer(self._span(where, 0, self._rows + 1), "<i8").astype(np.int64)
        check_offsets(Path(f"{self._path}:{name}"), offsets, self._rows, int(offsets[-1]))
        values, _ = hdf5_arrays(field, self._rows, int(offsets[-1]))
        self._offsets[field.name] = offsets
        self._values[field.name] = read_chunks(file, values)

    def _not_readable(self, error: HDF5Error) -> ShardCorruptError:
        return self._corrupt("an HDF5 file of the dataset's fields", f"one that does not read ({error})")

    def _corrupt(self, expected: str, found: str) -> ShardCorruptError:
        return corrupt(self._path, expected, found)
