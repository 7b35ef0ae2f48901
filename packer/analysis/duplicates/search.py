"""Search for near pairs: of 64-bit hashes by multi-index hashing, and of vectors by their cosine."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardspec.columns import IntArray

Hashes = npt.NDArray[np.uint64]

RADIUS = 8
"""Largest number of bits in which near hashes differ."""

_BANDS, _BAND_BITS = 4, 16
_AT_ONCE = 1 << 16
"""Pairs that are compared at once, whose arrays fit into a core's cache."""
_BLOCK = 2048
"""Vectors of each side whose cosines are computed at once."""


class Pairs(NamedTuple):
    """Pairs of rows, and their distances.

    Attributes
    ----------
    ones, others : (n,) int64
    distance : (n,) float32
    """

    ones: IntArray
    others: IntArray
    distance: npt.NDArray[np.float32]


def near_hashes(hashes: Hashes, group: IntArray, radius: int = RADIUS) -> tuple[IntArray, IntArray]:
    """Return pairs of places whose hashes differ in at most `radius` bits, and whose groups differ.

    Each hash is cut into four bands of 16 bits. Pairs are compared whose values of a band are equal or differ in one bit,
    so that all pairs up to 7 bits are found, and 95 % of those with 8.

    Parameters
    ----------
    hashes : (n,) uint64
        Should have few equal values of one group: of equal ones, all pairs of different groups are returned.
    group : (n,) int64
    """
    found = [pairs for band in range(_BANDS) for pairs in _near_in_band(hashes, group, radius, band)]
    width = max(1, len(hashes))
    codes = np.unique(np.concatenate([np.empty(0, np.int64), *found]))
    return codes // width, codes % width


def _near_in_band(hashes: Hashes, group: IntArray, radius: int, band: int) -> Iterator[IntArray]:
    """Yield codes of the near pairs whose values of one band differ in one bit at most: smaller place * n + greater."""
    keys = (hashes >> np.uint64(band * _BAND_BITS)).astype(np.uint16).astype(np.int64)
    order = np.argsort(keys, kind="stable")
    ordered_keys, ordered_hashes = keys[order], hashes[order]
    ends = np.cumsum(np.bincount(keys, minlength=1 << _BAND_BITS))
    starts = np.concatenate([[0], ends[:-1]])
    for flip in (0, *(1 << bit for bit in range(_BAND_BITS))):
        sought = ordered_keys ^ flip
        # Each pair once: among equal values the places after the own one, otherwise from the smaller value.
        first = np.where(sought > ordered_keys, starts[sought], ends[sought]) if flip else np.arange(1, len(order) + 1)
        counts = ends[sought] - first
        total = np.cumsum(counts)
        for start, stop in _runs(total):
            some = counts[start:stop]
            before = total[start:stop] - some
            one = np.repeat(np.arange(start, stop), some)
            other = np.arange(before[0], before[0] + len(one)) + np.repeat(first[start:stop] - before, some)
            near = np.flatnonzero(np.bitwise_count(ordered_hashes[one] ^ ordered_hashes[other]) <= radius)
            a, b = order[one[near]], order[other[near]]
            apart = group[a] != group[b]
            a, b = a[apart], b[apart]
            yield np.minimum(a, b) * len(hashes) + np.maximum(a, b)


def _runs(total: IntArray) -> Iterator[tuple[int, int]]:
    """Cut places into runs of about `_AT_ONCE` pairs, given the number of pairs up to each place."""
    start = 0
    while start < len(total):
        before = total[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(total, before + _AT_ONCE, side="right")))
        yield start, stop
        start = stop


def near_vectors(vectors: npt.NDArray[np.floating], group: IntArray, within: float) -> Pairs:
    """Return the pairs of rows whose cosine distance is at most `within`, and whose groups differ. The search is exact.

    Parameters
    ----------
    vectors : (n, d)
    group : (n,) int64
    within : float, 0 to 2
    """
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    unit = (vectors / np.maximum(norms, 1e-12)[:, None]).astype(np.float32)
    ones, others, distances = [], [], []
    for start in range(0, len(unit), _BLOCK):
        block = unit[start : start + _BLOCK]
        for at in range(start, len(unit), _BLOCK):
            cosine = block @ unit[at : at + _BLOCK].T
            one, other = np.nonzero(cosine >= 1 - within)
            one_row, other_row = one + start, other + at
            fits = (one_row < other_row) & (group[one_row] != group[other_row])
            ones.append(one_row[fits])
            others.append(other_row[fits])
            distances.append(1 - cosine[one[fits], other[fits]])
    none = np.empty(0, np.int64)
    distance = np.concatenate([np.empty(0, np.float32), *distances]).clip(0)
    return Pairs(np.concatenate([none, *ones]), np.concatenate([none, *others]), distance)


def connect(rows: int, ones: IntArray, others: IntArray) -> IntArray:
    """Return the group of each row: rows that pairs connect, directly or through others, share a number."""
    parent = np.arange(rows)
    while True:
        one, other = parent[ones], parent[others]
        if (one == other).all():
            return np.unique(parent, return_inverse=True)[1]
        np.minimum.at(parent, np.maximum(one, other), np.minimum(one, other))
        while (parent[parent] != parent).any():
            parent = parent[parent]
