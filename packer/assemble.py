"""Assembly: encoded rows, in their stored order, cut into shards by their bytes."""

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
    workspace : Workspace
    """

    rows: Mapping[str, Any]
    format: str
    cuts: tuple[int, ...]
    workspace: Workspace

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.cuts) - 1

    @cached_property
    def source(self) -> RowSource:
        """The rows."""
        return open_rows(self.rows, self.workspace.root)

    @cached_property
    def sizes(self) -> Mapping[str, npt.NDArray[np.int64]]:
        """Encoded bytes of every value of the fields that are not fixed."""
        return self.source.sizes()

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
        document = {"rows": dict(self.rows), "format": self.format, "cuts": list(self.cuts)}
        write_durably(self.workspace.assembly, json.dumps(document).encode())

    @classmethod
    def load(cls, workspace: Workspace) -> "AssemblyPlan":
        """Read the plan of a workspace."""
        document = json.loads(workspace.assembly.read_bytes())
        return cls(document["rows"], document["format"], tuple(document["cuts"]), workspace)


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
    for lengths in source.sizes().values():
        bytes_of += lengths
    source.close()
    if order is not None:
        bytes_of = bytes_of[order]
        temporary = workspace.order.with_name("order.partial.npy")
        np.save(temporary, order)
        temporary.replace(workspace.order)
    return AssemblyPlan(rows, format, cut_rows(bytes_of, shard_bytes), workspace)


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
    rows = plan.shard_rows(number)
    size = shard_size(plan.source.schema, plan.sizes, rows)
    names = plan.source.schema.names
    batches = read_batches(plan.source, rows, names, size.row_bytes)
    return write_shard(workspace.out, staging, plan.format, name, plan.source.schema, size, batches)


def shard_size(schema: Schema, sizes: Mapping[str, npt.NDArray[np.int64]], rows: IntArray) -> ShardSize:
    """What a shard of these rows will hold."""
    totals, largest = {}, {}
    for field in schema:
        lengths = sizes[field.name][rows] if not field.is_fixed else np.array([field.row_bytes])
        totals[field.name] = field.row_bytes * len(rows) if field.is_fixed else int(lengths.sum())
        largest[field.name] = int(lengths.max(initial=0))
    return ShardSize(len(rows), totals, largest)


def read_batches(source: RowSource, rows: IntArray, fields: Sequence[str], row_bytes: int) -> Iterator[Columns]:
    """The rows in batches that a writer takes one at a time."""
    step = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, row_bytes)))
    for first in range(0, len(rows), step):
        yield source.read(rows[first : first + step], fields)
