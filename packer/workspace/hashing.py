"""Compare long lists by a hash of each entry, so that the entries themselves need not be in memory."""

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
    """Return a 64-bit hash of each string. Hashes are only comparable within one process."""
    return np.frombuffer(array("q", map(hash, texts)), np.int64)


def digest(value: Buffer) -> bytes:
    """Return a hash of `DIGEST_BYTES` bytes that stands for a value in large sets."""
    return blake2b(value, digest_size=DIGEST_BYTES).digest()


class TextSet:
    """Set of strings that keeps only their digests in memory.

    Parameters
    ----------
    texts : iterable of str
        The members. They may contain surrogates, as names of files do that are not UTF-8.
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
    """Return the position in `known` of each number of `sought`, or -1 if the number is not in `known`.

    Equal numbers are paired in order: the first one in `sought` with the first one in `known`, and so on.
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
    """Return the numbers that occur in more than one list, each once, ascending."""
    return repeated(np.concatenate([np.unique(numbers) for numbers in lists]))


def repeated(numbers: IntArray) -> IntArray:
    """Return the numbers that occur more than once, each once, ascending."""
    ordered = np.sort(numbers)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
