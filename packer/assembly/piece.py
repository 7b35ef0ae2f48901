"""Pieces: what each task of a build leaves. A piece is one file, and is read like a shard of a dataset.

The file starts with the concatenated bytes of its rows. The values of a row are in the order of its columns. The index and
a JSON footer follow. The last 28 bytes are the offsets of the index and of the footer as little-endian uint64, a
CRC-32C of everything from the index to these offsets, and a magic number. Rows with the same columns form a group. For
each group, the index has an int64 array (rows,) with the offset of each row and an int64 array (rows, columns) with the
length of each value. Then follows for each group a uint32 array (rows, columns) with the CRC-32C of each value, which is
compared whenever the value is read. The index ends with an int32 array (rows, axes of all columns) for each group, which
holds the shapes of the values.
"""

import json
import mmap
import os
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from google_crc32c import value as crc32c

from packer.workspace.durable import damaged
from packer.workspace.remote import REPEAT
from shardspec.codecs.raw import SHAPE_DTYPE
from shardspec.columns import Buffer, Columns, IntArray
from shardspec.errors import BuildError
from shardspec.schema import Field, Schema

MARK = b"PARTv5\r\n"

OFFSETS, TAIL = struct.Struct("<QQ"), struct.Struct("<QQI8s")

ValueKind = Literal["array", "sequence", "class", "image", "lossless", "text", "json", "json_sequence", "blob"]
"""A ``class`` is a class name; it is replaced by its number when the names of all samples are known. A ``sequence`` is an
array whose first axis counts frames, and so varies even if all samples so far have the same number. A ``json_sequence`` is
a list with a value for each frame."""


class ColumnSpec(NamedTuple):
    """Properties that all values of a column share."""

    kind: ValueKind
    dtype: str
    ndim: int


class EncodedValue(NamedTuple):
    """One value's bytes, its decoded shape, its column, and whether it was a progressive JPEG."""

    data: Buffer
    shape: tuple[int, ...]
    spec: ColumnSpec
    progressive: bool = False


PieceColumns = Mapping[str, ColumnSpec]
"""The columns of a group of rows, sorted by name. The values of a row are in this order."""


class PackedItem(NamedTuple):
    """Result of one item of the task.

    Attributes
    ----------
    report : dict
        The item's report as JSON, without its name.
    group : int or None
        Number of the group that holds the item's rows; None if the item has no rows.
    """

    name: str
    report: dict[str, Any]
    group: int | None


class Piece:
    """A finished piece, mapped into memory.

    Attributes
    ----------
    groups : list of RowGroup
        One group for each set of columns, usually a single one; empty if no item yielded a sample.
    items : list of PackedItem
        Results of the task's items, in order.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL.size))
            tail = file.read()
            if len(tail) < TAIL.size or not tail.endswith(MARK) or TAIL.unpack(tail)[0] > size - TAIL.size:
                raise damaged(path)
            index_offset = TAIL.unpack(tail)[0]
            # Read in one call and not through the mapping, so that other threads can run while a file server answers.
            file.seek(index_offset)
            index = file.read()
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self._parse(path, view, index, index_offset, size)

    def _parse(self, place: Path | str, view: memoryview, index: bytes, index_offset: int, size: int) -> None:
        """Read the end of the piece, from its index on.

        Parameters
        ----------
        place : Path or str
            The file, or the URL of the piece, for messages.
        view : memoryview
            The bytes of the rows, as far as they are there.
        size : int
            Size of the piece.
        """
        if len(index) < TAIL.size or not index.endswith(MARK):
            raise _damaged(place)
        first, footer_offset, expected, _ = TAIL.unpack(index[-TAIL.size :])
        if first != index_offset or not index_offset <= footer_offset <= size - TAIL.size:
            raise _damaged(place)
        if crc32c(index[: OFFSETS.size - TAIL.size]) != expected:
            raise _damaged(place)
        footer = json.loads(index[footer_offset - index_offset : -TAIL.size])
        self.items = [PackedItem(*item) for item in footer["items"]]
        self.groups = list(_read_groups(place, view, index, footer["groups"]))

    def group(self, columns: PieceColumns) -> "RowGroup | None":
        """Return the group with these columns, or None."""
        return next((group for group in self.groups if group.columns == columns), None)


def count_columns(piece: Piece) -> Counter[tuple[tuple[str, ColumnSpec], ...]]:
    """Return the number of the piece's items that have samples with the same columns, by columns."""
    kinds = [tuple(group.columns.items()) for group in piece.groups]
    return Counter(kinds[item.group] for item in piece.items if item.group is not None)


