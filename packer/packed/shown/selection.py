"""Rows that meet a condition, in an order, without a list of them.

As many as a page shows are found when it is asked.
"""

import threading

import numpy as np
import numpy.typing as npt

from packer.packed.shown.columns import BLOCK, Column
from shardspec.columns import IntArray, evenly

_SAMPLED = 1 << 16
_BUCKET = 1 << 15
"""Rows that are sorted together, about."""


class Selection:
    """Rows of a dataset, in an order. Safe to use from several threads.

    Parameters
    ----------
    total : int
        Rows of the dataset.
    chosen : uint8 array or None
        Which of them are selected, eight to a byte (`numpy.packbits`); None for all.
    values : array, (total,), or None
        Numbers to sort by; None for the order of the dataset.
    descending : bool
        Rows with equal values stay in the order of the dataset either way; NaN and masked values come last.

    Attributes
    ----------
    total : int
    chosen : uint8 array or None
    """

    def __init__(
        self,
        total: int,
        chosen: npt.NDArray[np.uint8] | None = None,
        values: Column | None = None,
        descending: bool = False,
    ) -> None:
        self.total = total
        self.chosen = chosen
        starts = range(0, total, BLOCK)
        counts = [min(BLOCK, total - start) if chosen is None else int(self.mask(start).sum()) for start in starts]
        self._ends = np.cumsum(counts, dtype=np.int64)
        self._sorted = None if values is None else _Sorted(self, values, descending)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def mask(self, start: int) -> npt.NDArray[np.bool_]:
        """Return which rows of the block from row `start` on, a multiple of `BLOCK`, are selected."""
        size = min(BLOCK, self.total - start)
        if self.chosen is None:
            return np.ones(size, np.bool_)
        return np.unpackbits(self.chosen[start // 8 : (start + size + 7) // 8], count=size).view(np.bool_)

    def rows(self, start: int = 0, stop: int | None = None) -> IntArray:
        """The selected rows from place `start` to `stop`, exclusive, in order."""
        stop = len(self) if stop is None else min(stop, len(self))
        if start >= stop:
            return np.empty(0, np.int64)
        return self._stored(start, stop) if self._sorted is None else self._sorted.rows(start, stop)

    def place(self, row: int) -> int | None:
        """The place of a row; None if it is not selected."""
        if not 0 <= row < self.total:
            return None
        block, within = divmod(row, BLOCK)
        mask = self.mask(block * BLOCK)
        if not mask[within]:
            return None
        if self._sorted is not None:
            return self._sorted.place(row)
        before = int(self._ends[block - 1]) if block else 0
        return before + int(mask[:within].sum())

    def _stored(self, start: int, stop: int) -> IntArray:
        """Rows in the order of the dataset."""
        if self.chosen is None:
            return np.arange(start, stop)
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right").tolist()
        found = [block * BLOCK + np.flatnonzero(self.mask(block * BLOCK)) for block in range(first, last + 1)]
        before = int(self._ends[first - 1]) if first else 0
        return np.concatenate(found)[start - before : stop - before]


class _Sorted:
    """The order of a selection by numbers.

    Rows fall into ranges of values, whose limits are taken from a sample. Rows are counted by range, and a range's rows
    are found and sorted when one of them is asked for.
    """

    def __init__(self, selection: Selection, values: Column, descending: bool) -> None:
        self._selection = selection
        self._values = values.view(np.uint8) if values.dtype == np.bool_ else values
        self._descending = descending
        self._lock = threading.Lock()
        self._last: tuple[int, npt.NDArray[np.int32]] = (-1, np.empty(0, np.int32))
        self._edges = self._choose_edges()
        ranges = len(self._edges) + 2
        counts = np.zeros(ranges, np.int64)
        for start in range(0, selection.total, BLOCK):
            counts += np.bincount(self._ranges(self._block(start)), minlength=ranges)
        order = np.arange(ranges)
        if descending:
            order[:-1] = order[-2::-1]  # the last range is for rows without a number
        self._order = order
        self._ends = np.cumsum(counts[order])

    def rows(self, start: int, stop: int) -> IntArray:
        """The rows from place `start` to `stop`."""
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right").tolist()
        before = int(self._ends[first - 1]) if first else 0
        found = np.concatenate([self._range_rows(int(self._order[at])) for at in range(first, last + 1)])
        return found[start - before : stop - before].astype(np.int64)

    def place(self, row: int) -> int:
        """The place of a selected row."""
        number = int(self._ranges(self._values[row : row + 1])[0])
        at = int(np.flatnonzero(self._order == number)[0])
        before = int(self._ends[at - 1]) if at else 0
        return before + int(np.flatnonzero(self._range_rows(number) == row)[0])

    def _choose_edges(self) -> Column:
        count = len(self._selection)
        wanted = -(-count // _BUCKET)
        if wanted < 2:
            return np.ma.getdata(self._values)[:0]
        places = evenly(count, _SAMPLED)
        some = self._values[self._some(places)]
        some = np.sort(np.ma.getdata(some)[_are_numbers(some)])
        return np.unique(some[:: max(1, len(some) // wanted)])

    def _some(self, places: IntArray) -> IntArray:
        """The rows at ascending places in the order of the dataset."""
        if self._selection.chosen is None:
            return places
        found, before = [], 0
        for start in range(0, self._selection.total, BLOCK):
            rows = np.flatnonzero(self._selection.mask(start))
            here = places[np.searchsorted(places, before) : np.searchsorted(places, before + len(rows))]
            found.append(start + rows[here - before])
            before += len(rows)
        return np.concatenate(found)

    def _block(self, start: int) -> Column:
        """The values of the selected rows of a block."""
        values = self._values[start : start + BLOCK]
        return values if self._selection.chosen is None else values[self._selection.mask(start)]

    def _ranges(self, values: Column) -> IntArray:
        """The range of each value."""
        found = np.searchsorted(self._edges, np.ma.getdata(values), side="right")
        found[~_are_numbers(values)] = len(self._edges) + 1
        return found

    def _in_range(self, values: Column, number: int) -> npt.NDArray[np.bool_]:
        """Return whether `_ranges` gives a number, for each value."""
        here = _are_numbers(values)
        if number > len(self._edges):
            return ~here
        if number > 0:
            here &= np.ma.getdata(values) >= self._edges[number - 1]
        if number < len(self._edges):
            here &= np.ma.getdata(values) < self._edges[number]
        return here

    def _range_rows(self, number: int) -> npt.NDArray[np.int32]:
        """The rows of a range, sorted. Those of the range asked for last are kept."""
        with self._lock:
            if self._last[0] == number:
                return self._last[1]
        found = []
        for start in range(0, self._selection.total, BLOCK):
            here = self._in_range(self._values[start : start + BLOCK], number)
            if self._selection.chosen is not None:
                here &= self._selection.mask(start)
            found.append((start + np.flatnonzero(here)).astype(np.int32))
        rows = np.concatenate(found) if found else np.empty(0, np.int32)
        values = np.ma.getdata(self._values)[rows]
        if len(rows) and number <= len(self._edges) and not bool((values == values[0]).all()):
            if self._descending:  # sorted from behind, so that equal values stay in the order of the dataset
                rows = rows[len(rows) - 1 - np.argsort(values[::-1], kind="stable")[::-1]]
            else:
                rows = rows[np.argsort(values, kind="stable")]
        with self._lock:
            self._last = number, rows
        return rows


def _are_numbers(values: Column) -> npt.NDArray[np.bool_]:
    """Return which values are there, and not NaN."""
    there = ~np.ma.getmaskarray(values)
    return there & ~np.isnan(np.ma.getdata(values)) if values.dtype.kind == "f" else there
