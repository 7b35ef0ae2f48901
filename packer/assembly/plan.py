"""Plan the shards: cut the rows, in their stored order, by encoded size. Also write the shards and the index.

The rows come from the parts of a build, from packed datasets, or from both for an update (`ROW_SOURCES`).
"""

import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from packer.assembly.shard import write_shard
from packer.assembly.writers.base import ShardSize
from packer.workspace import Workspace
from packer.workspace.durable import damaged, fsync_file, fsync_tree, read_record, write_record, writing
from shardspec.columns import Columns, IntArray, allocate
from shardspec.entries import FileEntry, read_entries
from shardspec.errors import Problems
from shardspec.layout import sha256_file
from shardspec.registry import ImportTarget, resolve
from shardspec.schema import Schema

ROW_SOURCES: Mapping[str, ImportTarget] = {
    "packed": ImportTarget("packer.assembly.packed_rows:PackedRows"),
    "parts": ImportTarget("packer.builds.parts.rows:PartRows"),
    "update": ImportTarget("packer.builds.parts.rows:UpdatedRows"),
}

Lengths = npt.NDArray[np.uint32] | npt.NDArray[np.int64]
"""Array of encoded sizes in bytes, int32, or int64 if a size does not fit (`compact`)."""


class RowSource(Protocol):
    """Encoded rows in a fixed order, with a final schema."""

    schema: Schema

    def __len__(self) -> int: ...

    def sizes(self) -> Mapping[str, Lengths]:
        """Return the encoded size of every value, (rows,), by field of variable size."""
        ...

    def read(self, rows: IntArray, fields: Sequence[str]) -> Columns:
        """Return the encoded values of rows in the given order."""
        ...

    def close(self) -> None:
        """Close the files."""
        ...


def compact(lengths: npt.NDArray[np.int64]) -> Lengths:
    """Return a copy of lengths, as int32 if they fit."""
    if lengths.max(initial=0) > np.iinfo(np.uint32).max:
        return lengths.astype(np.int64)
    return lengths.astype(np.uint32)


def open_rows(config: Mapping[str, Any], workspace: Workspace) -> RowSource:
    """Open the row source of an assembly plan.

    Parameters
    ----------
    config : mapping
        ``kind`` is a key of `ROW_SOURCES`; the other keys belong to that source.
    """
    source: RowSource = resolve("row source", config["kind"], ROW_SOURCES)(config, workspace)
    return source


BATCH_BYTES = 16 * 10**6
BATCH_ROWS = 1024
"""Largest batch of rows that is passed to a writer, in bytes."""

SHARD_BYTES, FIRST_SHARD_BYTES = 256 * 10**6, 32 * 10**6
"""Default shard size in encoded bytes, and that of the first shards (`_most_bytes`)."""

_SHARE_OF_EARLIER = 4

_INDEX_ROWS = 1 << 13
"""Number of rows read at a time for the index."""


@dataclass(frozen=True)
class ShardPlan:
    """Plan of the shards of a dataset.

    Attributes
    ----------
    rows : dict
        The row source's configuration (`packer.assembly.plan.open_rows`).
    cuts : tuple of int
        Shard k holds the positions ``cuts[k]`` to ``cuts[k + 1]`` (exclusive) of the stored order.
    sizes : tuple of ShardSize
        Expected contents of each shard.
    first : int
        The number of the first shard in its name.
    key : str
        Unique name of the folder in which the shards are written. Even a plan for the same rows gets another key,
        because a repeated task may produce other rows.
    order_digest : str
        SHA-256 of the file of the stored order; empty if the order is that of the source.
    files : tuple of FileEntry
        Finished files of the dataset that belong to no shard, below `Workspace.final`.
    """

    rows: Mapping[str, Any]
    format: str
    cuts: tuple[int, ...]
    sizes: tuple[ShardSize, ...]
    workspace: Workspace
    first: int = 0
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    order_digest: str = ""
    files: tuple[FileEntry, ...] = ()

    @cached_property
    def source(self) -> RowSource:
        """Source of the rows."""
        return open_rows(self.rows, self.workspace)

    @cached_property
    def order(self) -> IntArray | None:
        """Stored order, or None for the source's order."""
        if not self.order_digest:
            return None
        path = self.workspace.promised(self.workspace.order)
        if not path.exists() or sha256_file(path) != self.order_digest:
            raise damaged(path)
        order: IntArray = np.load(path, mmap_mode="r")
        return order

    def shard_name(self, number: int) -> str:
        """Return the name of a shard."""
        return f"shard-{self.first + number:05d}"

    @property
    def staging(self) -> Path:
        """Folder of written shards and their records, until they are moved into place."""
        return self.workspace.staging / self.key

    def published(self, number: int) -> Path:
        """Return the folder in which a shard is published (`packer.assembly.shard`)."""
        return self.staging / self.shard_name(number)

    def shard_rows(self, number: int) -> IntArray:
        """Return the source's rows in a shard, in order."""
        return _rows_at(self.order, self.cuts[number], self.cuts[number + 1])

    def save(self) -> None:
        """Write the plan, and flush it together with the order, reports and index. A resume then starts with the shards."""
        fsync_tree(self.workspace.final)
        if self.order_digest:
            fsync_file(self.workspace.order)
        document = {name: value for name, value in vars(self).items() if name in _SAVED}
        document |= {"sizes": [vars(size) for size in self.sizes], "files": [entry.to_json() for entry in self.files]}
        write_record(self.workspace.assembly, document)

    @classmethod
    def load(cls, workspace: Workspace) -> "ShardPlan":
        """Read the plan of a workspace."""
        document = read_record(workspace.promised(workspace.assembly))
        sizes = tuple(ShardSize(**size) for size in document.pop("sizes"))
        files = read_entries(FileEntry, document.pop("files"), "files", Problems())
        return cls(cuts=tuple(document.pop("cuts")), sizes=sizes, files=files, workspace=workspace, **document)


