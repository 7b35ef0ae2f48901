"""Parts: files with the encoded samples of one task, in order. Internal; removed with the workspace.

A part starts with the concatenated bytes of its rows. The values of a row are in the order of its columns. The index and
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
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from google_crc32c import value as crc32c

from packer.steps.encode import ColumnSpec, EncodedBatch, EncodedValue
from packer.steps.report import ItemReport
from packer.workspace import Workspace
from packer.workspace.durable import damaged, publish
from packer.workspace.paths import temporary_path
from shardspec.columns import Buffer
from shardspec.errors import SchemaError

MARK = b"PARTv5\r\n"

_OFFSETS, _TAIL = struct.Struct("<QQ"), struct.Struct("<QQI8s")
_BUFFER_BYTES = 1 << 20

PartColumns = Mapping[str, ColumnSpec]
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

    def to_report(self) -> ItemReport:
        """Return the report with the item's name."""
        return ItemReport.from_json({"name": self.name, **self.report})


class Part:
    """A finished part, mapped into memory.

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
            file.seek(max(0, size - _TAIL.size))
            tail = file.read()
            if len(tail) < _TAIL.size or not tail.endswith(MARK):
                raise damaged(path)
            index_offset, footer_offset, expected, _ = _TAIL.unpack(tail)
            if not index_offset <= footer_offset <= size - _TAIL.size:
                raise damaged(path)
            # Read in one call and not through the mapping, so that other threads can run while a file server answers.
            file.seek(index_offset)
            index = file.read()
            if crc32c(index[: _OFFSETS.size - _TAIL.size]) != expected:
                raise damaged(path)
            self._view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        footer = json.loads(index[footer_offset - index_offset : -_TAIL.size])
        self.items = [PackedItem(*item) for item in footer["items"]]
        self.groups = list(_read_groups(path, self._view, index, footer["groups"]))

    def reports(self) -> list[ItemReport]:
        """Return the reports of the task's items, in order."""
        return [item.to_report() for item in self.items]

    def group(self, columns: PartColumns) -> "RowGroup | None":
        """Return the group with these columns, or None."""
        return next((group for group in self.groups if group.columns == columns), None)


def open_part(workspace: Workspace, task: int) -> Part:
    """Open the part of a finished task. Wait for the file if it is not visible yet."""
    path = workspace.part(task)
    try:
        return Part(path)
    except FileNotFoundError:
        if not workspace.owner:
            raise damaged(path) from None
        return Part(workspace.promised(path))


def _read_groups(path: Path, view: memoryview, index: bytes, groups: Sequence[Any]) -> Iterator["RowGroup"]:
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
        yield RowGroup(path, view, columns, starts, *values, shapes.reshape(rows, axes))
        offset += starts.nbytes + lengths.nbytes
        sums_offset += sums.nbytes
        shapes_offset += shapes.nbytes


class RowGroup:
    """The rows of a part that have the same columns, in order. Values that are read are compared with their checksums.

    Attributes
    ----------
    starts : (rows,) int64
        Offset of each row in the part.
    lengths : (rows, columns) int64
        Encoded bytes of each value.
    sums : (rows, columns) uint32
        CRC-32C of each value.
    shapes : (rows, axes) int32
        Shapes of the decoded values, with the axes of all columns concatenated.
    """

    def __init__(
        self,
        path: Path,
        view: memoryview,
        columns: PartColumns,
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        sums: npt.NDArray[np.uint32],
        shapes: npt.NDArray[np.int32],
    ) -> None:
        self._path = path
        self._view = view
        self.columns = columns
        self.starts = starts
        self.lengths = lengths
        self.sums = sums
        self.shapes = shapes

    def __len__(self) -> int:
        return len(self.lengths)

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
        if [*map(_sum, values)] != sums:
            raise damaged(self._path)


class _GroupIndex:
    """Collects the index of a group that is being written."""

    def __init__(self, columns: PartColumns) -> None:
        self.columns = columns
        self.names, self.specs = tuple(columns), tuple(columns.values())
        self.starts, self.lengths, self.sums, self.shapes = array("q"), array("q"), array("I"), array("i")

    def add(self, end: int, datas: Sequence[Buffer], shapes: Iterable[int]) -> int:
        """Add the values of rows that begin at the offset `end`, and return the offset of their end."""
        lengths = array("q", map(len, datas))
        ends = [*accumulate(lengths, initial=end)]
        self.starts.extend(ends[: -1 : len(self.names)])
        self.lengths.extend(lengths)
        self.sums.extend(map(_sum, datas))
        self.shapes.extend(shapes)
        return ends[-1]

    def cut(self, rows: int) -> None:
        """Drop all but the first `rows` rows."""
        axes, values = sum(spec.ndim for spec in self.specs), rows * len(self.names)
        del self.starts[rows:], self.lengths[values:], self.sums[values:], self.shapes[rows * axes :]


