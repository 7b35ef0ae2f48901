"""Permutations of 0 … n-1 as keyed functions from position to value, in constant memory; and splitmix64."""

from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from shardspec.columns import IntArray

_DOUBLE_ROUNDS = 4
_MIN_SIDE = 8  # with shorter sides, four double rounds do not give all permutations equally often
_MASK = (1 << 64) - 1
# splitmix64 (Steele, Lea and Flood, OOPSLA 2014): the step of its counter and the multipliers of its finaliser
STEP = 0x9E3779B97F4A7C15  # 2**64 / golden ratio
_MIX_A, _MIX_B = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_HALF = np.uint64(32)


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
