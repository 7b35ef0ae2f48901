"""Single rows dealt out to splits in a random order."""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shardspec.columns import IntArray


def deal(rows: int, strata: IntArray, shares: Sequence[float], seed: int) -> IntArray:
    """Deal rows out, stratum after stratum, each in a random order: the place of each row's split."""
    order = np.lexsort((_draws(seed, rows), strata))
    out = np.empty(rows, np.int64)
    out[order] = _turns(rows, shares)
    return out


def _turns(count: int, shares: Sequence[float]) -> IntArray:
    """Whose turn it is, such that after any number of turns each share is met within one turn.

    The quota method of Balinski and Young: among those who would not exceed their share, the one whose next turn is due
    first. Any run of turns therefore meets each share within two.
    """
    if len(set(shares)) == 1:
        return np.arange(count, dtype=np.int64) % len(shares)
    had = [0] * len(shares)
    places = range(len(shares))
    out = np.empty(count, np.int64)
    for turn in range(count):
        due = [place for place in places if had[place] < shares[place] * (turn + 1)]
        best = min(due or places, key=lambda place: (had[place] + 1) / shares[place])
        had[best] += 1
        out[turn] = best
    return out


def _draws(seed: int, rows: int) -> npt.NDArray[np.uint64]:
    """A random number for each row, the same on every machine: splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    key = int.from_bytes(draw(seed, "rows")[:8], "little")
    state = np.arange(rows, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def draw(seed: int, name: str) -> bytes:
    """32 random bytes for a name: SHA-256 of the seed and the name."""
    return hashlib.sha256(f"{seed}/{name}".encode("utf-8", "surrogateescape")).digest()
