"""Samples that meet a condition, in an order."""

import numpy as np
import numpy.typing as npt

from packer.packed.browse.fields import Column
from shardspec.columns import IntArray


class Selection:
    """Rows of a dataset, in an order.

    Parameters
    ----------
    total : int
        Rows of the dataset.
    chosen : int array, optional
        The selected rows, ascending; all by default.
    values : array, (total,), optional
        Numbers to sort by; by default the rows stay in the order of the dataset.
    descending : bool
        Rows with equal values stay in the order of the dataset either way. NaN and masked values come last.

    Attributes
    ----------
    mask : (total,) bool
        Which rows are selected.
    """

    def __init__(
        self, total: int, chosen: IntArray | None = None, values: Column | None = None, descending: bool = False
    ) -> None:
        rows = np.arange(total) if chosen is None else chosen
        self.mask = np.zeros(total, np.bool_)
        self.mask[rows] = True
        self._rows = rows if values is None else _sorted(rows, values[rows], descending)

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, start: int = 0, stop: int | None = None) -> IntArray:
        """The selected rows from place `start` to `stop`, exclusive, in order."""
        return self._rows[start:stop]

    def place(self, row: int) -> int | None:
        """The place of a row; None if it is not selected."""
        if not 0 <= row < len(self.mask) or not self.mask[row]:
            return None
        return int(np.flatnonzero(self._rows == row)[0])


def _sorted(rows: IntArray, values: Column, descending: bool) -> IntArray:
    """Return rows in the order of their values."""
    with_number = _are_numbers(values)
    numbered, numbers = rows[with_number], np.ma.getdata(values)[with_number]
    if descending:  # reversed before and after a stable sort, so that equal values keep their order
        order = len(numbers) - 1 - np.argsort(numbers[::-1], kind="stable")[::-1]
    else:
        order = np.argsort(numbers, kind="stable")
    return np.concatenate([numbered[order], rows[~with_number]])


def _are_numbers(values: Column) -> npt.NDArray[np.bool_]:
    """Return which values exist and are not NaN."""
    there = ~np.ma.getmaskarray(values)
    return there & ~np.isnan(np.ma.getdata(values)) if values.dtype.kind == "f" else there
