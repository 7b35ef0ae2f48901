"""Pages and nodes of an LMDB file, checked (``mdb.c``: ``MDB_page``, ``MDB_node``)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from readers.formats.checks import take_bytes
from readers.formats.lmdb.meta import HEADER_BYTES, Corrupt
from readers.formats.mapping import ByteArray
from shardspec.columns import IntArray

BRANCH, LEAF, OVERFLOW = 1, 2, 4
"""Kinds of pages."""

NODE_BYTES = 8
"""Bytes of the four numbers that a node begins with."""

_SLOT_BYTES = 2


@dataclass(frozen=True)
class Pages:
    """Bounds checks of a page and its nodes before they are used.

    Attributes
    ----------
    bytes : int
        The size of a page.
    count : int
        The pages of the file.
    corrupt : callable
        Makes the error to raise, given what was expected and what was found.
    """

    bytes: int
    count: int
    corrupt: Corrupt

    def counts(self, heads: ByteArray, pages: npt.NDArray[np.integer], kind: int) -> IntArray:
        """Number of nodes of pages of one kind, given their headers, (n, HEADER_BYTES), and their numbers."""
        flags, lower = heads.view("<u2")[:, 5], heads.view("<u2")[:, 6].astype(np.int64)
        bad = (heads.view("<u8")[:, 0] != pages.astype(np.uint64)) | (flags != kind)
        if (bad | (lower < HEADER_BYTES + _SLOT_BYTES) | (lower > self.bytes)).any():
            raise self.corrupt("sound pages in the tree", "a damaged one")
        counts: IntArray = (lower - HEADER_BYTES) >> 1
        return counts

    def nodes(self, data: ByteArray, node: IntArray, page: IntArray, count: IntArray) -> tuple[IntArray, ...]:
        """The four numbers that nodes begin with. Numbers and keys must be after the slots of their pages."""
        place = node - page
        if ((place < HEADER_BYTES + 2 * count) | (place > self.bytes - NODE_BYTES) | (place & 1 == 1)).any():
            raise self.corrupt("nodes within their page", "others")
        numbers = take_bytes(data, node, NODE_BYTES).view("<u2").astype(np.int64)
        if (place + NODE_BYTES + numbers[:, 3] > self.bytes).any():
            raise self.corrupt("keys within their page", "others")
        return tuple(numbers.T)
