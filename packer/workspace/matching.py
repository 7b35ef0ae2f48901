"""The same things in two long lists, found by a number for each, so that little of them is in memory."""

from array import array
from collections.abc import Iterable

import numpy as np

from shardspec.columns import IntArray


def number_all(texts: Iterable[str]) -> IntArray:
    """A number of 64 bits for each text. In one process, equal texts have the same, and others nearly surely another."""
    return np.frombuffer(array("q", map(hash, texts)), np.int64)


def match(known: IntArray, sought: IntArray) -> IntArray:
    """For each number that is sought, where in `known` it is; -1 if it is not there.

    Of equal numbers, the first that is sought gets the first that is known, the second the second, and so on.
    """
    ranks_known, ranks_sought = np.argsort(known, kind="stable"), np.argsort(sought, kind="stable")
    ordered = sought[ranks_sought]
    ahead = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    ahead += np.searchsorted(known, ordered, sorter=ranks_known)
    found = np.full(len(sought), -1, np.int64)
    inside = np.flatnonzero(ahead < len(known))
    places = ranks_known[ahead[inside]]
    same = known[places] == ordered[inside]
    found[ranks_sought[inside[same]]] = places[same]
    return found


def repeated(numbers: IntArray) -> frozenset[int]:
    """The numbers that are there more than once."""
    ordered = np.sort(numbers)
    return frozenset(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
