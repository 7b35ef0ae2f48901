"""Base of datasets derived from another one: parts, clips, other labels, several views."""

from collections.abc import Container, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from readers.dataset.base import SampleDataset
from readers.decode.plans import DecodePlan
from readers.decode.values import BatchLayout
from readers.order.blocks import Blocks
from readers.order.order import Picks
from readers.order.shares import Shares
from readers.order.store import Store
from readers.transforms import AnyTransform
from shardspec.columns import Columns, IntArray
from shardspec.errors import UsageError


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
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes of ``label``."""
        return self.base.classes

    @property
    def blocks(self) -> Blocks | None:
        """Blocks of the base dataset."""
        return self.base.blocks

    @property
    def shares(self) -> Shares | None:
        """Shares of the base dataset."""
        return self.base.shares

    @property
    def raw_layout(self) -> BatchLayout:
        """Layout of the base dataset."""
        return self.base.layout

    @property
    def stores(self) -> tuple[Store, ...]:
        """Stores of the base dataset."""
        return self.base.stores

    @property
    def sample_bytes(self) -> float:
        """Bytes of a sample of the base dataset."""
        return self.base.sample_bytes

    def read_ahead(self, picks: Picks) -> None:
        """Ask the system for the bytes of rows that will be read soon."""
        self.base.read_ahead(picks)

    def origins(self, picks: Picks) -> Picks:
        """Return the rows in the base dataset and the seeds, which together key the transforms' random draws."""
        return self.base.origins(picks)

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
        return self.base.describe(row)

    def item_numbers(self) -> IntArray:
        """Return the number of each sample's item: int64, (N,)."""
        return self.base.item_numbers()

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """Return one field of the whole base dataset."""
        return self.base.column(name)

    def with_decode(self, decode: Mapping[str, DecodePlan] | None) -> Self:
        """Return the same samples with other decode plans (`SampleDataset.with_decode`)."""
        return self._on(self.base.with_decode(decode))

    def _on(self, base: SampleDataset) -> Self:
        """Return a copy of this dataset over another base dataset with the same rows."""
        other = copy(self)
        other.base = base
        other._layout = None
        return other

    def _stores_of(self, share: float) -> tuple[Store, ...]:
        """Return the stores of the base dataset with a share of their bytes."""
        return tuple(replace(store, bytes=int(store.bytes * min(1.0, share))) for store in self.base.stores)


def flattened(out: Columns, layout: BatchLayout, apart: Container[str]) -> Columns:
    """Return the columns of a batch of groups of base samples as columns of base samples, in the same memory.

    Parameters
    ----------
    out : dict
        The batch, whose stacked values have one more leading axis than `layout` and must be contiguous.
    layout : BatchLayout
        Layout of the base samples.
    apart : container of str
        Fields to leave out.
    """
    columns: Columns = {}
    for name, value in layout.items():
        if name not in apart and value.shape is not None:
            columns[name] = out[name].reshape(-1, *value.shape)
            if not np.may_share_memory(columns[name], out[name]) and out[name].size:
                raise UsageError(
                    f"field {name!r}: expected an array whose samples follow one another, found one with gaps"
                )
    return columns
