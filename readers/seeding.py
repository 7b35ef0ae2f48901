"""Randomness as a pure function of (seed, epoch, row), which gives a sample's generator at any number of workers.

The seed and the epoch travel with the sampled index (`SampledIndex`), because persistent worker processes do not see
changes of the training loop's objects. A *row* is always a row of the base dataset: subsets and mixtures keep it.
"""

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from readers.arguments import as_count, as_integer
from shardspec.errors import UsageError

ROW_BITS = 40
"""Rows are below 2**40, epochs below 2**24 and seeds below 2**64. Together they fill a Philox key."""

_MAX_EPOCH = (1 << (64 - ROW_BITS)) - 1
_MAX_SEED = (1 << 64) - 1
_COUNTER = np.zeros(4, np.uint64)
"""Philox's initial counter, as an array because that is twice as fast as an integer."""


class _Key(np.random.bit_generator.ISeedSequence):
    """Passes a key to Philox. ``Philox(key=...)`` would first read the system's entropy, at three times the cost."""

    def __init__(self, words: npt.NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> npt.NDArray[Any]:
        return self._words


def sample_rng(seed: int, epoch: int, row: int) -> np.random.Generator:
    """Return the generator of one sample in one epoch: Philox 4x64 with the key (seed, epoch · 2**40 + row).

    Philox is a keyed function of a counter: streams of different keys are independent, however similar the keys are.
    Making a generator takes about 3 µs.

    Parameters
    ----------
    seed : int
        0 to 2**64 - 1.
    epoch : int
        0 to 2**24 - 1.
    row : int
        Row in the base dataset, 0 to 2**40 - 1.
    """
    return _generator(np.array((seed, (epoch << ROW_BITS) | row), np.uint64))


def sample_rngs(seeds: npt.ArrayLike, epoch: int, rows: npt.ArrayLike) -> list[np.random.Generator]:
    """Return the generators of several samples in one epoch (`sample_rng`).

    Parameters
    ----------
    seeds : array_like, (n,), uint64
    rows : array_like, (n,), integers
    """
    rows = np.asarray(rows).astype(np.uint64)
    keys = np.empty((len(rows), 2), np.uint64)
    keys[:, 0] = seeds
    keys[:, 1] = rows | np.uint64(epoch << ROW_BITS)
    return [_generator(key) for key in keys]


def _generator(key: npt.NDArray[np.uint64]) -> np.random.Generator:
    philox = np.random.Philox(_Key(key), counter=_COUNTER)  # type: ignore[arg-type] # numpy's stub has no ISeedSequence
    return np.random.Generator(philox)


def uniforms(rng: np.random.Generator, count: int) -> list[float]:
    """Return the values of ``rng.random(count)`` without releasing the GIL: taking it back may be slow.

    Regaining the GIL may take ten times as long as the draws. Meant for a few numbers, 0.3 µs each.
    """
    draw = rng.random
    return [draw() for _ in range(count)]


def check_seed(seed: int) -> int:
    """Check that a seed is an integer from 0 to 2**64 - 1."""
    number = as_integer("seed", seed)
    if not 0 <= number <= _MAX_SEED:
        raise UsageError(option="seed", expected="0 to 2**64 - 1", found=seed)
    return number


def check_epoch(epoch: Any) -> int:
    """Check that an epoch is an integer from 0 to 2**24 - 1."""
    number = as_integer("epoch", epoch)
    if not 0 <= number <= _MAX_EPOCH:
        raise UsageError(option="epoch", expected=f"0 to {_MAX_EPOCH}", found=epoch)
    return number


class SampledIndex(int):
    """A row index that carries the seed and the epoch under which it was sampled. Otherwise a normal integer.

    Attributes
    ----------
    occurrence : int
        How often the row came before in the epoch; every copy of a row is augmented differently.
    """

    seed: int
    epoch: int
    occurrence: int

    def __new__(cls, index: int, seed: int, epoch: int, occurrence: int = 0) -> Self:
        """Make an index."""
        self = super().__new__(cls, index)
        self.seed = seed
        self.epoch = epoch
        self.occurrence = occurrence
        return self

    def again(self, occurrence: int) -> "SampledIndex":
        """Return the same row as copy number `occurrence`, 0 or more, for samplers that repeat rows."""
        return SampledIndex(int(self), self.seed, self.epoch, as_count("occurrence", occurrence, 0))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (int(self), self.seed, self.epoch, self.occurrence)
