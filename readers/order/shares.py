"""Shares of the datasets of a mixture in each epoch, as a pure function of integers."""

from dataclasses import dataclass

import numpy as np

from readers.order.permutation import Permutation
from shardspec.columns import IntArray

_MIX_TAG = 0x6D6978


@dataclass(frozen=True, eq=False)
class MixtureShares:
    """Number of samples that each dataset of a mixture contributes to an epoch, and their rows.

    The rows of the first dataset come first, then the rows of the second, and so on. Each dataset is read in
    permutations that continue from epoch to epoch, so no row is repeated before all rows of its dataset were read.

    Attributes
    ----------
    sizes : int64 array, (D,)
        Rows of each dataset.
    quotas : int64 array, (D,)
        Samples of each dataset in an epoch.
    seed : int
        Of the permutations.
    within : tuple of MixtureShares or None, (D,)
        Shares inside each dataset that is itself a mixture.
    """

    sizes: IntArray
    quotas: IntArray
    seed: int
    within: "tuple[MixtureShares | None, ...]"

    @property
    def samples(self) -> int:
        """Samples of an epoch."""
        return int(self.quotas.sum())

    def rows(self, places: IntArray, epoch: int) -> tuple[IntArray, IntArray]:
        """Return the rows at some places of an epoch, 0 to samples - 1, and the permutation that each comes from.

        No row occurs twice in one permutation. The samples of a dataset have neighbouring places.
        """
        rows, cycles = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
        ends, firsts = np.cumsum(self.quotas), np.cumsum(self.sizes) - self.sizes
        which = np.searchsorted(ends, places, side="right")
        for number in np.unique(which).tolist():
            chosen = np.flatnonzero(which == number)
            inner, quota = self.within[number], int(self.quotas[number])
            length = int(self.sizes[number]) if inner is None else inner.samples
            passes, nth = np.divmod(places[chosen] - (int(ends[number]) - quota) + epoch * quota, length)
            for cycle in np.unique(passes).tolist():
                now = passes == cycle
                permuted = Permutation(length, self.seed, cycle, number, _MIX_TAG)(nth[now])
                found = (permuted, cycle) if inner is None else inner.rows(permuted, cycle)
                rows[chosen[now]], cycles[chosen[now]] = firsts[number] + found[0], found[1]
        return rows, cycles
