"""Several datasets as one, in given proportions."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from readers.arguments import as_count, as_number
from readers.dataset.base import SampleDataset, check_classes
from readers.decode.values import BatchLayout
from readers.order.order import Picks
from readers.order.permutation import Permutation, mix_array, mix_words
from readers.order.store import Store
from readers.seeding import check_seed
from readers.transforms import AnyTransform
from shardspec.columns import Columns, IntArray
from shardspec.errors import UsageError
from shardspec.wording import shorten

_MIX_TAG = 0x6D6978
_LISTED = 4
"""Most fields that a message lists."""


class MixedDataset(SampleDataset):
    """Several datasets as one. An epoch takes exactly its share from each dataset.

    No sample of a dataset is repeated before all of them were taken. Every dataset is gone through in permutations of
    its own, which continue from epoch to epoch: a dataset larger than its share shows other samples in the next epoch;
    one smaller than its share shows some samples more often, each time with augmentation of its own. Which sample a row
    is depends on the epoch, so read through `Loader` or with this dataset's ``sampler``; a plain index means epoch 0. A
    mixture takes no memory per sample. It has no blocks: mix datasets that were packed shuffled, or read in the order
    ``"full"``.

    Parameters
    ----------
    datasets : sequence of SampleDataset
        With the same fields, shapes and dtypes, after their transforms, and the same classes.
    weights : sequence of float, optional
        The shares, of any sum; by default each dataset's number of samples.
    length : int, optional
        Samples of an epoch; the sum of all lengths by default.
    seed : int
        Of the permutations.
    transform : callable, optional
        One more transform, after those of the datasets.
    """

    def __init__(
        self,
        datasets: Sequence[SampleDataset],
        weights: Sequence[float] | None = None,
        length: int | None = None,
        seed: int = 0,
        transform: AnyTransform | None = None,
    ) -> None:
        super().__init__(transform)
        # A dataset is iterable too: taken for a list of datasets, it would be read to its end.
        several = isinstance(datasets, Iterable) and not isinstance(datasets, SampleDataset)
        self.datasets = tuple(datasets) if several else ()
        if not several or not all(isinstance(dataset, SampleDataset) for dataset in self.datasets):
            raise UsageError(f"datasets: expected a list of datasets of readers, found {shorten(datasets)}")
        if not self.datasets or any(len(dataset) == 0 for dataset in self.datasets):
            raise UsageError("datasets: expected one or more, none of them empty")
        sizes = [len(dataset) for dataset in self.datasets]
        shares = [float(size) for size in sizes] if weights is None else [as_number("weights", w) for w in weights]
        if len(shares) != len(sizes) or min(shares) < 0 or not 0 < sum(shares) < math.inf:
            raise UsageError(f"weights: expected {len(sizes)} numbers, none below 0 and not all 0, found {shares}")
        total = sum(sizes) if length is None else as_count("length", length, unit="sample")
        ends = np.round(np.cumsum(shares) / sum(shares) * total).astype(np.int64)
        self._ends: IntArray = ends
        self._quotas: IntArray = np.diff(ends, prepend=0)
        self.seed = check_seed(seed)
        first = self.datasets[0].layout
        for number, dataset in enumerate(self.datasets):
            if dataset.layout != first:
                raise UsageError(
                    f"datasets: expected the same fields in all, found {_difference(first, dataset.layout, number)}: "
                    "choose fields=, decode= or transform= so that they are alike"
                )
        if "label" in first:
            names = ["the first", *(f"number {number}" for number in range(1, len(self.datasets)))]
            check_classes("datasets", dict(zip(names, self.datasets, strict=True)))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __repr__(self) -> str:
        parts = zip(self._quotas.tolist(), self.datasets, strict=True)
        return f"{type(self).__name__}: {len(self)} samples, " + "; ".join(f"{n} from {d!r}" for n, d in parts)

    @property
    def raw_layout(self) -> BatchLayout:
        """How values are laid out in each of the datasets."""
        return self.datasets[0].layout

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes of ``label``, the same in all."""
        return self.datasets[0].classes

    def read_raw(self, picks: Picks, out: Columns, at: IntArray) -> None:
        """Read each row from its dataset, with that dataset's transform."""
        for number, part, places in self._in_datasets(picks):
            self.datasets[number].read_picks(part, out, at[places])

    @property
    def stores(self) -> tuple[Store, ...]:
        """The stores of all datasets, whole: later epochs read what this one leaves out."""
        return tuple(store for dataset in self.datasets for store in dataset.stores)

    @property
    def sample_bytes(self) -> float:
        """Mean number of bytes that a sample takes in the stores, weighted by the shares of the datasets."""
        parts = zip(self._quotas.tolist(), self.datasets, strict=True)
        return sum((quota * dataset.sample_bytes for quota, dataset in parts), 0.0) / len(self)

    def read_ahead(self, picks: Picks) -> None:
        """Ask the system for the bytes of rows that will be read soon."""
        for number, part, _ in self._in_datasets(picks):
            self.datasets[number].read_ahead(part)

    def origins(self, picks: Picks) -> Picks:
        """The rows in the base datasets, and the seeds, which differ by dataset and by repetition."""
        rows, seeds = np.empty(len(picks), np.int64), np.empty(len(picks), np.uint64)
        for number, part, places in self._in_datasets(picks):
            origins = self.datasets[number].origins(part)
            rows[places], seeds[places] = origins.rows, origins.seeds
        return Picks(rows, seeds, picks.epoch)

    @property
    def draws_at_random(self) -> bool:
        """Whether reading draws from a sample's generator."""
        return super().draws_at_random or any(dataset.draws_at_random for dataset in self.datasets)

    @property
    def nesting(self) -> int:
        """The largest of any of the datasets."""
        return max(dataset.nesting for dataset in self.datasets)

    def describe(self, row: int) -> str:
        """Which dataset a row comes from, for messages."""
        number = int(np.searchsorted(self._ends, row, side="right"))
        return f"sample: row {row} of a mixture, from dataset number {number}"

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """A mixture has no columns.

        Raises
        ------
        UsageError
            Always.
        """
        raise UsageError(
            f"column {name!r}: expected one dataset, found a mixture, whose rows are other samples in every epoch: "
            "take columns, subsets and splits of its datasets, and mix the parts"
        )

    def _in_datasets(self, picks: Picks) -> Iterator[tuple[int, Picks, IntArray]]:
        """For each dataset that has some of the picks: its number, its picks, and their places in the batch."""
        which = np.searchsorted(self._ends, picks.rows, side="right")
        for number in np.unique(which).tolist():
            places = np.flatnonzero(which == number)
            rows, cycles = self._rows_of(number, picks.rows[places], picks.epoch)
            # A sample that is repeated in an epoch is augmented under a seed of its own.
            seeds = picks.seeds[places] ^ mix_array(cycles, mix_words(_MIX_TAG, number))
            yield number, Picks(rows, seeds, picks.epoch), places

    def _rows_of(self, number: int, rows: IntArray, epoch: int) -> tuple[IntArray, IntArray]:
        """Rows of one dataset, continuing those of earlier epochs; and how often all rows came before each of them."""
        length, quota = len(self.datasets[number]), int(self._quotas[number])
        cycles, within = np.divmod(rows - (int(self._ends[number]) - quota) + epoch * quota, length)
        out = np.empty(len(rows), np.int64)
        for cycle in np.unique(cycles).tolist():
            chosen = cycles == cycle
            out[chosen] = Permutation(length, self.seed, cycle, number, _MIX_TAG)(within[chosen])
        return out, cycles


def _difference(first: BatchLayout, other: BatchLayout, number: int) -> str:
    """The fields in which the layouts of two datasets differ, and how."""
    names = [name for name in {**first, **other} if first.get(name) != other.get(name)]
    texts = [
        f"{name!r} {first.get(name, 'missing')} in the first, {other.get(name, 'missing')} in number {number}"
        for name in names[:_LISTED]
    ]
    return "; ".join(texts) + (f"; and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
