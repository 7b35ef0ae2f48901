"""webdataset: a shard is a tar file with one member per field and sample, and DALI's index of it."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from readers.formats.checks import corrupt, distinct, gather_bytes, put, take_bytes
from readers.formats.mapping import ByteArray, Extents, map_file
from readers.formats.webdataset.index import read_sizes
from shardspec.columns import Columns, IntArray
from shardspec.entries import Shard
from shardspec.errors import DatasetError
from shardspec.formats.npy import npy_header
from shardspec.formats.webdataset import (
    BLOCK,
    END,
    NAME_BYTES_MAX,
    NUMBER_BYTES_MAX,
    Member,
    headers,
    members,
    padded,
)
from shardspec.schema import Field, Schema

_AXIS_MAX = 2**32 - 1
_SHOWN_BYTES = 80
_UNKNOWN = -1
_SHAPE = re.compile(rb"'shape': \(([\d, ]*)\)")
_AXIS = re.compile(rb"\d{1,10}")


class WebDatasetShardReader:
    """Reads one tar file through its index (`readers.formats.base`).

    The index gives the sizes of the members; where each of them begins follows from these. Values are copied once, from
    the mapped file into the batch. With `checksums`, the header of a member is compared with what it must be when the
    member is first touched. That covers no value: a flipped bit in a value reads as another value, which only
    ``verify=`` finds. Encoded values are views of the mapping and keep it alive; arrays of several varying axes are
    copies. Memory: 8 bytes per row, 16 for each field of varying size, 4 for each field that has been read. Safe to use
    from several threads, and after a fork.
    """

    threads = True
    views = True

    def __init__(self, path: Path, shard: Shard, schema: Schema, *, checksums: bool = True) -> None:
        self._path = path
        self._rows = shard.samples
        self._checksums = checksums
        stored = members(schema)
        self._members = {member.field.name: member for member in stored}
        # Where members of constant size begin within a sample, behind their headers.
        self._places: dict[str, int] = {}
        self._constant_bytes = 0
        for member in stored:
            if member.size is not None:
                self._places[member.field.name] = self._constant_bytes + BLOCK
                self._constant_bytes += BLOCK + padded(member.size)
        varying = [member.field.name for member in stored if member.size is None]
        self._columns = {name: column for column, name in enumerate(varying)}
        self._data: ByteArray | None = map_file(path)
        self._sizes = read_sizes(path.with_suffix(".idx"), shard.samples, stored)
        # Where samples begin, (rows,), and their members of varying size behind their headers, (rows, varying).
        self._samples, self._starts = self._lay_out(self._data)
        # By field: the bytes of each member in front of its value, or that it has not been looked at.
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
                gather_bytes(self._data, starts + heads, member.field, out[name], at)
            else:
                bounds = zip(
                    at.tolist(), starts.tolist(), (starts + heads).tolist(), (starts + sizes).tolist(), strict=True
                )
                _put_encoded(self._data.data, member, bounds, out[name])

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

    def _lay_out(self, data: ByteArray) -> tuple[IntArray, IntArray]:
        """Where samples, and their members of varying size, begin; members must fill the file."""
        lengths = padded(self._sizes) + BLOCK
        # As floats first: a sum of sizes that lie could overflow.
        filled = float(lengths.sum(dtype=np.float64)) + self._rows * self._constant_bytes + len(END)
        if filled != len(data):
            raise corrupt(self._path, f"{filled:.0f} bytes, as the sizes in its index add up to", f"{len(data)}")
        if data[len(data) - len(END) :].tobytes() != END:
            raise corrupt(self._path, "two blocks of zeros at its end", "others")
        ends = self._constant_bytes + np.cumsum(lengths, axis=1)
        samples = np.cumsum(self._constant_bytes + lengths.sum(axis=1))
        samples = np.concatenate([np.zeros(1, np.int64), samples[:-1]])[: self._rows]
        return samples, samples[:, None] + ends - padded(self._sizes)

    def _find(self, name: str, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Where the members of a field begin behind their headers, and their sizes."""
        place = self._places.get(name)
        if place is not None:
            return self._samples[rows] + place, np.full(len(rows), self._members[name].size, np.int64)
        column = self._columns[name]
        return self._starts[rows, column], self._sizes[rows, column]

    def _checked_heads(self, data: ByteArray, member: Member, rows: IntArray) -> npt.NDArray[np.int32]:
        """The bytes of members in front of their values, (n,); a member is checked when it is first touched."""
        name = member.field.name
        heads = self._heads.get(name)
        if heads is None:
            heads = self._heads.setdefault(name, np.full(self._rows, _UNKNOWN, np.int32))
        found = heads[rows]
        unknown = np.array(distinct(rows[found == _UNKNOWN]), np.int64)
        if not len(unknown):
            return found
        starts, sizes = self._find(name, unknown)
        if self._checksums:
            self._check_headers(data, member, starts, sizes)
        heads[unknown] = self._array_heads(data, member, starts, sizes) if member.content == "npy" else 0
        return heads[rows]

    def _check_headers(self, data: ByteArray, member: Member, starts: IntArray, sizes: IntArray) -> None:
        """Compare headers, checksums and all, with those of members of these sizes, whatever the samples are called."""
        found = take_bytes(data, starts - BLOCK, BLOCK)
        names = found[:, :NAME_BYTES_MAX]
        end = np.frombuffer(b"." + member.extension.encode(), np.uint8)
        lengths = np.count_nonzero(names, axis=1)
        right = (found == headers(names, sizes)).all(axis=1) & (lengths > len(end))
        right &= ((names != 0) == (np.arange(NAME_BYTES_MAX) < lengths[:, None])).all(axis=1)
        places = np.maximum(lengths[:, None] - len(end), 0) + np.arange(len(end))
        right &= (np.take_along_axis(names, places, axis=1) == end).all(axis=1)
        if not right.all():
            start = int(starts[np.argmin(right)]) - BLOCK
            raise corrupt(self._path, f"the header of a file {member.extension!r} at {start}", "another")

    def _array_heads(self, data: ByteArray, member: Member, starts: IntArray, sizes: IntArray) -> Any:
        """The sizes of the headers of ``.npy`` files, which must fit the field and their files' sizes."""
        if member.field.is_fixed:
            head = np.frombuffer(member.head, np.uint8)
            right = (take_bytes(data, starts, len(head)) == head).all(axis=1)
            heads = np.full(len(starts), len(head))
        else:
            view, bounds = data.data, zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
            heads = np.array([_array_head(member.field, view[start:end]) for start, end in bounds], np.int64)
            right = heads > 0
        if not right.all():
            start = int(starts[np.argmin(right)])
            wanted = f"an array {member.field.dtype} {member.field.shape} in the file {member.extension!r} at {start}"
            raise corrupt(self._path, wanted, f"{data[start : start + _SHOWN_BYTES].tobytes()!r}")
        return heads

    def _decimals(self, data: ByteArray, member: Member, starts: IntArray, sizes: IntArray) -> npt.NDArray[Any]:
        """Integers in decimal digits."""
        # Within the file, whose end follows every member.
        digits = take_bytes(data, starts, NUMBER_BYTES_MAX)
        digits[np.arange(NUMBER_BYTES_MAX) >= sizes[:, None]] = 0
        text = digits.view(f"S{NUMBER_BYTES_MAX}")[:, 0]
        dtype = member.field.numpy_dtype
        try:
            numbers = text.astype(np.uint64 if dtype.kind == "u" else np.int64).astype(dtype)
            right = (numbers.astype(text.dtype) == text) & (np.count_nonzero(digits, axis=1) == sizes)
        except (ValueError, OverflowError):
            right = np.zeros(1, bool)
        if not right.all():
            raise corrupt(self._path, f"an integer of {dtype.str} in decimal digits in {member.extension!r}", "another")
        return numbers


