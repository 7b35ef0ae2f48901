"""A part as it is written: front to back, under a temporary name, so a long video needs no memory."""

import json
import os
import sys
from array import array
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path

from packer.builds.parts.part import MARK, Columns, Part, describe_difference, to_json
from packer.sources.item import ItemReport
from packer.steps.encode import ColumnSpec, EncodedValue
from packer.workspace.durable import fsync_file, publish, write_all
from packer.workspace.paths import attempt_beside
from shardspec.columns import Buffer
from shardspec.errors import SchemaError

_FLUSH_BYTES, _FLUSH_VALUES = 1 << 20, 512
"""The most bytes and values that wait to be written with one call; the system takes 1024 values at a time."""


class _Rows:
    """The rows of a group that is being written: their index, each array row by row."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.names, self.specs = tuple(columns), tuple(columns.values())
        self.starts, self.lengths, self.shapes = array("q"), array("q"), array("i")

    def cut(self, rows: int) -> None:
        """Keep the first rows only."""
        axes = sum(spec.ndim for spec in self.specs)
        del self.starts[rows:], self.lengths[rows * len(self.names) :], self.shapes[rows * axes :]


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
        Whether the part's bytes are flushed to the disk before it is published; otherwise
        `packer.workspace.checkpoints` does it, in the coordinating process, with others. Its name is flushed there in
        any case.

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
        self._finished = False
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
        group.starts.append(self._end)
        group.lengths.extend(map(len, datas))
        group.shapes.extend(chain.from_iterable(shapes))
        self._write(*datas)
        if self._pending:
            for data in datas:
                if type(data) is not bytes:  # a step may change its arrays once it goes on
                    self._flush()
                    break

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
            places.append(self._find_group(tuple(rows.columns), tuple(rows.columns.values())))
            group = self._groups[places[-1]]
            group.starts.extend((rows.starts + offset).tolist())
            group.lengths.extend(rows.lengths.ravel().tolist())
            group.shapes.extend(rows.shapes.ravel().tolist())
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
            self._write(_little(group.starts), _little(group.lengths))
        for group in self._groups:
            self._write(_little(group.shapes))
        footer_offset = self._end
        footer = {
            "groups": [[len(group.starts), to_json(group.columns)] for group in self._groups],
            "index_offset": index_offset,
            "reports": [report.to_json() for report in self.reports],
            "group_of": self._group_of,
        }
        document = json.dumps(footer, separators=(",", ":")).encode()
        self._write(document, footer_offset.to_bytes(8, "little") + MARK)
        self._flush()
        if self._flushed:
            os.fsync(self._file.fileno())
        self._file.close()
        published = publish(self._temporary, self.path)
        self._finished = True
        if self._flushed and not published:
            fsync_file(self.path)

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
