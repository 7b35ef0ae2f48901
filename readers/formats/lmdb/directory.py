"""Where the leaf pages of a packed LMDB file are, and which keys each holds: what its branch pages say."""

import io
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from readers.formats.checks import take_bytes
from readers.formats.lmdb.meta import HEADER_BYTES
from readers.formats.lmdb.pages import BRANCH, NODE_BYTES, Pages
from readers.formats.mapping import ByteArray, opened
from shardspec.columns import IntArray
from shardspec.errors import DatasetError, ShardCorruptError

ROW_DIGITS = 8
"""Digits of the row in a key."""

POWERS = 10 ** np.arange(ROW_DIGITS - 1, -1, -1)
"""What the digits count."""

_NO_PAGE = 2**64 - 1
_DEPTH_MAX = 32
_PAGES_AT_ONCE = 1024
"""Branch pages that are in memory at once."""

_AT_OPENING = 4
"""Up to so many of the lowest branch pages are read when the file is opened; of more, those that are needed, when they
are needed: a first batch of scattered rows needs a few of the thousands that the shards of a large dataset have."""

_MANY = 8
"""Once one in so many was needed, all are read."""


class _Known(NamedTuple):
    """The leaves below the branch pages that were read, by their first ordinals. It is replaced whole, never changed.

    Attributes
    ----------
    leaves, firsts : (n,) int32 or int64
        The numbers of the pages, and the ordinal of the first key in each.
    leaf_numbers, first_ordinals : memoryview
        The same: Python gets single numbers out of these nearly as fast as out of lists.
    read : (m,) bool, or None
        Of which of the lowest branch pages; None if of all.
    """

    leaves: npt.NDArray[Any]
    firsts: npt.NDArray[Any]
    leaf_numbers: memoryview
    first_ordinals: memoryview
    read: npt.NDArray[np.bool_] | None