def _put_encoded(view: memoryview, member: Member, bounds: Iterator[tuple[int, int, int, int]], column: Any) -> None:
    """Put encoded values into their places of a list.

    Parameters
    ----------
    bounds : iterator of (place, start, head_end, end)
        `start` of the member behind its header, `head_end` where its value begins.
    """
    if member.content == "npy" and member.field.kind == "bytes":
        for place, start, head_end, end in bounds:
            shape = np.array(_shape(view[start:head_end]), "<u4")
            column[place] = memoryview(shape.tobytes() + view[head_end:end])
        return
    for place, _, head_end, end in bounds:
        column[place] = view[head_end:end]


def _shape(head: memoryview) -> tuple[int, ...]:
    """The shape in the header of a ``.npy`` file; () if there is none."""
    found = _SHAPE.search(head)
    return tuple(map(int, _AXIS.findall(found[1]))) if found else ()


def _array_head(field: Field, content: memoryview) -> int:
    """Size of the header of a ``.npy`` file that holds a value of a field whose shape varies; 0 if it holds none."""
    head = 10 + int.from_bytes(content[8:10], "little")
    shape = _shape(content[:head])
    if len(shape) != len(field.shape) or max(shape) > _AXIS_MAX or content[:head] != npy_header(field.dtype, shape):
        return 0
    if field.kind == "ragged" and (shape[1:] != field.fixed_shape or (shape[0] and not field.row_bytes)):
        return 0
    return head if len(content) - head == math.prod(shape) * field.numpy_dtype.itemsize else 0
