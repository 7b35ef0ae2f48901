"""A part: the encoded samples of one task, in order. Internal, removed with the workspace.

The file has the bytes of the rows one after another, each row's fields in the order of its columns; then the index;
then the JSON footer; then 16 bytes: the footer's offset as a little-endian uint64 and a mark. Rows that have the same
columns are a group. The index has, group by group, an int64 array (rows,) of where each row begins and an int64 array
(rows, columns) of byte lengths; and after those of all groups, group by group, an int32 array (rows, axes of all
columns) of shapes.
"""

import json
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packer.steps.encode import ColumnSpec, EncodedValue
from packer.steps.report import ItemReport
from packer.workspace import Workspace
from shardspec.errors import BuildError

MARK = b"PARTv3\r\n"

_FETCHED_BYTES, _END_BYTES = 1 << 22, 1 << 16
"""The size of a part that is fetched whole, and how much of any is."""

Columns = Mapping[str, ColumnSpec]
"""The columns that the rows of a group share, in the order of a row's bytes, which is the order of the names."""


class ItemRun(NamedTuple):
    """Items that follow one another and of which the same became, so that it is said once.

    Attributes
    ----------
    names : list of str
    report : dict
        What the report of each says, as JSON, without its name.
    group : int or None
        The number of the group of their rows; None if they have none.
    """

    names: list[str]
    report: dict[str, Any]
    group: int | None

    def to_report(self) -> ItemReport:
        """The report of any of the items, under the name of the first."""
        return ItemReport.from_json({"name": self.names[0], **self.report})


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
    runs : list of ItemRun
        What became of the task's items, in order.
    """

    def __init__(self, path: Path, *, fetched: bool = False) -> None:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            if not os.fstat(descriptor).st_size:  # nothing can be mapped
                raise _no_part(path)
            if fetched:
                _fetch(descriptor)
            found = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        if found[-8:] != MARK:
            raise _no_part(path)
        self._view = view = memoryview(found)
        footer = json.loads(bytes(view[int.from_bytes(view[-16:-8], "little") : -16]))
        reports, groups = footer["reports"], footer["group_of"]
        self.runs = [ItemRun(report.pop("names"), report, group) for report, group in zip(reports, groups, strict=True)]
        self.groups = list(_read_groups(view, footer))

    def reports(self) -> list[ItemReport]:
        """Reports of the task's items, in order."""
        return [ItemReport.from_json({"name": name, **run.report}) for run in self.runs for name in run.names]

    def group(self, columns: Columns) -> "RowGroup | None":
        """The rows that have these columns; None if no row has them."""
        return next((group for group in self.groups if group.columns == columns), None)

    def row_data(self) -> memoryview:
        """The bytes of all rows."""
        return self._view[: sum(group.bytes for group in self.groups)]


def open_part(workspace: Workspace, task: int, *, fetched: bool = False) -> Part:
    """Open the part of a finished task, waiting for the file if it is not visible yet.

    Parameters
    ----------
    workspace : Workspace
    task : int
    fetched : bool
        See `Part`.
    """
    path = workspace.part(task)
    try:
        return Part(path, fetched=fetched)
    except FileNotFoundError:
        return Part(workspace.promised(path), fetched=fetched)


def _no_part(path: Path) -> BuildError:
    return BuildError(
        place=path,
        expected="a finished part of this build",
        found="something else",
        hint="remove the .build folder and build again",
    )


def _fetch(descriptor: int) -> None:
    """Have the system read a part's end, and the rows of a small one."""
    size = os.fstat(descriptor).st_size
    if hasattr(os, "posix_fadvise") and size <= _FETCHED_BYTES:
        os.posix_fadvise(descriptor, 0, size, os.POSIX_FADV_WILLNEED)
    if hasattr(os, "pread"):
        os.pread(descriptor, _END_BYTES, max(0, size - _END_BYTES))


def is_index_value(spec: ColumnSpec) -> bool:
    """Return whether the values of a column may come into the index.

    Single numbers, and names of classes, which become some.
    """
    return spec.ndim == 0 or spec.kind == "class"


def _read_groups(view: memoryview, footer: Mapping[str, Any]) -> Iterator["RowGroup"]:
    """The groups of a part's index."""
    offset = footer["index_offset"]
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
        starts = self.starts[rows] + self.lengths[rows, :column].sum(axis=1)
        ends = starts + lengths
        return [self._view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """The values of a column of single numbers, (rows,)."""
        column, dtype = list(self.columns).index(name), np.dtype(self.columns[name].dtype)
        starts = self.starts + self.lengths[:, :column].sum(axis=1)
        whole: npt.NDArray[np.uint8] = np.frombuffer(self._view, np.uint8)
        found: npt.NDArray[Any] = whole[starts[:, None] + np.arange(dtype.itemsize)].view(dtype)[:, 0]
        return found


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
