"""Random numbers of a whole batch at once, each a function of its row's own seed."""

import numpy as np
import numpy.typing as npt

from shardspec.errors import UsageError

# splitmix64 (Steele, Lea and Flood, OOPSLA 2014): the step of its counter and the multipliers of its finaliser
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class RowDraws:
    """A stream of uniform numbers for every row of a batch, whatever other rows are in it.

    The n-th number of a row is splitmix64's output at position n of a stream that starts at a hash of the row's seed.

    Parameters
    ----------
    seeds : array_like, (B,), int64
        One per row, any values: the readers give functions of seed, epoch and row in the dataset.
    """

    def __init__(self, seeds: npt.ArrayLike) -> None:
        numbers = np.asarray(seeds)
        if numbers.ndim != 1 or numbers.dtype != np.int64:
            raise UsageError(f"expected seeds (B,) of int64, found {numbers.dtype} {numbers.shape}")
        self._state = _mix(numbers.astype(np.uint64) + _STEP)

    def __len__(self) -> int:
        return len(self._state)

    def uniform(self, count: int) -> npt.NDArray[np.float32]:
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


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64: a bijection in which every input bit reaches every output bit."""
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))
