"""Base of datasets derived from another one: parts, clips, other labels, several views."""

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from readers.dataset.base import SampleDataset
from readers.decode.plans import DecodePlan
from readers.decode.values import BatchLayout, ValueLayout, allocate_values
from readers.formats.pool import RowsOfShards
from readers.order.order import Blocks, MixtureShares, SampledRows
from readers.order.shuffle_choice import StoredData
from readers.transforms import AnyTransform
from shardspec.columns import Columns, IntArray


class DerivedDataset(SampleDataset):
    """The samples of a base dataset, one for one and with its transform, unless a subclass defines otherwise.

    Parameters
    ----------
    transform : callable, optional
        One more transform, after that of `base`.
    """

    def __init__(self, base: SampleDataset, transform: AnyTransform | None = None) -> None:
        super().__init__(transform)
        self.base = base

    def __len__(self) -> int:
        return len(self.base)

    @property
    def small_fields(self) -> tuple[str, ...]:
        """Small fields of the base dataset."""
        return self.base.small_fields

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of ``label``."""
        return self.base.classes

    @property
    def blocks(self) -> Blocks | None:
        """Blocks of the base dataset."""
        return self.base.blocks

    @property
    def shares(self) -> MixtureShares | None:
        """Shares of the base dataset."""
        return self.base.shares

    @property
    def raw_layout(self) -> BatchLayout:
        """Layout of the base dataset."""
        return self.base.layout

    @property
    def stored(self) -> tuple[StoredData, ...]:
        """Stored data of the base dataset."""
        return self.base.stored

    @property
    def sample_bytes(self) -> float:
        """Bytes of a sample of the base dataset."""
        return self.base.sample_bytes

    def read_raw(self, picks: SampledRows, out: Columns, at: IntArray) -> None:
        """Read rows of the base dataset, with its transform."""
        self.base.read_picks(self.in_base(picks), out, at)

    def locate(self, picks: SampledRows) -> Iterator[RowsOfShards]:
        """Yield the rows of packed datasets that a read of some rows touches."""
        return self.base.locate(self.in_base(picks))

    def origins(self, picks: SampledRows) -> SampledRows:
        """Return the rows in the base dataset and the seeds, which together key the transforms' random draws."""
        return self.base.origins(self.in_base(picks))

    def in_base(self, picks: SampledRows) -> SampledRows:
        """Return the picks in the base dataset of some rows; of a clip, that of its first possible start."""
        return picks

    def rows_in_base(self) -> IntArray | None:
        """Return the row of each sample in the base dataset (`in_base`); None if the rows are the same."""
        return None

    @property
    def draws_at_random(self) -> bool:
        """True if reading draws from a sample's generator."""
        return super().draws_at_random or self.base.draws_at_random

    @property
    def nesting(self) -> int:
        """Nesting of the base dataset."""
        return self.base.nesting

    def describe(self, row: int) -> str:
        """Describe key and place of a row, for messages."""
        rows = self.rows_in_base()
        return self.base.describe(row if rows is None else int(rows[row]))

    def item_numbers(self) -> IntArray:
        """Return the number of each sample's item: int64, (N,)."""
        numbers, rows = self.base.item_numbers(), self.rows_in_base()
        return numbers if rows is None else numbers[rows]

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """Return one field of all samples (`readers.PackedDataset.column`); of a clip, that of its first possible sample."""
        column, rows = self.base.column(name), self.rows_in_base()
        if rows is None:
            return column
        return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows]

    def with_decode(self, decode: Mapping[str, DecodePlan] | None) -> Self:
        """Return the same samples with other decode plans (`SampleDataset.with_decode`)."""
        return self._on(self.base.with_decode(decode))

    def _on(self, base: SampleDataset) -> Self:
        """Return a copy of this dataset over another base dataset with the same rows."""
        other = copy(self)
        other.base = base
        other._layout = None
        return other

    def _share_of(self, share: float, touched: float = 1.0) -> tuple[StoredData, ...]:
        """Return the stored data of the base dataset, with a share of their bytes, in a share of their shards."""
        return tuple(
            replace(store, bytes=int(store.bytes * min(1.0, share)), fetched_bytes=int(store.fetched_bytes * touched))
            for store in self.base.stored
        )


def stacked(layout: BatchLayout, length: int, once: Container[str]) -> BatchLayout:
    """Return the layout of groups of `length` samples, with a leading axis for fields of fixed shape, except `once`."""
    return {name: value if name in once else _stacked(value, length) for name, value in layout.items()}


def _stacked(value: ValueLayout, length: int) -> ValueLayout:
    return replace(value, time="") if value.shape is None else replace(value, shape=(length, *value.shape))


@contextmanager
def ungrouped(
    out: Columns, layout: BatchLayout, at: IntArray, length: int, once: Container[str], texts_once: bool = False
) -> Iterator[Columns]:
    """Provide columns for the single samples of a batch whose samples are groups of `length` of them.

    Sample i of the group at place p belongs at place ``p * length + i``. Stacked fields share the memory of the batch;
    others are copied to the batch at the end.

    Parameters
    ----------
    out : dict
        The batch, whose stacked values have one more leading axis than `layout`.
    layout : BatchLayout
        Layout of the single samples.
    at : int array
        Places of the batch to fill.
    once : container of str
        Fields that a group has once: the value of its first sample.
    texts_once : bool
        Whether this applies to all texts.
    """
    apart = {name: value for name, value in layout.items() if name in once or value.shape is None}
    columns: Columns = {n: out[n].reshape(-1, *(v.shape or ())) for n, v in layout.items() if n not in apart}
    columns |= allocate_values(apart, (int(at.max()) + 1) * length if apart and len(at) else 0)
    yield columns
    for name in apart:
        for place in at.tolist():
            values = columns[name][place * length : (place + 1) * length]
            is_once = name in once or (texts_once and isinstance(values[0], str))
            out[name][place] = values[0] if is_once else list(values)
