"""Random numbers for a whole batch at once, each a function of its row's seed."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from readers.seeding import STEP, finalise
from shardspec.errors import UsageError


class RowDraws:
    """A stream of uniform numbers for every row of a batch, independent of the other rows.

    The n-th number of a row is splitmix64's output at position n of a stream that starts at a hash of the row's seed.

    Parameters
    ----------
    seeds : array_like, (B,), int64
        One per row, any values. The readers pass functions of seed, epoch and row in the dataset.
    """

    def __init__(self, seeds: npt.ArrayLike) -> None:
        numbers = np.asarray(seeds)
        if numbers.ndim != 1 or numbers.dtype != np.int64:
            raise UsageError(expected="seeds (B,) of int64", found=f"{numbers.dtype} {numbers.shape}")
        self._state = finalise(numbers.astype(np.uint64) + np.uint64(STEP))

    def __len__(self) -> int:
        return len(self._state)

    @contextmanager
    def repeated(self, times: int) -> "Iterator[RowDraws]":
        """Provide the draws of a batch that has each row several times, in which the copies of a row draw alike."""
        copies = RowDraws(np.empty(0, np.int64))
        copies._state = np.repeat(self._state, times)
        yield copies
        self._state = copies._state[::times].copy()

    def uniform(self, count: int) -> npt.NDArray[np.float32]:
        """Draw the next `count` numbers of every row.

        Returns
        -------
        ndarray, (B, count), float32
            In [0, 1), multiples of 2**-24.
        """
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(STEP)
        bits = finalise(self._state[:, None] + steps) >> np.uint64(40)
        self._state += np.uint64(count * STEP % 2**64)
        return bits.astype(np.float32) * np.float32(2**-24)