class Directory:
    """Finds the leaf page of a key by its ordinal.

    The branch pages are read from the file, not through its mapping: they lie all over the file, and the system maps
    some more, up to megabytes, around each page that is touched, so that nearly all of a shard would count as memory of
    the process. Safe to use from several threads.

    Parameters
    ----------
    path : Path
        It is opened again where more branch pages are needed. If another file has this name by then, they are read
        through the mapping.
    file : open file
    data : ndarray, (size,), uint8
        The file, mapped.
    pages : Pages
    tree : numpy.void
        The entry of the tree in the file's meta page.
    names : sequence of bytes
        The field names, sorted.
    entries : int
        Number of keys.

    Raises
    ------
    ShardCorruptError
        If the branch pages are not those of a tree with these keys, as far as they are read.
    """

    def __init__(
        self,
        path: Path,
        file: io.FileIO,
        data: ByteArray,
        pages: Pages,
        tree: Any,
        names: Sequence[bytes],
        entries: int,
    ) -> None:
        self._path, self._data, self._pages = path, data, pages
        self._identity = _identity(file)
        self._ranks = {name: rank for rank, name in enumerate(names)}
        self._dtype = np.dtype(np.int32 if max(entries, pages.count) <= np.iinfo(np.int32).max else np.int64)
        depth, root = int(tree["depth"]), int(tree["root"])
        self._ends = np.array([entries])
        self._branches = self._firsts = np.empty(0, np.int64)
        if root == _NO_PAGE and entries == 0:
            self._known = self._know([], None)
            return
        if not 1 <= depth <= _DEPTH_MAX or not 2 <= root < pages.count:
            raise pages.corrupt("a tree with a root", f"depth {depth}, root {root}")
        level, firsts, ends = np.array([root]), np.zeros(1, np.int64), self._ends
        if depth == 1:
            self._known = self._know([(level, firsts)], None)
            return
        read = _reading(file, pages.bytes)
        for _ in range(depth - 2):
            level, firsts = self._children(read, level, firsts, ends)
            ends = np.append(firsts[1:], entries)
        self._branches, self._firsts, self._ends = level, firsts, ends
        self._known = self._know([], np.zeros(len(level), np.bool_))
        if len(level) <= _AT_OPENING:
            self._known = self._read_further(read, np.arange(len(level)), self._known)

    def find(self, ordinals: IntArray) -> tuple[IntArray, IntArray]:
        """The numbers of the leaf pages that hold some keys, and the keys' places in the order of each page."""
        known = self._known
        if known.read is not None:
            branches = np.searchsorted(self._firsts, ordinals, side="right") - 1
            if not known.read[branches].all():
                known = self._read_needed(known, branches)
        leaf = np.searchsorted(known.firsts, ordinals.astype(self._dtype), side="right") - 1
        return known.leaves[leaf].astype(np.int64), ordinals - known.firsts[leaf]

    def find_one(self, ordinal: int) -> tuple[int, int]:
        """The same for one key."""
        known = self._known
        if known.read is not None:
            branch = int(np.searchsorted(self._firsts, ordinal, side="right")) - 1
            if not known.read[branch]:
                known = self._read_needed(known, np.array([branch]))
        leaf = bisect_right(known.first_ordinals, ordinal) - 1
        return known.leaf_numbers[leaf], ordinal - known.first_ordinals[leaf]

    def _read_needed(self, known: _Known, branches: IntArray) -> _Known:
        """Read some branch pages, or all of them if that is many, and return the updated knowledge."""
        assert known.read is not None
        wanted = known.read.copy()
        wanted[branches] = True
        if wanted.sum() * _MANY >= len(wanted):
            wanted[:] = True
        with self._open() as read:
            # Other threads may do the same meanwhile; what the last one has read is kept, and is right.
            found = self._known = self._read_further(read, np.flatnonzero(wanted & ~known.read), known)
        return found

    def _read_further(self, read: "_Read", branches: IntArray, known: _Known) -> _Known:
        assert known.read is not None
        done = known.read.copy()
        done[branches] = True
        parts = [(known.leaves, known.firsts)] if len(known.leaves) else []
        for start in range(0, len(branches), _PAGES_AT_ONCE):
            some = branches[start : start + _PAGES_AT_ONCE]
            parts.append(self._children(read, self._branches[some], self._firsts[some], self._ends[some]))
        return self._know(parts, None if done.all() else done)

    def _know(self, parts: Sequence[tuple[IntArray, IntArray]], read: npt.NDArray[np.bool_] | None) -> _Known:
        """Parts of the directory as one."""
        none = np.empty(0, self._dtype)
        leaves = np.concatenate([none, *(leaves.astype(self._dtype) for leaves, _ in parts)])
        firsts = np.concatenate([none, *(firsts.astype(self._dtype) for _, firsts in parts)])
        if len(parts) > 1:
            ascending = np.argsort(firsts, kind="stable")
            leaves, firsts = leaves[ascending], firsts[ascending]
        return _Known(leaves, firsts, leaves.data, firsts.data, read)

    @contextmanager
    def _open(self) -> "Iterator[_Read]":
        """Pages of the file again: by its name, if it is still this file's, and otherwise from the mapping."""
        page_bytes = self._pages.bytes
        with ExitStack() as stack:
            try:
                file = stack.enter_context(opened(self._path))
            except DatasetError:
                file = None
            if file is not None and _identity(file) == self._identity:
                yield _reading(file, page_bytes)
            else:
                yield lambda number: self._data[number * page_bytes : (number + 1) * page_bytes].tobytes()

    def _children(self, read: "_Read", pages: IntArray, firsts: IntArray, ends: IntArray) -> tuple[IntArray, IntArray]:
        """Page numbers and first ordinals of the children of branch pages.

        Parameters
        ----------
        firsts, ends : int64 arrays
            The ordinals that the keys below each page begin with, and end before.
        """
        found, total = [], 0
        for start in range(0, len(pages), _PAGES_AT_ONCE):
            some = slice(start, start + _PAGES_AT_ONCE)
            found.append(self._children_of(self._join(read, pages[some]), pages[some], firsts[some], ends[some]))
            total += len(found[-1][0])
            if total > self._pages.count:
                raise self._pages.corrupt("every page once in the tree", "more")
        children, ordinals = zip(*found, strict=True)
        return np.concatenate(children), np.concatenate(ordinals)

    def _join(self, read: "_Read", pages: IntArray) -> ByteArray:
        """Some pages, one after another."""
        data = np.frombuffer(b"".join(map(read, pages.tolist())), np.uint8)
        if len(data) != len(pages) * self._pages.bytes:
            raise self._pages.corrupt(f"{len(self._data)} bytes", "fewer")
        return data

    def _children_of(
        self, data: ByteArray, pages: IntArray, firsts: IntArray, ends: IntArray
    ) -> tuple[IntArray, IntArray]:
        """The children of the branch pages whose bytes are given."""
        starts = np.arange(len(pages)) * self._pages.bytes
        counts = self._pages.counts(take_bytes(data, starts, HEADER_BYTES), pages, BRANCH)
        before = np.cumsum(counts) - counts
        page, count = np.repeat(starts, counts), np.repeat(counts, counts)
        index = np.arange(len(page)) - np.repeat(before, counts)
        node = page + data.view("<u2")[(page >> 1) + HEADER_BYTES // 2 + index]
        low, high, top, key_bytes = self._pages.nodes(data, node, page, count)
        children: IntArray = low | high << 16 | top << 32
        outside = (children >= self._pages.count) | (children < 2)
        if outside.any():
            parent = int(np.repeat(pages, counts)[outside][0])
            raise self._pages.corrupt("pages within the file", f"branch page {parent} with others")
        ordinals = np.empty(len(node), np.int64)
        further = index > 0  # the first key of a branch page is empty
        ordinals[before] = firsts
        ordinals[further] = self._ordinals(data, node[further] + NODE_BYTES, key_bytes[further])
        rising = (ordinals[1:] > ordinals[:-1])[further[1:]]
        if not rising.all() or (ordinals[before + counts - 1] >= ends).any():
            raise self._pages.corrupt("pages in the order of their keys", "another order")
        return children, ordinals

    def _ordinals(self, data: ByteArray, places: IntArray, sizes: IntArray) -> IntArray:
        """The ordinals of the keys at some places of some pages."""
        ranks = np.full(len(places), -1, np.int64)
        for name, rank in self._ranks.items():
            suffix = np.frombuffer(b"/" + name, np.uint8)
            at = np.flatnonzero(sizes == ROW_DIGITS + len(suffix))
            found = take_bytes(data, places[at] + ROW_DIGITS, len(suffix))
            ranks[at[(found == suffix).all(axis=1)]] = rank
        if (ranks < 0).any():
            raise self._no_key(data, places[ranks < 0], sizes[ranks < 0])
        digits = take_bytes(data, places, ROW_DIGITS) - np.uint8(ord("0"))
        bad = (digits > 9).any(axis=1)
        if bad.any():
            raise self._no_key(data, places[bad], sizes[bad])
        rows: IntArray = digits @ POWERS
        return rows * len(self._ranks) + ranks

    def _no_key(self, data: ByteArray, places: IntArray, sizes: IntArray) -> ShardCorruptError:
        start, size = int(places[0]), int(sizes[0])
        return self._pages.corrupt("keys such as 00000042/image", f"{data[start : start + size].tobytes()!r}")


_Read = Callable[[int], bytes]
"""Gives a page by its number."""


def _reading(file: io.FileIO, page_bytes: int) -> _Read:
    """Pages of an open file."""

    def read(number: int) -> bytes:
        file.seek(number * page_bytes)
        return file.read(page_bytes)

    return read


def _identity(file: io.FileIO) -> tuple[int, ...]:
    """Return an identity of an open file that is independent of its name and changes when it is written."""
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
