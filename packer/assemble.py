"""Assembly: encoded rows, in their stored order, cut into shards by their bytes."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.durable import write_durably
from packer.rows import RowSource, open_rows
from packer.shards import finished_shard, write_shard
from packer.workspace import Workspace
from packer.writers.base import ShardSize
from shardspec.columns import Columns, IntArray
from shardspec.manifest import Shard
from shardspec.schema import Schema

BATCH_BYTES = 16 * 10**6
BATCH_ROWS = 1024
"""A batch of rows on its way from the parts to a writer holds at most so much."""


@dataclass(frozen=True)
class AssemblyPlan:
    """How rows become shards.

    Attributes
    ----------
    rows : dict
        The row source's configuration (`packer.rows.open_rows`).
    format : str
    schema : Schema
    cuts : tuple of int
        Shard k holds places ``cuts[k]`` to ``cuts[k + 1]`` of the stored order.
    sizes : tuple of ShardSize
        What each shard will hold; kept here, since the parts of finished shards are gone when a build is resumed.
    workspace : Workspace
    """

    rows: Mapping[str, Any]
    format: str
    cuts: tuple[int, ...]
    sizes: tuple[ShardSize, ...]
    workspace: Workspace

    @cached_property
    def source(self) -> RowSource:
        """The rows."""
        return open_rows(self.rows, self.workspace.root)

    @cached_property
    def order(self) -> IntArray | None:
        """The stored order, or None where it is the source's own."""
        return np.load(self.workspace.order, mmap_mode="r") if self.workspace.order.exists() else None

    def shard_rows(self, number: int) -> IntArray:
        """The source's rows in a shard, in order."""
        start, stop = self.cuts[number], self.cuts[number + 1]
        if self.order is None:
            return np.arange(start, stop, dtype=np.int64)
        return np.array(self.order[start:stop])

    def save(self) -> None:
        """Write the plan; from here on a resume goes straight to the shards."""
        sizes = [vars(size) for size in self.sizes]
        document = {"rows": dict(self.rows), "format": self.format, "cuts": list(self.cuts), "sizes": sizes}
        write_durably(self.workspace.assembly, json.dumps(document).encode())

    @classmethod
    def load(cls, workspace: Workspace) -> "AssemblyPlan":
        """Read the plan of a workspace."""
        document = json.loads(workspace.assembly.read_bytes())
        sizes = tuple(ShardSize(**size) for size in document["sizes"])
        return cls(document["rows"], document["format"], tuple(document["cuts"]), sizes, workspace)


def plan_assembly(
    workspace: Workspace, rows: Mapping[str, Any], format: str, shard_bytes: int, shuffle: int | None
) -> AssemblyPlan:
    """Order the rows and cut them into shards of at most `shard_bytes` encoded bytes, and at least one row, each.

    Parameters
    ----------
    shuffle : int or None
        Seed of the stored order; None keeps the source's.
    """
    source = open_rows(rows, workspace.root)
    order = None if shuffle is None else np.random.Generator(np.random.PCG64(shuffle)).permutation(len(source))
    bytes_of = np.full(len(source), sum(f.row_bytes for f in source.schema if f.is_fixed), np.int64)
    lengths = source.sizes()
    for values in lengths.values():
        bytes_of += values
    cuts = cut_rows(bytes_of if order is None else bytes_of[order], shard_bytes)
    sizes = []
    for start, stop in itertools.pairwise(cuts):
        at = slice(start, stop) if order is None else order[start:stop]
        sizes.append(shard_size(source.schema, {name: values[at] for name, values in lengths.items()}, stop - start))
    if order is not None:
        temporary = workspace.order.with_name("order.partial.npy")
        np.save(temporary, order)
        temporary.replace(workspace.order)
    source.close()
    return AssemblyPlan(rows, format, cuts, tuple(sizes), workspace)


def cut_rows(bytes_of: npt.NDArray[np.int64], shard_bytes: int) -> tuple[int, ...]:
    """Boundaries 0, …, N of runs of rows that hold at most `shard_bytes` together; a larger row stands alone."""
    ends = np.cumsum(bytes_of)
    cuts = [0]
    while cuts[-1] < len(ends):
        before = int(ends[cuts[-1] - 1]) if cuts[-1] else 0
        stop = int(np.searchsorted(ends, before + shard_bytes, side="right"))
        cuts.append(max(stop, cuts[-1] + 1))
    return tuple(cuts)


def write_planned_shard(workspace: Workspace, plan: AssemblyPlan, number: int) -> Shard:
    """Write one shard of the plan, or accept the one that an earlier run finished."""
    name = f"shard-{number:05d}"
    staging = workspace.staging(name)
    finished = finished_shard(workspace.out, staging)
    if finished is not None:
        return finished
    size = plan.sizes[number]
    batches = read_batches(plan.source, plan.shard_rows(number), plan.source.schema.names, size.row_bytes)
    return write_shard(workspace.out, staging, plan.format, name, plan.source.schema, size, batches)


def shard_size(schema: Schema, lengths: Mapping[str, npt.NDArray[np.int64]], rows: int) -> ShardSize:
    """What a shard of `rows` rows will hold, whose varying values have these encoded `lengths`."""
    totals = {f.name: f.row_bytes * rows if f.is_fixed else int(lengths[f.name].sum()) for f in schema}
    largest = {f.name: f.row_bytes if f.is_fixed else int(lengths[f.name].max(initial=0)) for f in schema}
    return ShardSize(rows, totals, largest)


def read_batches(source: RowSource, rows: IntArray, fields: Sequence[str], row_bytes: int) -> Iterator[Columns]:
    """The rows in batches that a writer takes one at a time."""
    step = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, row_bytes)))
    for first in range(0, len(rows), step):
        yield source.read(rows[first : first + step], fields)
