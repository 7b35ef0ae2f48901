"""The folder of a dataset's columns: what killed calls have left there."""

import os
import re
from typing import NamedTuple

from packer.workspace import Workspace
from packer.workspace.durable import fsync_folder, remove_tree
from shardspec.entries import COLUMNS_FOLDER, Column
from shardspec.layout import Layout
from shardspec.manifest import Manifest
from shardspec.schema import Field

COLUMN_DIGITS = 16
"""Characters of the digest of a column's files in the name of its folder, so that no two columns have one name."""
_OURS = re.compile(rf"[a-z][a-z0-9_]{{0,62}}-[0-9a-f]{{{COLUMN_DIGITS}}}\Z")


class FieldColumn(NamedTuple):
    """A field that lies beside the shards, and where."""

    field: Field
    column: Column


def lay_columns(workspace: Workspace, layout: Layout, standing: Manifest, successor: Manifest) -> None:
    """Put the finished columns of the next manifest into place, beside those of the standing one."""
    there = {column.name for column in standing.columns}
    for column in successor.columns:
        staged = workspace.columns / column.field
        if column.name in there or not staged.exists():
            continue
        layout.columns.mkdir(exist_ok=True)
        remove_tree(layout.root / column.name)
        os.replace(staged, layout.root / column.name)
        fsync_folder(layout.columns)


def sweep_columns(layout: Layout, manifest: Manifest) -> None:
    """Remove what killed calls have left of columns that the dataset has not."""
    if not layout.columns.is_dir() or layout.columns.is_symlink():
        return
    listed = {column.name for column in manifest.columns}
    for path in sorted(layout.columns.iterdir()):
        if _OURS.match(path.name) and f"{COLUMNS_FOLDER}/{path.name}" not in listed:
            remove_tree(path)
    if not any(layout.columns.iterdir()):
        layout.columns.rmdir()
