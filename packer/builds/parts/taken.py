"""Lengths and index values of the rows of parts, recorded so that the cut need not read the rows again."""

from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.assembly.rows import Lengths
from packer.builds.parts.part import Columns, RowGroup, is_index_value
from packer.workspace.spool import NumberSpool
from shardspec.columns import IntArray

_UINT32_MAX = np.iinfo(np.uint32).max
_CODE = np.dtype("<i4")


class TakenRows:
    """Lengths of the values of all rows, and the values that may come into the index, taken in from the first row on.

    The values lie in temporary files; of lengths that are all the same, one is kept.

    Parameters
    ----------
    columns : mapping of str to ColumnSpec
        Those of the rows.

    Attributes
    ----------
    rows, bytes : int
        How many rows were taken in, and the encoded bytes of all their values.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._lengths = {name: _Lengths() for name, spec in columns.items() if spec.kind != "class"}
        self._index = {
            name: NumberSpool(_dtype(columns, name)) for name, spec in columns.items() if is_index_value(spec)
        }
        self._codes: dict[str, dict[bytes, int]] = {name: {} for name, spec in columns.items() if spec.kind == "class"}
        self._places = list(columns)
        self.rows = 0
        self.bytes = 0

    def add(self, group: RowGroup) -> None:
        """Take in the rows of a part."""
        low, high = group.lengths.min(axis=0).tolist(), group.lengths.max(axis=0).tolist()
        for place, name in enumerate(self._places):
            if name in self._lengths:
                self._lengths[name].add(group.lengths[:, place], low[place], high[place])
            if name in self._index:
                found = self._encode(group, name) if name in self._codes else group.numbers(name)
                self._index[name].add(found.tobytes())
        self.rows += len(group)
        self.bytes += group.bytes

    def _encode(self, group: RowGroup, name: str) -> npt.NDArray[np.int32]:
        """The codes of the names of classes in a column."""
        codes = self._codes[name]
        names = map(bytes, group.values(name, np.arange(len(group))))
        return np.array([codes.setdefault(one, len(codes)) for one in names], _CODE)

    def lengths(self, name: str, rows: range | None = None) -> Lengths:
        """The encoded bytes of a column's values, (rows,), in all rows or a copy of those in some.

        Not of names of classes.
        """
        return self._lengths[name].all(self.rows) if rows is None else self._lengths[name].some(rows)

    def classes(self, name: str) -> list[bytes]:
        """The names of classes in a column, in the order in which they came."""
        return list(self._codes[name])

    def values(self, name: str, rows: IntArray) -> npt.NDArray[Any]:
        """The values of an index column in some rows; for names of classes, their places in `classes`."""
        return self._index[name].read(rows)


class _Lengths:
    """Lengths, of which one is kept as long as all are the same."""

    def __init__(self) -> None:
        self._same: int | None = None
        self._rows = 0
        self._all: array[int] | None = None

    def add(self, lengths: npt.NDArray[np.int64], low: int, high: int) -> None:
        """Append lengths, the shortest and the longest of which are known."""
        if self._all is None:
            self._same = low if self._same is None else self._same
            if low == high == self._same:
                self._rows += len(lengths)
                return
            self._all = array("I" if self._same <= _UINT32_MAX else "q", [self._same]) * self._rows
        if high > _UINT32_MAX and self._all.typecode == "I":
            self._all = array("q", self._all)
        self._all.frombytes(lengths.astype(f"u{self._all.itemsize}").tobytes())

    def all(self, rows: int) -> Lengths:
        """All of them."""
        if self._all is not None:
            whole = np.asarray(self._all)
            return whole.view(np.uint32) if self._all.typecode == "I" else whole.view(np.int64)
        same = self._same or 0
        return np.full(rows, same, np.uint32) if same <= _UINT32_MAX else np.full(rows, same, np.int64)

    def some(self, rows: range) -> Lengths:
        """A copy of some of them: as long as more may come, nothing may look into the array itself."""
        if self._all is None:
            return self.all(len(rows))
        copy = np.array(self._all[rows.start : rows.stop])
        return copy.view(np.uint32) if self._all.typecode == "I" else copy.view(np.int64)


def _dtype(columns: Columns, name: str) -> np.dtype[Any]:
    return _CODE if columns[name].kind == "class" else np.dtype(columns[name].dtype)
