"""lmdb: a shard is one single-file LMDB environment."""

import errno
import mmap
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from packer.assembly.writers.base import ShardSize, block_rows_of, check_rows, count_rows
from packer.assembly.writers.lmdb_pages import LMDBPages, can_follow, most_node
from packer.workspace.durable import WORKING
from shardspec.columns import Buffer, Columns, fixed_bytes
from shardspec.errors import BuildError
from shardspec.schema import Schema

BLOCK_BYTES = 1 << 20
"""Encoded bytes per block. Any single row is cheap to read here; a block only makes disk reads sequential."""

_KEY_DIGITS = 8
_ROWS_MAX = 10**_KEY_DIGITS
_ENTRY_BYTES = 128
"""More than a node's header (8), its slot in the page (2), an overflow page's header (16) and the longest key (72)."""
_MAP_FREE_BYTES = 1 << 20
"""For the two meta pages, the branch pages above a few leaves, and the free list."""
_DATA_FORMAT: dict[str, Any] = {"lib_version": 0} if lmdb.__version__ >= "3" else {}
"""Asks py-lmdb 3 for the data format of LMDB 0.9, which every tool reads; earlier versions have only that."""


class LMDBShardWriter:
    """Writes one LMDB file (`packer.assembly.writers.base`): key ``00000042/landmarks`` → the value's encoded bytes.

    The bytes of an LMDB file depend on the map size and on the number of transactions. So the map size is a function of
    the shard's size, all rows go into one write transaction in the order of their keys, and the file is a compacted
    copy, without free pages and of its true size. `LMDBPages` writes that copy at once, front to back; a shard of very
    many small values is made by the library, whose transaction holds it in memory until it ends.
    """

    def __init__(self, folder: Path, name: str, schema: Schema, size: ShardSize) -> None:
        if size.samples >= _ROWS_MAX:
            raise BuildError(f"{name}: expected less than {_ROWS_MAX} rows in a shard, found {size.samples}")
        self.block_rows = block_rows_of(size, BLOCK_BYTES)
        self._name = name
        self._size = size
        self._schema = schema
        self._names = sorted(schema.names)
        self._rows = 0
        self._path = folder / f"{name}.lmdb"
        with self._writing():
            self._file: _Pages | _Library = (_Pages if _few_pages(size) else _Library)(self._path, map_bytes(size))

    def write(self, rows: Columns) -> None:
        """Append rows."""
        count = count_rows(self._schema, rows)
        with self._writing():
            self._file.put(self._entries(rows, count))
        self._rows += count

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn write errors, of which those of the library are no `OSError`, into a `BuildError`."""
        try:
            yield
        except OSError as error:
            raise BuildError(f"{self._path}: cannot be written: {error.strerror or error}") from error
        except lmdb.Error as error:
            # The library reports a write that a full disk cut short as an input/output error.
            full = shutil.disk_usage(self._path.parent).free < sum(self._size.field_bytes.values())
            why = os.strerror(errno.ENOSPC) if full else error
            raise BuildError(f"{self._path}: cannot be written: {why}") from error

    def _entries(self, rows: Columns, count: int) -> Iterator[tuple[bytes, Buffer]]:
        """Keys and values of some rows, in the order of the keys."""
        columns = [
            (name.encode(), _split(fixed_bytes(rows[name]), count) if self._schema[name].is_fixed else rows[name])
            for name in self._names
        ]
        for row in range(count):
            prefix = b"%08d/" % (self._rows + row)
            for name, values in columns:
                yield prefix + name, values[row]

    def close(self) -> None:
        """Finish the file."""
        with self._writing():
            self._file.close()
        check_rows(self._name, self._size, self._rows)


class _Pages:
    """A file that `LMDBPages` writes."""

    def __init__(self, path: Path, map_bytes: int) -> None:
        self._file = path.open("xb", buffering=0)
        self._pages = LMDBPages(self._file.fileno(), mmap.PAGESIZE, map_bytes)

    def put(self, entries: Iterable[tuple[bytes, Buffer]]) -> None:
        """Append entries."""
        self._pages.put(entries)
        self._pages.flush()

    def close(self) -> None:
        """Finish the file."""
        with self._file:
            self._pages.finish()


class _Library:
    """A file that the library makes, by way of a working file."""

    def __init__(self, path: Path, map_bytes: int) -> None:
        self._path = path
        self._working = path.with_name(f"{path.name}{WORKING}")
        # The caller flushes the finished file; the working one may be lost at any time.
        self._environment = lmdb.open(
            os.fsencode(self._working),  # the library would encode text as UTF-8, but a name may be invalid UTF-8
            map_size=map_bytes,
            subdir=False,
            lock=False,
            sync=False,
            metasync=False,
            **_DATA_FORMAT,
        )
        self._transaction = self._environment.begin(write=True)

    def put(self, entries: Iterable[tuple[bytes, Buffer]]) -> None:
        """Append entries."""
        self._transaction.cursor().putmulti(entries, append=True)

    def close(self) -> None:
        """Finish the file."""
        try:
            with self._path.open("xb") as file:
                self._transaction.commit()
                self._environment.copyfd(file.fileno(), compact=True)
        finally:
            self._environment.close()
            self._working.unlink()


def _few_pages(size: ShardSize) -> bool:
    """Return whether `LMDBPages` can write a shard; this depends on its size alone."""
    page, most = mmap.PAGESIZE, most_node(mmap.PAGESIZE)
    keys = [_KEY_DIGITS + 1 + len(name.encode()) for name in size.field_bytes]
    smallest = most - max(keys, default=0)  # of a value that may have pages of its own
    large = [name for name, largest in size.field_max_bytes.items() if largest > smallest]
    values = sum(
        min(total, size.samples * most) if name in large else total for name, total in size.field_bytes.items()
    )
    return can_follow(
        page,
        size.samples * len(keys),
        values + size.samples * sum(keys),
        sum(min(size.samples, 1 + size.field_bytes[name] // max(1, smallest)) for name in large),
        max(size.field_max_bytes.values(), default=0),
        max(keys, default=0),
    )


def map_bytes(size: ShardSize) -> int:
    """A map size that is surely large enough for a shard, as a function of its size alone.

    A value of up to half a page lies in a leaf page beside its key. Appending fills a page until the next node does not
    fit, so at least half of every leaf page is used: twice the bytes are enough. A larger value has pages of its own,
    of which less than one is unused; its key and the number of those pages lie in a leaf page.
    """
    page = mmap.PAGESIZE
    small = sum(
        2 * (size.field_bytes[name] + size.samples * _ENTRY_BYTES)
        for name, largest in size.field_max_bytes.items()
        if largest <= page // 2
    )
    large = sum(
        size.field_bytes[name] + size.samples * (page + 2 * _ENTRY_BYTES)
        for name, largest in size.field_max_bytes.items()
        if largest > page // 2
    )
    # A branch page has room for at least 30 keys, so branch pages are less than a tenth of the leaf pages.
    whole = _MAP_FREE_BYTES + (small + large) * 11 // 10
    return -(-whole // page) * page


def _split(data: memoryview, count: int) -> list[memoryview]:
    """Cut bytes into equal parts."""
    step = len(data) // count if count else 0
    return [data[row * step : (row + 1) * step] for row in range(count)]
