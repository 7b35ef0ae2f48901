"""The folder of a dataset's columns: what killed calls have left there."""

import re

from packer.workspace.durable import remove_tree
from shardspec.entries import COLUMNS_FOLDER
from shardspec.layout import Layout
from shardspec.manifest import Manifest

COLUMN_DIGITS = 16
"""Characters of the digest of a column's files in the name of its folder, so that no two columns have one name."""
_OURS = re.compile(rf"[a-z][a-z0-9_]{{0,62}}-[0-9a-f]{{{COLUMN_DIGITS}}}\Z")


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
