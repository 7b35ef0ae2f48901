"""The same things in two long lists, found by a number for each, so that little of them is in memory."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable

import numpy as np

from shardspec.columns import IntArray

_BLOCK = 1 << 16


def number_all(texts: Iterable[str]) -> IntArray:
    """A number of 64 bits for each text. In one process, equal texts have the same, and others nearly surely another."""
    return np.frombuffer(array("q", map(hash, texts)), np.int64)


class Numbered:
    """Which texts are among some, of which a number each is in memory."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._numbers = array("q", np.unique(number_all(texts)).tobytes())

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, text: object) -> bool:
        at = bisect_left(self._numbers, hash(text))
        return at < len(self._numbers) and self._numbers[at] == hash(text)


def match(known: IntArray, sought: IntArray) -> IntArray:
    """For each number that is sought, where in `known` it is; -1 if it is not there.

    Of equal numbers, the first that is sought gets the first that is known, the second the second, and so on.
    """
    order, turns = np.argsort(known, kind="stable"), np.argsort(sought, kind="stable")
    found = np.full(len(sought), -1, np.int64)
    for start in range(0, len(sought) if len(known) else 0, _BLOCK):
        some = turns[start : start + _BLOCK]
        values = sought[some]
        place = np.arange(start, start + len(some)) - np.searchsorted(sought, values, sorter=turns)
        place += np.searchsorted(known, values, sorter=order)
        places = order[np.minimum(place, len(known) - 1)]
        found[some] = np.where((place < len(known)) & (known[places] == values), places, -1)
    return found


def repeated(numbers: IntArray) -> frozenset[int]:
    """The numbers that are there more than once."""
    ordered = np.sort(numbers)
    return frozenset(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
