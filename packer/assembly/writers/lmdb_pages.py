"""The pages of an LMDB file, written front to back: the very bytes of the library's compacted copy, in one pass.

The library needs four for them: values are copied into pages in memory, those are written to a file, that is read, and
its pages are written to another one. What it leaves in a page between the keys and the nodes is part of the bytes, so
its memory is followed, too (``mdb.c`` 0.9: ``mdb_cursor_put``, ``mdb_page_split``, ``mdb_env_cwalk``): a page that was
needed only for a moment is used again as it is, and pages are gathered in two buffers, in turn, whose old bytes show
wherever a page has none.
"""

import os
import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import sub
from typing import Any

from packer.workspace.durable import write_all
from shardspec.columns import Buffer

_HEADER, _OVERFLOW_HEADER = struct.Struct("<QHHHH"), struct.Struct("<QHHI")
_NODE = struct.Struct("<IHH")
_CHILD = struct.Struct("<HHHH")
_PAGE_NUMBER = struct.Struct("<Q")
_PLACE = struct.Struct("<H")
_META = struct.Struct("<IIQQ IHHQQQQQ IHHQQQQQ QQ")
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_BIG = 1
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_FLAGS = 0x4000 | 0x08
"""Of the environment: a file and no folder; and of its tree of free pages: its keys are integers."""
_NO_PAGE = 2**64 - 1
_NUMBER_TO_COME = bytes(_PAGE_NUMBER.size)
_BUFFER = 1 << 20
_METAS = 2
_WAITING_BYTES = 1 << 22
_MOST_DIRTY = (1 << 17) - 1
"""So many pages, or runs of pages, the library holds in memory; before it has more, it begins to write some."""


class _Page:
    """A page with keys, as it lies in the library's memory, and the number that it has there."""

    def __init__(self, memory: bytearray, number: int) -> None:
        self.memory = memory
        self.number = number
        self.lower, self.upper = _HEADER.size, len(memory)
        self.children: list[int] = []
        """Of a branch: the numbers of its finished children in the file."""

    def __len__(self) -> int:
        return (self.lower - _HEADER.size) // 2

    def node(self, place: int) -> int:
        """Where a node begins."""
        return int(_PLACE.unpack_from(self.memory, _HEADER.size + 2 * place)[0])

    def key(self, place: int) -> bytes:
        """The key of a branch's node."""
        start = self.node(place) + _CHILD.size
        return bytes(self.memory[start : start + _CHILD.unpack_from(self.memory, start - _CHILD.size)[3]])

    def child(self, place: int) -> int:
        """The number of a branch's child."""
        low, middle, high, _ = _CHILD.unpack_from(self.memory, self.node(place))
        return int(low | middle << 16 | high << 32)

    def has_room(self, key: bytes) -> bool:
        """Return whether a branch has room for one more child."""
        return self.upper - self.lower >= _CHILD.size + len(key) + 2

    def add_nodes(self, pieces: Sequence[Buffer], sizes: Sequence[int]) -> None:
        """Add some nodes, the last ones.

        Parameters
        ----------
        pieces : sequence of bytes-like
            What they consist of, back to front.
        sizes : sequence of int
            Bytes of each, front to back.
        """
        places = [*accumulate(sizes, sub, initial=self.upper)][1:]
        data = b"".join(reversed(pieces))
        self.memory[self.upper - len(data) : self.upper] = data
        struct.pack_into(f"<{len(places)}H", self.memory, self.lower, *places)
        self.upper -= len(data)
        self.lower += _PLACE.size * len(places)

    def add_child(self, key: bytes, number: int) -> None:
        """Add the last child of a branch."""
        size = _CHILD.size + len(key)
        self.upper = start = self.upper - size - (size & 1)
        _PLACE.pack_into(self.memory, self.lower, start)
        self.lower += _PLACE.size
        _pack_child(self.memory, start, number, len(key))
        self.memory[start + _CHILD.size : start + _CHILD.size + len(key)] = key


