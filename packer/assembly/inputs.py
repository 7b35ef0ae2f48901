"""The inputs of a merge: packed datasets, and the pieces of a build in the places where they are."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from packer.assembly.piece import Piece, PieceReader, columns_from_json, columns_to_json
from packer.assembly.remote_piece import RemotePiece
from packer.assembly.schemas import adapter
from packer.assembly.table import Lengths, RowTable, class_numbers
from packer.recipe.options import read_shared_settings
from packer.workspace import Workspace
from packer.workspace.durable import damaged
from readers.formats.shards import ShardReader, open_shard
from shardspec.columns import Buffer, Columns, IntArray, allocate
from shardspec.entries import Column, Shard
from shardspec.errors import (
    DatasetChangedError,
    DatasetError,
    Problems,
    SchemaError,
    ShardMissingError,
    ShardspecError,
    system_reason,
)
from shardspec.layout import Layout, is_url, layout_at, place_of
from shardspec.manifest import Manifest
from shardspec.registry import import_target
from shardspec.schema import Schema

if TYPE_CHECKING:
    from packer.assembly.remote_pool import PooledShard, RemotePool

_STORED = "a dataset in a store"
_REPEAT = "repeat the command when no other process writes to the folder"


class DatasetInput:
    """A packed dataset whose rows are read, as an input of `packer.assembly.packed_rows.PackedRows`.

    Attributes
    ----------
    schema : Schema
        The fields of its rows.
    samples : (parts,) int64
        Number of rows of each shard.
    columns : sequence of Column
        Fields that are stored outside the shards.
    most_open : int
        Number of readers that may be open at the same time.
    reads_parts : bool
        Whether parts of the shards are downloaded when they are read.
    items_before : int
        The number to add to the item's number in every key.


    Parameters
    ----------
    entry : mapping
        See `packer.assembly.packed_rows.PackedRows`.
    manifest : Manifest, optional
        The dataset's manifest, if it is loaded already.
    """

    most_open = 32

    def __init__(self, entry: Mapping[str, Any], manifest: Manifest | None) -> None:
        self._layout = _layout_of(entry["path"])
        self._pool: RemotePool | None = None
        if not self._layout.is_local:
            self._pool = import_target("packer.assembly.remote_pool:RemotePool", what=_STORED)(self._layout)
        if manifest is None:
            manifest = self._layout.load() if self._pool is None else self._pool.manifest
        self._manifest = manifest
        if not self._manifest.digest.startswith(entry.get("digest", "")):
            raise DatasetChangedError(
                place=self._layout.shown,
                expected="the dataset that was opened",
                found="another in its place",
                hint=_REPEAT,
            )
        self.items_before: int = entry.get("items_before", 0)
        whole = entry.get("columns", True)
        self.schema = self._manifest.schema if whole else self._manifest.shard_schema
        self.columns: Sequence[Column] = self._manifest.columns if whole else ()
        self.reads_parts = self._layout.reads_parts
        self._shards = self._manifest.shards
        self._column_of = {} if self._pool is not None else {column.field: column for column in self.columns}
        self._open: dict[str, ShardReader] = {}
        self.samples = np.array([shard.samples for shard in self._shards], np.int64)
        self._ends = np.cumsum(self.samples)

    def open(self, part: int, schema: Schema, *, compare: bool) -> "DatasetReader":
        """Check and open a shard, to read its rows as the fields of the schema that this schema was united into.

        Parameters
        ----------
        compare : bool
            Whether to compare the digest with the manifest. The files of a remote dataset are compared on arrival.
        """
        shard = self._shards[part]
        first = int(self._ends[part]) - shard.samples
        if self._pool is not None:
            return DatasetReader(self, shard, self._pool.shard(part, first), first, schema)
        return DatasetReader(self, shard, self._open_part(shard, compare=compare), first, schema)

    def part_bytes(self, part: int) -> int:
        """Return the bytes of a shard."""
        return self._shards[part].bytes

    def lengths(self) -> Mapping[str, Lengths] | None:
        """Return the encoded sizes of all values of variable size, by field, if they are known without reading shards."""
        return None

    def close(self) -> None:
        """Close the columns, and the shards of a remote dataset."""
        if self._pool is not None:
            self._pool.close()
        for reader in self._open.values():
            reader.close()
        self._open.clear()

    def column(self, name: str) -> tuple[Column, ShardReader]:
        """Return a column and its reader. Each process compares the digest of a column, since columns have no scans."""
        column = self._column_of[name]
        if name not in self._open:
            self._open[name] = self._open_part(column, compare=True)
        return column, self._open[name]

    def has_column(self, name: str) -> bool:
        """Return whether a field is read by `column`. The pool of a remote dataset reads columns, too."""
        return name in self._column_of

    def _open_part(self, part: Shard | Column, *, compare: bool) -> ShardReader:
        layout = self._layout
        with self.reading(part):
            if compare:
                for entry in part.files:
                    layout.check_digest(entry)
            else:
                layout.check_sizes(part.files)
            return open_shard(layout, self._manifest, part)

    @contextmanager
    def reading(self, part: Shard | Column) -> Iterator[None]:
        """Turn errors into a `DatasetError` that names the file, and say so if the dataset has been replaced."""
        try:
            yield
        except ShardMissingError:
            self._layout.check_unchanged(self._manifest, _REPEAT)
            raise
        except SchemaError as error:
            raise DatasetError(f"{part.name}: {error}", place=self._layout.shown) from error
        except ShardspecError:  # some are OSErrors, too
            raise
        except OSError as error:
            path = error.filename or self._layout.shard(part, self._manifest.format)
            raise DatasetError(f"cannot be read: {system_reason(error)}", place=path) from error


def _layout_of(place: str) -> Layout:
    """Return the layout of a dataset's folder or URL, which is opened with the settings that are shared with workers."""
    if not is_url(place):
        return layout_at(Path(place))
    scheme, options = read_shared_settings()
    open_layout = import_target("readers.staging.layout:dataset_layout", what=_STORED)
    layout: Layout = open_layout(
        place, storage_options=options if urlsplit(place).scheme == scheme else None, patient=True
    )
    return layout


