"""A remote dataset of which a process reads a few samples or fields: only those parts of its shards are downloaded."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from threading import Lock, RLock
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from packer.workspace.disk_list import writing_temporary
from packer.workspace.scratch import TemporaryFiles
from packer.workspace.shared_files import map_threaded
from readers.formats.mapping import Extents
from readers.staging.layout import CachedLayout, find_dataset
from shardspec.entries import FileEntry
from shardspec.errors import StoreError
from shardspec.formats.index import INDEX_SUFFIX
from shardspec.layout import missing_object, opened
from shardspec.stores import Hub, Store, open_store

_BLOCK_BYTES = 1 << 16
_WHOLE_BYTES = 1 << 20
"""Smaller files are downloaded whole."""
_KEPT_BYTES = 1 << 30
"""If more was downloaded, the parts of shards that are not open are deleted."""
_WHOLE = (INDEX_SUFFIX, ".offsets.npy")
"""Endings of the names of files that tell where values are."""


class PartialFile:
    """A file of the size of an object, with those blocks of its content that were needed.

    Parameters
    ----------
    path : Path
        The new file.
    store : Store or Hub
    entry : FileEntry
        The object's entry in the manifest.

    Attributes
    ----------
    bytes : int
        Size of the blocks that were downloaded.
    """

    def __init__(self, path: Path, store: Store | Hub, entry: FileEntry) -> None:
        self._path, self._store, self._entry = path, store, entry
        self._known = np.zeros(-(-entry.bytes // _BLOCK_BYTES), np.bool_)
        self._lock = Lock()
        self.bytes = 0
        with writing_temporary():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            os.truncate(path, entry.bytes)

    def fill(self, starts: npt.ArrayLike, stops: npt.ArrayLike) -> None:
        """Download the blocks of some bytes, unless they are there."""
        first = np.asarray(starts, np.int64) // _BLOCK_BYTES
        after = -(-np.asarray(stops, np.int64) // _BLOCK_BYTES)
        steps = np.zeros(len(self._known) + 1, np.int64)
        np.add.at(steps, first, 1)
        np.add.at(steps, np.maximum(first, after), -1)
        with self._lock:
            needed = (np.cumsum(steps)[:-1] > 0) & ~self._known
            edges = np.flatnonzero(np.diff(needed, prepend=False, append=False))
            for _ in map_threaded(self._download, edges.reshape(-1, 2).tolist()):
                pass
            self._known |= needed
            self.bytes += int(np.count_nonzero(needed)) * _BLOCK_BYTES

    def _download(self, blocks: Sequence[int]) -> None:
        start, stop = blocks[0] * _BLOCK_BYTES, min(blocks[1] * _BLOCK_BYTES, self._entry.bytes)
        whole = (start, stop) == (0, self._entry.bytes)  # some servers answer such a range as a request without one
        with writing_temporary():
            try:
                self._store.download(self._entry.name, self._path, None if whole else (start, stop))
            except FileNotFoundError:
                raise missing_object(self._entry, self._store.place(self._entry.name)) from None


@dataclass(frozen=True)
class RowsLayout(CachedLayout):
    """The layout of a remote dataset whose shards are read in part, unless they are in the cache.

    The parts are in a temporary folder. What is read is checked by the formats' own checksums, not by SHA-256.
    """

    small_bytes: int = 0
    """Size of the index and the reports, which stay in the cache."""
    scratch: TemporaryFiles = field(default_factory=TemporaryFiles, repr=False, compare=False)
    files: dict[str, PartialFile] = field(default_factory=dict, repr=False, compare=False)
    users: Counter[str] = field(default_factory=Counter, repr=False, compare=False)
    """Number of readers of each file."""
    lock: RLock = field(default_factory=RLock, repr=False, compare=False)
    """Held while `files` or `users` is changed. Readers may be finalised in any thread."""
    process: int = field(default_factory=os.getpid, repr=False, compare=False)
    """The process that has the files. A forked child finalises its copies of the readers."""

    reads_parts: ClassVar[bool] = True

    @cached_property
    def store(self) -> Store | Hub:
        """The client, which is made at first use."""
        return open_store(self.url, self.options)

    def local(self, name: str) -> Path:
        """Return the path of a file or folder: in the temporary folder if it is there, else in the cache."""
        path = self.scratch.path / name
        return path if path.exists() else self.root / name

    def hold(self, entries: Iterable[FileEntry]) -> Callable[[], None]:
        """Make the files of a shard, with the parts that a reader needs to open it."""
        entries = list(entries)
        if all((self.root / entry.name).exists() for entry in entries):
            self._delete(entries)
            return super().hold(entries)
        with self.lock:
            self.users.update(entry.name for entry in entries)
        try:
            for entry in entries:
                self._make(entry)
        except BaseException as error:
            self._release(entries)
            if not isinstance(error, StoreError):
                raise
            self._delete(entries)  # some web servers send no parts
            return super().hold(entries)
        return partial(self._release, entries)

    def _make(self, entry: FileEntry) -> None:
        if entry.name not in self.files:
            made = PartialFile(self.scratch.path / entry.name, self.store, entry)
            whole = entry.bytes < _WHOLE_BYTES or entry.name.endswith(_WHOLE)
            made.fill([0], [entry.bytes if whole else 1])
            with self.lock:
                self.files[entry.name] = made

    def _release(self, entries: Iterable[FileEntry]) -> None:
        """Forget a reader, and delete its files if too much was downloaded."""
        if os.getpid() != self.process:
            return
        with self.lock:
            self.users.subtract(entry.name for entry in entries)
            if sum(file.bytes for file in self.files.values()) > _KEPT_BYTES:
                self._delete(entries)

    def _delete(self, entries: Iterable[FileEntry]) -> None:
        """Delete files that no reader has open."""
        with self.lock:
            for entry in entries:
                path = self.scratch.path / entry.name
                if not self.users[entry.name]:
                    with suppress(OSError):  # Windows refuses it while a view of the file is left
                        path.unlink(missing_ok=True)
                        self.files.pop(entry.name, None)
                    with suppress(OSError):  # other files are in it
                        path.parent.rmdir()

    def check_digest(self, entry: FileEntry) -> None:
        """Check the digest of a file if it is in the cache (`Layout.check_digest`)."""
        if entry.name not in self.files:
            super().check_digest(entry)

    def fetch(self, extents: Iterable[Extents]) -> None:
        """Download parts of files that are about to be read."""
        for part in extents:
            if part.path.is_relative_to(self.scratch.path):
                name = part.path.relative_to(self.scratch.path).as_posix()
                self.files[name].fill(part.offset + part.starts, part.offset + part.stops)


def partial_folder(
    place: str | os.PathLike[str],
    name: str = "dataset",
    storage_options: Mapping[str, Any] | None = None,
    *,
    whole_shards: bool = False,
) -> Path:
    """Return the folder of a packed dataset; for a URL, its folder in the cache, with index and reports.

    Its shards are read in part (`RowsLayout`).

    Parameters
    ----------
    place : path or str
        A folder, or a URL.
    name : str
        Name of the argument, for messages.
    storage_options : mapping, optional
        See `readers.staging.layout.dataset_layout`.
    whole_shards : bool
        Whether workers on this host may download whole shards, for which the cache needs room, too.

    Raises
    ------
    DatasetError
        If the dataset cannot be read.
    UsageError
        If the cache is too small.
    """
    found = find_dataset(place, name, storage_options)
    if isinstance(found, Path):
        return found
    manifest = found.load()
    small_bytes = sum(entry.bytes for entry in manifest.files)
    if whole_shards:
        others = (one for one in opened.values() if isinstance(one, RowsLayout) and one.root != found.root)
        needed = small_bytes + sum(one.small_bytes for one in others if one.cache == found.cache)
        needed += 2 * max((part.bytes for part in manifest.parts), default=0)
        found.check_room(needed, "it must hold the index and the reports of all datasets, and two shards")
    found.hold(manifest.files)
    layout = RowsLayout(**vars(found), small_bytes=small_bytes)
    opened[layout.root] = layout
    return layout.root
