"""Merge pieces and shards into shards: cut their rows, in the stored order, by encoded size, and write them and the index."""

import itertools
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.assembly.packed_rows import PackedRows
from packer.assembly.records import NewGeneration
from packer.assembly.table import Lengths
from packer.assembly.writers.base import ShardSize
from packer.workspace import Workspace
from packer.workspace.durable import damaged, fsync_file, fsync_tree, read_record, write_record
from packer.workspace.replacement import FieldColumn, describe_final
from shardspec.columns import IntArray, allocate
from shardspec.entries import UNSAID, About, FileEntry, Generation, Shard, read_entries
from shardspec.errors import Problems
from shardspec.layout import INDEX_FOLDER, sha256_file
from shardspec.schema import Schema
from shardspec.typing.field_types import LABEL

SHARD_BYTES, FIRST_SHARD_BYTES = 256 * 10**6, 32 * 10**6
"""Default shard size in encoded bytes, and that of the first shards (`_most_bytes`)."""

_SHARE_OF_EARLIER = 4

LABELS = "labels"
"""Key of the numbers of samples by label among the counts that a plan has noted."""

_INDEX_ROWS = 1 << 13
"""Number of rows read at a time for the index."""


@dataclass(frozen=True)
class Merge:
    """How rows of pieces and datasets become a dataset, and what its manifest will list apart from new shards.

    Attributes
    ----------
    rows : dict
        The configuration with which workers open the rows (`packer.assembly.packed_rows.PackedRows`).
    source : PackedRows
        The same rows. Only their index fields need be readable.
    format : str
    generations : sequence of NewGeneration
        All generations, in the stored order of their rows.
    order : (rows,) int64 or None
        The source's rows in their stored order, possibly a subset; None for all rows in the source's own order.
    first_shard : int
        The number in the name of the first shard.
    before : mapping of str to Path, optional
        In an update, the index of the dataset's rows that stay in their shards, by field.
    columns : sequence of FieldColumn
        The columns. The files of new columns are in ``space.columns``, in a folder named like the field.
    wall_clock : mapping
        Further keys of ``wall_clock``. The last line of a ``history`` gets the time of the commit.
    about : About
        Title, licence and citation.
    noted : mapping
        Counts for the result of the job. The numbers of samples by label are added.
    """

    rows: Mapping[str, Any]
    source: PackedRows
    format: str
    generations: Sequence[NewGeneration]
    order: IntArray | None = None
    first_shard: int = 0
    before: Mapping[str, Path] | None = None
    columns: Sequence[FieldColumn] = ()
    wall_clock: Mapping[str, Any] = field(default_factory=dict)
    about: About = UNSAID
    noted: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ShardPlan:
    """Plan of the shards of a dataset.

    Attributes
    ----------
    rows : dict
        The configuration of the rows (`packer.assembly.packed_rows.PackedRows`).
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
    generations, columns, wall_clock, about, noted
        See `Merge`.
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
    generations: tuple[NewGeneration, ...] = ()
    columns: tuple[FieldColumn, ...] = ()
    wall_clock: Mapping[str, Any] = field(default_factory=dict)
    about: About = UNSAID
    noted: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def source(self) -> PackedRows:
        """Source of the rows."""
        return PackedRows(self.rows, self.workspace)

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
        document["generations"] = [[one.generation.to_json(), one.rows, one.shard_bytes] for one in self.generations]
        document["columns"] = [[field.to_json(), column.to_json()] for field, column in self.columns]
        document["about"] = self.about.to_json()
        write_record(self.workspace.assembly, document)

    @classmethod
    def load(cls, workspace: Workspace) -> "ShardPlan":
        """Read the plan of a workspace."""
        document = read_record(workspace.promised(workspace.assembly))
        sizes = tuple(ShardSize(**size) for size in document.pop("sizes"))
        files = read_entries(FileEntry, document.pop("files"), "files", Problems())
        made = tuple(NewGeneration.from_json(*one) for one in document.pop("generations"))
        columns = tuple(FieldColumn.from_json(*one) for one in document.pop("columns"))
        about = About.from_json(document.pop("about"), Problems()) or UNSAID
        return cls(
            cuts=tuple(document.pop("cuts")),
            sizes=sizes,
            files=files,
            workspace=workspace,
            generations=made,
            columns=columns,
            about=about,
            **document,
        )

    def assign(self, shards: Sequence[Shard]) -> list[Generation]:
        """Return the generations with the new shards. No shard has rows of two generations."""
        shared, first, stop = [], 0, 0
        for one in self.generations:
            stop += one.rows
            last = first
            while last < len(shards) and self.cuts[last + 1] <= stop:
                last += 1
            old = one.generation
            shared.append(replace(old, shards=(*old.shards, *shards[first:last])))
            first = last
        return shared


_SAVED = ("rows", "format", "cuts", "first", "key", "order_digest", "wall_clock", "noted")


def merge_rows(merge: Merge, workspace: Workspace) -> ShardPlan:
    """Cut the rows of a merge into shards by encoded size, with at least one row each, and write the index.

    The reports must be written. The caller saves the plan.
    """
    source, order = merge.source, merge.order
    lengths = source.sizes()
    bytes_of = row_sizes(source.schema, lengths, len(source))
    cuts = _cut_generations(bytes_of if order is None else bytes_of[order], merge.generations)
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
    write_index(source, order, workspace.final / INDEX_FOLDER, merge.before)
    return ShardPlan(
        merge.rows,
        merge.format,
        cuts,
        tuple(sizes),
        workspace,
        merge.first_shard,
        order_digest=digest,
        files=describe_final(workspace),
        generations=tuple(merge.generations),
        columns=tuple(merge.columns),
        wall_clock=merge.wall_clock,
        about=merge.about,
        noted={**merge.noted, LABELS: sorted(count_labels(workspace.final / INDEX_FOLDER / f"{LABEL}.npy").items())},
    )


def write_index(
    source: PackedRows,
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


def count_labels(index: Path) -> dict[int, int]:
    """Return the number of samples by label, from the index file of the field. Without labels, the result is empty."""
    try:
        labels = np.load(index, mmap_mode="r")
    except FileNotFoundError:
        return {}
    if labels.dtype.kind not in "iu":
        return {}
    counts = Counter[int]()
    for first in range(0, len(labels), _INDEX_ROWS):
        values, numbers = np.unique(labels[first : first + _INDEX_ROWS], return_counts=True)
        counts.update(dict(zip(values.tolist(), numbers.tolist(), strict=True)))
    return dict(counts)


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
    """Return the largest encoded size of a shard, given the size of the generation's earlier shards.

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
        Encoded size of each row in bytes. The sums take its place.
    shard_bytes : int or None
        See `NewGeneration`.
    """
    ends = np.cumsum(bytes_of, out=bytes_of)
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


def _cut_generations(bytes_of: npt.NDArray[np.int64], made: Sequence[NewGeneration]) -> tuple[int, ...]:
    cuts = [0]
    for one in made:
        start = cuts[-1]
        cuts += [start + cut for cut in cut_rows(bytes_of[start : start + one.rows], one.shard_bytes)[1:]]
    assert cuts[-1] == len(bytes_of)
    return tuple(cuts)


def _rows_at(order: IntArray | None, start: int, stop: int) -> IntArray:
    return np.arange(start, stop, dtype=np.int64) if order is None else np.array(order[start:stop])
