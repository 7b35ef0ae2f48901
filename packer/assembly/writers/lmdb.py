"""Write shards in the format lmdb: one single-file LMDB environment per shard."""

import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import numpy as np

from packer.assembly.writers.base import IndexWriter, ShardSize, block_rows_of, check_rows, count_rows
from packer.workspace.durable import write_all
from shardspec.columns import Buffer, Columns, fixed_bytes
from shardspec.errors import BuildError
from shardspec.schema import Schema

BLOCK_BYTES = 1 << 20
"""Encoded bytes per block, which only makes disk reads sequential. Reading a single row is cheap in this format."""

_KEY_DIGITS = 8
_ROWS_MAX = 10**_KEY_DIGITS


_HEADER, _OVERFLOW_HEADER = struct.Struct("<QHHHH"), struct.Struct("<QHHI")
_NODE = struct.Struct("<IHH")
_PAGE_NUMBER, _PLACE = struct.Struct("<Q"), struct.Struct("<H")
_META = struct.Struct("<IIQQ IHHQQQQQ IHHQQQQQ QQ")
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_BIG = 1
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_FLAGS = 0x4000 | 0x08
"""Flags of the environment (a file instead of a folder), and of the tree of free pages (keys are integers)."""
_NO_PAGE = 2**64 - 1
_METAS = 2
_WAITING_BYTES = 1 << 22


