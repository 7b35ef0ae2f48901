"""Random numbers of a whole batch at once, each a pure function of (seed, epoch, row)."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from readers.seeding import ROW_BITS, check_epoch, check_seed
from shardspec.errors import UsageError

__all__ = ["RowDraws"]

# splitmix64 (Steele, Lea and Flood, OOPSLA 2014): the step of its counter and the multipliers of its finaliser
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class RowDraws:
    """A stream of uniform numbers for every row of a batch, whatever other rows are in it.

    The n-th number of a row is splitmix64's output at position n of a stream whose start is a hash of (seed, epoch, row).

    Parameters
    ----------
    seed : int
        0 to 2**64 - 1.
    epoch : int
        0 to 2**24 - 1.
    rows : array_like, (B,), int
        Rows in the base dataset, below 2**40.
    """

    def __init__(self, seed: int, epoch: int, rows: ArrayLike) -> None:
        numbers = np.asarray(rows, np.int64)
        if numbers.ndim != 1 or (numbers.size and (numbers.min() < 0 or numbers.max() >= 1 << ROW_BITS)):
            raise UsageError(f"expected rows (B,) from 0 to 2**{ROW_BITS} - 1, found shape {numbers.shape}")
        places = numbers.astype(np.uint64) | np.uint64(check_epoch(epoch) << ROW_BITS)
        start = _mix(np.array([check_seed(seed)], np.uint64) + _STEP)
        self._state = _mix(_mix(places ^ start) + _STEP)

    def __len__(self) -> int:
        return len(self._state)

    def uniform(self, count: int) -> NDArray[np.float32]:
        """The next numbers of every row.

        Returns
        -------
        ndarray, (B, count), float32
            In [0, 1), multiples of 2**-24.
        """
        steps = np.arange(1, count + 1, dtype=np.uint64) * _STEP
        bits = _mix(self._state[:, None] + steps) >> np.uint64(40)
        self._state += np.uint64(count * int(_STEP) % 2**64)
        return bits.astype(np.float32) * np.float32(2**-24)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: a bijection in which every input bit reaches every output bit."""
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))
