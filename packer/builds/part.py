"""A part: the encoded samples of one task, in order. Internal, removed when the shards that need it are durable.

The file has the bytes of the rows one after another, each row's fields in the order of its columns; then the index;
then the JSON footer; then 16 bytes: the footer's offset as a little-endian uint64 and a mark. Rows that have the same
columns are a group. The index has, group by group, an int64 array (rows,) of where each row begins and an int64 array
(rows, columns) of byte lengths; and after those of all groups, group by group, an int32 array (rows, axes of all
columns) of shapes. A part is written once, front to back, under a temporary name, so a long video needs no memory.
"""

import json
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.sources.item import ItemReport
from packer.steps.encode import ColumnSpec, EncodedValue
from packer.workspace.durable import fsync_file, fsync_folder, publish, write_all
from packer.workspace.paths import attempt_beside
from shardspec.columns import Buffer
from shardspec.errors import BuildError, SchemaError

_MARK = b"PARTv3\r\n"

_FLUSH_BYTES, _FLUSH_VALUES = 1 << 20, 512
"""The most bytes and values that wait to be written with one call; the system takes 1024 values at a time."""

_FETCHED_BYTES, _END_BYTES = 1 << 22, 1 << 16
"""The size of a part that is fetched whole, and how much of any is."""

Columns = Mapping[str, ColumnSpec]
"""The columns that the rows of a group share, in the order of a row's bytes, which is the order of the names."""


@dataclass
class _Rows:
    """The rows of a group that is being written."""

    columns: Columns
    starts: list[int] = field(default_factory=list)
    lengths: list[list[int]] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)

    def cut(self, rows: int) -> None:
        """Keep the first rows only."""
        del self.starts[rows:], self.lengths[rows:], self.shapes[rows:]


class PartWriter:
    """Writes one part. Use as a context manager; without `finish`, nothing is left.

    Each item starts with `begin` and ends with `end`.

    Parameters
    ----------
    path : Path
        Where the part appears, whole, on `finish`, in a folder that exists.
    owner : str
        See `packer.workspace.Workspace`.
    flushed : bool
        Whether the part is flushed to the disk before it is published; otherwise `packer.workspace.checkpoints` does
        it, in the coordinating process, with others.

    Attributes
    ----------
    reports : list of ItemReport
        Reports of the items that have ended.
    """

    def __init__(self, path: Path, owner: str = "", *, flushed: bool = False) -> None:
        self.path = path
        self._temporary = attempt_beside(path, owner)
        self._flushed = flushed
        self._file = self._temporary.open("xb", buffering=0)
        self._end, self._pending, self._pending_bytes = 0, list[Buffer](), 0
        self._groups: list[_Rows] = []
        self._group: int | None = None
        self._offset, self._rows = 0, 0
        self.reports: list[ItemReport] = []
        self._group_of: list[int | None] = []

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def begin(self) -> None:
        """Begin an item."""
        self._offset, self._group = self._end, None

    def append(self, row: Mapping[str, EncodedValue]) -> None:
        """Append one row of the item.

        Raises
        ------
        SchemaError
            If its fields, dtypes or numbers of axes differ from those of the item's earlier rows.
        """
        names = sorted(row)
        values = [row[name] for name in names]
        specs = {name: value.spec for name, value in zip(names, values, strict=True)}
        if self._group is None:
            self._group = self._find_group(specs)
            self._rows = len(self._groups[self._group].starts)
        group = self._groups[self._group]
        if specs != group.columns:
            raise SchemaError(f"the sample differs from those before it: {describe_difference(group.columns, specs)}")
        lengths = [len(value.data) for value in values]
        group.starts.append(self._end)
        group.lengths.append(lengths)
        group.shapes.append([axis for value in values for axis in value.shape])
        self._write(*(value.data for value in values))
        # A step may change its arrays once it goes on.
        if self._pending and any(type(value.data) is not bytes for value in values):
            self._flush()

    def undo(self) -> None:
        """Forget every row of the item."""
        if self._group is not None:
            self._groups[self._group].cut(self._rows)
            if not self._rows:  # this item created the group, so it is the last one, and no other item has rows in it
                self._groups.pop()
        self._flush()
        self._file.seek(self._offset)
        self._file.truncate()
        self._end, self._group = self._offset, None

    def end(self, report: ItemReport) -> None:
        """End the item."""
        self.reports.append(report)
        self._group_of.append(self._group)

    def extend(self, part: "Part") -> None:
        """Append all rows and reports of another part."""
        offset = self._end
        self._write(part.row_data())
        places = []
        for rows in part.groups:
            places.append(self._find_group(rows.columns))
            group = self._groups[places[-1]]
            group.starts.extend((rows.starts + offset).tolist())
            group.lengths.extend(rows.lengths.tolist())
            group.shapes.extend(rows.shapes.tolist())
        self.reports.extend(part.reports())
        self._group_of.extend(None if number is None else places[number] for number in part.group_of)

    def copy(self, part: "Part", place: int, key_of: Callable[[int], str] | None) -> ItemReport:
        """Append one item of another part, from `begin` to `end`.

        Parameters
        ----------
        part : Part
        place : int
            The item's place in that part.
        key_of : callable or None
            The new key of a sample, given its ordinal; None if the samples keep their keys.

        Returns
        -------
        ItemReport
        """
        reports, number = part.reports(), part.group_of[place]
        self.begin()
        if number is not None:
            before = zip(reports[:place], part.group_of, strict=False)
            first = sum(report.samples for report, group in before if group == number)
            for ordinal, row in enumerate(range(first, first + reports[place].samples)):
                values = part.groups[number].row(row)
                if key_of is not None:
                    data = key_of(ordinal).encode()
                    values["key"] = values["key"]._replace(data=data, shape=(len(data),))
                self.append(values)
        self.end(reports[place])
        return reports[place]

    @property
    def bytes(self) -> int:
        """Bytes written so far, or that wait to be written."""
        return self._end

    def finish(self) -> None:
        """Write index and footer and publish the part; if another worker was first, its part stays."""
        self._write(bytes(-self._end % 8))
        index_offset = self._end
        for group in self._groups:
            self._write(np.array(group.starts, "<i8").tobytes(), np.array(group.lengths, "<i8").tobytes())
        for group in self._groups:
            self._write(np.array(group.shapes, "<i4").tobytes())
        footer_offset = self._end
        footer = {
            "groups": [[len(group.starts), to_json(group.columns)] for group in self._groups],
            "index_offset": index_offset,
            "reports": [report.to_json() for report in self.reports],
            "group_of": self._group_of,
        }
        document = json.dumps(footer, separators=(",", ":")).encode()
        self._write(document, footer_offset.to_bytes(8, "little") + _MARK)
        self._flush()
        if self._flushed:
            os.fsync(self._file.fileno())
        self._file.close()
        published = publish(self._temporary, self.path)
        if self._flushed:
            if not published:
                fsync_file(self.path)
            fsync_folder(self.path.parent)

    def _write(self, *values: Buffer) -> None:
        """Write values one after another, together with later ones if they are small."""
        self._pending += values
        size = sum(map(len, values))
        self._end += size
        self._pending_bytes += size
        if self._pending_bytes > _FLUSH_BYTES or len(self._pending) > _FLUSH_VALUES:
            self._flush()

    def _flush(self) -> None:
        """Write what waits."""
        write_all(self._file.fileno(), self._pending)
        self._pending, self._pending_bytes = [], 0

    def _find_group(self, columns: Columns) -> int:
        """The number of the group with these columns, created if there is none."""
        for number, group in enumerate(self._groups):
            if group.columns == columns:
                return number
        self._groups.append(_Rows(columns))
        return len(self._groups) - 1


