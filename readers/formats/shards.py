"""Shards and columns that are open in this process: the interface of their readers, and the limit on mapped files."""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from readers.formats.indexed import IndexedReader
from readers.formats.mapping import Extents, mappings_held
from readers.formats.npy import NpyShardReader
from shardspec.columns import Columns, IntArray
from shardspec.entries import Column, Shard
from shardspec.formats import get_format
from shardspec.layout import Layout
from shardspec.manifest import Manifest
from shardspec.schema import Schema

if TYPE_CHECKING:
    from readers.formats.pool import ShardPool

COLUMN_FORMAT = "npy"
"""Format of the files of a column."""
MAX_MAPPINGS = 32_000
"""Largest number of files that all datasets of a process map together. Linux allows a process 65,530 mappings."""
_KEPT_MAPPINGS = 0.75
"""Share of `MAX_MAPPINGS` that is kept when the limit is exceeded, so that clean-ups are rare."""

_Key = tuple[int, int]  # the number of a pool, and of a shard


class ShardReader(Protocol):
    """Reads rows of one shard from its mapped files. Thread-safe, usable after a fork, never pickled.

    It holds no file descriptor between calls.

    Parameters
    ----------
    path : Path
        The shard's file or folder.
    shard : Shard or Column
    schema : Schema
        All fields of the shard.
    format : str
    checksums : bool
        Whether to compare the format's own checksums, if it has any.
    """

    def __init__(
        self, path: Path, shard: Shard | Column, schema: Schema, format: str, *, checksums: bool = True
    ) -> None: ...

    def __len__(self) -> int: ...

    def read(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Copy row ``rows[i]`` of the shard to ``out[field][at[i]]``, for every field in `fields`.

        For a fixed field, `out` holds an array to write to, or a list, which gets arrays. For any other field it holds a
        list, which gets bytes-like objects. Both may be views of the mapped file, and keep it mapped. `rows` may be in
        any order and may repeat. All are within the shard.

        Raises
        ------
        ShardCorruptError
            If the shard contradicts the manifest or the contract.
        """
        ...

    def extents(self, rows: IntArray, fields: Sequence[str]) -> Iterator[Extents]:
        """Yield the parts of the files that a read of some rows touches, without touching them.

        The index may be read.
        """
        ...

    def lengths(self, field: str) -> IntArray | None:
        """Return the encoded sizes of all values of a field of variable size, (rows,), if the index tells them."""
        ...

    def close(self) -> None:
        """Close the files. The reader cannot be used afterwards."""
        ...


def reader_class(format: str) -> type[ShardReader]:
    """Return the class that reads a format's shards."""
    return NpyShardReader if get_format(format).stored is None else IndexedReader


def open_shard(layout: Layout, manifest: Manifest, shard: Shard | Column, *, checksums: bool = True) -> ShardReader:
    """Open a shard, or a column as a shard with one field and all rows, without comparing sizes or digests.

    Parameters
    ----------
    layout : Layout
    manifest : Manifest
    shard : Shard or Column
        An entry of the manifest.
    checksums : bool
        Whether to compare the format's own checksums, if it has any.

    Raises
    ------
    DatasetError
        If the shard cannot be opened.
    MissingDependencyError
        If a library that the format needs is not installed.
    """
    path = layout.shard(shard, manifest.format)
    if isinstance(shard, Column):
        schema = manifest.schema.select([shard.field])
        reader: ShardReader = NpyShardReader(path, shard, schema, COLUMN_FORMAT, checksums=checksums)
    else:
        format = manifest.format
        reader = reader_class(format)(path, shard, manifest.shard_schema, format, checksums=checksums)
    return _FetchingReader(reader, layout) if layout.reads_parts else reader


class _FetchingReader:
    """Has the layout fetch the parts of the files that a read touches, before it."""

    def __init__(self, reader: ShardReader, layout: Layout) -> None:
        self._layout = layout
        self._reader, self.extents, self.lengths, self.close = reader, reader.extents, reader.lengths, reader.close

    def __len__(self) -> int:
        return len(self._reader)

    def read(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        self._layout.fetch(self.extents(rows, fields))
        self._reader.read(rows, fields, out, at)


@dataclass
class OpenReader:
    """An open reader.

    Attributes
    ----------
    lock : threading.Lock
        Held while the reader is opened.
    path : Path or None
        The shard's file, with whose name those of its other files begin.
    scattered : set of int
        Addresses of the mappings for which the system's own read-ahead is off.
    begun : int
        Number of reads so far, up to the limit in `readers.formats.pool`.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    reader: ShardReader | None = None
    path: Path | None = None
    users: int = 0
    scattered: set[int] = field(default_factory=set)
    begun: int = 0


class _OpenShards:
    """The open readers of this process, least recently used first. Thread-safe; empty in a forked child."""

    def __init__(self) -> None:
        # Reentrant, because the garbage collector may finalise a pool, which calls `drop`, in a thread that holds the
        # lock.
        self._lock = threading.RLock()
        self._entries: OrderedDict[_Key, OpenReader] = OrderedDict()

    @contextmanager
    def use(self, pool: "ShardPool", number: int) -> Iterator[tuple[OpenReader, ShardReader]]:
        """Yield the reader of a pool's shard, which is opened if necessary and stays open while in use."""
        key = (pool.number, number)
        if mappings_held() > MAX_MAPPINGS:
            self._unmap()
        with self._lock:
            entry = self._entries.setdefault(key, OpenReader())
            self._entries.move_to_end(key)
            entry.users += 1
        try:
            reader = entry.reader
            if reader is None:
                with entry.lock:
                    reader = entry.reader
                    if reader is None:
                        entry.path = pool.path_of(number)
                        reader = entry.reader = pool.open(number)
            yield entry, reader
        finally:
            with self._lock:
                entry.users -= 1

    def drop(self, pool_number: int) -> None:
        """Close the readers of a pool that no longer exists."""
        with self._lock:
            entries = [self._entries.pop(key) for key in list(self._entries) if key[0] == pool_number]
        for entry in entries:
            if entry.reader is not None:
                entry.reader.close()

    def forget(self, pool: "ShardPool", number: int) -> None:
        """Open a shard again at its next use. Current users keep their reader."""
        with self._lock:
            self._entries.pop((pool.number, number), None)

    def release(self, path: Path) -> None:
        """Open the shard of a file again at its next use: the file is about to be deleted. Current users keep it."""
        with self._lock:
            for key, entry in list(self._entries.items()):
                if entry.path is not None and str(path).startswith(str(entry.path)):
                    del self._entries[key]
                    if entry.users == 0 and entry.reader is not None:
                        entry.reader.close()

    def forget_inherited(self) -> None:
        """Close the readers that a forked child inherits from its parent."""
        entries = list(self._entries.values())
        self.__init__()  # type: ignore[misc] # a new lock too, because another thread of the parent may have held it
        for entry in entries:
            if entry.reader is not None:
                entry.reader.close()

    def _unmap(self) -> None:
        """Close the least recently used readers that are not in use, until few enough files are mapped."""
        with self._lock:
            for key, entry in list(self._entries.items()):
                if mappings_held() <= MAX_MAPPINGS * _KEPT_MAPPINGS:
                    return
                if entry.users == 0 and entry.reader is not None:
                    del self._entries[key]
                    entry.reader.close()


open_shards = _OpenShards()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=open_shards.forget_inherited)