class DatasetReader:
    """Reads the rows of a shard, and their values in columns, as the fields of a united schema."""

    def __init__(
        self, of: DatasetInput, shard: Shard, reader: "ShardReader | PooledShard", first: int, schema: Schema
    ) -> None:
        self._of = of
        self._shard = shard
        self._reader = reader
        self._first = first
        adapters = {field.name: adapter(field, schema[field.name]) for field in of.schema}
        self._adapters = {name: adapt for name, adapt in adapters.items() if adapt is not None}

    def read(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Copy rows (`readers.formats.shards.ShardReader.read`)."""
        here = [name for name in fields if not self._of.has_column(name)]
        if here:
            self._read(self._shard, self._reader, rows, here, out, at)
        for name in fields:
            if self._of.has_column(name):
                self._read(*self._of.column(name), rows + self._first, [name], out, at)
        if self._of.items_before and "key" in fields:
            for place in at.tolist():
                out["key"][place] = shift_key(out["key"][place], self._of.items_before)

    def lengths(self, field: str) -> IntArray | None:
        """Return the encoded sizes of all values (`readers.formats.shards.ShardReader.lengths`)."""
        if field in self._adapters or self._of.has_column(field):
            return None
        with self._of.reading(self._shard):
            return self._reader.lengths(field)

    def close(self) -> None:
        """Close the shard."""
        self._reader.close()

    def _read(
        self,
        part: Shard | Column,
        reader: "ShardReader | PooledShard",
        rows: IntArray,
        fields: Sequence[str],
        out: Columns,
        at: IntArray,
    ) -> None:
        same = [name for name in fields if name not in self._adapters]
        changed = [name for name in fields if name in self._adapters]
        own = allocate(self._of.schema.select(changed), len(rows)) if changed else {}
        with self._of.reading(part):
            if same:
                reader.read(rows, same, out, at)
            if changed:
                reader.read(rows, changed, own, np.arange(len(rows)))
            for name in changed:
                values = self._adapters[name](own[name])
                if isinstance(out[name], np.ndarray):
                    out[name][at] = values
                else:
                    for position, value in zip(at.tolist(), values, strict=True):
                        out[name][position] = value


class PiecePlaces(NamedTuple):
    """Places of the pieces of all tasks; if there are none, the pieces are in the job's own workspace.

    Attributes
    ----------
    folders : sequence of str
        Roots of workspaces with the same plan.
    of_task : sequence of int
        Number of the folder with each task's piece.
    objects : sequence of str
        Names of the pieces in the store of the job's own workspace.
    """

    folders: Sequence[str] = ()
    of_task: Sequence[int] = ()
    objects: Sequence[str] = ()

    def find(self, workspace: Workspace, task: int) -> Workspace:
        """Return the workspace that holds the piece of a task."""
        if not self.folders:
            return workspace
        return replace(workspace, root=Path(self.folders[self.of_task[task]]), remote=None)


IN_WORKSPACE = PiecePlaces()
"""All pieces are in the job's own workspace."""


def open_piece(workspace: Workspace, places: PiecePlaces, task: int) -> Piece:
    """Open the piece of a finished task. Wait for the file if it is not visible yet."""
    workspace = places.find(workspace, task)
    if workspace.remote is not None:
        return RemotePiece(workspace.remote, places.objects[task] if places.objects else workspace.remote.pieces[task])
    path = workspace.part(task)
    try:
        return Piece(path)
    except FileNotFoundError:
        if not workspace.shared:
            raise damaged(path) from None
        return Piece(workspace.promised(path))


class PieceInput:
    """The pieces of a build, as an input of `packer.assembly.packed_rows.PackedRows`, like `DatasetInput`.

    Parameters
    ----------
    entry : mapping
        From `describe_pieces`.
    table : RowTable, optional
        See `packer.assembly.packed_rows.PackedRows`.
    """

    most_open = 128
    reads_parts = False
    columns: Sequence[Column] = ()

    def __init__(self, entry: Mapping[str, Any], workspace: Workspace | None, table: RowTable | None) -> None:
        found = Schema.from_json(entry["schema"], Problems())
        if found is None or workspace is None:
            raise SchemaError("the plan of the shards has no schema of the pieces")
        self.schema = found
        self._workspace = workspace
        self._table = table
        self._places = PiecePlaces(**entry["places"])
        self._columns = columns_from_json(entry["columns"])
        self.samples = np.array(entry["pieces"] if table is None else [len(table)], np.int64)

    def open(self, part: int, schema: Schema, *, compare: bool) -> PieceReader | RowTable:
        """Open a piece. The checksums of its values are compared whenever they are read."""
        if self._table is not None:
            return self._table
        rows = open_piece(self._workspace, self._places, part).group(self._columns)
        assert rows is not None
        named = [name for name, spec in self._columns.items() if spec.kind == "class"]
        return PieceReader(rows, schema, {name: class_numbers(schema[name]) for name in named})

    def part_bytes(self, part: int) -> int:
        """Return 0: the mapping of a piece is small."""
        return 0

    def lengths(self) -> Mapping[str, Lengths] | None:
        """Return the lengths that the table has."""
        return None if self._table is None else self._table.sizes()

    def close(self) -> None:
        """Do nothing, because pieces have no columns."""


def for_workers(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of rows with the URLs of remote datasets, whose shards this process reads in part."""
    inputs = [{**one, "path": str(place_of(Path(one["path"])))} if "path" in one else one for one in config["inputs"]]
    return {**config, "inputs": inputs}


RowReader = DatasetReader | PieceReader | RowTable


def describe_pieces(table: RowTable, rows: Sequence[int], places: PiecePlaces = IN_WORKSPACE) -> dict[str, Any]:
    """Return the entry of pieces in the configuration of `packer.assembly.packed_rows.PackedRows`.

    Parameters
    ----------
    table : RowTable
        The table of all rows, with its schema.
    rows : sequence of int
        Number of rows of each piece.
    places : PiecePlaces
        The folders of the pieces; by default all are in the job's own workspace.
    """
    columns, schema = columns_to_json(table.columns), table.schema.to_json()
    return {"pieces": list(rows), "columns": columns, "schema": schema, "places": places._asdict()}


def shift_key(key: Buffer, items: int) -> bytes:
    """Increase the item's number in a sample's key ``<item>-<ordinal>``."""
    item, dash, ordinal = bytes(key).partition(b"-")
    return b"%08d" % (int(item) + items) + dash + ordinal
