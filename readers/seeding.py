"""Randomness as a pure function of integers: generators of samples, hashes and permutations, at any number of workers.

The seed and the epoch travel with the sampled index (`SampledIndex`), because persistent worker processes do not see
changes of the training loop's objects. A *row* is always a row of the base dataset: subsets and mixtures keep it.
"""

from math import isqrt
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from readers.arguments import as_count, as_integer
from shardspec.columns import IntArray
from shardspec.errors import UsageError

ROW_BITS = 40
"""Rows are below 2**40, epochs below 2**24 and seeds below 2**64. Together they fill a Philox key."""

_MAX_EPOCH = (1 << (64 - ROW_BITS)) - 1
_MAX_SEED = (1 << 64) - 1
_COUNTER = np.zeros(4, np.uint64)
"""Philox's initial counter, as an array because that is twice as fast as an integer."""

_DOUBLE_ROUNDS = 4
_MIN_SIDE = 8  # with shorter sides, four double rounds do not give all permutations equally often
_MASK = (1 << 64) - 1
# splitmix64 (Steele, Lea and Flood, OOPSLA 2014): the step of its counter and the multipliers of its finaliser
STEP = 0x9E3779B97F4A7C15  # 2**64 / golden ratio
_MIX_A, _MIX_B = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_HALF = np.uint64(32)


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


def mix_words(*words: int) -> int:
    """Hash several integers to one 64-bit number by splitmix64."""
    state = 0
    for word in words:
        state = (state + STEP + (word & _MASK)) & _MASK
        state = ((state ^ (state >> 30)) * _MIX_A) & _MASK
        state = ((state ^ (state >> 27)) * _MIX_B) & _MASK
        state ^= state >> 31
    return state


def mix_array(values: npt.NDArray[Any], key: int) -> npt.NDArray[np.uint64]:
    """Hash each value to a 64-bit number by splitmix64 under a key."""
    state = values.astype(np.uint64)
    state *= np.uint64(STEP)
    state += np.uint64(key)
    return finalise(state)


def finalise(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply splitmix64's finaliser in place: a bijection in which every input bit affects every output bit."""
    _multiply(state)
    state ^= state >> np.uint64(31)
    return state


def _multiply(state: npt.NDArray[np.uint64]) -> None:
    """Apply the finaliser without its last shift, in place. This mixes the high bits well, the low bits less so."""
    state ^= state >> np.uint64(30)
    state *= np.uint64(_MIX_A)
    state ^= state >> np.uint64(27)
    state *= np.uint64(_MIX_B)


class Permutation:
    """A pseudorandom permutation of ``range(n)``, any part of which can be computed without the rest.

    A generalised Feistel network (Black and Rogaway 2002) on a nearly square grid of n or more places. A value of n or
    more goes through the network again until it is below n. All arithmetic is on 64-bit integers, so the values are the
    same on every machine and with every version of numpy.

    Parameters
    ----------
    n : int
        0 to 2**40.
    words : int
        The key: any number of integers.
    """

    def __init__(self, n: int, *words: int) -> None:
        self.n = n
        self._high = max(isqrt(max(n - 1, 0)) + 1, _MIN_SIDE)
        self._low = max(-(-n // self._high), _MIN_SIDE)
        key = mix_words(n, *words)
        self._keys = [mix_words(key, number) for number in range(2 * _DOUBLE_ROUNDS)]

    def __call__(self, positions: IntArray) -> IntArray:
        """Return the values at some positions, each in 0 … n-1."""
        out = self._walk(positions.astype(np.uint64))
        beyond = np.flatnonzero(out >= self.n)
        while len(beyond):
            out[beyond] = self._walk(out[beyond])
            beyond = beyond[out[beyond] >= self.n]
        return out.astype(np.int64)

    def _walk(self, places: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        low = np.uint64(self._low)
        left = places // low
        right = places - left * low
        for number in range(0, len(self._keys), 2):
            _add_modulo(left, _round(right, self._keys[number], self._high), self._high)
            _add_modulo(right, _round(left, self._keys[number + 1], self._low), self._low)
        left *= low
        left += right
        return left


def _round(half: npt.NDArray[np.uint64], key: int, size: int) -> npt.NDArray[np.uint64]:
    """Return a keyed number in 0 … size-1 for each value; `size` is below 2**32."""
    state = half + np.uint64(key)
    _multiply(state)
    state >>= _HALF
    state *= np.uint64(size)
    state >>= _HALF
    return state


def _add_modulo(half: npt.NDArray[np.uint64], amount: npt.NDArray[np.uint64], size: int) -> None:
    half += amount
    np.subtract(half, np.uint64(size), out=half, where=half >= size)