class Part:
    """A finished part, mapped into memory.

    Parameters
    ----------
    path : Path
    fetched : bool
        Whether the end of the file, and a small one whole, is fetched first: that lets other threads go on while a file
        server answers, and a look at what is mapped does not.

    Attributes
    ----------
    groups : list of RowGroup
        One group in most parts, one more for each kind of odd item; none if no item yielded a sample.
    group_of : list of int or None
        The group of each item's rows; None if it has no rows.
    """

    def __init__(self, path: Path, *, fetched: bool = False) -> None:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            if fetched:
                _fetch(descriptor)
            found = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        if found[-8:] != _MARK:
            raise BuildError(
                f"{path}: expected a finished part of this build, found something else: "
                "remove the .build folder and build again"
            )
        self._read(memoryview(found), 0)

    def _read(self, view: memoryview, missing: int) -> None:
        """Read index and footer of a part of which `missing` bytes at the beginning are not in the view."""
        footer_offset = int.from_bytes(view[-16:-8], "little")
        footer = json.loads(bytes(view[footer_offset - missing : -16]))
        self._reports: list[dict[str, Any]] = footer["reports"]
        self.group_of: list[int | None] = footer["group_of"]
        self._view = view
        self._index_offset: int = footer["index_offset"] - missing
        self.groups = list(_read_groups(view, footer, self._index_offset))

    def outline(self) -> tuple[bytes, int]:
        """The part without the bytes of its rows, but with their numbers and class names; what `from_outline` takes."""
        kept = [
            b"".join(group.values(name, np.arange(len(group))))
            for group in self.groups
            for name in group.columns
            if is_index_value(group.columns[name])
        ]
        values = b"".join(kept)
        values += bytes(-len(values) % 8)
        return values + self._view[self._index_offset :], self._index_offset - len(values)

    @classmethod
    def from_outline(cls, outline: bytes, missing: int) -> "Part":
        """A part that has no other values of its rows than those in an outline."""
        part = cls.__new__(cls)
        view = memoryview(outline)
        part._read(view, missing)
        offset = 0
        for group in part.groups:
            for name in filter(lambda name: is_index_value(group.columns[name]), group.columns):
                size = int(group.lengths[:, list(group.columns).index(name)].sum())
                group.kept[name] = view[offset : offset + size]
                offset += size
        return part

    def reports(self) -> list[ItemReport]:
        """What became of the task's items, in order."""
        return [ItemReport(**document) for document in self._reports]

    def group(self, columns: Columns) -> "RowGroup | None":
        """The rows that have these columns; None if no row has them."""
        return next((group for group in self.groups if group.columns == columns), None)

    def row_data(self) -> memoryview:
        """The bytes of all rows."""
        return self._view[: sum(group.bytes for group in self.groups)]


