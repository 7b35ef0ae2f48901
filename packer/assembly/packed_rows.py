"""Read the stored rows of packed datasets."""

import os
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from packer.assembly.plan import Lengths, compact
from packer.assembly.schemas import Adapt, adapter, unite_schemas
from packer.workspace import Workspace
from packer.workspace.durable import damaged, publish
from readers.formats.mapping import let_go_of_pages
from readers.formats.shards import ShardReader, open_shard
from shardspec.columns import Buffer, Columns, IntArray, allocate
from shardspec.entries import Column, Shard
from shardspec.errors import DatasetChangedError, DatasetError, SchemaError, ShardspecError, system_reason
from shardspec.layout import Layout, Stamp, layout_at
from shardspec.manifest import Manifest

BATCH_BYTES = 16 * 10**6
"""Approximate size of a batch of rows in bytes."""

_BATCH_ROWS = 1 << 15
_OPEN_SHARDS = 32
_PASSED_BYTES = 64 * 10**6
"""Approximate number of mapped bytes to read before releasing them, since mapped pages count as memory of the process.
Shards that were not read during the last `_IDLE` releases are closed, because the lengths of their rows take memory."""

_IDLE = 8

_SUM_BYTES = 4
"""Bytes of the CRC-32 in front of the lengths in a scan."""

_AROUND_BYTES = 1 << 16
"""Bytes that the system maps around a single row."""

Check = Literal["digest", "size"]


