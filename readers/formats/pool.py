"""The open shards of a process, and a dataset's rows read through them."""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any, Literal

import numpy as np

from readers.formats.base import MappedReader, ShardReader
from readers.formats.checks import ROW_BY_ROW_BYTES, distinct
from readers.formats.copying import copy_rows
from readers.formats.mapping import ask_for, read_only_asked
from shardspec.columns import Columns, IntArray
from shardspec.errors import DatasetError, UsageError
from shardspec.formats import get_format
from shardspec.layout import Layout
from shardspec.manifest import Manifest
from shardspec.registry import resolve
from shardspec.schema import Schema

Verify = Literal["off", "size", "digest"]

VERIFIES: tuple[Verify, ...] = ("off", "size", "digest")
MAX_DESCRIPTORS = 128
"""File descriptors that all datasets of a process hold together, so that a limit of 256 leaves room for the program's own."""

_Key = tuple[int, int]  # a pool's number, a shard's number


@dataclass
class _Open:
    """One open reader. `lock` is held while opening, and while reading where the reader is not for several threads."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    reader: ShardReader | None = None
    users: int = 0


class _OpenShards:
    """The open readers of this process, least recently used first. Safe between threads; a forked child starts with none."""

    def __init__(self) -> None:
        # Reentrant: a pool that the garbage collector finalises may do so while this very thread is in here.
        self._lock = threading.RLock()
        self._entries: OrderedDict[_Key, _Open] = OrderedDict()

    @contextmanager
    def use(self, pool: "ShardPool", number: int) -> Iterator[ShardReader]:
        """The reader of a pool's shard, opened if need be and kept open while in use."""
        key = (pool.number, number)
        with self._lock:
            entry = self._entries.setdefault(key, _Open())
            self._entries.move_to_end(key)
            entry.users += 1
        try:
            reader = entry.reader
            if reader is None:
                with entry.lock:
                    reader = entry.reader
                    if reader is None:
                        self._make_room(pool.descriptors)
                        reader = entry.reader = pool.open(number)
            if reader.threads:
                yield reader
            else:
                with entry.lock:
                    yield reader
        finally:
            with self._lock:
                entry.users -= 1

    def descriptors(self) -> int:
        """Descriptors held now."""
        with self._lock:
            return sum(entry.reader.descriptors for entry in self._entries.values() if entry.reader is not None)

    def drop(self, pool_number: int) -> None:
        """Close the readers of a pool that is gone."""
        with self._lock:
            entries = [self._entries.pop(key) for key in list(self._entries) if key[0] == pool_number]
        for entry in entries:
            if entry.reader is not None:
                entry.reader.close()

    def forget_inherited(self) -> None:
        """In a forked child: close the parent's handles, which are not valid here, and begin anew."""
        entries = list(self._entries.values())
        self.__init__()  # type: ignore[misc] # a new lock too: another thread of the parent may have held it
        for entry in entries:
            if entry.reader is not None:
                entry.reader.close()

    def _make_room(self, descriptors: int) -> None:
        """Close what was used least recently, until so many more fit. What is in use stays open."""
        if descriptors == 0:
            return
        with self._lock:
            excess = self.descriptors() + descriptors - MAX_DESCRIPTORS
            for key, entry in list(self._entries.items()):
                if excess <= 0:
                    return
                if entry.users == 0 and entry.reader is not None and entry.reader.descriptors:
                    excess -= entry.reader.descriptors
                    del self._entries[key]
                    entry.reader.close()


open_shards = _OpenShards()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=open_shards.forget_inherited)

_pool_numbers = count()

reading: "dict[int, tuple[ShardPool, list[int]]]" = {}
"""What each thread, by its identifier, is reading now: for messages about a read that does not come back."""


def explain_thread(thread: int) -> str:
    """What a thread is doing, as far as reading goes."""
    found = reading.get(thread)
    if found is None:
        return "not in a read (decoding, or in a transform)"
    pool, numbers = found
    paths = (pool.layout.shard(pool.manifest.shards[number], pool.manifest.format) for number in numbers)
    return f"reading {', '.join(map(str, paths))}"


