"""Read rows of a remote dataset as those of a local one (`packer.assembly.inputs`)."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from readers.formats.mapping import gather
from readers.formats.pool import ShardPool
from readers.formats.shards import open_shards
from shardspec.columns import Columns, IntArray
from shardspec.layout import Layout


class RemotePool(ShardPool):
    """Reads rows of a remote dataset, columns included. If shards are read in parts, scalars come from the index.

    The stager of the cache asks pools to close shards whose room it needs for others.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, "off", checksums=True)
        self._maps: dict[str, npt.NDArray[Any] | None] = {}

    def shard(self, number: int, first: int) -> "PooledShard":
        """Return a reader of a shard, given its number and its first row."""
        return PooledShard(self, number, first)

    def close(self) -> None:
        """Close all shards and columns."""
        open_shards.drop(self.number)

    def read(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Copy rows (`readers.formats.pool.ShardPool.read`)."""
        indexed = {name: self._index(name) for name in fields if self.layout.reads_parts}
        for name, values in indexed.items():
            if values is not None:
                gather(values, rows, out[name], at)
        others = [name for name in fields if indexed.get(name) is None]
        if others:
            super().read(rows, others, out, at)

    def lengths(self, number: int, field: str) -> IntArray | None:
        """Return the encoded sizes of a field's values in a shard (`readers.formats.shards.ShardReader.lengths`)."""
        found: list[IntArray | None] = []
        self._with_shard(number, lambda _, reader: found.append(reader.lengths(field)))
        return found[-1]

    def _index(self, name: str) -> npt.NDArray[Any] | None:
        if name not in self._maps:
            field = self.schema[name]
            self._maps[name] = self.map_index(field) if field.is_scalar else None
        return self._maps[name]


class PooledShard:
    """Reads rows of one shard of a pool, and their values in columns (`readers.formats.shards.ShardReader`)."""

    def __init__(self, pool: RemotePool, number: int, first: int) -> None:
        self._pool, self._number, self._first = pool, number, first

    def read(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Copy rows."""
        self._pool.read(rows + self._first, fields, out, at)

    def lengths(self, field: str) -> IntArray | None:
        """Return the encoded sizes of all values."""
        if field not in self._pool.manifest.shard_schema:
            return None
        return self._pool.lengths(self._number, field)

    def close(self) -> None:
        """Close the shard."""
        open_shards.forget(self._pool, self._number)
