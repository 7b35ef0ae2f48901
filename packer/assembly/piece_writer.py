"""Write pieces (`packer.assembly.piece`)."""

import json
import os
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from google_crc32c import value as crc32c

from packer.assembly.piece import (
    MARK,
    OFFSETS,
    TAIL,
    ColumnSpec,
    EncodedValue,
    PackedItem,
    Piece,
    PieceColumns,
    checksum,
    columns_to_json,
    describe_difference,
)
from packer.workspace.durable import publish
from packer.workspace.paths import temporary_path
from shardspec.columns import Buffer
from shardspec.errors import SchemaError

_BUFFER_BYTES = 1 << 20


class _GroupIndex:
    """Collects the index of a group that is being written."""

    def __init__(self, columns: PieceColumns) -> None:
        self.columns = columns
        self.names, self.specs = tuple(columns), tuple(columns.values())
        self.starts, self.lengths, self.sums, self.shapes = array("q"), array("q"), array("I"), array("i")

    def add(self, end: int, datas: Sequence[Buffer], shapes: Iterable[int]) -> int:
        """Add the values of rows that begin at the offset `end`, and return the offset of their end."""
        lengths = array("q", map(len, datas))
        ends = [*accumulate(lengths, initial=end)]
        self.starts.extend(ends[: -1 : len(self.names)])
        self.lengths.extend(lengths)
        self.sums.extend(map(checksum, datas))
        self.shapes.extend(shapes)
        return ends[-1]

    def cut(self, rows: int) -> None:
        """Drop all but the first `rows` rows."""
        axes, values = sum(spec.ndim for spec in self.specs), rows * len(self.names)
        del self.starts[rows:], self.lengths[values:], self.sums[values:], self.shapes[rows * axes :]


class PieceWriter:
    """Writes one piece front to back, so that a long video takes little memory. Use as a context manager.

    The piece is written under a temporary name, and removed unless `finish` is called. Call `begin` before and `end`
    after the rows of an item.

    Parameters
    ----------
    path : Path
        Path of the finished piece, in a folder that exists.
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

    def __enter__(self) -> "PieceWriter":
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

    def end(self, name: str, report: Mapping[str, Any]) -> None:
        """End the item.

        Parameters
        ----------
        report : mapping
            See `PackedItem`.
        """
        self.items.append(PackedItem(name, dict(report), self._group))

    def copy(self, piece: Piece, place: int, key_of: Callable[[int], str] | None = None) -> PackedItem:
        """Append one item of another piece, and return it.

        Parameters
        ----------
        place : int
            The item's position in that piece.
        key_of : callable, optional
            Returns the new key of a sample, given its number in the item. By default, the keys stay.
        """
        item = piece.items[place]
        self.begin()
        if item.group is not None:
            first = sum(one.report.get("samples", 0) for one in piece.items[:place] if one.group == item.group)
            for number in range(item.report.get("samples", 0)):
                values = piece.groups[item.group].row(first + number)
                if key_of is not None:
                    data = key_of(number).encode()
                    values["key"] = values["key"]._replace(data=data, shape=(len(data),))
                self.append(values)
        self.end(item.name, item.report)
        return self.items[-1]

    def finish(self) -> None:
        """Write index and footer, flush the piece to the disk and publish it. If it exists already, that piece stays."""
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
        checked = crc32c(index + footer + OFFSETS.pack(*offsets))
        self._file.writelines((index, footer, TAIL.pack(*offsets, checked, MARK)))
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


def _little(numbers: "array[int]") -> bytes:
    if sys.byteorder != "little":
        numbers.byteswap()
    return numbers.tobytes()
