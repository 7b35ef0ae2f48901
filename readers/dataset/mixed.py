"""Mixtures: several datasets as one, in given proportions."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Never

import numpy as np
import numpy.typing as npt

from readers.arguments import as_count, as_number
from readers.dataset.base import SampleDataset, check_classes
from readers.dataset.subset import DivisibleDataset
from readers.decode.values import BatchLayout
from readers.formats.pool import RowsOfShards
from readers.order.order import MixtureShares, SampledRows
from readers.order.shuffle_choice import StoredData
from readers.seeding import check_seed, mix_array, mix_words
from readers.transforms import AnyTransform
from shardspec.columns import Columns, IntArray
from shardspec.errors import UsageError
from shardspec.wording import shorten

_MIX_TAG = 0x6D6978
_ROUNDING = 1e-9
"""Largest difference between a share and a whole number of samples that is a rounding error of the weights."""
_LISTED = 4
"""Maximum number of fields in a message."""


class MixedDataset(DivisibleDataset):
    """Several datasets as one. An epoch takes exactly its share from each dataset.

    Row numbers are fixed: the rows of the first dataset come first, then the rows of the second, and so on. Columns,
    parts, weights and samplers use these numbers. A clip has samples of one dataset only.

    The shares apply to the shuffled epochs of `Loader` and of this dataset's ``sampler``. Each dataset is read in
    passes, which continue from epoch to epoch: a pass takes every sample once, in random order. A dataset larger than
    its share shows other samples in the next epoch. In an epoch in which a pass ends and the next one begins, samples
    of both are mixed, so some may come twice. A dataset smaller than its share shows some samples several times in an
    epoch. Every copy is augmented differently.

    The shares do not apply if the rows are chosen in another way: by `weights`, `order` or `sampler` of a `Loader`, or
    by a torch sampler. An epoch of a part, of clips or with ``shuffle=False`` has every row once.

    A mixture takes no memory per sample. It has no blocks: mix datasets that were packed shuffled, or read in the order
    ``"full"``.

    Parameters
    ----------
    datasets : sequence of SampleDataset
        With the same fields, shapes and dtypes, after their transforms, and the same classes.
    weights : sequence of float, optional
        Relative shares; by default each dataset's number of samples. A share is 0, or one sample of an epoch or more.
    length : int, optional
        Samples of an epoch, shuffled or drawn by weights; by default the sum of all lengths.
    seed : int, 0 to 2**64 - 1
        Seed of the permutations.
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
        # A dataset is iterable too, and would be read to its end if taken for a list of datasets.
        several = isinstance(datasets, Iterable) and not isinstance(datasets, SampleDataset)
        self.datasets = tuple(datasets) if several else ()
        if not several or not all(isinstance(dataset, SampleDataset) for dataset in self.datasets):
            raise UsageError(option="datasets", expected="a list of datasets of readers", found=shorten(datasets))
        if not self.datasets or any(len(dataset) == 0 for dataset in self.datasets):
            raise UsageError(option="datasets", expected="one or more, none of them empty")
        sizes = np.array([len(dataset) for dataset in self.datasets], np.int64)
        shares = sizes.tolist() if weights is None else [as_number("weights", w) for w in weights]
        if len(shares) != len(sizes) or min(shares) < 0 or not 0 < sum(shares) < math.inf:
            raise UsageError(
                option="weights", expected=f"{len(sizes)} numbers, none below 0 and not all 0", found=shares
            )
        self._ends: IntArray = np.cumsum(sizes)
        total = len(self) if length is None else as_count("length", length, unit="sample")
        exact = _shares_of(total, shares)
        for number, share in enumerate(exact.tolist()):
            if 0 < share < 1:
                raise UsageError(
                    option="weights",
                    expected=f"shares of one sample or more of an epoch of {total}, or 0",
                    found=f"{share:.2g} samples of datasets[{number}]",
                    hint="give a larger weight or length, or leave the dataset out",
                )
        within = tuple(dataset.shares for dataset in self.datasets)
        self._shares = MixtureShares(sizes, _whole_shares(exact, total), check_seed(seed), within)
        first = self.datasets[0].layout
        for number, dataset in enumerate(self.datasets):
            if dataset.layout != first:
                raise UsageError(
                    option="datasets",
                    expected="the same fields in all",
                    found=_difference(first, dataset.layout, number),
                    hint="choose fields=, decode= or transform= so that they are alike",
                )
        if "label" in first:
            self._check_classes()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __repr__(self) -> str:
        parts = zip(self._shares.quotas.tolist(), self.datasets, strict=True)
        return f"{type(self).__name__}: epochs of {self._shares.samples} samples, " + "; ".join(
            f"{n} from {d!r}" for n, d in parts
        )

    @property
    def shares(self) -> MixtureShares:
        """Shares of the datasets in a shuffled epoch."""
        return self._shares

    @property
    def raw_layout(self) -> BatchLayout:
        """Layout of each of the datasets."""
        return self.datasets[0].layout

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of ``label``, the same in all datasets."""
        return self.datasets[0].classes

    def read_raw(self, picks: SampledRows, out: Columns, at: IntArray) -> None:
        """Read each row from its dataset, with that dataset's transform."""
        for dataset, part, places in self._in_datasets(picks):
            dataset.read_picks(part, out, at[places])

    @property
    def stored(self) -> tuple[StoredData, ...]:
        """Stored data of all datasets, whole: later epochs read what this one leaves out."""
        return tuple(store for dataset in self.datasets for store in dataset.stored)

    @property
    def sample_bytes(self) -> float:
        """Mean number of bytes of a stored sample, weighted by the shares of the datasets."""
        parts = zip(self._shares.quotas.tolist(), self.datasets, strict=True)
        return sum((quota * dataset.sample_bytes for quota, dataset in parts), 0.0) / self._shares.samples

    def locate(self, picks: SampledRows) -> Iterator[RowsOfShards]:
        """Yield the rows of packed datasets that a read of some rows touches."""
        for dataset, part, _ in self._in_datasets(picks):
            yield from dataset.locate(part)

    def origins(self, picks: SampledRows) -> SampledRows:
        """Return the rows in the base datasets, and the seeds, which differ by dataset."""
        rows, seeds = np.empty(len(picks), np.int64), np.empty(len(picks), np.uint64)
        for dataset, part, places in self._in_datasets(picks):
            origins = dataset.origins(part)
            rows[places], seeds[places] = origins.rows, origins.seeds
        return SampledRows(rows, seeds, picks.epoch)

    @property
    def draws_at_random(self) -> bool:
        """True if reading draws from a sample's generator."""
        return super().draws_at_random or any(dataset.draws_at_random for dataset in self.datasets)

    @property
    def nesting(self) -> int:
        """Largest nesting of the datasets."""
        return max(dataset.nesting for dataset in self.datasets)

    def describe(self, row: int) -> str:
        """Describe the place of a row and the number of its dataset, for messages."""
        number = int(np.searchsorted(self._ends, row, side="right"))
        within = row - int(self._ends[number]) + len(self.datasets[number])
        return f"{self.datasets[number].describe(within)}, in dataset number {number} of a mixture"

    @property
    def small_fields(self) -> tuple[str, ...]:
        """Fields with a number or a text per sample that all datasets have."""
        known = [dataset.small_fields for dataset in self.datasets]
        return tuple(name for name in known[0] if all(name in names for names in known))

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """Return one field of all datasets, in the order of the rows (`PackedDataset.column`).

        Raises
        ------
        UsageError
            If the datasets have values of different kinds or shapes, or labels of different classes.
        """
        if name == "label":
            self._check_classes()
        columns = [dataset.column(name) for dataset in self.datasets]
        kinds = [_kind(column) for column in columns]
        for number, kind in enumerate(kinds):
            if kind != kinds[0]:
                raise UsageError(
                    place=f"column {name!r}",
                    expected="values of one kind and shape in all datasets",
                    found=f"{kinds[0]} in datasets[0], {kind} in datasets[{number}]",
                    hint="take the columns of the datasets one by one",
                )
        if all(isinstance(column, np.ndarray) for column in columns):
            masked = any(isinstance(column, np.ma.MaskedArray) for column in columns)
            joined: npt.NDArray[Any] = (np.ma.concatenate if masked else np.concatenate)(columns)
            return joined
        return list(chain.from_iterable(columns))

    def item_numbers(self) -> IntArray:
        """Return the number of each sample's item: int64, (N,). Items of different datasets have different numbers."""
        parts, found = [], 0
        for dataset in self.datasets:
            items, of_row = np.unique(dataset.item_numbers(), return_inverse=True)
            parts.append(found + of_row)
            found += len(items)
        return np.concatenate(parts)

    def _join(
        self, frame: Any, on: str | Sequence[str], required: npt.NDArray[np.bool_] | None, how: Mapping[str, Any]
    ) -> Never:
        """Refuse a table, because its keys do not name the dataset."""
        raise UsageError(
            option="join",
            expected="one packed dataset",
            found="a mixture, in which several samples may have the same key",
            hint="join the datasets before you mix them",
        )

    def _check_classes(self) -> None:
        names = [f"datasets[{number}]" for number in range(len(self.datasets))]
        check_classes("datasets", dict(zip(names, self.datasets, strict=True)))

    def _in_datasets(self, picks: SampledRows) -> Iterator[tuple[SampleDataset, SampledRows, IntArray]]:
        """Yield each dataset that has some of the picks, its picks, and their places in the batch."""
        which = np.searchsorted(self._ends, picks.rows, side="right")
        for number in np.unique(which).tolist():
            dataset, places = self.datasets[number], np.flatnonzero(which == number)
            rows = picks.rows[places] - (int(self._ends[number]) - len(dataset))
            seeds, keys = picks.seeds[places], None
            if picks.keys is None:
                # Equal rows of different datasets have different draws.
                seeds = mix_array(seeds, mix_words(_MIX_TAG, number))
            else:  # `origins` already passed the seeds through here
                keys = picks.keys[places]
            yield dataset, SampledRows(rows, seeds, picks.epoch, keys), places


