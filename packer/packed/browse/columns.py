"""Small fields of all samples in memory, and selections of samples."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from readers.formats.pool import ShardPool
from readers.formats.shards import open_shards
from shardspec.columns import Columns, IntArray, allocate, evenly
from shardspec.errors import UsageError
from shardspec.schema import Field

ColumnArray = npt.NDArray[Any]

MAX_TEXTS = 10**7
"""Most samples of a dataset whose text fields are read into memory. A key takes 20 bytes or more."""

_CHUNK = 8192
_TEXT = np.dtypes.StringDType()


class Texts(NamedTuple):
    """A text field of all samples.

    Attributes
    ----------
    names : (n,) StringDType
        The distinct values, ascending.
    codes : (rows,) int32
        The index of each sample's value among them.
    """

    names: ColumnArray
    codes: npt.NDArray[np.int32]


def read_numbers(pool: ShardPool, field: Field, some: IntArray | None = None) -> ColumnArray:
    """Read a fixed field of some samples, by default of all."""
    if some is not None:
        return _read_some(pool, field, some)
    values: ColumnArray = allocate([field], len(pool))[field.name]
    for start, columns in read_blocks(pool, [field.name]):
        block = columns[field.name]
        values[start : start + len(block)] = block
    return values


def read_texts(pool: ShardPool, name: str, some: IntArray | None = None) -> Texts:
    """Read a text field of some samples, by default of all.

    Raises
    ------
    UsageError
        If there are too many samples.
    """
    if some is not None:
        texts = np.array([as_text(value) for value in _read_some(pool, pool.schema[name], some)], _TEXT)
        return _coded(texts)
    if len(pool) > MAX_TEXTS:
        raise UsageError(
            f"The dataset has {len(pool):,} samples. Text fields such as {name!r} can be filtered, sorted and counted "
            f"in datasets of up to {MAX_TEXTS:,} samples. Filter by a field of numbers."
        )
    texts = np.empty(len(pool), _TEXT)
    for start, columns in read_blocks(pool, [name]):
        values = columns[name]
        texts[start : start + len(values)] = [as_text(value) for value in values]
    return _coded(texts)


def _coded(texts: ColumnArray) -> Texts:
    names, codes = np.unique(texts, return_inverse=True)
    return Texts(names, codes.astype(np.int32))


def _read_some(pool: ShardPool, field: Field, rows: IntArray) -> ColumnArray:
    out = allocate([field], len(rows))
    pool.read(rows, [field.name], out, np.arange(len(rows)))
    values: ColumnArray = out[field.name]
    return values


def read_blocks(pool: ShardPool, fields: Sequence[str]) -> Iterator[tuple[int, Columns]]:
    """Yield the encoded values of all samples in blocks of a few thousand, with the number of the first sample.

    Shards are mapped one after another, by a separate pool. Otherwise the whole dataset would count as memory of this
    process.
    """
    own, start = pool.join((), {}), 0
    for number, shard in enumerate(own.manifest.shards):
        stop = start + shard.samples
        while start < stop:
            rows = np.arange(start, min(start + _CHUNK, stop))
            out = allocate([own.schema[name] for name in fields], len(rows))
            own.read(rows, fields, out, np.arange(len(rows)))
            yield start, out
            del out
            start += len(rows)
        open_shards.forget(own, number)


def as_text(value: Any) -> str:
    """Decode a text for display. Bytes that are not UTF-8 are replaced."""
    return bytes(value).decode("utf-8", "replace")


def spread_over(labels: ColumnArray, count: int) -> list[int]:
    """Choose at most `count` places from all over a column of labels, taking turns between the labels."""
    found = np.unique(labels)
    if not count or not len(found):
        return []
    several = [np.flatnonzero(labels == label) for label in found[evenly(len(found), count)]]
    left, shares = count, [0] * len(several)
    for done, number in enumerate(sorted(range(len(several)), key=lambda number: len(several[number]))):
        shares[number] = min(len(several[number]), -(-left // (len(several) - done)))  # larger ones get what is left
        left -= shares[number]
    some = [places[evenly(len(places), share)] for places, share in zip(several, shares, strict=True)]
    return [int(place) for turn in zip_longest(*some) for place in turn if place is not None]


class Selection:
    """Rows of a dataset, in an order.

    Parameters
    ----------
    total : int
        Rows of the dataset.
    chosen : int array, optional
        The selected rows, ascending; all by default.
    values : array, (total,), optional
        Numbers to sort by; by default the rows stay in the order of the dataset. NaN and masked values come last, and
        rows with equal values stay in the order of the dataset.
    descending : bool

    Attributes
    ----------
    mask : (total,) bool
        Which rows are selected.
    """

    def __init__(
        self, total: int, chosen: IntArray | None = None, values: ColumnArray | None = None, descending: bool = False
    ) -> None:
        rows = np.arange(total) if chosen is None else chosen
        self.mask = np.zeros(total, np.bool_)
        self.mask[rows] = True
        self._rows = rows if values is None else _sorted(rows, values[rows], descending)

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, start: int = 0, stop: int | None = None) -> IntArray:
        """Return the selected rows from place `start` to `stop`, exclusive, in order."""
        return self._rows[start:stop]

    def place(self, row: int) -> int | None:
        """Return the place of a row; None if the row is not selected."""
        if not 0 <= row < len(self.mask) or not self.mask[row]:
            return None
        return int(np.flatnonzero(self._rows == row)[0])


def _sorted(rows: IntArray, values: ColumnArray, descending: bool) -> IntArray:
    with_number = _are_numbers(values)
    numbered, numbers = rows[with_number], np.ma.getdata(values)[with_number]
    if descending:  # reversed before and after a stable sort, so that equal values keep their order
        order = len(numbers) - 1 - np.argsort(numbers[::-1], kind="stable")[::-1]
    else:
        order = np.argsort(numbers, kind="stable")
    return np.concatenate([numbered[order], rows[~with_number]])


def _are_numbers(values: ColumnArray) -> npt.NDArray[np.bool_]:
    there = ~np.ma.getmaskarray(values)
    return there & ~np.isnan(np.ma.getdata(values)) if values.dtype.kind == "f" else there