_SAVED = ("rows", "format", "cuts", "first", "key", "order_digest")


class ShardRun(NamedTuple):
    """A run of stored rows that shares no shard with other runs.

    Attributes
    ----------
    shard_bytes : int or None
        Most encoded bytes in a shard. Only a single larger row may exceed this. None chooses the size (`_most_bytes`).
    """

    rows: int
    shard_bytes: int | None


def plan_assembly(
    workspace: Workspace,
    rows: Mapping[str, Any],
    source: RowSource,
    format: str,
    pieces: Sequence[ShardRun],
    order: IntArray | None = None,
    first: int = 0,
) -> ShardPlan:
    """Cut the rows into shards by encoded size, with at least one row each.

    Parameters
    ----------
    rows : mapping
        The configuration of the row source.
    pieces : sequence of ShardRun
        All rows, in their stored order.
    order : (rows,) int64 or None
        The source's rows in stored order, possibly a subset. None means all rows in the order of the source.
    first : int
        The number of the first shard in its name.
    """
    lengths = source.sizes()
    bytes_of = row_sizes(source.schema, lengths, len(source))
    cuts = _cut_pieces(bytes_of if order is None else bytes_of[order], pieces)
    sizes = []
    for start, stop in itertools.pairwise(cuts):
        at = slice(start, stop) if order is None else order[start:stop]
        sizes.append(shard_size(source.schema, {name: values[at] for name, values in lengths.items()}, stop - start))
    digest = ""
    if order is not None:
        temporary = workspace.order.with_name("order.partial.npy")
        np.save(temporary, order)
        temporary.replace(workspace.order)
        digest = sha256_file(workspace.order)
    return ShardPlan(rows, format, cuts, tuple(sizes), workspace, first, order_digest=digest)


