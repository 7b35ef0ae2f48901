"""Reads the rows of a dataset through the shards that are open in this process."""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from readers.formats.mapping import ROW_BY_ROW_BYTES, ask_for, distinct, gather, is_run, read_only_asked
from readers.formats.npy import map_npy
from readers.formats.shards import OpenReader, ShardReader, open_shard, open_shards
from shardspec.columns import Columns, IntArray
from shardspec.entries import Column, FileEntry, Shard
from shardspec.errors import DatasetError, ShardCorruptError, ShardMissingError, UsageError
from shardspec.layout import Layout
from shardspec.manifest import Manifest
from shardspec.schema import Field, Schema
from shardspec.wording import shorten

try:
    import cv2
except ImportError:  # not installed, or a system library is missing; rows are then copied one by one
    cv2 = None  # type: ignore[assignment] # a module, or nothing

Verify = Literal["off", "size", "digest"]

VERIFIES: tuple[Verify, ...] = ("off", "size", "digest")
_FIRST_READS, _FIRST_ROWS = 8, 4096
"""The first `_FIRST_READS` reads of a shard, of up to `_FIRST_ROWS` rows each, request their rows before they touch them.
Otherwise the system reads megabytes around every row that is not in memory, and the first batch of scattered rows waits
for nearly the whole dataset."""

_pool_numbers = count()

reading: "dict[int, tuple[ShardPool, list[int]]]" = {}
"""Shards that each thread is reading now, by the thread's identifier, for messages about a read that hangs."""


class RowsOfShards(NamedTuple):
    """Rows of a packed dataset, and the fields that are read of them."""

    pool: "ShardPool"
    rows: IntArray
    fields: Sequence[str]


def explain_thread(thread: int) -> str:
    """Return a description of what a thread is reading, for messages."""
    found = reading.get(thread)
    if found is None:
        return "not in a read (decoding, or in a transform)"
    pool, numbers = found
    names = (pool.path_of(number).relative_to(pool.layout.root).as_posix() for number in numbers)
    return f"reading {', '.join(f'{pool.layout.shown}/{name}' for name in names)}"


