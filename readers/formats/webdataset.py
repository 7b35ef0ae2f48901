"""webdataset: a shard is a tar file with one member per field and sample, and DALI's index of it."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from readers.formats.base import Extents
from readers.formats.checks import corrupt, distinct, gather_bytes, put, take_bytes
from readers.formats.mapping import ByteArray, map_file
from shardspec.columns import Columns, IntArray
from shardspec.entries import Shard
from shardspec.errors import DatasetError
from shardspec.formats.npy import npy_header
from shardspec.formats.webdataset import (
    BLOCK,
    END,
    INDEX_VERSION,
    NAME_BYTES_MAX,
    NUMBER_BYTES_MAX,
    Member,
    headers,
    members,
    padded,
)
from shardspec.schema import Field, Schema

_DIGITS_MAX = 18
"""Most digits of a size, so that it fits into an int64."""
_WORDS = 4
"""Words of the index per member: extension, offset, size, name."""
_AXIS_MAX = 2**32 - 1
_UNKNOWN = -1
_SHAPE = re.compile(rb"'shape': \(([\d, ]*)\)")


class WebDatasetShardReader:
    """Reads one tar file through its index (`readers.formats.base`).

    The index gives the sizes of the members; where each of them begins follows from these. Values are copied once, from
    the mapped file into the batch. With `checksums`, the header of a member is compared with what it must be when the
    member is first touched. That covers no value: a flipped bit in a value reads as another value, which only
    ``verify=`` finds. Encoded values are views of the mapping and keep it alive; arrays of varying shape are copies.
    Memory: 8 bytes per row, 16 for each field of varying size, 4 for each that was read. Safe to use from several
    threads, and after a fork.
    """

    descriptors = 0
    threads = True
    views = True

    def __init__(self, path: Path, shard: Shard, schema: Schema, *, checksums: bool = True) -> None:
        self._path = path
        self._rows = shard.samples
        self._checksums = checksums
        stored = members(schema)
        self._members = {member.field.name: member for member in stored}
        self._fixed = [member for member in stored if member.size is not None]
        self._varying = {member.field.name: place for place, member in enumerate(stored[len(self._fixed) :])}
        self._data: ByteArray | None = map_file(path)
        # Of every row: where it begins; where the members of varying size begin behind their headers, and their sizes.
        self._starts, self._offsets, self._sizes = self._read_index(path.with_suffix(".idx"), self._data)
        ends = np.cumsum([padded(member.size) + BLOCK for member in self._fixed], dtype=np.int64).tolist()
        self._places = {
            member.field.name: end - padded(member.size) for member, end in zip(self._fixed, ends, strict=True)
        }
        # By field: the bytes of each member in front of its value, or that they have not been compared yet.
        self._heads: dict[str, npt.NDArray[np.int32]] = {}

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Gather rows (`readers.formats.base.ShardReader.read`)."""
        if self._data is None:
            raise DatasetError(f"{self._path}: expected an open reader, found a closed one")
        if not len(rows):
            return
        for name in fields:
            member = self._members[name]
            starts, sizes = self._find(name, rows)
            heads = self._checked_heads(self._data, member, rows)
            if member.content == "decimal":
                put(self._decimals(self._data, member, starts, sizes), out[name], at)
            elif member.field.is_fixed:
                gather_bytes(self._data, starts + len(member.head), member.field, out[name], at)
            else:
                self._read_varying(self._data.data, member, (starts, starts + sizes, heads), out[name], at)

    def extents(self, rows: IntArray, fields: Sequence[str]) -> Iterator[Extents]:
        """Where rows are (`readers.formats.base.MappedReader`): members with their headers."""
        if self._data is None or not len(rows):
            return
        for name in fields:
            starts, sizes = self._find(name, rows)
            yield Extents(self._data, starts - BLOCK, starts + sizes)

    def close(self) -> None:
        """Drop the mapping, which ends with the last view of it."""
        self._data = None

    def _find(self, name: str, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Where the members of a field begin behind their headers, and their sizes."""
        if name in self._places:
            return self._starts[rows] + self._places[name], np.full(len(rows), self._members[name].size, np.int64)
        column = self._varying[name]
        return self._offsets[rows, column], self._sizes[rows, column]

    def _read_varying(
        self,
        view: memoryview,
        member: Member,
        parts: tuple[IntArray, IntArray, npt.NDArray[np.int32]],
        column: Any,
        at: IntArray,
    ) -> None:
        """Put encoded values of varying size into their places."""
        for place, start, end, head in zip(at.tolist(), *(part.tolist() for part in parts), strict=True):
            value = view[start + head : end]
            if member.content == "npy" and member.field.kind == "bytes":
                shape = _shape(view[start : start + head])
                value = memoryview(np.array(shape, "<u4").tobytes() + value)
            column[place] = value

    # ---- the index ----

    def _read_index(self, path: Path, tar: ByteArray) -> tuple[IntArray, IntArray, IntArray]:
        """Where rows begin, (rows,); where their members of varying size begin, and the sizes, (rows, varying)."""
        data = map_file(path)
        first = b"%s %d\n" % (INDEX_VERSION, self._rows)
        width = _WORDS * len(self._members)
        longest = sum(
            len(member.extension) + NAME_BYTES_MAX + 2 * _DIGITS_MAX + _WORDS for member in self._members.values()
        )
        if data[: len(first)].tobytes() != first or len(data) > len(first) + self._rows * longest:
            raise corrupt(path, f"an index of {self._rows} samples", f"{data[:20].tobytes()!r} and {len(data)} bytes")
        # In front of the text stand as many zeros as the longest number has digits, so that it can be cut out anywhere.
        text = np.concatenate([np.zeros(_DIGITS_MAX, np.uint8), data[len(first) :]])
        ends = np.flatnonzero((text == ord(" ")) | (text == ord("\n")))
        lines = np.flatnonzero(text == ord("\n"))
        if len(ends) != self._rows * width or not np.array_equal(lines, ends[width - 1 :: width]):
            raise corrupt(path, f"{self._rows} lines of {width} words", f"{len(lines)} lines, {len(ends)} words")
        if len(text) > _DIGITS_MAX and text[-1] != ord("\n"):
            raise corrupt(path, "lines", "a last line without an end")
        begins = np.concatenate([[_DIGITS_MAX], ends[:-1] + 1])[: len(ends)].reshape(
            self._rows, len(self._members), _WORDS
        )
        ends = ends.reshape(begins.shape)
        sizes = np.empty((self._rows, len(self._varying)), np.int64)
        for number, member in enumerate(self._members.values()):
            extension = np.frombuffer(member.extension.encode(), np.uint8)
            from_, to = begins[:, number, 0], ends[:, number, 0]
            if (to - from_ != len(extension)).any() or (take_bytes(text, from_, len(extension)) != extension).any():
                raise corrupt(path, f"a file {member.extension!r} in every sample", "samples without")
            if member.size is None:
                column = self._varying[member.field.name]
                sizes[:, column] = _numbers(path, text, begins[:, number, 2], ends[:, number, 2])
        return self._lay_out(path, tar, sizes)

    def _lay_out(self, path: Path, tar: ByteArray, sizes: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Where members are that have these sizes and fill the file."""
        constant = sum(padded(member.size) + BLOCK for member in self._fixed)
        # As floats first: a sum of numbers that lie must not overflow.
        sums = (padded(sizes) + BLOCK).sum(axis=1, dtype=np.float64) + constant
        if float(sums.sum()) + len(END) != len(tar):
            raise corrupt(path, f"sizes of members that fill {self._path.name}, {len(tar)} bytes", "others")
        if tar[len(tar) - len(END) :].tobytes() != END:
            raise corrupt(self._path, "two blocks of zeros at its end", "others")
        behind = constant + np.cumsum(padded(sizes) + BLOCK, axis=1)
        lengths = behind[:, -1] if len(self._varying) else np.full(self._rows, constant, np.int64)
        starts = np.cumsum(lengths) - lengths
        return starts, starts[:, None] + behind - padded(sizes), sizes

    # ---- members ----

    def _checked_heads(self, data: ByteArray, member: Member, rows: IntArray) -> npt.NDArray[np.int32]:
        """The bytes of members in front of their values, (n,); headers are compared when they are first touched."""
        heads = self._heads.get(member.field.name)
        if heads is None:
            heads = self._heads.setdefault(member.field.name, np.full(self._rows, _UNKNOWN, np.int32))
        unknown = np.array(distinct(rows[heads[rows] == _UNKNOWN]), np.int64)
        if len(unknown):
            starts, sizes = self._find(member.field.name, unknown)
            if self._checksums:
                self._check_headers(data, member, starts, sizes)
            heads[unknown] = self._check_heads(data, member, starts, sizes)
        return heads[rows]

    def _check_headers(self, data: ByteArray, member: Member, starts: IntArray, sizes: IntArray) -> None:
        """Compare headers, checksums and all, with those of members with these names and sizes."""
        found = take_bytes(data, starts - BLOCK, BLOCK)
        names = found[:, :NAME_BYTES_MAX]
        tail = np.frombuffer(b"." + member.extension.encode(), np.uint8)
        lengths = np.count_nonzero(names, axis=1)
        ends = lengths[:, None] - len(tail) + np.arange(len(tail))
        named = lengths > len(tail)
        if named.all():
            named = (np.take_along_axis(names, ends, axis=1) == tail).all(axis=1)
            named &= ((names != 0) == (np.arange(NAME_BYTES_MAX) < lengths[:, None])).all(axis=1)
        right = named & (found == headers(names, sizes)).all(axis=1)
        if not right.all():
            start = int(starts[np.argmin(right)]) - BLOCK
            raise corrupt(self._path, f"the header of a file {member.extension!r} at {start}", "another")

    def _check_heads(self, data: ByteArray, member: Member, starts: IntArray, sizes: IntArray) -> Any:
        """The lengths of what stands in front of the values: the headers of ``.npy`` files, which are compared."""
        if member.content != "npy":
            return 0
        if member.field.is_fixed:
            head = np.frombuffer(member.head, np.uint8)
            if (take_bytes(data, starts, len(head)) != head).any():
                raise corrupt(
                    self._path, f"arrays {member.field.dtype} {member.field.shape} in {member.extension!r}", "others"
                )
            return len(head)
        view, heads = data.data, []
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            head = _npy_head(member.field, view[start : start + size])
            if not head:
                wanted = (
                    f"an array {member.field.dtype} {member.field.shape} in the file {member.extension!r} at {start}"
                )
                raise corrupt(self._path, wanted, f"{bytes(view[start : start + min(size, 80)])!r}")
            heads.append(head)
        return heads

    def _decimals(self, data: ByteArray, member: Member, starts: IntArray, sizes: IntArray) -> npt.NDArray[Any]:
        """Integers in decimal digits."""
        # Every member is followed by at least the file's end, so this is within the file.
        digits = take_bytes(data, starts, NUMBER_BYTES_MAX)
        digits[np.arange(NUMBER_BYTES_MAX) >= sizes[:, None]] = 0
        text = digits.view(f"S{NUMBER_BYTES_MAX}")[:, 0]
        dtype = member.field.numpy_dtype
        try:
            wide = text.astype(np.uint64 if dtype.kind == "u" else np.int64)
        except (ValueError, OverflowError):
            wide = np.zeros(len(text), np.int64)
        narrow = wide.astype(dtype)
        if (narrow.astype(text.dtype) != text).any() or (sizes > NUMBER_BYTES_MAX).any():
            raise corrupt(self._path, f"an integer of {dtype.str} in decimal digits in {member.extension!r}", "another")
        return narrow


def _numbers(path: Path, text: ByteArray, begins: IntArray, ends: IntArray) -> IntArray:
    """Words of decimal digits as numbers: (n,), int64."""
    lengths = ends - begins
    digits = take_bytes(text, ends - _DIGITS_MAX, _DIGITS_MAX) - np.uint8(ord("0"))
    digits[np.arange(_DIGITS_MAX) < _DIGITS_MAX - lengths[:, None]] = 0
    if (digits > 9).any() or (lengths < 1).any() or (lengths > _DIGITS_MAX).any():
        raise corrupt(path, "sizes in decimal digits", "others")
    return digits @ 10 ** np.arange(_DIGITS_MAX - 1, -1, -1, dtype=np.int64)


def _shape(head: memoryview) -> tuple[int, ...]:
    """The shape in the header of a ``.npy`` file; () if there is none."""
    found = _SHAPE.search(head)
    return tuple(int(axis) for axis in re.findall(rb"\d{1,10}", found[1])) if found else ()


def _npy_head(field: Field, content: memoryview) -> int:
    """Length of the header of a ``.npy`` file that holds a ragged array, or one of any shape; 0 if it holds none."""
    head = 10 + int.from_bytes(content[8:10], "little")
    shape = _shape(content[:head])
    if content[:head] != npy_header(field.dtype, shape) or len(shape) != len(field.shape):
        return 0
    if any(axis > _AXIS_MAX for axis in shape) or (field.kind == "ragged" and shape[1:] != field.fixed_shape):
        return 0
    if field.kind == "ragged" and not field.row_bytes and shape[0]:
        return 0
    return head if len(content) - head == math.prod(shape) * field.numpy_dtype.itemsize else 0
