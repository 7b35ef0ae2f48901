"""The reader of shards with an index. It parses none of the formats' own structures.

The index gives the place of each value (`shardspec.formats.index`), and `Stored` the form of its bytes, which
`readers.formats.stored_values` decodes. The reader checks everything in an index against the size of the file before it uses it.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from readers.formats.mapping import ByteArray, Extents, corrupt, distinct, gather_bytes, map_file, put
from readers.formats.stored_values import read_stored
from shardspec.columns import Columns, IntArray
from shardspec.entries import Column, Shard
from shardspec.errors import DatasetError, ShardCorruptError
from shardspec.formats import get_format
from shardspec.formats.index import Index, IndexFormatError, Places, Stored, has_no_bytes, index_path, integers
from shardspec.registry import import_target
from shardspec.schema import Field, Schema

_NOTHING = memoryview(b"")


class Storage(NamedTuple):
    """Rules of a format.

    Attributes
    ----------
    stored : callable
        Called with a field that is not empty (`has_no_bytes`) and the shard's ``block_rows``; returns its `Stored`.
    checksum : callable
        Computes the checksum of some bytes.
    """

    stored: Callable[[Field, int], Stored]
    checksum: Callable[[Any], int]


@cache
def storage_of(format: str) -> Storage:
    """Return the rules of a format with an index; `MissingDependencyError` if the library of its checksum is missing."""
    entry = get_format(format)
    assert entry.stored is not None
    what = f"format {format!r}"
    checksum = import_target(entry.checksum.target, what=what, extra=entry.checksum.extra)
    return Storage(import_target(entry.stored.target, what=what), checksum)


class Section:
    """Places of the values of one field, or of whole records, in a mapped file.

    Parameters
    ----------
    stored : Stored
    places : Places
        Read from an index, or about to be written to one.
    rows : int
    data : ndarray, uint8
        The shard's file.
    checksum : callable

    Attributes
    ----------
    units : int
        Number of runs, or of values if there are no runs. Each may have a checksum.
    known : ndarray, (units,), bool
        True if the checksum was compared, or need not be.

    Raises
    ------
    IndexFormatError
        If the number of places does not fit the rows, or places overlap or are outside of the file.
    """

    def __init__(
        self, stored: Stored, places: Places, rows: int, data: ByteArray, checksum: Callable[[Any], int]
    ) -> None:
        self.stored, self.rows, self.data, self._checksum = stored, rows, data, checksum
        self._scale = 8 if stored.form == "bits" else 1
        self._runs, self._starts, self._sizes = integers(places.runs), places.starts, places.sizes
        self.sums = places.sums
        self.units = -(-rows // stored.run_rows) if stored.run_rows else rows
        counts = len(self._starts), len(self._sizes), len(places.shapes)
        wanted = 0 if stored.run_rows else rows, 0 if stored.size is not None else rows, rows * stored.axes
        if counts != wanted or len(self.sums) not in (0, self.units):
            raise IndexFormatError(f"the places of {rows} values", "others")
        self.shapes = places.shapes.reshape(rows, stored.axes)
        if (self._sizes % stored.step).any():
            raise IndexFormatError(f"sizes that are multiples of {stored.step}", "others")
        self.known = np.full(self.units, not len(self.sums))
        self.is_known = not len(self.sums)
        if stored.run_rows:
            self._check_runs(self.units, self._run_bytes(np.arange(self.units)))
        elif stored.chunk_bytes:
            self._check_stream(stored.chunk_bytes)
        else:
            self._check_values()

    def _check_runs(self, count: int, sizes: IntArray) -> None:
        if len(self._runs) != count:
            raise IndexFormatError(f"{count} runs", f"{len(self._runs)}")
        _check_apart(self._runs, self._runs + sizes, len(self.data))

    def _check_values(self) -> None:
        if len(self._runs):
            raise IndexFormatError("no runs", f"{len(self._runs)}")
        starts, ends = self.extents(slice(None))
        if (starts > len(self.data) * self._scale).any():  # before the sum overflows
            raise IndexFormatError("values within the shard", "one outside")
        _check_apart(starts, ends, len(self.data) * self._scale)

    def _check_stream(self, chunk_bytes: int) -> None:
        """Check that the values follow one another without gaps in a stream that fills the chunks."""
        starts, sizes = integers(self._starts), integers(self._sizes)
        if (sizes < 0).any() or sizes.sum(dtype=np.float64) > len(self.data):  # a sum of integers may overflow
            raise IndexFormatError("values within the shard", "others")
        ends = np.cumsum(sizes)
        if not np.array_equal(starts, ends - sizes):
            raise IndexFormatError("values one after another", "others")
        total = int(ends[-1]) if len(ends) else 0
        count = -(-total // chunk_bytes)
        self._check_runs(count, np.minimum(chunk_bytes, total - chunk_bytes * np.arange(count)))

    def _run_bytes(self, runs: IntArray) -> IntArray:
        assert self.stored.size is not None
        rows = np.minimum(self.stored.run_rows, self.rows - runs * self.stored.run_rows)
        sizes: IntArray = -(-rows * self.stored.size // self._scale)
        return sizes

    def starts_of(self, rows: Any) -> IntArray:
        """Return the starts of values in the file, or in the stream, in bytes; in bits if the form is bits."""
        if not self.stored.run_rows:
            return integers(self._starts[rows])
        assert self.stored.size is not None
        runs, within = np.divmod(rows, self.stored.run_rows)
        starts: IntArray = self._runs[runs] * self._scale + within * self.stored.size
        return starts

    def extents(self, rows: Any) -> tuple[IntArray, IntArray]:
        """Return the starts and ends of values, in the unit of `starts_of`."""
        starts = self.starts_of(rows)
        return starts, starts + (integers(self._sizes[rows]) if self.stored.size is None else self.stored.size)

    def touched(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Return the starts and ends of the bytes that a read of some rows touches.

        These are whole runs while their checksums are unknown.
        """
        starts, ends = self.extents(rows)
        if self.stored.chunk_bytes:
            return self._touched_in_stream(starts, ends)
        starts, ends = starts // self._scale, -(-ends // self._scale)
        if self.stored.run_rows:
            runs = rows // self.stored.run_rows
            begins = self._runs[runs]
            unknown = ~self.known[runs]
            starts = np.where(unknown, begins, starts)
            ends = np.where(unknown, begins + self._run_bytes(runs), ends)
        return starts, ends

    def _touched_in_stream(self, starts: IntArray, ends: IntArray) -> tuple[IntArray, IntArray]:
        """Return the parts of values in each of their chunks."""
        size = self.stored.chunk_bytes
        some = ends > starts
        starts, ends = starts[some], ends[some]
        counts = (ends - 1) // size - starts // size + 1
        of = np.repeat(np.arange(len(counts)), counts)
        chunks = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts) + (starts // size)[of]
        begins = self._runs[chunks] - chunks * size
        return begins + np.maximum(starts[of], chunks * size), begins + np.minimum(ends[of], (chunks + 1) * size)

    def span(self, start: int, end: int) -> memoryview:
        """Return the stored bytes of a value: a view, or a copy if the value continues in another chunk."""
        size = self.stored.chunk_bytes
        if not size or start == end:
            return self.data[start // self._scale : -(-end // self._scale)].data
        pieces = []
        for chunk in range(start // size, (end - 1) // size + 1):
            base = int(self._runs[chunk]) - chunk * size
            low, high = max(start, chunk * size), min(end, (chunk + 1) * size)
            pieces.append(self.data[base + low : base + high].data)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def sums_of(self, units: IntArray) -> list[int]:
        """Compute the checksums of runs, or of values, from the file."""
        if self.stored.chunk_bytes:
            extents = zip(*(ends.tolist() for ends in self.extents(units)), strict=True)
            return [self._checksum(self.span(start, end)) for start, end in extents]
        if self.stored.run_rows:
            starts = self._runs[units]
            ends = starts + self._run_bytes(units)
        else:
            starts, ends = self.extents(units)
            starts, ends = starts // self._scale, -(-ends // self._scale)
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        return [self._checksum(self.data[start:end]) for start, end in pairs]

    def check(self, rows: IntArray) -> int | None:
        """Compare the checksums of rows at their first use; return a unit whose checksum differs, or None."""
        if self.is_known:
            return None
        units = rows // self.stored.run_rows if self.stored.run_rows else rows
        known = self.known[units]
        if not known.all():
            new = np.array(distinct(units[~known]))
            wrong = new[self.sums_of(new) != self.sums[new]]
            if len(wrong):
                return int(wrong[0])
            self.known[new] = True
            self.is_known = bool(self.known.all())
        return None


class IndexedReader:
    """Reads a shard through its index (`readers.formats.shards.ShardReader`).

    Values are copied once, from the mapped file into the batch. Encoded values are views of the mapping and keep it
    alive, unless they are stored in another form. The checksum of a field's section of the index is compared when the
    field is first read; with `checksums`, that of a run, a value or a record when it is first touched.
    """

    def __init__(
        self, path: Path, shard: Shard | Column, schema: Schema, format: str, *, checksums: bool = True
    ) -> None:
        assert isinstance(shard, Shard)
        self._path, self._index_path = path, index_path(path)
        self._rows, self._block_rows = shard.samples, shard.block_rows
        self._schema = schema
        self._checksums = checksums
        self._storage = storage_of(format)
        self._data: ByteArray | None = map_file(path)
        self._numbers = {name: number for number, name in enumerate(schema.names)}
        self._sections: dict[str, Section] = {}
        self._records: Section | None = None
        try:
            self._index = Index(map_file(self._index_path), self._data, format, schema, self._rows)
            if len(self._index) > len(schema):
                places = self._index.section(len(schema))
                self._records = Section(Stored(None), places, self._rows, self._data, self._storage.checksum)
        except IndexFormatError as error:
            raise self._wrong_index(error) from error

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Copy rows (`readers.formats.shards.ShardReader.read`)."""
        if self._data is None:
            raise DatasetError(place=self._path, expected="an open reader", found="a closed one")
        if not len(rows):
            return
        if self._checksums and self._records is not None and fields:
            self._check("records", self._records, rows)
        for name in fields:
            field = self._schema[name]
            if has_no_bytes(field):
                if not field.is_fixed:
                    put([_NOTHING] * len(rows), out[name], at)
                continue
            section = self._sections.get(name) or self._load_section(name)
            if self._checksums:
                self._check(f"field {name!r}", section, rows)
            if section.stored.form == "plain":
                self._read_plain(section, field, rows, out[name], at)
                continue
            try:
                read_stored(section, field, rows, out[name], at)
            except IndexFormatError as error:
                raise corrupt(self._path, f"{error.expected} in field {name!r}", error.found) from error

    def _read_plain(self, section: Section, field: Field, rows: IntArray, out: Any, at: IntArray) -> None:
        """Copy values whose stored bytes are the encoded ones."""
        if field.is_fixed:
            gather_bytes(section.data, section.starts_of(rows), field, out, at)
            return
        starts, ends = section.extents(rows)
        if section.stored.chunk_bytes:
            for place, start, end in zip(at.tolist(), starts.tolist(), ends.tolist(), strict=True):
                out[place] = section.span(start, end)
        else:
            view = section.data.data
            for place, start, end in zip(at.tolist(), starts.tolist(), ends.tolist(), strict=True):
                out[place] = view[start:end]

    def extents(self, rows: IntArray, fields: Sequence[str]) -> Iterator[Extents]:
        """Yield the places of rows (`readers.formats.shards.ShardReader.extents`)."""
        if self._data is None or not len(rows):
            return
        if self._checksums and self._records is not None and fields:
            yield Extents(self._path, self._data, *self._records.extents(rows))
            return
        for name in fields:
            if not has_no_bytes(self._schema[name]):
                section = self._sections.get(name) or self._load_section(name)
                yield Extents(self._path, self._data, *section.touched(rows))

    def lengths(self, field: str) -> IntArray | None:
        """Return the encoded sizes of a field's values (`readers.formats.shards.ShardReader.lengths`)."""
        if has_no_bytes(self._schema[field]):
            return np.zeros(self._rows, np.int64)
        section = self._sections.get(field) or self._load_section(field)
        stored = section.stored
        if stored.form == "varints":  # their number is not in the index
            return None
        starts, ends = section.extents(np.arange(self._rows))
        if stored.form == "numbers":
            return (ends - starts) // np.dtype(stored.dtype).itemsize * self._schema[field].numpy_dtype.itemsize
        return ends - starts + section.shapes.itemsize * stored.axes

    def check_index(self) -> None:
        """Check the places of all fields, including those that were not read; `ShardCorruptError` if some are wrong."""
        for name in self._schema.names:
            if name not in self._sections and not has_no_bytes(self._schema[name]):
                self._load_section(name)

    def close(self) -> None:
        """Drop the mapping. The file is unmapped when no view of it is left."""
        self._data = None
        self._sections.clear()

    def _load_section(self, name: str) -> Section:
        """Read and check a field's section of the index."""
        assert self._data is not None
        storage = self._storage
        try:
            places = self._index.section(self._numbers[name])
            stored = storage.stored(self._schema[name], self._block_rows)
            section = Section(stored, places, self._rows, self._data, storage.checksum)
        except IndexFormatError as error:
            raise self._wrong_index(error) from error
        if not self._checksums:
            section.known[:] = section.is_known = True
        self._sections[name] = section
        return section

    def _check(self, what: str, section: Section, rows: IntArray) -> None:
        unit = section.check(rows)
        if unit is not None:
            where = f"run {unit}" if section.stored.run_rows else f"row {unit}"
            raise corrupt(self._path, f"the checksum of {what}, {where}", "another")

    def _wrong_index(self, error: IndexFormatError) -> ShardCorruptError:
        return corrupt(self._index_path, error.expected, error.found)


def _check_apart(starts: IntArray, ends: IntArray, limit: int) -> None:
    """Check that extents are within a file and do not overlap."""
    if not len(starts):
        return
    if starts.min() < 0 or ends.max() > limit or (ends < starts).any():
        raise IndexFormatError("values within the shard", "one outside")
    if not (starts[1:] >= ends[:-1]).all():
        order = np.argsort(starts, kind="stable")
        if not (starts[order][1:] >= ends[order][:-1]).all():
            raise IndexFormatError("values that do not overlap", "some that do")