def _shares_of(total: int, weights: Sequence[float]) -> npt.NDArray[np.float64]:
    """Divide a number of samples in the proportions of the weights, without the rounding errors of whole numbers."""
    exact = np.array(weights, np.float64) / math.fsum(weights) * total
    whole = np.rint(exact)
    return np.where(np.abs(exact - whole) < _ROUNDING, whole, exact)


def _whole_shares(exact: npt.NDArray[np.float64], total: int) -> IntArray:
    """Round shares to whole samples by the largest remainder method; of equal remainders, the first is rounded up."""
    quotas: IntArray = np.floor(exact).astype(np.int64)
    remainders = exact - quotas
    quotas[np.argsort(-remainders, kind="stable")[: total - int(quotas.sum())]] += 1
    return quotas


def _kind(column: npt.NDArray[Any] | list[Any]) -> str:
    """Describe the kind and shape of a column's values; texts and arrays of varying shape are one kind."""
    if not isinstance(column, np.ndarray):
        return "texts or arrays of varying shape"
    kind = {"b": "booleans", "i": "integers", "u": "integers", "f": "floats"}.get(column.dtype.kind, str(column.dtype))
    return f"{kind} {column.shape[1:]}"


def _difference(first: BatchLayout, other: BatchLayout, number: int) -> str:
    names = [name for name in {**first, **other} if first.get(name) != other.get(name)]
    texts = [
        f"{name!r} {first.get(name, 'missing')} in datasets[0], {other.get(name, 'missing')} in datasets[{number}]"
        for name in names[:_LISTED]
    ]
    return "; ".join(texts) + (f"; and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
