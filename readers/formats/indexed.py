"""The reader of shards with an index, which parses none of the format's own structures.

A format says how it stores a field (`IndexedReader.stored`) and, where the stored bytes are not the encoded value's,
how to turn one into the other. Everything that an index says is checked against the size of the file before it is used.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
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
    crc : callable
        Returns the checksum of some bytes.

    Raises
    ------
    IndexFormatError
        If there are more or fewer places than rows, or some of them overlap or are outside of the file.
    """

    def __init__(self, stored: Stored, places: Places, rows: int, data: ByteArray, crc: Callable[[Any], int]) -> None:
        self.stored, self.rows, self._data, self._crc = stored, rows, data, crc
        self.scale = 8 if stored.bits else 1
        self._runs, self._starts, self._sizes = integers(places.runs), places.starts, places.sizes
        self.shapes, self.sums = places.shapes, places.sums
        self.units = -(-rows // stored.run_rows) if stored.run_rows else rows
        """Number of runs, or of values, each of which may have a checksum."""
        wanted = (0 if stored.run_rows else rows, 0 if stored.size is not None else rows)
        if (len(self._starts), len(self._sizes)) != wanted or len(self.sums) not in (0, self.units):
            raise IndexFormatError(f"expected the places of {rows} values, found others")
        if (self._sizes % stored.step).any():
            raise IndexFormatError(f"expected sizes that are multiples of {stored.step}, found others")
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
            raise IndexFormatError(f"expected {count} runs, found {len(self._runs)}")
        begins = self._runs
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
        if (sizes < 0).any() or sizes.sum(dtype=np.float64) > len(self._data):  # as integers, the sum may overflow
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

    def starts_of(self, rows: Any) -> IntArray:
        """Where the values of rows begin, in the file or in the stream, in bytes or bits."""
        if not self.stored.run_rows:
            return integers(self._starts[rows])
        assert self.stored.size is not None
        runs, within = np.divmod(rows, self.stored.run_rows)
        starts: IntArray = self._runs[runs] * self.scale + within * self.stored.size
        return starts

    def extents(self, rows: Any) -> tuple[IntArray, IntArray]:
        """Where the values of rows begin and end, as `starts_of` counts."""
        starts = self.starts_of(rows)
        return starts, starts + (integers(self._sizes[rows]) if self.stored.size is None else self.stored.size)

    def foresee(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Where the bytes begin and end that reading rows touches: whole runs while their checksums are unknown."""
        starts, ends = self.extents(rows)
        if self.stored.chunk_bytes:
            return self._parts(starts, ends)
        starts, ends = starts // self.scale, -(-ends // self.scale)
        if self.stored.run_rows:
            runs = rows // self.stored.run_rows
            begins = self._runs[runs]
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
        chunks = self._runs
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

    def sums_of(self, units: IntArray) -> list[int]:
        """The checksums of runs, or of values, as they are in the file."""
        if self.stored.run_rows:
            starts = self._runs[units]
            extents = zip(starts.tolist(), (starts + self._run_bytes(units)).tolist(), strict=True)
        else:
            starts, ends = self.extents(units)
            if self.stored.chunk_bytes:
                return [self._crc(self.span(*extent)) for extent in zip(starts.tolist(), ends.tolist(), strict=True)]
            extents = zip((starts // self.scale).tolist(), (-(-ends // self.scale)).tolist(), strict=True)
        return [self._crc(self._data[start:end]) for start, end in extents]

    def check(self, rows: IntArray) -> int | None:
        """Compare the checksums of rows that have not been touched before; the unit that differs, or None."""
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
    """Reads one shard through its index (`readers.formats.base`).

    Values are copied once, from the mapped file into the batch. With `checksums`, a run of values, a value or a record
    that the index has a checksum of is compared with it when it is first touched. The checksum of a field's places is
    always compared, when the field is first read. Encoded values are views of the mapping and keep it alive, unless
    they are stored in another form. Safe to use from several threads, and after a fork.
    """

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
                self._records = Section(Stored(None), places, self._rows, self._data, self.crc)
        except IndexFormatError as error:
            raise self._not_an_index(error) from error

    @staticmethod
    def crc(data: Any) -> int:
        """Return the checksum that the index has of some bytes."""
        return zlib.crc32(data)

    @staticmethod
    def stored(field: Field, block_rows: int) -> Stored:
        """How the format stores a field whose values have bytes; this is how LMDB does."""
        if field.is_fixed:
            return Stored(field.row_bytes)
        return Stored(None, step=field.row_bytes if field.kind == "ragged" else 1)

    def _read_stored(self, section: Section, field: Field, rows: IntArray, out: Any, at: IntArray) -> None:
        """Put values of a field that is not stored plainly into their places. Formats with such fields replace it."""
        raise NotImplementedError

    def _read_plain(self, section: Section, field: Field, rows: IntArray, out: Any, at: IntArray) -> None:
        """Put values whose stored bytes are the encoded ones into their places."""
        assert self._data is not None
        if field.is_fixed:
            gather_bytes(self._data, section.starts_of(rows), field, out, at)
            return
        starts, ends = section.extents(rows)
        if section.stored.chunk_bytes:
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
            section = self._sections.get(name) or self._learn(name)
            if self._checksums:
                self._check(f"field {name!r}", section, rows)
            read = self._read_plain if section.stored.plain else self._read_stored
            read(section, field, rows, out[name], at)

    def extents(self, rows: IntArray, fields: Sequence[str]) -> Iterator[Extents]:
        """Where rows are (`readers.formats.base.ShardReader.extents`)."""
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
            section = Section(self.stored(field, self._block_rows), places, self._rows, self._data, self.crc)
        except IndexFormatError as error:
            raise self._not_an_index(error) from error
        if not self._checksums:
            section.known[:] = section.is_known = True
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
        return take_bytes(self._data, section.starts_of(rows), section.stored.size)


def has_no_bytes(field: Field) -> bool:
    """Return whether no value of a field has a byte, so that no format stores any."""
    return field.kind in ("fixed", "ragged") and not field.row_bytes


def _check_apart(begins: IntArray, ends: IntArray, limit: int) -> None:
    """Check that extents are within a file and do not overlap."""
    if not len(begins):
        return
    if begins.min() < 0 or ends.max() > limit or (ends < begins).any():
        raise IndexFormatError("expected values within the shard, found one outside")
    if not (begins[1:] >= ends[:-1]).all():
        order = np.argsort(begins, kind="stable")
        if not (begins[order][1:] >= ends[order][:-1]).all():
            raise IndexFormatError("expected values apart from each other, found some that overlap")
