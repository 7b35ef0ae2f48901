"""parquet: a shard is one Parquet file."""

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from readers.formats.checks import corrupt, distinct, gather_bytes, put, take_bytes
from readers.formats.mapping import ByteArray, Extents, map_file
from readers.formats.parquet.footer import ColumnChunk, Footer, FooterError, parse_footer
from readers.formats.parquet.page import Page, PageError, byte_offsets, fixed_start, list_start, read_page
from shardspec.columns import Columns, IntArray
from shardspec.entries import Shard
from shardspec.errors import DatasetError, ShardCorruptError
from shardspec.formats.parquet import FOOTER_MARK, ROWS_MAX, TAIL_BYTES, ParquetColumn, parquet_column
from shardspec.schema import Field, Schema

_MAGIC = b"PAR1"
_UNCOMPRESSED = 0
_FOOTER_BYTES_MAX = 1 << 26
"""Largest footer. A footer takes about 120 bytes per column and row group, and a row group has 4 MiB."""


class ParquetShardReader:
    """Reads one Parquet file (`readers.formats.base`).

    pyarrow, whose process a crafted file can crash, is not used. Pages are plain, and a column chunk is one page, so a
    batch is gathered from all row groups at once and a raw picture copied once, where pyarrow would decode each row
    group that is touched. With `checksums`, a page's CRC is compared when it is first touched, so the first read in a
    row group reads the whole page. The footer's checksum is always compared, and the footer must agree with the
    manifest. Encoded values are views of the mapping and keep it alive. Memory: 16 bytes per row and varying field.
    Safe to use from several threads, and after a fork.
    """

    threads = True
    views = True

    def __init__(self, path: Path, shard: Shard, schema: Schema, *, checksums: bool = True) -> None:
        self._path = path
        self._rows = shard.samples
        self._block_rows = shard.block_rows
        self._checksums = checksums
        self._data: ByteArray | None = map_file(path)
        chunks = self._read_footer(self._data, schema)
        self._columns = {f.name: _Column(f, chunks.get(f.name, []), shard) for f in schema}

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Gather rows (`readers.formats.base.ShardReader.read`)."""
        if self._data is None:
            raise DatasetError(f"{self._path}: expected an open reader, found a closed one")
        groups = rows // self._block_rows
        for name in fields:
            column = self._columns[name]
            known = column.known[groups]
            if not known.all():
                for group in distinct(groups[~known]):
                    self._learn(self._data, column, group)
            if column.field.is_fixed:
                column.gather(self._data, rows, groups, rows - groups * self._block_rows, out[name], at)
            else:
                column.gather_varying(self._data, rows, out[name], at)

    def extents(self, rows: IntArray, fields: Sequence[str]) -> Iterator[Extents]:
        """Where rows are (`readers.formats.base.MappedReader`): whole pages if their checksums are not compared yet.

        Without checksums, pages that were not touched before are left out: only their headers say where their rows are.
        """
        if self._data is None:
            return
        groups = rows // self._block_rows
        for name in fields:
            column = self._columns[name]
            known = column.known[groups]
            if column.stored.storage == "none":
                continue
            if self._checksums and not known.all():
                pages = [column.chunks[group] for group in distinct(groups[~known])]
                starts, stops = np.array(pages, np.int64).T
                yield Extents(self._data, starts, stops)
            within = rows - groups * self._block_rows
            starts, stops = column.places(rows[known], groups[known], within[known])
            yield Extents(self._data, starts, stops)

    def close(self) -> None:
        """Drop the mapping, which ends with the last view of it."""
        self._data = None

    def _learn(self, data: ByteArray, column: "_Column", group: int) -> None:
        """Check the page of a column in a row group and note where its values are."""
        if column.stored.storage != "none":
            first = group * self._block_rows
            start, end = column.chunks[group]
            try:
                page = read_page(data[start:end], checksum=self._checksums)
                column.learn(page, start + page.start, group, first, self._group_rows(group))
            except PageError as error:
                raise self._corrupt(
                    "sound pages", f"a damaged one: field {column.field.name!r}, row group {group}: {error}"
                ) from error
        column.known[group] = True  # last: another thread may read it at any moment

    def _group_rows(self, group: int) -> int:
        return min(self._block_rows, self._rows - group * self._block_rows)

    def _read_footer(self, data: ByteArray, schema: Schema) -> dict[str, list[tuple[int, int]]]:
        """Begin and end of every column chunk, by field; chunks must be contiguous, from the file's magic on."""
        tail = data[-TAIL_BYTES:].tobytes()
        end = len(data) - TAIL_BYTES
        start = end - int.from_bytes(tail[:4], "little")
        if end - start > _FOOTER_BYTES_MAX:
            raise self._corrupt(f"a footer of at most {_FOOTER_BYTES_MAX} bytes", f"one of {end - start}")
        if tail[4:] != _MAGIC or start < len(_MAGIC) + len(FOOTER_MARK) + 4:
            raise self._corrupt("a Parquet file", "one without a whole footer")
        if data[start - 8 : start].tobytes() != FOOTER_MARK + zlib.crc32(data[start:end].data).to_bytes(4, "little"):
            raise self._corrupt("a footer with its checksum", "another")
        try:
            footer = parse_footer(data[start:end].tobytes())
        except FooterError as error:
            raise self._corrupt("a Parquet file", f"one whose footer does not read ({error})") from error
        return self._check_footer(footer, {parquet_column(f).path: f for f in schema}, start)

    def _check_footer(self, footer: Footer, fields: dict[str, Field], end: int) -> dict[str, list[tuple[int, int]]]:
        groups = -(-self._rows // self._block_rows)
        if self._block_rows > ROWS_MAX:
            raise self._corrupt(f"row groups of at most {ROWS_MAX} rows", f"{self._block_rows} in the manifest")
        if footer.rows != self._rows or len(footer.groups) != groups:
            raise self._corrupt(f"{self._rows} rows in {groups} row groups", f"{footer.rows} in {len(footer.groups)}")
        chunks: dict[str, list[tuple[int, int]]] = {}
        place = len(_MAGIC)
        for number, group in enumerate(footer.groups):
            if group.rows != self._group_rows(number):
                raise self._corrupt(f"{self._group_rows(number)} rows in row group {number}", f"{group.rows}")
            for chunk in group.columns:
                if chunk.start != place or chunk.codec != _UNCOMPRESSED:
                    raise self._corrupt(f"plain column chunks one after another, the next at {place}", "others")
                place += chunk.size
                field = fields.get(chunk.path)
                if field is not None:
                    self._check_type(parquet_column(field), chunk)
                    chunks.setdefault(field.name, []).append((chunk.start, place))
        if place > end or any(
            len(chunks.setdefault(field.name, [])) != groups for path, field in fields.items() if path
        ):
            raise self._corrupt("one column of every field within the file", "others")
        return chunks

    def _check_type(self, column: ParquetColumn, chunk: ColumnChunk) -> None:
        if chunk.physical != column.physical:
            raise self._corrupt(f"{column.path} as {column.physical}", chunk.physical)

    def _corrupt(self, expected: str, found: str) -> ShardCorruptError:
        return corrupt(self._path, expected, found)


class _Column:
    """Where the values of one field are in the mapped file, as far as its pages have been read.

    Attributes
    ----------
    known : ndarray, (row groups,), bool
        Whether a row group's page has been checked and noted.
    """

    def __init__(self, field: Field, chunks: list[tuple[int, int]], shard: Shard) -> None:
        self.field = field
        self.stored = parquet_column(field)
        self.chunks = chunks
        rows = shard.samples
        self.known = np.zeros(-(-rows // shard.block_rows), bool)
        self._dtype = self.stored.numpy_dtype
        self._per_row = field.row_bytes // field.numpy_dtype.itemsize if field.kind in ("fixed", "ragged") else 1
        if self.stored.storage == "fixed_binary":
            self._dtype, self._per_row = np.dtype((np.void, field.row_bytes)), 1
        # One per row group for fixed fields, one per row for others. In bytes; packed bits count from the page's first
        # value.
        self._starts = np.zeros(len(self.known) if field.is_fixed else rows, np.int64)
        self._counts = np.zeros(0 if field.is_fixed else rows, np.int64)
        self._bits = np.zeros(0 if field.is_fixed or self._dtype != np.bool_ else rows, np.int64)

    def learn(self, page: Page, start: int, group: int, first: int, rows: int) -> None:
        """Note where the values of a row group are, given that its page's body begins at `start` in the file."""
        if self.field.is_fixed:
            self._starts[group] = start + fixed_start(page, self._dtype, rows, self._per_row)
            return
        mine = slice(first, first + rows)
        if self.stored.storage != "list":
            offsets = byte_offsets(page, rows)
            self._starts[mine], self._counts[mine] = start + offsets[:-1], np.diff(offsets) - 4
            return
        begin, offsets = list_start(page, self._dtype, rows, self.stored.levels)
        if bool((offsets % self._per_row).any()):
            raise PageError("expected whole rows in every list, found parts of rows")
        self._counts[mine] = np.diff(offsets)
        if self._dtype == np.bool_:
            self._starts[mine], self._bits[mine] = start + begin, offsets[:-1]
        else:
            self._starts[mine] = start + begin + offsets[:-1] * self._dtype.itemsize

    def places(self, rows: IntArray, groups: IntArray, within: IntArray) -> tuple[IntArray, IntArray]:
        """Where the values of rows whose pages are known begin and end in the file."""
        if self.field.is_fixed:
            width = self._per_row * self._dtype.itemsize  # packed bits take less, and a page holds them all
            starts = self._starts[groups] + (within * width >> 3 if self._dtype == np.bool_ else within * width)
            return starts, starts + max(1, width >> 3 if self._dtype == np.bool_ else width)
        starts = self._starts[rows]
        return starts, starts + self._counts[rows] * self._dtype.itemsize

    def gather(
        self, data: ByteArray, rows: IntArray, groups: IntArray, within: IntArray, out: Any, at: IntArray
    ) -> None:
        """Copy the values of a fixed field into their places."""
        if self.stored.storage == "none":
            return
        starts, shape = self._starts[groups], (len(rows), *self.field.fixed_shape)
        if self._dtype == np.bool_:
            bits = (within * self._per_row)[:, None] + np.arange(self._per_row)
            packed = data[starts[:, None] + (bits >> 3)]
            put((packed >> (bits & 7) & 1).astype(bool).reshape(shape), out, at)
            return
        starts = starts + within * (self._per_row * self._dtype.itemsize)
        if self._dtype.itemsize * self._per_row == self.field.row_bytes:
            gather_bytes(data, starts, self.field, out, at)
            return
        wide = take_bytes(data, starts, self._per_row * self._dtype.itemsize)
        put(wide.view(self._dtype).reshape(shape).astype(self.field.numpy_dtype, copy=False), out, at)

    def gather_varying(self, data: ByteArray, rows: IntArray, out: Any, at: IntArray) -> None:
        """Put the encoded values of a varying field into their places."""
        starts, counts = self._starts[rows].tolist(), self._counts[rows].tolist()
        dtype = self.field.numpy_dtype
        if self._dtype == np.bool_:
            for place, start, count, bit in zip(at.tolist(), starts, counts, self._bits[rows].tolist(), strict=True):
                packed = data[start + (bit >> 3) : start + (bit + count + 7 >> 3)]
                out[place] = np.unpackbits(packed, bitorder="little")[bit & 7 :][:count].data
        elif self.stored.storage == "list" and self._dtype.itemsize != dtype.itemsize:
            for place, start, count in zip(at.tolist(), starts, counts, strict=True):
                wide = data[start : start + count * self._dtype.itemsize].view(self._dtype)
                out[place] = wide.astype(dtype).view(np.uint8).data
        else:
            view, size = data.data, self._dtype.itemsize
            for place, start, count in zip(at.tolist(), starts, counts, strict=True):
                out[place] = view[start : start + count * size]
