"""Write columns: fields stored outside the shards. A column becomes part of the dataset when the manifest lists it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from packer.assembly.packed_rows import PackedRows
from packer.assembly.plan import shard_size
from packer.assembly.shard import BATCH_ROWS
from packer.assembly.writers.npy import NpyShardWriter
from packer.workspace import Workspace
from packer.workspace.card import refresh_card
from packer.workspace.durable import fsync_tree, remove_tree, write_durably
from packer.workspace.replacement import FieldColumn, put_files, sweep
from shardspec.columns import Buffer, Columns, IntArray
from shardspec.entries import COLUMNS_FOLDER, TAG_DIGITS, Column, FileEntry
from shardspec.errors import DatasetError
from shardspec.layout import Layout, describe_file, layout_at
from shardspec.manifest import Manifest, sha256_json
from shardspec.schema import Field, Schema
from shardspec.typing.join import JoinedColumns


def write_column(staging: Path, field: Field, values: Any) -> tuple[Column, Path]:
    """Write the files of a column durably. Return its manifest entry and the folder that is to be moved into place.

    Parameters
    ----------
    staging : Path
        A folder on the dataset's file system.
    values : ndarray or list of bytes-like objects
        The values of all rows (`shardspec.columns`).
    """
    batches = (values[first : first + BATCH_ROWS] for first in range(0, len(values), BATCH_ROWS))
    return _write_batches(staging, field, _lengths(field, [values]), len(values), batches)


def _lengths(field: Field, batches: Iterable[Any]) -> dict[str, IntArray]:
    if field.is_fixed:
        return {}
    found = [np.array([len(value) for value in values], np.int64) for values in batches]
    return {field.name: np.concatenate([np.empty(0, np.int64), *found])}


def _write_batches(
    staging: Path, field: Field, lengths: Mapping[str, IntArray], rows: int, batches: Iterable[Any]
) -> tuple[Column, Path]:
    staging.mkdir(parents=True, exist_ok=True)
    folder = staging / field.name
    remove_tree(folder)
    schema = Schema((field,))
    writer = NpyShardWriter(staging, field.name, schema, shard_size(schema, lengths, rows))
    for values in batches:
        writer.write({field.name: values})
    writer.close()
    fsync_tree(folder)
    files = [describe_file(folder, path) for path in sorted(folder.iterdir())]
    digest = sha256_json([[entry.name, entry.sha256] for entry in files])
    name = f"{COLUMNS_FOLDER}/{field.name}-{digest[:TAG_DIGITS]}"
    entries = tuple(FileEntry(f"{name}/{entry.name}", entry.bytes, entry.sha256) for entry in files)
    return Column(name, field.name, rows, entries), folder


def carry_columns(
    workspace: Workspace, root: Path, manifest: Manifest, removed: IntArray, further: int
) -> list[FieldColumn]:
    """Write the columns of a dataset for its rows after an update.

    Parameters
    ----------
    root : Path
        The dataset's folder, which is in the cache for a dataset in a store.
    removed : int64 array
        Rows to leave out, ascending.
    further : int
        Number of new rows at the end. They have no values, so they get a sentinel, and False in the validity field.
        Computed columns are left out if there are new rows.
    """
    columns = [column for column in manifest.columns if not (further and column.computed)]
    kept = np.delete(np.arange(manifest.samples), removed)
    with closing(PackedRows.of(root, check="size", manifest=manifest)) as source:
        for place, column in enumerate(columns if len(removed) or further else ()):
            field = manifest.schema[column.field]
            layout_at(root).require(column.files)  # of a remote dataset, whose parts would have no digest to compare
            carry = partial(_carried, source, field, kept, further)
            lengths = _lengths(field, () if field.is_fixed else carry())
            carried, _ = _write_batches(workspace.columns, field, lengths, len(kept) + further, carry())
            columns[place] = replace(carried, computed=column.computed)
    return [FieldColumn(manifest.schema[column.field], column) for column in columns]


def _carried(source: PackedRows, field: Field, kept: IntArray, further: int) -> Iterator[Any]:
    """Yield batches of the values of kept rows, then placeholders for new rows."""
    for first in range(0, len(kept), BATCH_ROWS):
        yield source.read(kept[first : first + BATCH_ROWS], [field.name])[field.name]
    nothing = b"" if field.is_fixed else _empty(field, source.read(np.arange(1), [field.name])[field.name])
    for first in range(0, further, BATCH_ROWS):
        rows = min(BATCH_ROWS, further - first)
        if field.is_fixed:
            yield np.full((rows, *field.fixed_shape), field.sentinel, field.numpy_dtype)
        else:
            yield [nothing] * rows


def _empty(field: Field, values: Sequence[Buffer]) -> bytes:
    """Return the sentinel for a missing value of variable size. For JSON, it is an empty document of the same kind."""
    if field.codec.name != "json":
        return b""
    return b"{}" if any(bytes(value[:1]) == b"{" for value in values[:1]) else b"[]"


def change_columns(
    workspace: Workspace,
    manifest: Manifest,
    dropped: Iterable[str],
    fields: Sequence[Field],
    columns: Columns,
    computed: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Manifest:
    """Replace columns of the dataset atomically, by renaming the new manifest into place.

    If the process is killed, the dataset has either the old or the new columns. The next call, or the next build in the
    folder, removes the remaining files.

    Parameters
    ----------
    workspace : Workspace
        Workspace of the dataset. The caller must hold its lock.
    manifest : Manifest
        The present manifest of the dataset.
    dropped : collection of str
        Fields whose columns are removed.
    columns : dict
        Values of the added `fields` in all rows.
    computed : dict, optional
        How the values of a field were computed (`Column.computed`), by field.
    """
    layout = Layout(workspace.out)
    if layout.columns.is_symlink():
        raise DatasetError(
            place=layout.columns, expected="a folder of the dataset", found="a link", hint="put a copy in its place"
        )
    sweep(layout, manifest)
    gone = {*dropped}
    kept = [column for column in manifest.columns if column.field not in gone]
    written = [write_column(workspace.root / COLUMNS_FOLDER, field, columns[field.name]) for field in fields]
    written = [(replace(column, computed=computed.get(column.field, {})), path) for column, path in written]
    changed = with_columns(manifest, [*kept, *(column for column, _ in written)], {f.name: f for f in fields})
    put_files(layout.root, [(folder / Path(e.name).name, e) for column, folder in written for e in column.files])
    if changed != manifest:
        write_durably(layout.manifest, changed.dumps())
    sweep(layout, changed)
    refresh_card(layout, changed)
    return changed


def has_columns(workspace: Workspace, manifest: Manifest, joined: JoinedColumns) -> bool:
    """Return whether the dataset already has these fields as columns with the same values."""
    known = {column.field: column for column in manifest.columns}
    return all(
        field.name in known
        and manifest.schema[field.name] == field
        and write_column(workspace.root / COLUMNS_FOLDER, field, joined.columns[field.name])[0] == known[field.name]
        for field in joined.fields
    )


def with_columns(manifest: Manifest, columns: Iterable[Column], fields: Mapping[str, Field]) -> Manifest:
    """Return the manifest with exactly these columns, sorted by name so that the order of changes does not matter.

    Parameters
    ----------
    fields : dict of str to Field
        Fields of the new columns.
    """
    ordered = tuple(sorted(columns, key=lambda column: column.field))
    new_fields = tuple(fields.get(column.field) or manifest.schema[column.field] for column in ordered)
    return replace(manifest, schema=Schema((*manifest.shard_schema, *new_fields)), columns=ordered)
