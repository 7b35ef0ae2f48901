"""Columns: fields beside the shards. Their files are written here, and switched with the manifest."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly.plan import BATCH_ROWS, shard_size
from packer.assembly.writers.npy import NpyShardWriter
from packer.workspace import Workspace
from packer.workspace.columns import COLUMN_DIGITS, sweep_columns
from packer.workspace.durable import fsync_folder, fsync_tree, remove_tree, write_durably
from shardspec.columns import Columns
from shardspec.entries import COLUMNS_FOLDER, Column, FileEntry
from shardspec.errors import DatasetError
from shardspec.layout import Layout, describe_file
from shardspec.manifest import Manifest, sha256_json
from shardspec.schema import Field, Schema


def write_column(staging: Path, field: Field, values: Any) -> tuple[Column, Path]:
    """Write the files of a column, durably, and return its entry and the folder to put into its place.

    Parameters
    ----------
    staging : Path
        A folder on the dataset's file system.
    values : ndarray or list of bytes-like objects
        Of every row (`shardspec.columns`).
    """
    schema, rows = Schema((field,)), len(values)
    lengths = {} if field.is_fixed else {field.name: np.array([len(value) for value in values], np.int64)}
    staging.mkdir(parents=True, exist_ok=True)
    folder = staging / field.name
    remove_tree(folder)
    writer = NpyShardWriter(staging, field.name, schema, shard_size(schema, lengths, rows))
    for first in range(0, rows, BATCH_ROWS):
        writer.write({field.name: values[first : first + BATCH_ROWS]})
    writer.close()
    fsync_tree(folder)
    files = [describe_file(folder, path) for path in sorted(folder.iterdir())]
    digest = sha256_json([[entry.name, entry.sha256] for entry in files])
    name = f"{COLUMNS_FOLDER}/{field.name}-{digest[:COLUMN_DIGITS]}"
    entries = tuple(FileEntry(f"{name}/{entry.name}", entry.bytes, entry.sha256) for entry in files)
    return Column(name, field.name, rows, entries), folder


def change_columns(
    workspace: Workspace, manifest: Manifest, dropped: Iterable[str], fields: Sequence[Field], columns: Columns
) -> Manifest:
    """Drop columns of the dataset and put others into their place, in one step: the rename of the manifest.

    Killed at any moment, the dataset is the old or the new one; files that belong to neither are removed by the next
    call, or by the next build in the folder.

    Parameters
    ----------
    workspace : Workspace
        Of the dataset, locked.
    manifest : Manifest
        Of the dataset.
    dropped : collection of str
        Fields of columns.
    fields : sequence of Field
    columns : dict
        The values of `fields` in all rows.
    """
    layout = Layout(workspace.out)
    if layout.columns.is_symlink():
        raise DatasetError(f"{layout.columns}: expected a folder of the dataset, found a link: put a copy in its place")
    sweep_columns(layout, manifest)
    gone = {*dropped}
    kept = [column for column in manifest.columns if column.field not in gone]
    written = [write_column(workspace.root / COLUMNS_FOLDER, field, columns[field.name]) for field in fields]
    changed = with_columns(manifest, [*kept, *(column for column, _ in written)], {f.name: f for f in fields})
    layout.columns.mkdir(exist_ok=True)
    for column, folder in written:
        if not _is_there(layout, column):
            remove_tree(layout.root / column.name)
            os.replace(folder, layout.root / column.name)
    fsync_folder(layout.columns)
    fsync_folder(layout.root)
    if changed != manifest:
        write_durably(layout.manifest, changed.dumps())
    sweep_columns(layout, changed)
    return changed


def _is_there(layout: Layout, column: Column) -> bool:
    """Whether the dataset has the same column already, undamaged: its name has the digest of its files."""
    try:
        for entry in column.files:
            layout.check_digest(entry)
    except DatasetError:
        return False
    return True


def with_columns(manifest: Manifest, columns: Iterable[Column], fields: Mapping[str, Field]) -> Manifest:
    """The manifest with these columns and no others. They are sorted by name, so that their history does not show.

    Parameters
    ----------
    fields : dict of str to Field
        The fields of the columns that are new.
    """
    ordered = tuple(sorted(columns, key=lambda column: column.field))
    beside = tuple(fields.get(column.field) or manifest.schema[column.field] for column in ordered)
    return replace(manifest, schema=Schema((*manifest.shard_schema, *beside)), columns=ordered)