class ShardPool:
    """Reads rows of a dataset, numbered over all shards. Each process opens a shard when it first reads it.

    Columns are read like shards with all rows. Joined fields (`join`) are in memory.

    If another dataset replaces this one in the folder, open shards stay readable, and other shards are missing, because
    no file of the other dataset has the same name with other contents. A pool is thread-safe, usable after a fork, and
    can be pickled (without handles).

    Parameters
    ----------
    layout : Layout
    verify : {"off", "size", "digest"}
        ``"size"`` compares every file's size with the manifest now, and the SHA-256 of a column or a file of the index
        before it is first opened. ``"digest"`` also compares the SHA-256 of shards before they are first opened.
    checksums : bool
        Whether to compare the format's own checksums.

    Attributes
    ----------
    manifest : Manifest
        Manifest of the dataset as it was opened.
    schema : Schema
        All fields of the dataset, and joined fields.
    """

    def __init__(self, layout: Layout, verify: Verify, checksums: bool) -> None:
        if verify not in VERIFIES:
            raise UsageError(option="verify", expected=f"one of {', '.join(VERIFIES)}", found=shorten(verify))
        self.layout = layout
        self._verify = verify
        self._checksums = checksums
        self.manifest = _load(layout, verify)
        self._verified: frozenset[int | str] = frozenset()
        self._joined: Mapping[str, Any] = {}
        self.schema = self.manifest.schema
        self._restore()

    def _restore(self) -> None:
        """Set the attributes that every process has for itself."""
        self.number = next(_pool_numbers)
        shards, columns = len(self.manifest.shards), self.manifest.columns
        self._numbers = {column.field: shards + position for position, column in enumerate(columns)}
        self._beside = {*self._numbers, *self._joined}
        self._ends = np.cumsum([shard.samples for shard in self.manifest.shards], dtype=np.int64)
        self._asks = False
        weakref.finalize(self, open_shards.drop, self.number)

    def __getstate__(self) -> dict[str, Any]:
        names = ("layout", "manifest", "schema", "_verify", "_checksums", "_verified", "_joined")
        return {name: vars(self)[name] for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._restore()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def join(self, fields: Iterable[Field], columns: Columns) -> "ShardPool":
        """Return the same dataset with further fields, whose values for all rows are in memory."""
        state = self.__getstate__()
        state |= {"schema": Schema((*self.schema, *fields)), "_joined": {**self._joined, **columns}}
        other = ShardPool.__new__(ShardPool)
        other.__setstate__(state)
        return other

    def open(self, number: int) -> ShardReader:
        """Open a shard or column, after comparing its digests if `verify` asks for this."""
        shard = _part(self.manifest, number)
        release = self.layout.hold(shard.files)
        try:
            self._verify_once(number, shard.files, "digest" if isinstance(shard, Shard) else "size")
            reader = open_shard(self.layout, self.manifest, shard, checksums=self._checksums)
        except BaseException:
            release()
            raise
        weakref.finalize(reader, release).atexit = False
        return reader

    def path_of(self, number: int) -> Path:
        """Return the file or folder of a shard or column."""
        return self.layout.shard(_part(self.manifest, number), self.manifest.format)

    def _verify_once(self, what: int | str, entries: Iterable[FileEntry], least: Verify) -> None:
        """Compare the digests of a shard's or column's files, or of one file, if `verify` is `least` or more.

        A copy of the pool in another process does not compare them again.
        """
        if VERIFIES.index(self._verify) >= VERIFIES.index(least) and what not in self._verified:
            for entry in entries:
                self.layout.check_digest(entry)
            self._verified |= {what}

    def read(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Copy row ``rows[i]`` of the dataset to ``out[field][at[i]]`` (`readers.formats.shards.ShardReader.read`)."""
        if not len(rows):
            return
        if not self._beside.isdisjoint(fields):
            self._read_beside(rows, [name for name in fields if name in self._beside], out, at)
            fields = [name for name in fields if name not in self._beside]
            if not fields:
                return
        views = self._room_for_views(fields, out)
        target = {**out, **views}
        shards = np.searchsorted(self._ends, rows, side="right")
        first = int(shards[0])
        if bool((shards == first).all()):
            numbers = [first]
            self._read_shard(first, rows, fields, target, at)
        else:
            # Not np.split, which takes as long as everything else here. This runs for every batch.
            by_shard = np.argsort(shards, kind="stable")
            ordered = shards[by_shard]
            cuts = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ordered)]
            numbers = ordered[cuts[:-1]].tolist()
            for number, (start, stop) in zip(numbers, pairwise(cuts), strict=True):
                some = by_shard[start:stop]
                self._read_shard(number, rows[some], fields, target, at[some])
        if views:
            with self._noted(numbers):
                for name, values in views.items():
                    copy_rows([values[place] for place in at.tolist()], out[name], at)

    def _read_beside(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Read fields that are not in the shards."""
        for name in fields:
            if name not in self._joined:
                self._read_shard(self._numbers[name], rows, [name], out, at)
            elif self.schema[name].is_fixed:
                gather(self._joined[name], rows, out[name], at)
            else:
                for row, place in zip(rows.tolist(), at.tolist(), strict=True):
                    out[name][place] = self._joined[name][row]

    def _room_for_views(self, fields: Sequence[str], out: Columns) -> dict[str, list[Any]]:
        """Return a list for each fixed field with large values, so that the values of all shards are copied together.

        Copying shard by shard took a quarter longer.
        """
        large = (
            name for name in fields if self.schema[name].is_fixed and self.schema[name].row_bytes >= ROW_BY_ROW_BYTES
        )
        return {name: [None] * len(out[name]) for name in large}

    @contextmanager
    def _noted(self, numbers: list[int]) -> Iterator[None]:
        """Record in `reading` which shards this thread is reading."""
        thread = threading.get_ident()
        reading[thread] = (self, numbers)
        try:
            yield
        finally:
            del reading[thread]

    def _read_shard(self, number: int, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Read rows of one shard, or rows of a column."""
        shards = self.manifest.shards
        first = int(self._ends[number]) - shards[number].samples if number < len(shards) else 0

        def read(entry: OpenReader, reader: ShardReader) -> None:
            if self._asks:
                self._ask(entry, reader, rows - first, fields)
            elif entry.begun < _FIRST_READS and len(rows) <= _FIRST_ROWS:
                entry.begun += 1
                self._ask(entry, reader, rows - first, fields, only=False)
            reader.read(rows - first, fields, out, at)

        with self._noted([number]):
            self._with_shard(number, read)

    def _with_shard(self, number: int, act: Callable[[OpenReader, ShardReader], None]) -> None:
        """Use the reader of a shard; again if its files were missing or damaged in the cache of a remote dataset."""
        try:
            with open_shards.use(self, number) as (entry, reader):
                act(entry, reader)
        except DatasetError as error:
            self._explain(error, _part(self.manifest, number).files)
            open_shards.forget(self, number)
            with open_shards.use(self, number) as (entry, reader):
                act(entry, reader)

    def _explain(self, error: DatasetError, entries: Iterable[FileEntry]) -> None:
        """Raise the error of a read again, unless another attempt may succeed because a file was wrong in the cache.

        Raises
        ------
        DatasetChangedError
            If the folder holds another dataset now.
        """
        in_cache = not self.layout.is_local and Path(str(error.place)).is_relative_to(self.layout.root)
        if in_cache and isinstance(error, ShardMissingError | ShardCorruptError):
            # The stager that kept a file was killed, and the next one has deleted it; or the disk has damaged it.
            self.layout.doubt(entries)
            return
        self.layout.check_unchanged(self.manifest, "open it again")
        raise error

    def map_index(self, field: Field) -> npt.NDArray[Any] | None:
        """Map the index of a scalar field, or the column that is its own index; return None if there is neither."""
        entry = self.layout.find_index(self.manifest, field.name)
        if entry is None:
            return None
        try:
            return self._map(entry, field)
        except DatasetError as error:
            try:
                self._explain(error, [entry])
            except ShardMissingError:
                return None
            return self._map(entry, field)

    def _map(self, entry: FileEntry, field: Field) -> npt.NDArray[Any]:
        self.layout.require([entry])
        self._verify_once(entry.name, [entry], "size")
        return map_npy(self.layout.file(entry), field.numpy_dtype, (len(self),))

    def read_ahead(self, rows: IntArray, fields: Sequence[str]) -> None:
        """Make the system start to read rows that will be needed soon.

        After the first call, `read` also requests its rows before it touches them, and the system's own read-ahead is off.
        Read-ahead takes most of the time if rows are scattered over files larger than memory.
        """
        self._asks = True
        for name in fields:
            if name in self._numbers:
                self._with_shard(self._numbers[name], partial(self._ask, rows=rows, fields=[name]))
        fields = [name for name in fields if name not in self._beside]
        shards = np.searchsorted(self._ends, rows, side="right")
        for number in distinct(shards):
            first = int(self._ends[number]) - self.manifest.shards[number].samples
            local = rows[shards == number] - first
            self._with_shard(number, partial(self._ask, rows=local, fields=fields))

    def _ask(
        self, entry: OpenReader, reader: ShardReader, rows: IntArray, fields: Sequence[str], *, only: bool = True
    ) -> None:
        """Make the system start to read some rows; with `only`, turn off its own read-ahead."""
        for part in reader.extents(rows, fields):
            address = part.data.ctypes.data
            if only and address not in entry.scattered:
                entry.scattered.add(address)
                read_only_asked(part.data)
            ask_for(part.data, part.starts, part.stops)

    def parts_of(self, rows: IntArray, fields: Sequence[str]) -> list[int]:
        """Return the numbers of the shards and columns that a read of some rows touches, in the order of first use."""
        beside = [self._numbers[name] for name in fields if name in self._numbers]
        if self._beside.issuperset(fields):
            return beside
        shards = np.searchsorted(self._ends, rows, side="right")
        return beside + list(dict.fromkeys(shards.tolist()))

    def describe(self, row: int) -> str:
        """Return the shard of a row and its number there, for messages."""
        number = int(np.searchsorted(self._ends, row, side="right"))
        shard = self.manifest.shards[number]
        name = self.layout.shard(shard, self.manifest.format).relative_to(self.layout.root).as_posix()
        first = int(self._ends[number]) - shard.samples
        return f"row {row - first} of {self.layout.shown}/{name} (row {row} of the dataset)"


def _load(layout: Layout, verify: Verify) -> Manifest:
    """Load the manifest and, unless `verify` is ``"off"``, check the sizes of all files of shards and columns.

    Raises
    ------
    DatasetError
        If the dataset cannot be read, or a size differs.
    """
    manifest = layout.load()
    while verify != "off" and layout.is_local:  # the files of a remote dataset are checked when they arrive
        try:
            layout.check_sizes([entry for part in manifest.parts for entry in part.files])
            break
        except DatasetError:
            found = layout.load()
            if found == manifest:
                raise
            manifest = found  # another dataset has replaced the one whose files are missing
    return manifest


def _part(manifest: Manifest, number: int) -> Shard | Column:
    """Return a shard or a column; the numbers of columns follow those of the shards."""
    shards = manifest.shards
    return shards[number] if number < len(shards) else manifest.columns[number - len(shards)]


def copy_rows(values: Sequence[npt.NDArray[Any]], out: npt.NDArray[Any], at: IntArray) -> None:
    """Assign ``out[at[i]] = values[i]`` in one call that releases the GIL.

    numpy releases and retakes the GIL for each row. With a second thread that does the same, a batch of 256 crops took a
    quarter longer than with one call of OpenCV, for which each row of bytes is a matrix.

    Parameters
    ----------
    values : sequence of n ndarray
        C-contiguous, all of one shape and dtype. If these are not those of ``out[0]``, numpy's rules of assignment apply.
    out : ndarray, (M, ...), C-contiguous
    at : int64 array, (n,), distinct, within 0 and M - 1
    """
    if not len(at):
        return
    order = np.argsort(at).tolist()
    first = int(at[order[0]])
    alike = values[0].dtype == out.dtype and values[0].shape == out.shape[1:]
    if cv2 is None or not alike or not out.flags.c_contiguous or not is_run(at[order]):
        for i in order:
            out[at[i]] = values[i]
        return
    target = out[first : first + len(at)].view(np.uint8).reshape(len(at), -1)
    cv2.vconcat([values[i].view(np.uint8).reshape(1, -1) for i in order], target)