class PartWriter:
    """Writes one part front to back, so that a long video takes little memory. Use as a context manager.

    The part is written under a temporary name, and removed unless `finish` is called. Call `begin` before and `end`
    after the rows of an item. Items with one row each can be added together with `add`.

    Parameters
    ----------
    path : Path
        Path of the finished part, in a folder that exists.
    owner : str
        See `packer.workspace.Workspace`.

    Attributes
    ----------
    items : list of PackedItem
        Results of the items that have ended.
    bytes : int
        Size of the rows so far.
    """

    def __init__(self, path: Path, owner: str = "") -> None:
        self.path = path
        self._temporary = temporary_path(path, owner)
        self._file = self._temporary.open("xb", buffering=_BUFFER_BYTES)
        self._finished = False
        self._groups: list[_GroupIndex] = []
        self._group: int | None = None
        self._offset, self._rows = 0, 0
        self.bytes = 0
        self.items: list[PackedItem] = []

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._finished:
            with suppress(OSError):  # the disk may be full
                self._file.close()
            self._temporary.unlink(missing_ok=True)

    def begin(self) -> None:
        """Begin an item."""
        self._offset, self._group = self.bytes, None

    def append(self, row: Mapping[str, EncodedValue]) -> None:
        """Append one row of the item.

        Raises
        ------
        SchemaError
            If its fields, dtypes or numbers of axes differ from those of the item's earlier rows.
        """
        names = tuple(sorted(row))
        datas, shapes, specs, *_ = zip(*[row[name] for name in names], strict=True)
        if self._group is None:
            self._group = self._find_group(names, specs)
            self._rows = len(self._groups[self._group].starts)
        group = self._groups[self._group]
        if specs != group.specs or names != group.names:
            found = dict(zip(names, specs, strict=True))
            raise SchemaError(f"the sample differs from those before it: {describe_difference(group.columns, found)}")
        self.bytes = group.add(self.bytes, datas, chain.from_iterable(shapes))
        self._file.writelines(datas)

    def undo(self) -> None:
        """Remove the rows of the current item."""
        if self._group is not None:
            self._groups[self._group].cut(self._rows)
            if not self._rows:  # this item created the group, which is the last one and holds no other rows
                self._groups.pop()
        self._file.seek(self._offset)
        self._file.truncate()
        self.bytes, self._group = self._offset, None

    def end(self, report: ItemReport) -> None:
        """End the item."""
        document = report.to_json()
        self.items.append(PackedItem(document.pop("name"), document, self._group))

    def add(self, columns: Mapping[str, EncodedBatch], names: Iterable[str], reports: Iterable[dict[str, Any]]) -> None:
        """Append items with one row each.

        Parameters
        ----------
        columns : mapping of str to EncodedBatch
            The rows.
        names : iterable of str
            Names of the items.
        reports : iterable of dict
            Reports of the items as JSON, without their names.
        """
        fields = tuple(sorted(columns))
        datas, shapes, specs = zip(*[columns[field] for field in fields], strict=True)
        number = self._find_group(fields, specs)
        values = [*chain.from_iterable(zip(*datas, strict=True))]
        axes = chain.from_iterable(chain.from_iterable(zip(*shapes, strict=True)))
        self.bytes = self._groups[number].add(self.bytes, values, axes)
        self._file.writelines(values)
        self.items.extend(PackedItem(name, report, number) for name, report in zip(names, reports, strict=True))

    def copy(self, part: Part, place: int, key_of: Callable[[int], str] | None = None) -> ItemReport:
        """Append one item of another part.

        Parameters
        ----------
        part : Part
        place : int
            The item's position in that part.
        key_of : callable, optional
            Returns the new key of a sample, given its number in the item. By default, the keys stay.

        Returns
        -------
        ItemReport
        """
        item = part.items[place]
        report = item.to_report()
        self.begin()
        if item.group is not None:
            first = sum(one.report.get("samples", 0) for one in part.items[:place] if one.group == item.group)
            for number in range(report.samples):
                values = part.groups[item.group].row(first + number)
                if key_of is not None:
                    data = key_of(number).encode()
                    values["key"] = values["key"]._replace(data=data, shape=(len(data),))
                self.append(values)
        self.end(report)
        return report

    def finish(self) -> None:
        """Write index and footer, flush the part to the disk and publish it. If it exists already, that part stays."""
        index = b"".join(
            [
                *(_little(numbers) for group in self._groups for numbers in (group.starts, group.lengths)),
                *(_little(group.sums) for group in self._groups),
                *(_little(group.shapes) for group in self._groups),
            ]
        )
        groups = [[len(group.starts), columns_to_json(group.columns)] for group in self._groups]
        footer = json.dumps({"groups": groups, "items": self.items}, separators=(",", ":")).encode()
        offsets = self.bytes, self.bytes + len(index)
        checked = crc32c(index + footer + _OFFSETS.pack(*offsets))
        self._file.writelines((index, footer, _TAIL.pack(*offsets, checked, MARK)))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        publish(self._temporary, self.path)
        self._finished = True

    def _find_group(self, names: tuple[str, ...], specs: tuple[ColumnSpec, ...]) -> int:
        """Return the number of the group with these columns, which is created if it does not exist."""
        for number, group in enumerate(self._groups):
            if specs == group.specs and names == group.names:
                return number
        self._groups.append(_GroupIndex(dict(zip(names, specs, strict=True))))
        return len(self._groups) - 1


def _sum(data: Buffer) -> int:
    return int(crc32c(data if isinstance(data, bytes) else bytes(data)))


def _little(numbers: "array[int]") -> bytes:
    if sys.byteorder != "little":
        numbers.byteswap()
    return numbers.tobytes()


def columns_to_json(columns: PartColumns) -> list[Any]:
    """Return columns as JSON."""
    return [[name, *spec] for name, spec in columns.items()]


def columns_from_json(document: list[Any]) -> dict[str, ColumnSpec]:
    """Read the result of `columns_to_json`."""
    return {name: ColumnSpec(*spec) for name, *spec in document}


def describe_difference(expected: PartColumns, found: PartColumns) -> str:
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