class LMDBShardWriter:
    """Writes one LMDB file (`packer.assembly.writers.base`): key ``00000042/landmarks`` → the value's encoded bytes."""

    def __init__(self, folder: Path, name: str, schema: Schema, size: ShardSize) -> None:
        if size.samples >= _ROWS_MAX:
            raise BuildError(place=name, expected=f"less than {_ROWS_MAX} rows in a shard", found=size.samples)
        self.block_rows = block_rows_of(size, BLOCK_BYTES)
        self._name = name
        self._size = size
        self._schema = schema
        self._names = sorted(schema.names)
        self._rows = 0
        self._index = IndexWriter("lmdb", schema, size.samples)
        self._path = folder / f"{name}.lmdb"
        with self._writing():
            self._file = self._path.open("xb", buffering=0)
            self._pages = LMDBPages(self._file.fileno(), mmap.PAGESIZE)

    def write(self, rows: Columns) -> None:
        """Append rows."""
        count = count_rows(self._schema, rows)
        with self._writing():
            self._pages.put(self._entries(rows, count))
        self._rows += count

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn write errors into a `BuildError`."""
        try:
            yield
        except OSError as error:
            raise BuildError(f"cannot be written: {error.strerror or error}", place=self._path) from error

    def _entries(self, rows: Columns, count: int) -> Iterator[tuple[bytes, Buffer]]:
        """Yield the keys and values of some rows, in the order of the keys."""
        columns = [
            (name.encode(), _split(fixed_bytes(rows[name]), count) if self._schema[name].is_fixed else rows[name])
            for name in self._names
        ]
        for row in range(count):
            prefix = b"%08d/" % (self._rows + row)
            for name, values in columns:
                yield prefix + name, values[row]

    def close(self) -> None:
        """Finish the files."""
        with self._writing(), self._file:
            self._pages.finish()
        check_rows(self._name, self._size, self._rows)
        with self._writing():
            self._write_index()

    def _write_index(self) -> None:
        shape = (self._rows, len(self._names))
        starts, sizes = (
            np.array(numbers, np.int64).reshape(shape) for numbers in (self._pages.starts, self._pages.sizes)
        )
        for column, name in enumerate(self._names):
            varying = {} if self._schema[name].is_fixed else {"sizes": sizes[:, column]}
            self._index.add(name, starts=starts[:, column], **varying)
        self._index.write(self._path, self.block_rows)


def _split(data: memoryview, count: int) -> list[memoryview]:
    """Cut bytes into equal parts."""
    step = len(data) // count if count else 0
    return [data[row * step : (row + 1) * step] for row in range(count)]


class LMDBPages:
    """Writes an LMDB file front to back in one pass. The keys of the entries must ascend.

    The library would need four passes: copy the values into pages in memory, write these to a file, read the file, and
    write its pages to a compacted copy. The layout is that of LMDB 0.9, data format 1, 64 bits, little-endian
    (``mdb.c``: ``MDB_page``, ``MDB_node``, ``MDB_meta``). Unused bytes are zeros.

    Parameters
    ----------
    descriptor : int
        The empty file, open for writing.
    page_bytes : int
        The system's page size.

    Attributes
    ----------
    starts, sizes : list of int
        Offset and size of each entry's value in the file.
    """

    def __init__(self, descriptor: int, page_bytes: int) -> None:
        self.starts: list[int] = []
        self.sizes: list[int] = []
        self._descriptor, self._page_bytes = descriptor, page_bytes
        self._most_node = ((page_bytes - _HEADER.size) // 2 & -2) - 2
        self._next = _METAS
        self._waiting: list[Buffer] = [bytes(_METAS * page_bytes)]
        self._waiting_bytes = 0
        self._room = 0
        self._nodes: list[bytes] = []
        self._inline: list[tuple[int, int]] = []
        """For each node that holds its value: the entry, and the size of the leaf up to the end of the node."""
        self._first_key = b""
        self._levels: list[list[tuple[bytes, int]]] = []
        """First keys and numbers of the finished pages without a parent, by level from the leaves up."""
        self._levels_used: list[int] = []
        """Size of the branch page that would hold the waiting pages, by level."""
        self._branches = self._leaves = self._overflow = 0

    def put(self, entries: Iterable[tuple[bytes, Buffer]]) -> None:
        """Append entries. The caller may reuse the buffers of the values afterwards."""
        for key, value in entries:
            size, big = _NODE.size + len(key) + len(value), False
            if size > self._most_node:
                size, big = _NODE.size + len(key) + _PAGE_NUMBER.size, True
            size += size & 1
            if self._room < size + _PLACE.size:
                self._end_leaf()
                self._first_key, self._room = key, self._page_bytes - _HEADER.size
            self._room -= size + _PLACE.size
            self.sizes.append(len(value))
            head = _NODE.pack(len(value), _BIG if big else 0, len(key)) + key
            if big:
                self.starts.append(self._next * self._page_bytes + _HEADER.size)
                node = head + _PAGE_NUMBER.pack(self._next)
                self._add_overflow(value)
            else:
                self._inline.append((len(self.starts), len(self._nodes)))
                self.starts.append(len(head))
                node = head + value
            self._nodes.append(node.ljust(size, b"\0"))
        self._write_waiting()

    def finish(self) -> None:
        """Write the rest of the file."""
        self._end_leaf()
        level, root, depth = 0, _NO_PAGE, 0
        while level < len(self._levels):
            children, depth = self._levels[level], level + 1
            if len(children) == 1 and depth == len(self._levels):
                root = children[0][1]
            else:
                self._add_branch(level, children)
            level += 1
        self._write_waiting()
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        pages = (self._branches, self._leaves, self._overflow, len(self.sizes))
        for number, tree in enumerate(((0, 0, 0, 0, 0, _NO_PAGE, 1, 0), (depth, *pages, root, self._next - 1, 1))):
            meta = _META.pack(
                *(_MAGIC, _VERSION, 0, self._next * self._page_bytes),
                *(self._page_bytes, _FLAGS, 0, 0, 0, 0, 0, _NO_PAGE),
                *(0, 0, *tree),
            )
            page = _HEADER.pack(number, 0, _META_PAGE, 0, 0) + meta
            write_all(self._descriptor, [page.ljust(self._page_bytes, b"\0")])

    def _add_overflow(self, value: Buffer) -> None:
        """Write a large value to separate pages."""
        pages = -(-(_HEADER.size + len(value)) // self._page_bytes)
        rest = bytes(pages * self._page_bytes - _HEADER.size - len(value))
        self._overflow += pages
        self._write(pages, _OVERFLOW_HEADER.pack(self._next, 0, _OVERFLOW, pages), value, rest)

    def _end_leaf(self) -> None:
        if not self._nodes:
            return
        page = self._next * self._page_bytes
        places = self._add_page(_LEAF, self._nodes)
        for entry, node in self._inline:
            self.starts[entry] += page + places[node]
        self._leaves += 1
        self._nodes, self._inline = [], []
        self._add_child(0, self._first_key, self._next - 1)

    def _add_child(self, level: int, key: bytes, number: int) -> None:
        """Add a finished page to the waiting pages of its level. If they fill a branch page, write that page."""
        if level == len(self._levels):
            self._levels.append([])
            self._levels_used.append(_HEADER.size)
        children = self._levels[level]
        if self._levels_used[level] + _child_bytes(key) > self._page_bytes:
            # Keep the last child back, since a branch page must have at least two children.
            self._add_branch(level, children[:-1])
            del children[:-1]
            self._levels_used[level] = _HEADER.size + _child_bytes(children[0][0])
        children.append((key, number))
        self._levels_used[level] += _child_bytes(key)

    def _add_branch(self, level: int, children: list[tuple[bytes, int]]) -> None:
        nodes = [_child(key if place else b"", number) for place, (key, number) in enumerate(children)]
        self._add_page(_BRANCH, nodes)
        self._branches += 1
        self._add_child(level + 1, children[0][0], self._next - 1)

    def _add_page(self, kind: int, nodes: list[bytes]) -> list[int]:
        """Write a page of nodes, and return the offset of each node in the page."""
        upper = self._page_bytes - sum(map(len, nodes))
        places = [*accumulate(map(len, nodes), initial=upper)][:-1]
        lower = _HEADER.size + _PLACE.size * len(nodes)
        head = _HEADER.pack(self._next, 0, kind, lower, upper)
        self._write(1, head, struct.pack(f"<{len(places)}H", *places), bytes(upper - lower), *nodes)
        return places

    def _write(self, pages: int, *pieces: Buffer) -> None:
        self._next += pages
        self._waiting += pieces
        self._waiting_bytes += pages * self._page_bytes
        if self._waiting_bytes >= _WAITING_BYTES:
            self._write_waiting()

    def _write_waiting(self) -> None:
        write_all(self._descriptor, self._waiting)
        self._waiting, self._waiting_bytes = [], 0


def _child(key: bytes, number: int) -> bytes:
    """Return a node of a branch page."""
    return (_NODE.pack(number & 0xFFFFFFFF, number >> 32, len(key)) + key).ljust(_child_bytes(key) - _PLACE.size, b"\0")


def _child_bytes(key: bytes) -> int:
    """Return the bytes that a child takes in a branch page."""
    return _PLACE.size + _NODE.size + len(key) + (len(key) & 1)
