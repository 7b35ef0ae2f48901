"""The open shards of this process: how many there may be at a time, and which is closed first."""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from readers.formats.base import ShardReader
from readers.formats.mapping import mappings_held
from shardspec.manifest import Manifest

MAX_MAPPINGS = 32_000
"""Files that all datasets of a process map together: Linux gives a process 65,530 mappings for everything."""
_KEPT_MAPPINGS = 0.75
"""Share of `MAX_MAPPINGS` that is kept when there are too many, so that not every shard leads to another clean-up."""

_Key = tuple[int, int]  # a pool's number, a shard's number


@dataclass
class OpenReader:
    """One open reader. `lock` is held while it is opened.

    Attributes
    ----------
    standing : Manifest or None
        The manifest by which the reader was opened.
    checked : set of str
        Fields that were read, and whose files were then still those of the dataset that was opened.
    scattered : set of int
        Addresses of the reader's mappings of which the system reads only what is asked for.
    begun : int
        How many reads have begun, as far as it matters (`readers.formats.pool`).
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    reader: ShardReader | None = None
    users: int = 0
    standing: Manifest | None = None
    checked: set[str] = field(default_factory=set)
    scattered: set[int] = field(default_factory=set)
    begun: int = 0


class _Pool(Protocol):
    """A dataset whose shards are opened: `readers.formats.pool.ShardPool`."""

    number: int
    standing: Manifest

    def open(self, number: int) -> ShardReader:
        """Open a shard."""
        ...


class _OpenShards:
    """The open readers of this process, least recently used first. Safe between threads; a forked child has none."""

    def __init__(self) -> None:
        # Reentrant: the garbage collector may finalise a pool, which comes here, while this very thread holds the lock.
        self._lock = threading.RLock()
        self._entries: OrderedDict[_Key, OpenReader] = OrderedDict()

    @contextmanager
    def use(self, pool: _Pool, number: int) -> Iterator[tuple[OpenReader, ShardReader]]:
        """The reader of a pool's shard, opened if necessary and kept open while in use."""
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
                        entry.standing = pool.standing
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

    def forget(self, pool: _Pool, number: int) -> None:
        """Have a shard opened again when it is next used. Present users keep the reader that they have."""
        with self._lock:
            self._entries.pop((pool.number, number), None)

    def forget_inherited(self) -> None:
        """In a forked child: close the parent's handles, which are not valid here, and start with none."""
        entries = list(self._entries.values())
        self.__init__()  # type: ignore[misc] # a new lock too: another thread of the parent may have held it
        for entry in entries:
            if entry.reader is not None:
                entry.reader.close()

    def _unmap(self) -> None:
        """Close the least recently used readers until few enough files are mapped. Readers in use stay open."""
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