class PlannedShards:
    """Writes the shards of a workspace's assembly plan. The plan is read when the first shard is written.

    It is all the work (`packer.jobs.plan.Work`) of a job without tasks.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._plan: ShardPlan | None = None

    def prepare(self) -> None:
        """Do nothing, because nothing is slow to load."""

    def run(self, unit: Any, *_: Any) -> dict[str, Any]:
        """Write the shard of a unit."""
        with writing(self._workspace.out):
            return self.write(unit.number)

    def write(self, number: int) -> dict[str, Any]:
        """Write one shard unless it is already published, and return its manifest entry as JSON."""
        if self._plan is None:
            self._plan = ShardPlan.load(self._workspace)
        plan = self._plan
        schema, size = plan.source.schema, plan.sizes[number]
        batches = read_batches(plan.source, plan.shard_rows(number), schema.names, size.row_bytes)
        published, name = plan.published(number), plan.shard_name(number)
        return write_shard(published, plan.format, name, schema, size, batches, self._workspace.owner).to_json()

    def close(self) -> None:
        """Close the rows."""
        if self._plan is not None:
            self._plan.source.close()


def write_index(
    source: RowSource,
    order: IntArray | None,
    folder: Path,
    before: Mapping[str, Path] | None = None,
) -> None:
    """Write ``<field>.npy`` for each scalar field, in the stored order of the rows.

    Parameters
    ----------
    order : (rows,) int64 or None
        The source's rows in stored order, possibly a subset. None means all rows in the order of the source.
    folder : Path
        Created if it does not exist.
    before : mapping of str to Path, optional
        Existing index files by field, whose rows come first.
    """
    schema = Schema(tuple(field for field in source.schema if field.is_scalar))
    if not schema.names:
        return
    folder.mkdir(parents=True, exist_ok=True)
    count = len(source) if order is None else len(order)
    # Read the rows once, in the order of the source. Only another order needs them all in memory.
    ascending = order if order is None or np.all(order[1:] > order[:-1]) else np.sort(order)
    columns = None if ascending is order else allocate(schema, count)

    def append(name: str, values: npt.NDArray[Any]) -> None:
        with (folder / f"{name}.npy").open("ab") as file:  # one at a time: there may be more fields than descriptors
            file.write(values.astype(schema[name].numpy_dtype, copy=False).tobytes())

    for name in schema.names:
        known = None if before is None else np.load(before[name], allow_pickle=False)
        shape = (count if known is None else count + len(known),)
        descr = np.lib.format.dtype_to_descr(schema[name].numpy_dtype)
        with (folder / f"{name}.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
        if known is not None:
            append(name, known)
    for first in range(0, count, _INDEX_ROWS):
        rows = _rows_at(ascending, first, min(first + _INDEX_ROWS, count))
        for name, values in source.read(rows, schema.names).items():
            if columns is None:
                append(name, values)
            else:
                columns[name][first : first + len(rows)] = values
    if columns is not None and ascending is not None and order is not None:
        places = np.searchsorted(ascending, order)
        for name in schema.names:
            append(name, columns.pop(name)[places])


def shuffled(rows: int, seed: int) -> IntArray:
    """Return the row numbers in a random order drawn from a seed."""
    return np.random.Generator(np.random.PCG64(seed)).permutation(rows)


def row_sizes(schema: Schema, lengths: Mapping[str, Lengths], rows: int) -> npt.NDArray[np.int64]:
    """Return the encoded size of each row, (rows,), given the `lengths` of its values of variable size."""
    bytes_of = np.full(rows, sum(field.row_bytes for field in schema if field.is_fixed), np.int64)
    for values in lengths.values():
        bytes_of += values
    return bytes_of


def _most_bytes(shard_bytes: int | None, before: int) -> int:
    """Return the largest encoded size of a shard, given the size of the piece's earlier shards.

    By default it is a quarter of the size of the earlier shards, within bounds. One worker writes the last shard while
    the others are idle, so the last shard should be a small part of the whole.
    """
    if shard_bytes is not None:
        return shard_bytes
    return min(max(before // _SHARE_OF_EARLIER, FIRST_SHARD_BYTES), SHARD_BYTES)


def cut_rows(bytes_of: npt.NDArray[np.int64], shard_bytes: int | None) -> tuple[int, ...]:
    """Return the boundaries 0, …, N between the shards. A row that is larger than a shard gets a separate shard.

    Parameters
    ----------
    bytes_of : (rows,) int64
        Encoded size of each row in bytes.
    shard_bytes : int or None
        See `ShardRun`.
    """
    ends = np.cumsum(bytes_of)
    cuts = [0]
    while cuts[-1] < len(ends):
        done = int(ends[cuts[-1] - 1]) if cuts[-1] else 0
        stop = int(np.searchsorted(ends, done + _most_bytes(shard_bytes, done), side="right"))
        cuts.append(max(stop, cuts[-1] + 1))
    return tuple(cuts)


def shard_size(schema: Schema, lengths: Mapping[str, Lengths], rows: int) -> ShardSize:
    """Return the expected sizes of a shard of `rows` rows, given the `lengths` of their values of variable size."""
    totals = {f.name: f.row_bytes * rows if f.is_fixed else int(lengths[f.name].sum()) for f in schema}
    return ShardSize(rows, totals)


def read_batches(source: RowSource, rows: IntArray, fields: Sequence[str], row_bytes: int) -> Iterator[Columns]:
    """Yield the rows in batches for a writer."""
    step = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, row_bytes)))
    for first in range(0, len(rows), step):
        yield source.read(rows[first : first + step], fields)


def _cut_pieces(bytes_of: npt.NDArray[np.int64], pieces: Sequence[ShardRun]) -> tuple[int, ...]:
    cuts = [0]
    for piece in pieces:
        start = cuts[-1]
        cuts += [start + cut for cut in cut_rows(bytes_of[start : start + piece.rows], piece.shard_bytes)[1:]]
    assert cuts[-1] == len(bytes_of)
    return tuple(cuts)


def _rows_at(order: IntArray | None, start: int, stop: int) -> IntArray:
    return np.arange(start, stop, dtype=np.int64) if order is None else np.array(order[start:stop])