class LMDBPages:
    """Writes a file of entries whose keys ascend, as `lmdb` copies an environment with one transaction.

    Parameters
    ----------
    descriptor : int
        The empty file, open for writing.
    page_bytes : int
        The system's page size.
    map_bytes : int
    """

    def __init__(self, descriptor: int, page_bytes: int, map_bytes: int) -> None:
        self._descriptor = descriptor
        self._page_bytes = page_bytes
        self._map_bytes = map_bytes
        self._most_node = most_node(page_bytes)
        self._spare: list[bytearray] = []
        self._pages = _METAS  # of the library's own file
        self._leaf: _Page | None = None
        self._big: list[tuple[int, Any, bytearray | None]] = []
        self._branch: _Page | None = None
        self._root: _Page | None = None
        self._entries = self._branches = self._leaves = self._overflow = 0
        # The copy.
        self._buffers = (bytearray(_BUFFER), bytearray(_BUFFER))
        self._buffer, self._filled = 0, _METAS * page_bytes
        self._next = _METAS
        self._waiting: list[Buffer] = []
        self._waiting_bytes = 0
        meta = self._meta(0, 1, _NO_PAGE, 0)
        self._buffers[0][: len(meta)] = meta
        # The second meta page is known at last, so where its old bytes show is noted.
        self._seen: tuple[int, int] = (0, _HEADER.size + _META.size)
        self._patches: list[tuple[int, int, int]] = []

    def put(self, entries: Iterable[tuple[bytes, Buffer]]) -> None:
        """Append entries. Values may be needed until `flush`."""
        leaf, room = self._leaf, 0 if self._leaf is None else self._leaf.upper - self._leaf.lower
        # What lies in a page comes last to first, so its nodes are put together when all are known.
        pieces, sizes = list[Buffer](), list[int]()
        for key, value in entries:
            size = end = _NODE.size + len(key) + len(value)
            big = size > self._most_node
            if big:
                size = end = _NODE.size + len(key) + _PAGE_NUMBER.size
            size += size & 1
            if leaf is None or room < size + _PLACE.size:
                if leaf is not None:
                    leaf.add_nodes(pieces, sizes)
                leaf, pieces, sizes = self._begin_leaf(key), [], []
                room = leaf.upper - leaf.lower
            room -= size + _PLACE.size
            start = leaf.lower + room + _PLACE.size * (len(sizes) + 1)
            sizes.append(size)
            if size > end:
                pieces.append(leaf.memory[start + end : start + size])
            if big:
                pages = -(-(_HEADER.size + len(value)) // self._page_bytes)
                self._pages += pages
                self._overflow += pages
                spare = self._spare.pop() if pages == 1 and self._spare else None
                self._big.append((start + end - _PAGE_NUMBER.size, value, spare))
            pieces.append(_NUMBER_TO_COME if big else value)
            pieces.append(_NODE.pack(len(value), _BIG if big else 0, len(key)) + key)
            self._entries += 1
        if leaf is not None:
            leaf.add_nodes(pieces, sizes)

    def flush(self) -> None:
        """Write what can be written, and need no value of before any longer."""
        self._write_waiting()
        self._big = [(start, bytes(value), page) for start, value, page in self._big]

    def finish(self) -> None:
        """Write the rest of the file."""
        if self._leaf is not None:
            self._copy_leaf(self._leaf, self._branch)
            for branch, parent in ((self._branch, self._root), (self._root, None)):
                if branch is not None:
                    self._copy_branch(branch, parent)
        self._toggle()
        self._write_waiting()
        depth = sum(page is not None for page in (self._leaf, self._branch, self._root))
        root, transaction = (self._next - 1, 1) if depth else (_NO_PAGE, 0)
        meta = self._meta(1, max(1, self._next - 1), root, depth, transaction)
        for offset, data in (
            (0, self._meta(0, 1, _NO_PAGE, 0)),
            (self._page_bytes, meta),
            *((page * self._page_bytes + first, meta[first:last]) for page, first, last in self._patches),
        ):
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            write_all(self._descriptor, [data])

    # The tree, as the library builds it in memory.

    def _new_page(self) -> _Page:
        memory = self._spare.pop() if self._spare else bytearray(self._page_bytes)
        self._pages += 1
        return _Page(memory, self._pages - 1)

    def _begin_leaf(self, key: bytes) -> _Page:
        """Begin the next leaf, whose first key this is, and copy the one before."""
        before, leaf = self._leaf, self._new_page()
        self._leaves += 1
        if before is not None:
            if self._branch is None:
                self._branch = self._new_branch()
                self._branch.add_child(b"", before.number)
            if self._branch.has_room(key):
                self._branch.add_child(key, leaf.number)
            else:
                self._split(self._branch, key, leaf.number)
            self._copy_leaf(before, self._branch)
        self._leaf = leaf
        return leaf

    def _new_branch(self) -> _Page:
        self._branches += 1
        return self._new_page()

    def _split(self, branch: _Page, key: bytes, number: int) -> None:
        """Move the last child of a full branch to a new one, together with the next child, and copy the full one."""
        right = self._new_branch()
        if self._root is None:
            self._root = self._new_branch()
            self._root.add_child(b"", branch.number)
        copy = _Page(self._spare.pop() if self._spare else bytearray(self._page_bytes), branch.number)
        count = len(branch)
        places = slice(_HEADER.size, _HEADER.size + 2 * count)
        copy.memory[places] = branch.memory[places]
        assert self._root.has_room(branch.key(count - 1))
        self._root.add_child(branch.key(count - 1), right.number)
        right.add_child(b"", branch.child(count - 1))
        right.add_child(key, number)
        for place in range(count - 1):
            copy.add_child(branch.key(place) if place else b"", branch.child(place))
        branch.lower, branch.upper = copy.lower, copy.upper
        for part in (slice(_HEADER.size, copy.lower), slice(copy.upper, self._page_bytes)):
            branch.memory[part] = copy.memory[part]
        self._spare.append(copy.memory)
        self._branch = right
        self._copy_branch(branch, self._root)

    # The compacted copy: children before their parents.

    def _copy_leaf(self, leaf: _Page, parent: _Page | None) -> None:
        for start, value, page in self._big:
            _PAGE_NUMBER.pack_into(leaf.memory, start, self._next)
            self._copy_value(value, page)
        self._big = []
        self._copy_page(leaf, _LEAF, leaf.memory, parent)

    def _copy_branch(self, branch: _Page, parent: _Page | None) -> None:
        memory = bytearray(branch.memory)
        for place, number in enumerate(branch.children):
            start = branch.node(place)
            _pack_child(memory, start, number, _CHILD.unpack_from(memory, start)[3])
        self._copy_page(branch, _BRANCH, memory, parent)

    def _copy_page(self, page: _Page, kind: int, memory: bytearray, parent: _Page | None) -> None:
        """Copy a page without what lies between keys and nodes, 8 bytes at a time."""
        _HEADER.pack_into(memory, 0, self._next, 0, kind, page.lower, page.upper)
        if page.upper - page.lower >= 8:
            first, last = (page.lower + 7) & -8, page.upper & -8
        else:
            first = last = self._page_bytes
        buffer, at = self._room()
        buffer[at : at + first] = memory[:first]
        buffer[at + last : at + self._page_bytes] = memory[last:]
        if at == self._page_bytes:
            self._cover(first, last)
        if parent is not None:
            parent.children.append(self._next)
        self._next += 1
        self._filled += self._page_bytes

    def _copy_value(self, value: Buffer, page: bytearray | None) -> None:
        view, size = memoryview(value), self._page_bytes
        pages = -(-(_HEADER.size + len(view)) // size)
        buffer, at = self._room()
        _OVERFLOW_HEADER.pack_into(buffer, at, self._next, 0, _OVERFLOW, pages)
        head = view[: size - _HEADER.size]
        end = at + _HEADER.size + len(head)
        buffer[at + _HEADER.size : end] = head
        if end < at + size:
            rest = at + size - end
            buffer[end : at + size] = bytes(rest) if page is None else page[-rest:]
        if at == size:
            self._cover(size, size)
        self._filled += size
        self._next += pages
        if pages > 1:
            tail = view[len(head) :]
            self._toggle(tail, bytes((pages - 1) * size - len(tail)))

    def _room(self) -> tuple[bytearray, int]:
        """The buffer for the next page, and its place in it."""
        if self._filled >= _BUFFER:
            self._toggle()
        return self._buffers[self._buffer], self._filled

    def _cover(self, first: int, last: int) -> None:
        """Note where the second meta page, its buffer's old bytes, shows between two places of the next page."""
        if self._buffer:
            return
        self._seen = max(first, self._seen[0]), min(last, self._seen[1])
        if self._seen[0] < self._seen[1]:
            self._patches.append((self._next, *self._seen))

    def _toggle(self, *more: Buffer) -> None:
        """Pass on what is in the buffer, and what comes after it, and go on with the other one."""
        pieces = [bytes(memoryview(self._buffers[self._buffer])[: self._filled]), *more]
        self._waiting += pieces
        self._waiting_bytes += sum(map(len, pieces))
        self._buffer, self._filled = 1 - self._buffer, 0
        if self._waiting_bytes >= _WAITING_BYTES:
            self._write_waiting()

    def _write_waiting(self) -> None:
        write_all(self._descriptor, self._waiting)
        self._waiting, self._waiting_bytes = [], 0

    def _meta(self, number: int, last: int, root: int, depth: int, transaction: int = 0) -> bytes:
        """A meta page up to its last byte that is used."""
        pages = (self._branches, self._leaves, self._overflow, self._entries) if depth else (0, 0, 0, 0)
        return _HEADER.pack(number, 0, _META_PAGE, 0, 0) + _META.pack(
            *(_MAGIC, _VERSION, 0, self._map_bytes),
            *(self._page_bytes, _FLAGS, 0, 0, 0, 0, 0, _NO_PAGE),
            *(0, 0, depth, *pages, root),
            *(last, transaction),
        )


def most_node(page_bytes: int) -> int:
    """The largest node of a leaf; the value of a larger one gets pages of its own."""
    return ((page_bytes - _HEADER.size) // 2 & -2) - 2


def can_follow(page_bytes: int, entries: int, node_bytes: int, large: int, largest: int, key_bytes: int) -> bool:
    """Return whether `LMDBPages` follows the library: up to three levels, and as long as that holds all pages in memory.

    Parameters
    ----------
    page_bytes : int
    entries : int
    node_bytes : int
        The most bytes of values that lie in leaves, and of all keys.
    large : int
        The most values that have pages of their own.
    largest : int
        Bytes of the largest.
    key_bytes : int
        Those of the longest key.
    """
    room = page_bytes - _HEADER.size
    # Appending fills a page until the next node does not fit, so half of every leaf is used.
    leaves = 1 + 2 * (node_bytes + entries * (_NODE.size + _PAGE_NUMBER.size + 3)) // room
    needed = 2 * (4 + (_NODE.size + key_bytes + largest + page_bytes) // page_bytes)
    children = room // (_CHILD.size + key_bytes + 3)
    return leaves < (children - 1) ** 2 and large + 2 * leaves + needed < _MOST_DIRTY


def _pack_child(memory: bytearray, start: int, number: int, key_bytes: int) -> None:
    _CHILD.pack_into(memory, start, number & 0xFFFF, number >> 16 & 0xFFFF, number >> 32, key_bytes)
