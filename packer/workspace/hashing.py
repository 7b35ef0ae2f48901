"""The same things in two long lists, found by a number or a digest of each, so that little of them is in memory."""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np

from shardspec.columns import Buffer, IntArray

DIGEST_BYTES = 16
_BLOCK = 1 << 16
_HALVES = struct.Struct(">QQ")


def number_all(texts: Iterable[str]) -> IntArray:
    """A number of 64 bits for each text.

    In one process, equal texts have the same, and others nearly surely another.
    """
    return np.frombuffer(array("q", map(hash, texts)), np.int64)


def digest(value: Buffer) -> bytes:
    """The `DIGEST_BYTES` bytes by which equal values are known where the values themselves would fill the memory."""
    return blake2b(value, digest_size=DIGEST_BYTES).digest()


class TextSet:
    """Membership test for texts, of which only the digests are in memory.

    Parameters
    ----------
    texts : iterable of str
        Those that are among them; a surrogate, as of a name that is not UTF-8, is a character like any other.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        digests = bytearray()
        for text in texts:
            digests += _digest_of(text)
        found = np.frombuffer(digests, f"S{DIGEST_BYTES}")
        found.sort()  # in place
        if (again := np.flatnonzero(found[1:] == found[:-1])).size:
            found = np.delete(found, again)
        halves = found.view(">u8").reshape(-1, 2)
        self._high, self._low = (array("Q", halves[:, half].astype(np.uint64).tobytes()) for half in (0, 1))

    def __len__(self) -> int:
        return len(self._high)

    def __contains__(self, text: object) -> bool:
        high, low = _HALVES.unpack(_digest_of(str(text)))
        first, last = bisect_left(self._high, high), bisect_right(self._high, high)
        return low in self._low[first:last]


def _digest_of(text: str) -> bytes:
    return digest(text.encode("utf-8", "surrogatepass"))


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


def in_several(lists: Sequence[IntArray]) -> IntArray:
    """The numbers that more than one of some lists has: each once, ascending."""
    return repeated(np.concatenate([np.unique(numbers) for numbers in lists]))


def repeated(numbers: IntArray) -> IntArray:
    """The numbers that are there more than once: each once, ascending."""
    ordered = np.sort(numbers)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
