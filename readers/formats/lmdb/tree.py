"""The B-tree of a packed LMDB file, read from the file itself, which is mapped.

A shard's keys are known: for every row, every field, in the order of their bytes. So a key has an *ordinal*, and a leaf
page holds a run of ordinals; the branch pages say where each run begins. Only that directory is kept, and a batch of
keys is looked up by arithmetic on arrays. Every length and page number is checked before it is used, and every key is
compared. So a damaged file gives an error, where the C library, which trusts its pages, may crash the process.

The layout is that of LMDB 0.9, data format 1, 64 bits, little-endian (``mdb.c``: ``MDB_page``, ``MDB_node``,
``MDB_meta``).
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from readers.formats.checks import corrupt, take_bytes
from readers.formats.lmdb.meta import HEADER_BYTES, read_meta
from readers.formats.mapping import ByteArray
from shardspec.columns import IntArray
from shardspec.errors import ShardCorruptError

_NODE_BYTES = 8
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_BIG = 1
_NO_PAGE = 2**64 - 1
_DEPTH_MAX = 32
_ROW_DIGITS = 8
_PAGE = struct.Struct("<QHHH")
_OVERFLOW_PAGE = struct.Struct("<QHHI")
_NODE = struct.Struct("<4H")
_NUMBER = struct.Struct("<Q")
_KEYS_ONE_BY_ONE = 32
"""Up to this number of keys, plain Python is faster than arrays."""
_PAGES_AT_ONCE = 1024
"""Branch pages that are in memory at once."""

_POWERS = 10 ** np.arange(_ROW_DIGITS - 1, -1, -1)


@dataclass(frozen=True)
class Values:
    """Where values are in the file: two int64 arrays, (n,), bytes."""

    starts: IntArray
    sizes: IntArray


class LMDBTree:
    """The values of an LMDB file with the keys ``%08d/<name>``.

    Parameters
    ----------
    path : Path
        For messages.
    file : open file
        The branch pages are read from it, once: they lie all over the file, and the system maps some more, up to
        megabytes, around each page that is touched, so that nearly all of a shard would count as memory of the process.
    data : ndarray, (size,), uint8
        The file.
    rows : int
    names : sequence of str
        The field names.

    Raises
    ------
    ShardCorruptError
        If the file is not an LMDB file with these keys.
    """

    def __init__(self, path: Path, file: BinaryIO, data: ByteArray, rows: int, names: Sequence[str]) -> None:
        self._path = path
        self._data = data
        self._names = sorted(name.encode() for name in names)
        self._ranks = {name: rank for rank, name in enumerate(self._names)}
        meta = read_meta(data, rows * len(self._names), self._corrupt)
        self._page_bytes = int(meta["free"]["pad"])
        self._halves = data.view("<u2")
        self._leaves, self._firsts = self._directory(file, meta, rows * len(self._names))
        # Python gets single numbers out of these nearly as fast as out of lists, which would take five times the memory.
        self._leaf_numbers, self._first_ordinals = self._leaves.data, self._firsts.data
        self._view = data.data

    def locate(self, rows: IntArray, names: Sequence[str]) -> dict[str, Values]:
        """Where the values of some fields are, for some rows; all are within the file."""
        if len(rows) * len(names) <= _KEYS_ONE_BY_ONE:
            found = {name: [self._locate_one(row, name.encode()) for row in rows.tolist()] for name in names}
            return {name: Values(*np.array(pairs, np.int64).T) for name, pairs in found.items()}
        return self._locate_all(rows, names)

    def _locate_one(self, row: int, name: bytes) -> tuple[int, int]:
        """Start and size of one value, as by `_locate_all`, without the cost of setting up arrays."""
        view, page_bytes = self._view, self._page_bytes
        ordinal = row * len(self._names) + self._ranks[name]
        leaf = bisect_right(self._first_ordinals, ordinal) - 1
        number, index = self._leaf_numbers[leaf], ordinal - self._first_ordinals[leaf]
        page = number * page_bytes
        found, _, flags, lower = _PAGE.unpack_from(view, page)
        slots = HEADER_BYTES + 2 * index
        if found != number or flags != _LEAF or not slots < lower <= page_bytes:
            raise self._corrupt("sound pages in the tree", "a damaged one")
        place = view[page + slots] | view[page + slots + 1] << 8
        key = b"%08d/%b" % (row, name)
        start = place + _NODE_BYTES + len(key)
        if place < lower or place & 1 or start > page_bytes:
            raise self._corrupt("nodes within their page", "others")
        low, high, flags, key_bytes = _NODE.unpack_from(view, page + place)
        if key_bytes != len(key) or view[page + place + _NODE_BYTES : page + start] != key:
            raise self._corrupt("the keys in order", "another key")
        size = low | high << 16
        if flags > _BIG or start + (8 if flags else size) > page_bytes:
            raise self._corrupt("plain values within their page", "others")
        if not flags:
            return page + start, size
        (number,) = _NUMBER.unpack_from(view, page + start)
        page = number * page_bytes
        if page + page_bytes > len(view):
            raise self._corrupt("pages within the file", "a value on another")
        found, _, flags, span = _OVERFLOW_PAGE.unpack_from(view, page)
        span *= page_bytes
        if found != number or flags != _OVERFLOW or HEADER_BYTES + size > span or page + span > len(view):
            raise self._corrupt("large values on overflow pages of their own", "others")
        return page + HEADER_BYTES, size

    def leaves(self, rows: IntArray) -> Values:
        """Where the leaf pages are that hold the keys of rows."""
        ordinals = np.append(rows, rows + 1) * len(self._names)
        ordinals[len(rows) :] -= 1  # the row's last key may be on the next page
        places = self._leaves[np.searchsorted(self._firsts, ordinals, side="right") - 1] * self._page_bytes
        return Values(places, np.full(len(places), self._page_bytes))

    def foresee(self, rows: IntArray, names: Sequence[str]) -> Values:
        """Where the values of all names and rows will be found, without reading the pages of large ones."""
        starts, sizes, big = self._entries(rows, names)
        if big.any():
            starts[big] = self._pages(starts[big])
            sizes[big] += HEADER_BYTES
        return Values(starts, np.minimum(sizes, len(self._data) - starts))

    def _entries(self, rows: IntArray, names: Sequence[str]) -> tuple[IntArray, IntArray, npt.NDArray[np.bool_]]:
        """Start and size of what leaf pages hold for each name and row, names first; whether that is a page number."""
        ranks = [self._ranks[name.encode()] for name in names]
        ordinals = (rows * len(self._names) + np.array(ranks)[:, None]).ravel()
        key_bytes = np.repeat([_ROW_DIGITS + 1 + len(name) for name in names], len(rows))
        leaf = np.searchsorted(self._firsts, ordinals, side="right") - 1
        page = self._leaves[leaf] * self._page_bytes
        index = ordinals - self._firsts[leaf]
        count = self._counts(take_bytes(self._data, page, HEADER_BYTES), self._leaves[leaf], _LEAF)
        if (index >= count).any():
            raise self._corrupt("every key in its leaf page", "a shorter page")
        node = page + self._halves[(page >> 1) + HEADER_BYTES // 2 + index]
        low, high, flags, found_bytes = self._nodes(self._data, node, page, count)
        key = node + _NODE_BYTES
        if (found_bytes != key_bytes).any() or not self._are_keys(key, rows, names):
            raise self._corrupt("the keys in order", "another key")
        sizes, starts = low | high << 16, key + key_bytes
        self._check_inline(starts, sizes, flags, page)
        return starts, sizes, flags == _BIG

    def _locate_all(self, rows: IntArray, names: Sequence[str]) -> dict[str, Values]:
        starts, sizes, big = self._entries(rows, names)
        starts = self._follow(starts, sizes, big)
        shape = (len(names), len(rows))
        return {
            name: Values(*place)
            for name, *place in zip(names, starts.reshape(shape), sizes.reshape(shape), strict=True)
        }

    def _are_keys(self, places: IntArray, rows: IntArray, names: Sequence[str]) -> bool:
        """Whether the keys of some fields and rows are at some places."""
        digits = (rows[:, None] // _POWERS % 10 + ord("0")).astype(np.uint8)
        for name, place in zip(names, places.reshape(len(names), len(rows)), strict=True):
            suffix = np.frombuffer(b"/" + name.encode(), np.uint8)
            found = take_bytes(self._data, place, _ROW_DIGITS + len(suffix))
            if not (found[:, :_ROW_DIGITS] == digits).all() or not (found[:, _ROW_DIGITS:] == suffix).all():
                return False
        return True

    def _directory(self, file: BinaryIO, meta: Any, entries: int) -> tuple[IntArray, IntArray]:
        """Page numbers of the leaves, and the ordinal of the first key in each."""
        depth, root = int(meta["main"]["depth"]), int(meta["main"]["root"])
        if root == _NO_PAGE and entries == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        if not 1 <= depth <= _DEPTH_MAX or not self._is_page(root):
            raise self._corrupt("a tree with a root", f"depth {depth}, root {root}")
        leaves, firsts = np.array([root]), np.zeros(1, np.int64)
        for _ in range(depth - 1):
            leaves, firsts = self._children(file, leaves, firsts)
        if firsts[0] != 0 or bool((firsts[1:] <= firsts[:-1]).any()) or firsts[-1] >= entries:
            raise self._corrupt("leaf pages in the order of their keys", "another order")
        return np.ascontiguousarray(leaves), np.ascontiguousarray(firsts)

    def _children(self, file: BinaryIO, pages: IntArray, firsts: IntArray) -> tuple[IntArray, IntArray]:
        """Page numbers and first ordinals of the children of a level's branch pages, whose own first ordinals are given."""
        found, total = [], 0
        for start in range(0, len(pages), _PAGES_AT_ONCE):
            some = slice(start, start + _PAGES_AT_ONCE)
            found.append(self._children_of(self._read(file, pages[some]), pages[some], firsts[some]))
            total += len(found[-1][0])
            if total > len(self._data) // self._page_bytes:
                raise self._corrupt("every page once in the tree", "more")
        children, ordinals = zip(*found, strict=True)
        return np.concatenate(children), np.concatenate(ordinals)

    def _read(self, file: BinaryIO, pages: IntArray) -> ByteArray:
        """Some pages, one after another."""
        read = []
        for number in pages.tolist():
            file.seek(number * self._page_bytes)
            read.append(file.read(self._page_bytes))
        data = np.frombuffer(b"".join(read), np.uint8)
        if len(data) != len(pages) * self._page_bytes:
            raise self._corrupt(f"{len(self._data)} bytes", "fewer")
        return data

    def _children_of(self, data: ByteArray, pages: IntArray, firsts: IntArray) -> tuple[IntArray, IntArray]:
        """The children of the branch pages whose bytes are given."""
        starts = np.arange(len(pages)) * self._page_bytes
        counts = self._counts(take_bytes(data, starts, HEADER_BYTES), pages, _BRANCH)
        before = np.cumsum(counts) - counts
        page, count = np.repeat(starts, counts), np.repeat(counts, counts)
        index = np.arange(len(page)) - np.repeat(before, counts)
        node = page + data.view("<u2")[(page >> 1) + HEADER_BYTES // 2 + index]
        low, high, top, key_bytes = self._nodes(data, node, page, count)
        children: IntArray = low | high << 16 | top << 32
        outside = (children >= len(self._data) // self._page_bytes) | (children < 2)
        if outside.any():
            parent = int(np.repeat(pages, counts)[outside][0])
            raise self._corrupt("pages within the file", f"branch page {parent} with others")
        ordinals = np.empty(len(node), np.int64)
        further = index > 0  # the first key of a branch page is empty
        ordinals[before] = firsts
        ordinals[further] = self._ordinals(data, node[further] + _NODE_BYTES, key_bytes[further])
        return children, ordinals

    def _ordinals(self, data: ByteArray, places: IntArray, sizes: IntArray) -> IntArray:
        """The ordinals of the keys at some places of some pages."""
        ranks = np.full(len(places), -1, np.int64)
        for name, rank in self._ranks.items():
            suffix = np.frombuffer(b"/" + name, np.uint8)
            at = np.flatnonzero(sizes == _ROW_DIGITS + len(suffix))
            found = take_bytes(data, places[at] + _ROW_DIGITS, len(suffix))
            ranks[at[(found == suffix).all(axis=1)]] = rank
        if (ranks < 0).any():
            raise self._no_key(data, places[ranks < 0], sizes[ranks < 0])
        digits = take_bytes(data, places, _ROW_DIGITS) - np.uint8(ord("0"))
        bad = (digits > 9).any(axis=1)
        if bad.any():
            raise self._no_key(data, places[bad], sizes[bad])
        rows: IntArray = digits @ _POWERS
        return rows * len(self._names) + ranks

    def _no_key(self, data: ByteArray, places: IntArray, sizes: IntArray) -> ShardCorruptError:
        start, size = int(places[0]), int(sizes[0])
        return self._corrupt("keys such as 00000042/image", f"{data[start : start + size].tobytes()!r}")

    def _counts(self, heads: ByteArray, pages: IntArray, kind: int) -> IntArray:
        """Number of nodes of pages of one kind, given their headers, (n, HEADER_BYTES), and their numbers."""
        flags, lower = heads.view("<u2")[:, 5], heads.view("<u2")[:, 6].astype(np.int64)
        bad = (heads.view("<u8")[:, 0] != pages.astype(np.uint64)) | (flags != kind)
        if (bad | (lower <= HEADER_BYTES) | (lower > self._page_bytes)).any():
            raise self._corrupt("sound pages in the tree", "a damaged one")
        counts: IntArray = (lower - HEADER_BYTES) >> 1
        return counts

    def _nodes(self, data: ByteArray, node: IntArray, page: IntArray, count: IntArray) -> tuple[IntArray, ...]:
        """The four numbers that nodes begin with. Numbers and keys must be after the slots of their pages."""
        place = node - page
        if ((place < HEADER_BYTES + 2 * count) | (place > self._page_bytes - _NODE_BYTES) | (place & 1 == 1)).any():
            raise self._corrupt("nodes within their page", "others")
        numbers = take_bytes(data, node, _NODE_BYTES).view("<u2").astype(np.int64)
        if (place + _NODE_BYTES + numbers[:, 3] > self._page_bytes).any():
            raise self._corrupt("keys within their page", "others")
        return tuple(numbers.T)

    def _check_inline(self, starts: IntArray, sizes: IntArray, flags: IntArray, page: IntArray) -> None:
        held = np.where(flags == _BIG, 8, sizes)
        if bool((flags > _BIG).any()) or bool((starts + held > page + self._page_bytes).any()):
            raise self._corrupt("plain values within their page", "others")

    def _follow(self, starts: IntArray, sizes: IntArray, big: npt.NDArray[np.bool_]) -> IntArray:
        """Where values begin, including those on overflow pages."""
        if not big.any():
            return starts
        pages = self._pages(starts[big])
        heads = take_bytes(self._data, pages, HEADER_BYTES)
        spans = heads.view("<u4")[:, 3].astype(np.int64) * self._page_bytes
        sound = (heads.view("<u8")[:, 0] == pages // self._page_bytes) & (heads.view("<u2")[:, 5] == _OVERFLOW)
        inside = (HEADER_BYTES + sizes[big] <= spans) & (pages + spans <= len(self._data))
        if not (sound & inside).all():
            raise self._corrupt("large values on overflow pages of their own", "others")
        out = starts.copy()
        out[big] = pages + HEADER_BYTES
        return out

    def _pages(self, places: IntArray) -> IntArray:
        """Where the pages begin whose numbers are at some places."""
        numbers = take_bytes(self._data, places, 8).view("<u8")[:, 0]
        if (numbers >= len(self._data) // self._page_bytes).any():
            raise self._corrupt("pages within the file", "a value on another")
        pages: IntArray = numbers.astype(np.int64) * self._page_bytes
        return pages

    def _is_page(self, number: int) -> bool:
        return 2 <= number < len(self._data) // self._page_bytes

    def _corrupt(self, expected: str, found: str) -> ShardCorruptError:
        return corrupt(self._path, expected, found)