class PackedRows:
    """Rows of one or several packed datasets, one after another, with one schema (`packer.assembly.schemas`).

    Nothing is decoded. Before a shard's first row is read, its digest is compared with the manifest, so that damaged
    data never gets a new digest. If the workspace has a scan of the shard, this comparison has been done already.
    If an input is replaced by another dataset meanwhile, opening the next file raises an error, so rows of two datasets
    are never mixed.

    Parameters
    ----------
    config : mapping
        ``inputs`` is a list of ``{"path": folder, "items_before": n}``; n is added to the item's number in every key.
        An input may have a ``digest``, which the dataset's digest must begin with. ``check`` is ``"digest"`` (default),
        or ``"size"`` if the caller has compared the digests of shards. ``columns`` is false to leave out the fields that are
        stored in columns. ``shards`` lists the shards that will be read, of all inputs; by default all.
    workspace : Workspace or None
        The workspace whose scans are used.
    manifests : sequence of Manifest, optional
        The manifests of the inputs, if they are loaded already. The caller then makes sure that no other process writes
        to the datasets, or compares the digests later.

    Raises
    ------
    DatasetChangedError
        If a dataset's digest differs from the expected one.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        workspace: Workspace | None = None,
        manifests: Sequence[Manifest] | None = None,
    ) -> None:
        self._workspace = workspace
        self._digests = config.get("check", "digest") == "digest"
        self._places: list[_StoredPart] = []
        self._columns: list[_StoredPart] = []
        layouts = [layout_at(Path(entry["path"])) for entry in config["inputs"]]
        known: Sequence[Manifest | None] = [None] * len(layouts) if manifests is None else manifests
        inputs = [
            _Input(layout, manifest, entry.get("digest", ""))
            for layout, manifest, entry in zip(layouts, known, config["inputs"], strict=True)
        ]
        manifests = [one.manifest for one in inputs]
        if not config.get("columns", True):
            manifests = [replace(manifest, schema=manifest.shard_schema, columns=()) for manifest in manifests]
        self.schema = unite_schemas([manifest.schema for manifest in manifests])
        for one, manifest, entry in zip(inputs, manifests, config["inputs"], strict=True):
            found = {field.name: adapter(field, self.schema[field.name]) for field in manifest.schema}
            adapters = {name: adapt for name, adapt in found.items() if adapt is not None}
            items_before, first = entry.get("items_before", 0), 0
            numbers = {column.field: len(self._columns) + n for n, column in enumerate(manifest.columns)}
            for part in manifest.parts:
                place = _StoredPart(one, manifest, part, first, items_before, adapters, numbers)
                if isinstance(part, Shard):
                    self._places.append(place)
                    first += part.samples
                else:
                    self._columns.append(place)
        self._ends = np.cumsum([place.part.samples for place in self._places], dtype=np.int64)
        self._unread = frozenset(range(len(self._places))) - frozenset(config.get("shards", range(len(self._places))))
        self._varying = tuple(field.name for field in self.schema if not field.is_fixed)
        self._open: OrderedDict[int, ShardReader] = OrderedDict()
        self._compared: set[int] = set()
        self._read: dict[int, set[str]] = {}
        self._used: dict[int, int] = {}
        self._passed = self._releases = 0

    @classmethod
    def of(cls, path: Path, *, check: Check = "digest", manifest: Manifest | None = None, digest: str = "") -> Self:
        """Open the rows of one packed dataset.

        Parameters
        ----------
        path : Path
            The dataset's folder.
        check : {"digest", "size"}
            The property to compare with the manifest before a shard's first row is read.
        manifest : Manifest, optional
            The manifest of the dataset, if it is loaded already.
        digest : str
            Expected beginning of the dataset's digest.
        """
        config = {"inputs": [{"path": str(path), "digest": digest}], "check": check}
        return cls(config, manifests=None if manifest is None else [manifest])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def shards(self) -> int:
        """Number of shards of all inputs."""
        return len(self._places)

    @property
    def row_bytes(self) -> int:
        """Approximate size of a row in the files, columns included, in bytes."""
        return sum(place.part.bytes for place in (*self._places, *self._columns)) // max(1, len(self))

    def sizes(self) -> Mapping[str, Lengths]:
        """Return the encoded size of every value, by field of variable size; 0 in shards that will not be read."""
        tables = [list(map(compact, self._lengths(number).T)) for number in range(self.shards)]
        nothing = np.empty(0, np.uint32)
        return {
            name: np.concatenate([nothing, *(table[place] for table in tables)])
            for place, name in enumerate(self._varying)
        }

    def scan(self, number: int) -> None:
        """Compare a shard's digest with the manifest, and record the lengths of its values in the workspace."""
        assert self._workspace is not None
        path = self._workspace.scan(number)
        lengths = self._lengths(number).astype("<i8").tobytes()
        attempt = self._workspace.attempt(path)
        with attempt.open("xb") as file:
            file.write(zlib.crc32(lengths).to_bytes(_SUM_BYTES, "little") + lengths)
            file.flush()
            os.fsync(file.fileno())
        publish(attempt, path)

    def read(self, rows: IntArray, fields: Sequence[str]) -> Columns:
        """Return the encoded values of rows in the given order."""
        out = allocate(self.schema.select(list(fields)), len(rows))
        shards = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(shards).tolist():
            at = np.flatnonzero(shards == number)
            local = rows[at] - self._start(number)
            ascending = np.argsort(local, kind="stable")  # read each row group or chunk only once
            self._read_shard(number, local[ascending], fields, out, at[ascending])
            items = self._places[number].items_before
            if items and "key" in out:
                for place in at.tolist():
                    out["key"][place] = shift_key(out["key"][place], items)
        return out

    def _read_shard(self, number: int, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Copy rows of a shard, and their values in columns, into the output."""
        place = self._places[number]
        here = [name for name in fields if name not in place.columns]
        if here:
            self._read_part(number, rows, here, out, at)
        for name in fields:
            if name in place.columns:
                column = len(self._places) + place.columns[name]
                self._read_part(column, rows + place.first, [name], out, at)

    def _read_part(self, number: int, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Copy rows of a shard or column into the output, adapted to the common schema."""
        place = self._place(number)
        self._passed += _touched_bytes(rows, place.part)
        if self._passed > _PASSED_BYTES:
            self._release()
        reader = self._reader(number)
        same = [name for name in fields if name not in place.adapters]
        changed = [name for name in fields if name in place.adapters]
        if same:
            with _reading(place):
                reader.read(rows, same, out, at)
        own: Columns = {}
        if changed:
            own = allocate(place.manifest.schema.select(changed), len(rows))
            with _reading(place):
                reader.read(rows, changed, own, np.arange(len(rows)))
        if not self._read[number].issuperset(fields):  # the files of all these fields are open now
            place.input.check_standing(place.part)
            self._read[number].update(fields)
        for name in changed:
            try:
                values = place.adapters[name](own[name])
            except SchemaError as error:
                raise DatasetError(f"{place.part.name}: {error}", place=place.layout.root) from error
            if isinstance(out[name], np.ndarray):
                out[name][at] = values
            else:
                for position, value in zip(at.tolist(), values, strict=True):
                    out[name][position] = value

    def batches(self, fields: Sequence[str], chosen: IntArray | None = None) -> Iterator[Columns]:
        """Yield all rows, or the chosen ones, which ascend, in order and in batches of about `BATCH_BYTES`."""
        for number in range(self.shards):
            for step in self._steps(number):
                rows = self._start(number) + step
                if chosen is not None:
                    rows = chosen[np.searchsorted(chosen, rows[0]) : np.searchsorted(chosen, rows[-1], side="right")]
                if len(rows):
                    yield self.read(rows, fields)

    def _steps(self, number: int) -> Iterator[IntArray]:
        part, columns = self._places[number].part, self._places[number].manifest.columns
        step = batch_rows(part, *columns)
        for first in range(0, part.samples, step):
            yield np.arange(first, min(first + step, part.samples))

    def close(self) -> None:
        """Close the shards."""
        for reader in self._open.values():
            reader.close()
        self._open.clear()
        self._passed = 0

    def _release(self) -> None:
        """Release the mapped pages, and close shards that were not read for a while."""
        let_go_of_pages()
        self._releases, self._passed = self._releases + 1, 0
        for number in [number for number in self._open if self._used[number] < self._releases - _IDLE]:
            self._open.pop(number).close()

    def _start(self, number: int) -> int:
        return int(self._ends[number]) - self._places[number].part.samples

    def _place(self, number: int) -> "_StoredPart":
        """Return a shard by its number. Numbers after the last shard denote columns."""
        shards = self.shards
        return self._places[number] if number < shards else self._columns[number - shards]

    def _scanned(self, number: int) -> bool:
        """Return whether a scan has compared the shard's digest.

        Columns have no scans. Each process that reads a column compares its digest.
        """
        return number < self.shards and self._workspace is not None and self._workspace.scan(number).exists()

    def _lengths(self, number: int) -> npt.NDArray[np.int64]:
        """Return the encoded sizes of a shard's values of variable size, (rows, fields)."""
        if self._scanned(number):
            assert self._workspace is not None
            path = self._workspace.scan(number)
            data = path.read_bytes()
            if zlib.crc32(data[_SUM_BYTES:]).to_bytes(_SUM_BYTES, "little") != data[:_SUM_BYTES]:
                raise damaged(path)
            table = np.frombuffer(data, "<i8", offset=_SUM_BYTES)
            return table.reshape(self._places[number].part.samples, len(self._varying))
        table = np.zeros((self._places[number].part.samples, len(self._varying)), np.int64)
        if number in self._unread:
            return table
        self._reader(number)
        for rows in self._steps(number) if self._varying else ():
            values = self.read(self._start(number) + rows, self._varying)
            for column, name in enumerate(self._varying):
                table[rows, column] = [len(value) for value in values[name]]
        return table

    def _reader(self, number: int) -> ShardReader:
        """Return the reader of a shard or column. Check and open it at the first call."""
        reader = self._open.pop(number, None)
        if reader is None:
            reader = self._check_and_open(number)
            self._read[number] = set()
            let_go_of_pages()  # the positions of the values may be spread over the whole file
        self._used[number] = self._releases
        self._open[number] = reader
        if len(self._open) > _OPEN_SHARDS:
            self._open.popitem(last=False)[1].close()
        return reader

    def _check_and_open(self, number: int) -> ShardReader:
        place = self._place(number)
        layout, manifest, shard = place.layout, place.manifest, place.part
        try:
            with _reading(place):
                release = layout.hold(shard.files)
                compares = self._digests or isinstance(shard, Column)
                if compares and number not in self._compared and not self._scanned(number):
                    for entry in shard.files:
                        layout.check_digest(entry)
                    self._compared.add(number)
                else:
                    layout.check_sizes(shard.files)
                reader = open_shard(layout, manifest, shard)
                weakref.finalize(reader, release).atexit = False
                return reader
        except DatasetError:
            place.input.check_standing(shard)  # report a replaced dataset as such
            raise


class _Input:
    """A packed dataset in the state in which it was opened.

    Parameters
    ----------
    manifest : Manifest, optional
        The manifest, if it is loaded already. A later replacement of the dataset is then not detected.
    digest : str
        Expected beginning of the dataset's digest.
    """

    def __init__(self, layout: Layout, manifest: Manifest | None, digest: str) -> None:
        self.layout = layout
        self.manifest: Manifest
        self._stamp: Stamp | None = None
        if manifest is None:
            self.manifest, self._stamp = layout.load_stamped()
        else:
            self.manifest = manifest
        self._standing: frozenset[tuple[str, str]] | None = None
        if digest and not self.manifest.digest.startswith(digest):
            raise self._changed()

    def check_standing(self, part: Shard | Column) -> None:
        """Raise `DatasetChangedError` if the files of a shard or column now belong to another dataset."""
        if self._stamp is None:
            return
        if self.layout.stamp_manifest() != self._stamp:
            found, self._stamp = self.layout.load_stamped()
            self._standing = frozenset((entry.own_name, entry.sha256) for entry in found.entries)
        if self._standing is not None and not self._standing.issuperset((e.own_name, e.sha256) for e in part.files):
            raise self._changed()

    def _changed(self) -> DatasetChangedError:
        return DatasetChangedError(
            place=self.layout.root,
            expected="a packed dataset that does not change while it is read",
            found="a changed or replaced one",
            hint="repeat the command when no other process writes to the folder",
        )


class _StoredPart(NamedTuple):
    """A shard or a column of an input.

    `columns` maps each field that is stored in a column of the same input to the number of that column.
    """

    input: "_Input"
    manifest: Manifest
    part: Shard | Column
    first: int
    items_before: int
    adapters: Mapping[str, Adapt]
    columns: Mapping[str, int]

    @property
    def layout(self) -> Layout:
        return self.input.layout


@contextmanager
def _reading(place: _StoredPart) -> Iterator[None]:
    """Turn an `OSError` into a `DatasetError` that names the file."""
    try:
        yield
    except ShardspecError:  # some are OSErrors, too
        raise
    except OSError as error:
        path = error.filename or place.layout.shard(place.part, place.manifest.format)
        raise DatasetError(f"cannot be read: {system_reason(error)}", place=path) from error


def read_column(path: Path, manifest: Manifest, name: str) -> Any:
    """Return all values of one field of a packed dataset. The digests of shards are not compared.

    Returns
    -------
    ndarray, (rows, *shape), or list of bytes
        An array for a fixed field, the encoded values for any other.
    """
    field = manifest.schema[name]
    with closing(PackedRows.of(path, check="size", manifest=manifest)) as rows:
        if field.is_fixed:
            return np.concatenate([allocate([field], 0)[name], *(batch[name] for batch in rows.batches([name]))])
        return [bytes(value) for batch in rows.batches([name]) for value in batch[name]]


def _touched_bytes(rows: IntArray, part: Shard | Column) -> int:
    """Estimate how many bytes of a shard's file are mapped when these ascending rows are read."""
    if not len(rows):
        return 0
    row_bytes = part.bytes / max(1, part.samples)
    span = (int(rows[-1]) - int(rows[0]) + 1) * row_bytes
    return int(min(span, len(rows) * (row_bytes + _AROUND_BYTES)))


def batch_rows(*parts: Shard | Column) -> int:
    """Return the number of rows of a shard and its columns that take about `BATCH_BYTES`, or fewer if rows are tiny."""
    return max(1, min(_BATCH_ROWS, int(BATCH_BYTES / max(sum(p.bytes / max(1, p.samples) for p in parts), 1e-9))))


def shift_key(key: Buffer, items: int) -> bytes:
    """Increase the item's number in a sample's key ``<item>-<ordinal>``."""
    item, dash, ordinal = bytes(key).partition(b"-")
    return b"%08d" % (int(item) + items) + dash + ordinal
