"""The reader of shards with an index, which parses none of the format's own structures.

A format says how it stores a field (`IndexedReader.stored`) and, where the stored bytes are not the encoded value's,
how to turn one into the other. Everything that an index says is checked against the size of the file before it is used.
"""

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from readers.formats.checks import corrupt, distinct, gather_bytes, put, take_bytes
from readers.formats.mapping import ByteArray, Extents, map_file
from shardspec.columns import Columns, IntArray
from shardspec.entries import Column, Shard
from shardspec.errors import DatasetError
from shardspec.formats.index import Index, IndexFormatError, Places, Stored, index_path, integers
from shardspec.schema import Field, Schema

_NOTHING = memoryview(b"")


class Section:
    """Where the values of one field, or whole records, are in the mapped file.

    Parameters
    ----------
    stored : Stored
    places : Places
        From an index, or to be put into one.
    rows : int
    data : ndarray, uint8
        The shard's file.

    Raises
    ------
    IndexFormatError
        If there are more or fewer places than rows, or some of them overlap or are outside of the file.
    """

    def __init__(self, stored: Stored, places: Places, rows: int, data: ByteArray) -> None:
        self.stored, self.rows, self._data = stored, rows, data
        self.scale = 8 if stored.bits else 1
        self._runs, self._starts, self._sizes = places.runs, places.starts, places.sizes
        self.shapes, self.sums = places.shapes, places.sums
        self.units = -(-rows // stored.run_rows) if stored.run_rows else rows
        """Number of runs, or of values, each of which may have a checksum."""
        wanted = (0 if stored.run_rows else rows, 0 if stored.size is not None else rows)
        if (len(self._starts), len(self._sizes)) != wanted or len(self.sums) not in (0, self.units):
            raise IndexFormatError(f"expected the places of {rows} values, found others")
        if (self._sizes % stored.step).any():
            raise IndexFormatError(f"expected sizes that are multiples of {stored.step}, found others")
        self.known = np.full(self.units, not len(self.sums))
        if stored.run_rows:
            self._check_runs(self.units, self._run_bytes(np.arange(self.units)))
        elif stored.chunk_bytes:
            self._check_stream(stored.chunk_bytes)
        else:
            self._check_values()

    def _check_runs(self, count: int, sizes: IntArray) -> None:
        if len(self._runs) != count:
            raise IndexFormatError(f"expected {count} runs, found {len(self._runs)}")
        begins = integers(self._runs)
        _check_apart(begins, begins + sizes, len(self._data))

    def _check_values(self) -> None:
        if len(self._runs):
            raise IndexFormatError(f"expected no runs, found {len(self._runs)}")
        begins, ends = self.extents(slice(None))
        if (begins > len(self._data) * self.scale).any():  # before the sum overflows
            raise IndexFormatError("expected values within the shard, found one outside")
        _check_apart(begins, ends, len(self._data) * self.scale)

    def _check_stream(self, chunk_bytes: int) -> None:
        """Check that values follow one another without a gap in a stream that fills the chunks."""
        begins, sizes = integers(self._starts), integers(self._sizes)
        if (sizes < 0).any() or (sizes > len(self._data)).any():
            raise IndexFormatError("expected values within the shard, found others")
        ends = np.cumsum(sizes)
        if not np.array_equal(begins, ends - sizes):
            raise IndexFormatError("expected values one after another, found others")
        total = int(ends[-1]) if len(ends) else 0
        count = -(-total // chunk_bytes)
        self._check_runs(count, np.minimum(chunk_bytes, total - chunk_bytes * np.arange(count)))

    def _run_bytes(self, runs: IntArray) -> IntArray:
        """The sizes of runs of values."""
        assert self.stored.size is not None
        held = np.minimum(self.stored.run_rows, self.rows - runs * self.stored.run_rows)
        sizes: IntArray = -(-held * self.stored.size // self.scale)
        return sizes

    def extents(self, rows: Any) -> tuple[IntArray, IntArray]:
        """Where the values of rows begin and end, in the file or in the stream, in bytes or bits."""
        if self.stored.run_rows:
            assert self.stored.size is not None
            runs = rows // self.stored.run_rows
            within = (rows - runs * self.stored.run_rows) * self.stored.size
            starts = integers(self._runs[runs]) * self.scale + within
        else:
            starts = integers(self._starts[rows])
        sizes = integers(self._sizes[rows]) if self.stored.size is None else self.stored.size
        return starts, starts + sizes

    def foresee(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Where the bytes begin and end that reading rows touches: whole runs while their checksums are unknown."""
        starts, ends = self.extents(rows)
        if self.stored.chunk_bytes:
            return self._parts(starts, ends)
        starts, ends = starts // self.scale, -(-ends // self.scale)
        if self.stored.run_rows:
            runs = rows // self.stored.run_rows
            begins = integers(self._runs[runs])
            unknown = ~self.known[runs]
            starts = np.where(unknown, begins, starts)
            ends = np.where(unknown, begins + self._run_bytes(runs), ends)
        return starts, ends

    def _parts(self, starts: IntArray, ends: IntArray) -> tuple[IntArray, IntArray]:
        """Where the first and the last parts of values in a stream are in the file."""
        size = self.stored.chunk_bytes
        some = ends > starts
        starts, ends = starts[some], ends[some]
        first, last = starts // size, (ends - 1) // size
        chunks = integers(self._runs)
        begins, stops = chunks[first] + starts - first * size, chunks[last] + ends - last * size
        return (
            np.concatenate([begins, np.where(first == last, begins, chunks[last])]),
            np.concatenate([np.where(first == last, stops, chunks[first] + size), stops]),
        )

    def span(self, start: int, end: int) -> memoryview:
        """The stored bytes of a value, given its extent: a view, or a copy if a chunk's end cuts the value."""
        size = self.stored.chunk_bytes
        if not size or start == end:
            return self._data[start // self.scale : -(-end // self.scale)].data
        pieces = []
        for chunk in range(start // size, (end - 1) // size + 1):
            base = int(self._runs[chunk]) - chunk * size
            low, high = max(start, chunk * size), min(end, (chunk + 1) * size)
            pieces.append(self._data[base + low : base + high].data)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def sum_of(self, unit: int) -> int:
        """The CRC-32 of a run, or of a value, as it is in the file."""
        if not self.stored.run_rows:
            start, end = self.extents(unit)
            return zlib.crc32(self.span(int(start), int(end)))
        start = int(self._runs[unit])
        return zlib.crc32(self._data[start : start + int(self._run_bytes(np.array(unit)))])

    def check(self, rows: IntArray) -> int | None:
        """Compare the checksums of rows that have not been touched before; the unit that differs, or None."""
        units = rows // self.stored.run_rows if self.stored.run_rows else rows
        known = self.known[units]
        if not known.all():
            for unit in distinct(units[~known]):
                if self.sum_of(unit) != self.sums[unit]:
                    return unit
                self.known[unit] = True
        return None


class IndexedReader:
    """Reads one shard through its index (`readers.formats.base`).

    Values are copied once, from the mapped file into the batch. With `checksums`, a run of values, a value or a record
    that the index has a checksum of is compared with it when it is first touched. The checksum of a field's places is
    always compared, when the field is first read. Encoded values are views of the mapping and keep it alive, unless
    they are stored in another form. Safe to use from several threads, and after a fork.
    """

    threads = True
    views = True
    format: ClassVar[str]

    def __init__(self, path: Path, shard: Shard | Column, schema: Schema, *, checksums: bool = True) -> None:
        assert isinstance(shard, Shard)
        self._path, self._index_path = path, index_path(path)
        self._rows, self._block_rows = shard.samples, shard.block_rows
        self._schema = schema
        self._checksums = checksums
        self._data: ByteArray | None = map_file(path)
        self._numbers = {name: number for number, name in enumerate(schema.names)}
        self._sections: dict[str, Section] = {}
        self._records: Section | None = None
        try:
            self._index = Index(map_file(self._index_path), self._data, self.format, schema, self._rows)
            if len(self._index) > len(schema):
                places = self._index.section(len(schema))
                self._records = Section(Stored(None), places, self._rows, self._data)
        except IndexFormatError as error:
            raise self._not_an_index(error) from error

    @staticmethod
    def stored(field: Field, block_rows: int) -> Stored:
        """How the format stores a field whose values have bytes; this is how LMDB does."""
        if field.is_fixed:
            return Stored(field.row_bytes)
        return Stored(None, step=field.row_bytes if field.kind == "ragged" else 1)

    def _read_field(self, section: Section, field: Field, rows: IntArray, out: Any, at: IntArray) -> None:
        """Put a field's values into their places. Formats replace it where the stored bytes are not the encoded ones."""
        assert self._data is not None
        starts, ends = section.extents(rows)
        if field.is_fixed:
            gather_bytes(self._data, starts, field, out, at)
        elif section.stored.chunk_bytes:
            for place, start, end in zip(at.tolist(), starts.tolist(), ends.tolist(), strict=True):
                out[place] = section.span(start, end)
        else:
            view = self._data.data
            for place, start, end in zip(at.tolist(), starts.tolist(), ends.tolist(), strict=True):
                out[place] = view[start:end]

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Gather rows (`readers.formats.base.ShardReader.read`)."""
        if self._data is None:
            raise DatasetError(f"{self._path}: expected an open reader, found a closed one")
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
            section = self._sections.get(name) or self._learn(name)
            if self._checksums:
                self._check(f"field {name!r}", section, rows)
            self._read_field(section, field, rows, out[name], at)

    def extents(self, rows: IntArray, fields: Sequence[str]) -> Iterator[Extents]:
        """Where rows are (`readers.formats.base.MappedReader`)."""
        if self._data is None or not len(rows):
            return
        if self._checksums and self._records is not None and fields:
            yield Extents(self._data, *self._records.extents(rows))
            return
        for name in fields:
            if not has_no_bytes(self._schema[name]):
                section = self._sections.get(name) or self._learn(name)
                yield Extents(self._data, *section.foresee(rows))

    def check_index(self) -> None:
        """Check the places of all fields, not only of those that are read.

        Raises
        ------
        ShardCorruptError
            If some are not within the shard, or overlap.
        """
        for name in self._schema.names:
            if name not in self._sections and not has_no_bytes(self._schema[name]):
                self._learn(name)

    def close(self) -> None:
        """Drop the mapping, which ends with the last view of it."""
        self._data = None
        self._sections.clear()

    def _learn(self, name: str) -> Section:
        """Read and check a field's section of the index."""
        assert self._data is not None
        field = self._schema[name]
        try:
            places = self._index.section(self._numbers[name])
            section = Section(self.stored(field, self._block_rows), places, self._rows, self._data)
        except IndexFormatError as error:
            raise self._not_an_index(error) from error
        if not self._checksums:
            section.known[:] = True
        self._sections[name] = section
        return section

    def _check(self, what: str, section: Section, rows: IntArray) -> None:
        unit = section.check(rows)
        if unit is not None:
            where = f"run {unit}" if section.stored.run_rows else f"row {unit}"
            raise corrupt(self._path, f"the checksum of {what}, {where}", "another")

    def _not_an_index(self, error: IndexFormatError) -> DatasetError:
        expected, _, found = str(error).removeprefix("expected ").partition(", found ")
        return corrupt(self._index_path, expected, found)

    def _raw(self, section: Section, rows: IntArray) -> npt.NDArray[np.uint8]:
        """A copy of the stored bytes of values of one size: (n, size)."""
        assert self._data is not None
        assert section.stored.size is not None
        return take_bytes(self._data, section.extents(rows)[0], section.stored.size)


def has_no_bytes(field: Field) -> bool:
    """Return whether no value of a field has a byte, so that no format stores any."""
    return field.kind in ("fixed", "ragged") and not field.row_bytes


def _check_apart(begins: IntArray, ends: IntArray, limit: int) -> None:
    """Check that extents are within a file and do not overlap."""
    if (begins < 0).any() or (ends < begins).any() or (ends > limit).any():
        raise IndexFormatError("expected values within the shard, found one outside")
    if not (begins[1:] >= ends[:-1]).all():
        order = np.argsort(begins, kind="stable")
        if not (begins[order][1:] >= ends[order][:-1]).all():
            raise IndexFormatError("expected values apart from each other, found some that overlap")