class ShardPool:
    """Reads rows of a dataset, numbered through all shards. Shards open when they are first read, in whatever process.

    Safe between threads, across forks, and to pickle (without handles).

    Parameters
    ----------
    layout : Layout
    manifest : Manifest
    verify : {"off", "size", "digest"}
        ``"size"`` compares every file's size with the manifest now. ``"digest"`` also its SHA-256, once per process, before the
        shard is first opened.
    checksums : bool
        Whether the format's own checksums are checked on reading.
    """

    def __init__(self, layout: Layout, manifest: Manifest, verify: Verify, checksums: bool) -> None:
        if verify not in VERIFIES:
            raise UsageError(f"verify: expected one of {', '.join(VERIFIES)}, found {verify!r}")
        self.layout = layout
        self.manifest = manifest
        self._verify = verify
        self._checksums = checksums
        if verify != "off":
            for shard in manifest.shards:
                layout.check_sizes(shard)
        self._restore()

    def _restore(self) -> None:
        """What is made anew in every process."""
        self.number = next(_pool_numbers)
        self._ends = np.cumsum([shard.samples for shard in self.manifest.shards], dtype=np.int64)
        self._verified: set[int] = set()
        self._reader_class: Any = None
        self._asks = False
        self._scattered: set[tuple[int, int]] = set()  # process and address of mappings that are read as asked for
        weakref.finalize(self, open_shards.drop, self.number)

    def __getstate__(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("layout", "manifest", "_verify", "_checksums")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._restore()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def schema(self) -> Schema:
        """All fields of the dataset."""
        return self.manifest.schema

    @property
    def descriptors(self) -> int:
        """Descriptors that an open shard holds."""
        return int(self._class().descriptors)

    def open(self, number: int) -> ShardReader:
        """A new reader of a shard, verified first if that was asked for."""
        shard = self.manifest.shards[number]
        if self._verify == "digest" and number not in self._verified:
            for entry in shard.files:
                self.layout.check_digest(entry)
            self._verified.add(number)
        path = self.layout.shard(shard, self.manifest.format)
        reader: ShardReader = self._class()(path, shard, self.schema, checksums=self._checksums)
        if len(reader) != shard.samples:
            found = len(reader)
            reader.close()
            raise DatasetError(f"{path}: expected {shard.samples} samples, as the manifest says, found {found}")
        return reader

    def read(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Put row ``rows[i]`` of the dataset into ``out[field][at[i]]`` (`readers.formats.base.ShardReader.read`)."""
        if not len(rows):
            return
        views = self._room_for_views(fields, out)
        target = {**out, **views}
        shards = np.searchsorted(self._ends, rows, side="right")
        first = int(shards[0])
        if bool((shards == first).all()):
            numbers = [first]
            self._read_shard(first, rows, fields, target, at)
        else:
            # Written out, since this runs for every batch and np.split takes as long as all the rest.
            by_shard = np.argsort(shards, kind="stable")
            ordered = shards[by_shard]
            cuts = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ordered)]
            numbers = ordered[cuts[:-1]].tolist()
            for number, (start, stop) in zip(numbers, pairwise(cuts), strict=True):
                some = by_shard[start:stop]
                self._read_shard(number, rows[some], fields, target, at[some])
        if views:
            with self._told(numbers):
                for name, values in views.items():
                    copy_rows([values[place] for place in at.tolist()], out[name], at)

    def _room_for_views(self, fields: Sequence[str], out: Columns) -> dict[str, list[Any]]:
        """A list for each fixed field with large values, if the format can give views of them.

        All of them are then copied at once, from whatever shards: in turn with the rest of the work, and shard by shard, that
        took a quarter longer.
        """
        if not self._class().views:
            return {}
        large = (
            name for name in fields if self.schema[name].is_fixed and self.schema[name].row_bytes >= ROW_BY_ROW_BYTES
        )
        return {name: [None] * len(out[name]) for name in large}

    @contextmanager
    def _told(self, numbers: list[int]) -> Iterator[None]:
        """Let others know which shards this thread is reading."""
        thread = threading.get_ident()
        reading[thread] = (self, numbers)
        try:
            yield
        finally:
            del reading[thread]

    def _read_shard(self, number: int, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Read rows of the dataset that lie in one shard."""
        first = int(self._ends[number]) - self.manifest.shards[number].samples
        with self._told([number]), open_shards.use(self, number) as reader:
            if self._asks:
                self._ask(reader, rows - first, fields)
            reader.read(rows - first, fields, out, at)

    def read_ahead(self, rows: IntArray, fields: Sequence[str]) -> None:
        """Ask the system for the bytes of rows that will be read soon, where the format's reader can say where they lie.

        From the first call on, `read` asks for its rows too before it touches them, and the system reads nothing around them:
        that is where most of the time goes if rows are scattered over files larger than memory.
        """
        self._asks = True
        shards = np.searchsorted(self._ends, rows, side="right")
        for number in distinct(shards):
            first = int(self._ends[number]) - self.manifest.shards[number].samples
            with open_shards.use(self, number) as reader:
                self._ask(reader, rows[shards == number] - first, fields)

    def _ask(self, reader: ShardReader, rows: IntArray, fields: Sequence[str]) -> None:
        if not isinstance(reader, MappedReader):
            return
        for part in reader.extents(rows, fields):
            mapping = os.getpid(), part.data.ctypes.data  # a fork's child maps anew
            if mapping not in self._scattered:
                self._scattered.add(mapping)
                read_only_asked(part.data)
            ask_for(part.data, part.starts, part.stops)

    def describe(self, row: int) -> str:
        """Where a row lies, for messages: its shard and its number there."""
        number = int(np.searchsorted(self._ends, row, side="right"))
        shard = self.manifest.shards[number]
        path = self.layout.shard(shard, self.manifest.format)
        return f"row {row - (int(self._ends[number]) - shard.samples)} of {path} (row {row} of the dataset)"

    def _class(self) -> Any:
        if self._reader_class is None:
            name = self.manifest.format
            self._reader_class = resolve("format", name, {name: get_format(name).reader})
        return self._reader_class