def _read_groups(place: Path | str, view: memoryview, index: bytes, groups: Sequence[Any]) -> Iterator["RowGroup"]:
    counts = [(rows, columns_from_json(columns)) for rows, columns in groups]
    offset, sums_offset = 0, 8 * sum(rows * (1 + len(columns)) for rows, columns in counts)
    shapes_offset = sums_offset + 4 * sum(rows * len(columns) for rows, columns in counts)
    for rows, columns in counts:
        axes = sum(spec.ndim for spec in columns.values())
        starts: npt.NDArray[np.int64] = np.frombuffer(index, "<i8", rows, offset)
        lengths: npt.NDArray[np.int64] = np.frombuffer(index, "<i8", rows * len(columns), offset + starts.nbytes)
        sums: npt.NDArray[np.uint32] = np.frombuffer(index, "<u4", rows * len(columns), sums_offset)
        shapes: npt.NDArray[np.int32] = np.frombuffer(index, "<i4", rows * axes, shapes_offset)
        values = lengths.reshape(rows, len(columns)), sums.reshape(rows, len(columns))
        yield RowGroup(place, view, columns, starts, *values, shapes.reshape(rows, axes))
        offset += starts.nbytes + lengths.nbytes
        sums_offset += sums.nbytes
        shapes_offset += shapes.nbytes


class Bytes(Protocol):
    """Bytes of which parts are taken by their offsets."""

    def __getitem__(self, part: slice, /) -> memoryview: ...


