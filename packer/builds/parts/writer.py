"""A part as it is written: front to back, under a temporary name, so a long video needs no memory."""

import json
import os
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from packer.builds.parts.part import MARK, Columns, ItemRun, Part, describe_difference, to_json
from packer.steps.encode import ColumnSpec, EncodedColumn, EncodedValue
from packer.steps.report import ItemReport
from packer.workspace.durable import publish, write_all
from packer.workspace.paths import attempt_beside
from shardspec.columns import Buffer
from shardspec.errors import SchemaError

_FLUSH_BYTES, _FLUSH_VALUES = 1 << 20, 512
"""The most bytes and values that wait to be written with one call; the system takes 1024 values at a time."""


_BYTES = {bytes}


class _Rows:
    """The rows of a group that is being written: their index, each array row by row."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.names, self.specs = tuple(columns), tuple(columns.values())
        self.starts, self.lengths, self.shapes = array("q"), array("q"), array("i")

    def add(self, end: int, datas: Sequence[Buffer], shapes: Iterable[int]) -> None:
        """Add the values of some rows, one after another, the first of which begins at `end`."""
        lengths = array("q", map(len, datas))
        self.starts.extend([*accumulate(lengths, initial=end)][: -1 : len(self.names)])
        self.lengths.extend(lengths)
        self.shapes.extend(shapes)

    def cut(self, rows: int) -> None:
        """Keep the first rows only."""
        axes = sum(spec.ndim for spec in self.specs)
        del self.starts[rows:], self.lengths[rows * len(self.names) :], self.shapes[rows * axes :]


class PartWriter:
    """Writes one part. Use as a context manager; without `finish`, nothing is left.

    Each item starts with `begin` and ends with `end`; items with one row each may be added together, with `add`.

    Parameters
    ----------
    path : Path
        Where the part appears, whole, on `finish`, in a folder that exists.
    owner : str
        See `packer.workspace.Workspace`.

    Attributes
    ----------
    runs : list of ItemRun
        What became of the items that have ended.
    """

    def __init__(self, path: Path, owner: str = "") -> None:
        self.path = path
        self._temporary = attempt_beside(path, owner)
        self._file = self._temporary.open("xb", buffering=0)
        self._finished = False
        self._end, self._pending, self._pending_bytes = 0, list[Buffer](), 0
        self._groups: list[_Rows] = []
        self._group: int | None = None
        self._offset, self._rows = 0, 0
        self.runs: list[ItemRun] = []

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if not self._finished:
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
        names = tuple(sorted(row))
        datas, shapes, specs, *_ = zip(*[row[name] for name in names], strict=True)
        if self._group is None:
            self._group = self._find_group(names, specs)
            self._rows = len(self._groups[self._group].starts)
        group = self._groups[self._group]
        if specs != group.specs or names != group.names:
            found = dict(zip(names, specs, strict=True))
            raise SchemaError(f"the sample differs from those before it: {describe_difference(group.columns, found)}")
        group.add(self._end, datas, chain.from_iterable(shapes))
        self._write_row(datas)

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
        document = report.to_json()
        self._end_items([document.pop("name")], document, self._group)

    def add(
        self, columns: Mapping[str, EncodedColumn], names: Iterable[str], reports: Iterable[dict[str, Any]]
    ) -> None:
        """Append items that have one row each, from `begin` to `end`.

        Parameters
        ----------
        columns : mapping of str to EncodedColumn
            Their rows.
        names : iterable of str
            Those of the items.
        reports : iterable of dict
            What the report of each says, as JSON, without its name.
        """
        fields = tuple(sorted(columns))
        datas, shapes, specs = zip(*[columns[field] for field in fields], strict=True)
        number = self._find_group(fields, specs)
        values = [*chain.from_iterable(zip(*datas, strict=True))]
        axes = chain.from_iterable(chain.from_iterable(zip(*shapes, strict=True)))
        self._groups[number].add(self._end, values, axes)
        self._write_row(values)
        for name, report in zip(names, reports, strict=True):
            self._end_items([name], report, number)

    def extend(self, part: "Part") -> None:
        """Append all rows and reports of another part."""
        offset = self._end
        self._write(part.row_data())
        places: dict[int | None, int | None] = {None: None}
        for before, rows in enumerate(part.groups):
            number = places[before] = self._find_group(tuple(rows.columns), tuple(rows.columns.values()))
            group = self._groups[number]
            group.starts.extend((rows.starts + offset).tolist())
            group.lengths.extend(rows.lengths.ravel().tolist())
            group.shapes.extend(rows.shapes.ravel().tolist())
        for run in part.runs:
            self._end_items(run.names, run.report, places[run.group])

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
        reports, groups = part.reports(), [run.group for run in part.runs for _ in run.names]
        number = groups[place]
        self.begin()
        if number is not None:
            before = zip(reports[:place], groups, strict=False)
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
        """Write index and footer, flush the part to the disk and publish it. If another worker was first, its part stays."""
        self._write(bytes(-self._end % 8))
        index_offset = self._end
        for group in self._groups:
            self._write(_little(group.starts), _little(group.lengths))
        for group in self._groups:
            self._write(_little(group.shapes))
        footer_offset = self._end
        footer = {
            "groups": [[len(group.starts), to_json(group.columns)] for group in self._groups],
            "index_offset": index_offset,
            "reports": [{"names": run.names, **run.report} for run in self.runs],
            "group_of": [run.group for run in self.runs],
        }
        document = json.dumps(footer, separators=(",", ":")).encode()
        self._write(document, footer_offset.to_bytes(8, "little") + MARK)
        self._flush()
        os.fsync(self._file.fileno())
        self._file.close()
        publish(self._temporary, self.path)
        self._finished = True

    def _end_items(self, names: Sequence[str], report: dict[str, Any], group: int | None) -> None:
        """Note what became of the items that follow."""
        if not self.runs or self.runs[-1][1:] != (report, group):
            self.runs.append(ItemRun([], report, group))
        self.runs[-1].names.extend(names)

    def _write_row(self, values: Sequence[Buffer]) -> None:
        """Write values that whoever made them may change later, as a step does with its arrays, unless they are bytes."""
        self._write(*values)
        if self._pending and {*map(type, values)} != _BYTES:
            self._flush()

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

    def _find_group(self, names: tuple[str, ...], specs: tuple[ColumnSpec, ...]) -> int:
        """The number of the group with these columns, created if there is none."""
        for number, group in enumerate(self._groups):
            if specs == group.specs and names == group.names:
                return number
        self._groups.append(_Rows(dict(zip(names, specs, strict=True))))
        return len(self._groups) - 1


def _little(numbers: "array[int]") -> bytes:
    """Numbers as little-endian bytes."""
    if sys.byteorder != "little":
        numbers.byteswap()
    return numbers.tobytes()
