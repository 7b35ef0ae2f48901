"""The B-tree of a packed LMDB file, read from the file itself, which is mapped.

A shard's keys are known: for every row, every field, in the order of their bytes. So a key has an *ordinal*, and a leaf
page holds a run of ordinals; the branch pages say where each run begins. Only that directory is kept
(`readers.formats.lmdb.directory`), and a batch of keys is looked up by arithmetic on arrays. Every length and page
number is checked before it is used, and every key is compared. So a damaged file gives an error, where the C library,
which trusts its pages, may crash the process.

The layout is that of LMDB 0.9, data format 1, 64 bits, little-endian (``mdb.c``: ``MDB_page``, ``MDB_node``,
``MDB_meta``).
"""

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from readers.formats.checks import corrupt, take_bytes
from readers.formats.lmdb.directory import POWERS, ROW_DIGITS, Directory
from readers.formats.lmdb.meta import HEADER_BYTES, read_meta
from readers.formats.lmdb.pages import LEAF, NODE_BYTES, OVERFLOW, Pages
from readers.formats.mapping import ByteArray
from shardspec.columns import IntArray
from shardspec.errors import ShardCorruptError

_BIG = 1
_PAGE = struct.Struct("<QHHH")
_OVERFLOW_PAGE = struct.Struct("<QHHI")
_NODE = struct.Struct("<4H")
_NUMBER = struct.Struct("<Q")
_KEYS_ONE_BY_ONE = 32
"""Up to this number of keys, plain Python is faster than arrays."""


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
    file : open file
        The branch pages are read from it.
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

    def __init__(self, path: Path, file: io.FileIO, data: ByteArray, rows: int, names: Sequence[str]) -> None:
        self._path = path
        self._data = data
        self._names = sorted(name.encode() for name in names)
        self._ranks = {name: rank for rank, name in enumerate(self._names)}
        entries = rows * len(self._names)
        meta = read_meta(data, entries, self._corrupt)
        self._page_bytes = int(meta["free"]["pad"])
        self._halves = data.view("<u2")
        self._pages = Pages(self._page_bytes, len(data) // self._page_bytes, self._corrupt)
        self._directory = Directory(path, file, data, self._pages, meta["main"], self._names, entries)
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
        number, index = self._directory.find_one(ordinal)
        page = number * page_bytes
        found, _, flags, lower = _PAGE.unpack_from(view, page)
        slots = HEADER_BYTES + 2 * index
        if found != number or flags != LEAF or not slots < lower <= page_bytes:
            raise self._corrupt("sound pages in the tree", "a damaged one")
        place = view[page + slots] | view[page + slots + 1] << 8
        key = b"%08d/%b" % (row, name)
        start = place + NODE_BYTES + len(key)
        if place < lower or place & 1 or start > page_bytes:
            raise self._corrupt("nodes within their page", "others")
        low, high, flags, key_bytes = _NODE.unpack_from(view, page + place)
        if key_bytes != len(key) or view[page + place + NODE_BYTES : page + start] != key:
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
        if found != number or flags != OVERFLOW or HEADER_BYTES + size > span or page + span > len(view):
            raise self._corrupt("large values on overflow pages of their own", "others")
        return page + HEADER_BYTES, size

    def leaves(self, rows: IntArray) -> Values:
        """Where the leaf pages are that hold the keys of rows."""
        ordinals = np.append(rows, rows + 1) * len(self._names)
        ordinals[len(rows) :] -= 1  # the row's last key may be on the next page
        places = self._directory.find(ordinals)[0] * self._page_bytes
        return Values(places, np.full(len(places), self._page_bytes))

    def foresee(self, rows: IntArray, names: Sequence[str]) -> Values:
        """Where the values of all names and rows will be found, without reading the pages of large ones."""
        starts, sizes, big = self._entries(rows, names)
        if big.any():
            starts[big] = self._large(starts[big])
            sizes[big] += HEADER_BYTES
        return Values(starts, np.minimum(sizes, len(self._data) - starts))

    def _entries(self, rows: IntArray, names: Sequence[str]) -> tuple[IntArray, IntArray, npt.NDArray[np.bool_]]:
        """Start and size of what leaf pages hold for each name and row, names first; whether that is a page number."""
        ranks = [self._ranks[name.encode()] for name in names]
        ordinals = (rows * len(self._names) + np.array(ranks)[:, None]).ravel()
        key_bytes = np.repeat([ROW_DIGITS + 1 + len(name) for name in names], len(rows))
        leaf, index = self._directory.find(ordinals)
        page = leaf * self._page_bytes
        count = self._pages.counts(take_bytes(self._data, page, HEADER_BYTES), leaf, LEAF)
        if (index >= count).any():
            raise self._corrupt("every key in its leaf page", "a shorter page")
        node = page + self._halves[(page >> 1) + HEADER_BYTES // 2 + index]
        low, high, flags, found_bytes = self._pages.nodes(self._data, node, page, count)
        key = node + NODE_BYTES
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
        """Return whether the keys of some fields and rows are at some places."""
        digits = (rows[:, None] // POWERS % 10 + ord("0")).astype(np.uint8)
        for name, place in zip(names, places.reshape(len(names), len(rows)), strict=True):
            suffix = np.frombuffer(b"/" + name.encode(), np.uint8)
            found = take_bytes(self._data, place, ROW_DIGITS + len(suffix))
            if not (found[:, :ROW_DIGITS] == digits).all() or not (found[:, ROW_DIGITS:] == suffix).all():
                return False
        return True

    def _check_inline(self, starts: IntArray, sizes: IntArray, flags: IntArray, page: IntArray) -> None:
        held = np.where(flags == _BIG, 8, sizes)
        if bool((flags > _BIG).any()) or bool((starts + held > page + self._page_bytes).any()):
            raise self._corrupt("plain values within their page", "others")

    def _follow(self, starts: IntArray, sizes: IntArray, big: npt.NDArray[np.bool_]) -> IntArray:
        """Where values begin, including those on overflow pages."""
        if not big.any():
            return starts
        pages = self._large(starts[big])
        heads = take_bytes(self._data, pages, HEADER_BYTES)
        spans = heads.view("<u4")[:, 3].astype(np.int64) * self._page_bytes
        sound = (heads.view("<u8")[:, 0] == pages // self._page_bytes) & (heads.view("<u2")[:, 5] == OVERFLOW)
        inside = (HEADER_BYTES + sizes[big] <= spans) & (pages + spans <= len(self._data))
        if not (sound & inside).all():
            raise self._corrupt("large values on overflow pages of their own", "others")
        out = starts.copy()
        out[big] = pages + HEADER_BYTES
        return out

    def _large(self, places: IntArray) -> IntArray:
        """Where the pages begin whose numbers are at some places."""
        numbers = take_bytes(self._data, places, 8).view("<u8")[:, 0]
        if (numbers >= self._pages.count).any():
            raise self._corrupt("pages within the file", "a value on another")
        pages: IntArray = numbers.astype(np.int64) * self._page_bytes
        return pages

    def _corrupt(self, expected: str, found: str) -> ShardCorruptError:
        return corrupt(self._path, expected, found)