def _fetch(descriptor: int) -> None:
    """Have the system read a part's end, and the rows of a small one."""
    size = os.fstat(descriptor).st_size
    if hasattr(os, "posix_fadvise") and size <= _FETCHED_BYTES:
        os.posix_fadvise(descriptor, 0, size, os.POSIX_FADV_WILLNEED)
    if hasattr(os, "pread"):
        os.pread(descriptor, _END_BYTES, max(0, size - _END_BYTES))


def is_index_value(spec: ColumnSpec) -> bool:
    """Whether the values of a column may come into the index: single numbers, and names of classes, which become some."""
    return spec.ndim == 0 or spec.kind == "class"


def _read_groups(view: memoryview, footer: Mapping[str, Any], offset: int) -> Iterator["RowGroup"]:
    """The groups of a part's index, which begins at an offset of the view."""
    counts = [(rows, from_json(columns)) for rows, columns in footer["groups"]]
    shapes_offset = offset + 8 * sum(rows * (1 + len(columns)) for rows, columns in counts)
    for rows, columns in counts:
        axes = sum(spec.ndim for spec in columns.values())
        starts: npt.NDArray[np.int64] = np.frombuffer(view, "<i8", rows, offset)
        lengths: npt.NDArray[np.int64] = np.frombuffer(view, "<i8", rows * len(columns), offset + starts.nbytes)
        shapes: npt.NDArray[np.int32] = np.frombuffer(view, "<i4", rows * axes, shapes_offset)
        yield RowGroup(view, columns, starts, lengths.reshape(rows, len(columns)), shapes.reshape(rows, axes))
        offset += starts.nbytes + lengths.nbytes
        shapes_offset += shapes.nbytes


class RowGroup:
    """The rows of a part that have the same columns, in order.

    Attributes
    ----------
    columns : mapping of str to ColumnSpec
        In the order of the row's bytes.
    starts : (rows,) int64
        The offset in the part at which each row begins.
    lengths : (rows, columns) int64
        Encoded bytes of each value.
    shapes : (rows, axes) int32
        Shapes of the decoded values, with the axes of all columns side by side.
    kept : dict of str to memoryview
        In an outline, the values of a column, one after another; it has no values of columns that are not here.
    """

    def __init__(
        self,
        view: memoryview,
        columns: Columns,
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        shapes: npt.NDArray[np.int32],
    ) -> None:
        self._view = view
        self.columns = columns
        self.starts = starts
        self.lengths = lengths
        self.shapes = shapes
        self.kept: dict[str, memoryview] = {}

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def bytes(self) -> int:
        """Encoded bytes of all rows."""
        return int(self.lengths.sum())

    def axes(self, name: str) -> npt.NDArray[np.int32]:
        """Shapes of a column's values, (rows, ndim)."""
        first = 0
        for other, spec in self.columns.items():
            if other == name:
                return self.shapes[:, first : first + spec.ndim]
            first += spec.ndim
        raise KeyError(name)

    def row(self, row: int) -> dict[str, EncodedValue]:
        """One row's values."""
        found, start, axis = {}, int(self.starts[row]), 0
        for (name, spec), length in zip(self.columns.items(), self.lengths[row].tolist(), strict=True):
            shape = tuple(self.shapes[row, axis : axis + spec.ndim].tolist())
            found[name] = EncodedValue(self._view[start : start + length], shape, spec)
            start, axis = start + length, axis + spec.ndim
        return found

    def values(self, name: str, rows: Sequence[int] | npt.NDArray[np.int64]) -> list[memoryview]:
        """The encoded bytes of a column in the given rows; valid while the group is referred to."""
        column = list(self.columns).index(name)
        lengths = self.lengths[rows, column]
        if name in self.kept:
            view, starts = self.kept[name], (np.cumsum(self.lengths[:, column]) - self.lengths[:, column])[rows]
        else:
            view, starts = self._view, self.starts[rows] + self.lengths[rows, :column].sum(axis=1)
        ends = starts + lengths
        return [view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def to_json(columns: Columns) -> list[Any]:
    """Columns as JSON."""
    return [[name, *spec] for name, spec in columns.items()]


def from_json(document: list[Any]) -> dict[str, ColumnSpec]:
    """Read what `to_json` made."""
    return {name: ColumnSpec(*spec) for name, *spec in document}


def describe_difference(expected: Columns, found: Columns) -> str:
    """How two sets of columns differ, field by field."""
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