class RowGroup:
    """The rows of a piece that have the same columns, in order. Values that are read are compared with their checksums.

    Attributes
    ----------
    starts : (rows,) int64
        Offset of each row in the piece.
    lengths : (rows, columns) int64
        Encoded bytes of each value.
    sums : (rows, columns) uint32
        CRC-32C of each value.
    shapes : (rows, axes) int32
        Shapes of the decoded values, with the axes of all columns concatenated.
    """

    def __init__(
        self,
        place: Path | str,
        view: "Bytes",
        columns: PieceColumns,
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        sums: npt.NDArray[np.uint32],
        shapes: npt.NDArray[np.int32],
    ) -> None:
        self._place = place
        self._view = view
        self.columns = columns
        self.starts = starts
        self.lengths = lengths
        self.sums = sums
        self.shapes = shapes

    def __len__(self) -> int:
        return len(self.lengths)

    def load(self, rows: IntArray) -> None:
        """Make some rows readable. The rows of a file always are."""

    @property
    def bytes(self) -> int:
        """Encoded bytes of all rows."""
        return int(self.lengths.sum())

    def axes(self, name: str) -> npt.NDArray[np.int32]:
        """Return the shapes of a column's values, (rows, ndim)."""
        first = 0
        for other, spec in self.columns.items():
            if other == name:
                return self.shapes[:, first : first + spec.ndim]
            first += spec.ndim
        raise KeyError(name)

    def row(self, row: int) -> dict[str, EncodedValue]:
        """Return the values of one row."""
        found, start, axis = {}, int(self.starts[row]), 0
        sums = self.sums[row].tolist()
        for (name, spec), length in zip(self.columns.items(), self.lengths[row].tolist(), strict=True):
            shape = tuple(self.shapes[row, axis : axis + spec.ndim].tolist())
            found[name] = EncodedValue(self._view[start : start + length], shape, spec)
            start, axis = start + length, axis + spec.ndim
        self._check([value.data for value in found.values()], sums)
        return found

    def values(self, name: str, rows: Sequence[int] | npt.NDArray[np.int64]) -> list[memoryview]:
        """Return the encoded bytes of a column in the given rows. The memory is valid while the group exists."""
        column = list(self.columns).index(name)
        lengths = self.lengths[rows, column]
        starts = self.starts[rows] + self.lengths[rows, :column].sum(axis=1)
        ends = starts + lengths
        found = [self._view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        self._check(found, self.sums[rows, column].tolist())
        return found

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """Return the values of a column of single numbers, (rows,)."""
        return np.frombuffer(b"".join(self.values(name, np.arange(len(self)))), self.columns[name].dtype)

    def _check(self, values: Iterable[Buffer], sums: list[int]) -> None:
        if [*map(checksum, values)] != sums:
            raise _damaged(self._place)


class PieceReader:
    """Reads the rows of a piece that have the same columns, as the fields of a schema (`readers.formats.shards.ShardReader`).

    Parameters
    ----------
    numbers : dict of str to dict of bytes to int
        The numbers of class names, for each field whose column holds names.
    """

    def __init__(self, rows: RowGroup, schema: Schema, numbers: Mapping[str, Mapping[bytes, int]]) -> None:
        self._rows = rows
        self._schema = schema
        self._numbers = numbers

    def read(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Copy rows (`readers.formats.shards.ShardReader.read`)."""
        self._rows.load(rows)
        for name in fields:
            field, values = self._schema[name], self._rows.values(name, rows)
            if name in self._numbers:
                numbers = self._numbers[name]
                out[name][at] = [numbers[bytes(value)] for value in values]
            elif field.is_fixed:
                out[name][at] = np.frombuffer(b"".join(values), field.numpy_dtype).reshape(
                    len(values), *field.fixed_shape
                )
            elif prefix_bytes(field):
                shapes = self._rows.axes(name)[rows].astype(SHAPE_DTYPE)
                for place, shape, value in zip(at.tolist(), shapes, values, strict=True):
                    out[name][place] = shape.tobytes() + bytes(value)
            else:
                for place, value in zip(at.tolist(), values, strict=True):
                    out[name][place] = value

    def close(self) -> None:
        """Do nothing. The file is unmapped when no view of it is left."""


def _damaged(place: Path | str) -> BuildError:
    if isinstance(place, Path):
        return damaged(place)
    return BuildError(
        place=place, expected="the piece as this build wrote it", found="a damaged one", hint=f"delete it, {REPEAT}"
    )


def prefix_bytes(field: Field) -> int:
    """Return the size of the shape in front of a raw array of varying shape."""
    if field.kind == "bytes" and field.codec.name == "raw" and len(field.shape) > 1:
        return len(field.shape) * SHAPE_DTYPE.itemsize
    return 0


def checksum(data: Buffer) -> int:
    """Return the CRC-32C of a value."""
    return int(crc32c(data if isinstance(data, bytes) else bytes(data)))


def columns_to_json(columns: PieceColumns) -> list[Any]:
    """Return columns as JSON."""
    return [[name, *spec] for name, spec in columns.items()]


def columns_from_json(document: list[Any]) -> dict[str, ColumnSpec]:
    """Read the result of `columns_to_json`."""
    return {name: ColumnSpec(*spec) for name, *spec in document}


def describe_difference(expected: PieceColumns, found: PieceColumns) -> str:
    """Describe how two sets of columns differ, field by field."""
    lines = []
    for name in sorted({*expected, *found}):
        if name not in found:
            lines.append(f"field {name!r} is missing")
        elif name not in expected:
            lines.append(f"field {name!r} is new")
        elif expected[name] != found[name]:
            e, f = expected[name], found[name]
            lines.append(
                f"field {name!r}: expected {e.kind} {e.dtype} with {e.ndim} axes, "
                f"found {f.kind} {f.dtype} with {f.ndim} axes"
            )
    return "; ".join(lines)
