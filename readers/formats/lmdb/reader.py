"""lmdb: a shard is one single-file LMDB environment."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from readers.formats.checks import corrupt, gather_bytes
from readers.formats.lmdb.tree import LMDBTree
from readers.formats.mapping import ByteArray, Extents, map_open, opened
from shardspec.columns import Columns, IntArray
from shardspec.entries import Shard
from shardspec.errors import DatasetError
from shardspec.schema import Schema


class LMDBShardReader:
    """Reads one LMDB file (`readers.formats.base`) through a mapping and its own walk of the tree.

    LMDB's library refuses to open a file twice in one process, hangs or fails after a fork, and trusts every page; the
    mapping has none of these problems and copies a batch with less work. LMDB has no checksums: a flipped bit of a
    value reads as another value, which only ``verify=`` finds; a flipped bit in the tree is an error. Encoded values
    are views of the mapping and keep it alive. Safe to use from several threads, and after a fork.
    """

    threads = True
    views = True

    def __init__(self, path: Path, shard: Shard, schema: Schema, *, checksums: bool = True) -> None:
        self._path = path
        self._rows = shard.samples
        self._schema = schema
        self._data: ByteArray | None
        with opened(path) as file:
            self._data = map_open(file.fileno())
            self._tree = LMDBTree(path, file, self._data, shard.samples, schema.names)

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Gather rows (`readers.formats.base.ShardReader.read`)."""
        if self._data is None:
            raise DatasetError(f"{self._path}: expected an open reader, found a closed one")
        if not len(rows) or not fields:
            return
        for name, values in self._tree.locate(rows, fields).items():
            field = self._schema[name]
            if field.is_fixed:
                if bool((values.sizes != field.row_bytes).any()):
                    raise corrupt(self._path, f"{field.row_bytes} bytes in every value of {name!r}", "other sizes")
                gather_bytes(self._data, values.starts, field, out[name], at)
                continue
            view, column = self._data.data, out[name]
            ends = values.starts + values.sizes
            for place, start, end in zip(at.tolist(), values.starts.tolist(), ends.tolist(), strict=True):
                column[place] = view[start:end]

    def extents(self, rows: IntArray, fields: Sequence[str]) -> Iterator[Extents]:
        """Where rows are (`readers.formats.base.MappedReader`). Reads their leaf pages, which are among the values."""
        if self._data is not None and len(rows) and fields:
            leaves = self._tree.leaves(rows)
            yield Extents(self._data, leaves.starts, leaves.starts + leaves.sizes)
            values = self._tree.foresee(rows, fields)
            yield Extents(self._data, values.starts, values.starts + values.sizes)

    def close(self) -> None:
        """Drop the mapping, which ends with the last view of it."""
        self._data = None
        del self._tree
