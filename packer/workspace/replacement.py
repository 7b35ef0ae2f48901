"""Commit a dataset, or replace an older one in the same folder. At every moment, one of the two can be read in full.

The shards of both datasets have the same names, so the manifest is replaced more than once, each time atomically:

1. Move all new files next to the old ones, as ``next-shard-00000``, ``next-index/label.npy`` and so on. The old
   manifest stays.
2. Write the new manifest with the ``next-`` names. Then remove the old files, and link the new files to their final
   names.
3. Write the new manifest with the final names. Then remove the ``next-`` names.

If an earlier replacement stopped at step 2, the files of the old dataset have ``next-`` names already. The new files
then get a longer prefix.

In an update, the new shards get names that no old shard has, so only the other files (index, reports, card) take these
steps. Old shards that the new manifest does not list are removed last. Each column has a unique name, too: new columns
are moved into place before the first step, and columns that both datasets have stay where they are.

No reader of samples needs to know about this: the manifest lists the shards and their names.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from packer.workspace import Workspace
from packer.workspace.card import with_card
from packer.workspace.durable import (
    check_files,
    damaged,
    fsync_folder,
    link_tree,
    read_manifest,
    remove_tree,
    write_durably,
)
from shardspec.entries import ASIDE, COLUMNS_FOLDER, UNSAID, About, Column, FileEntry, Generation, Shard
from shardspec.layout import INDEX_FOLDER, Layout, describe_file, sha256_file
from shardspec.manifest import Manifest
from shardspec.schema import Field, Schema

COLUMN_DIGITS = 16
"""Digits of the digest in the name of a column's folder, which make the name unique."""
_OURS = re.compile(rf"[a-z][a-z0-9_]{{0,62}}-[0-9a-f]{{{COLUMN_DIGITS}}}\Z")


class FieldColumn(NamedTuple):
    """A field that is stored outside the shards, and its entry in the manifest."""

    field: Field
    column: Column


def make_manifest(
    workspace: Workspace,
    format: str,
    schema: Schema,
    generations: Sequence[Generation],
    files: Sequence[FileEntry],
    wall_clock: Mapping[str, Any],
    columns: Sequence[FieldColumn] = (),
    about: About = UNSAID,
) -> Manifest:
    """Return the manifest of the finished files, after comparing those that belong to no shard and writing the card."""
    final = Layout(workspace.final)
    check_files(final.root, files)
    fields, entries = tuple(one.field for one in columns), tuple(one.column for one in columns)
    whole = Schema((*schema, *fields)) if fields else schema
    manifest = Manifest(format, whole, tuple(generations), tuple(files), wall_clock, entries, about)
    return with_card(final, manifest, Layout(workspace.out))


def commit(workspace: Workspace, manifest: Manifest) -> None:
    """Move the finished files into place, and write the manifest last.

    The files were flushed when the shards were planned. After a crash at any moment, repeat the call. If a replacement
    or an update has written its successor already, call `finish_replacement` instead.
    """
    if workspace.replaced.exists() or workspace.base.exists():
        write_durably(workspace.successor, manifest.dumps())
        finish_replacement(workspace, checked=True)
        return
    for path in sorted(workspace.final.iterdir()):
        # Link instead of moving, so that the commit can be repeated if this run is killed.
        link_tree(path, workspace.out / path.name)
    fsync_folder(workspace.out)
    write_durably(Layout(workspace.out).manifest, manifest.dumps())


def describe_final(workspace: Workspace) -> tuple[FileEntry, ...]:
    """Return the entries of the index and the reports."""
    layout = Layout(workspace.final)
    paths = [layout.items, layout.rejects]
    folder = layout.root / INDEX_FOLDER
    paths += sorted(folder.glob("*.npy")) if folder.is_dir() else []
    return tuple(describe_file(layout.root, path) for path in paths if path.exists())


def finish_replacement(workspace: Workspace, *, checked: bool = False) -> bool:
    """Resume an interrupted replacement at any of its steps.

    Parameters
    ----------
    checked : bool
        Whether the digests of the new files are known to be right, because this process has computed them.

    Returns
    -------
    bool
        Whether the workspace held a replacement. If so, the workspace can be deleted now.
    """
    if not workspace.successor.exists():
        return False
    layout = Layout(workspace.out)
    successor = read_manifest(workspace.successor)
    data = successor.dumps()
    workspace.sweep()
    updates = workspace.base.exists()
    old = workspace.base if updates else workspace.replaced
    current = layout.manifest.read_bytes() if layout.manifest.exists() else b""
    if not old.exists():
        if current != data:
            raise damaged(old)
        return True  # it was removed as the last step
    replaced = read_manifest(old)
    prefix = unused_prefix(replaced)
    aside = set_aside(successor, prefix, shards=not updates)
    names = sorted({entry.name.split("/")[0] for entry in _moved(successor, shards=not updates)})
    if current not in (data, aside.dumps()):
        move_columns(workspace, layout, replaced, successor)
        _move_next_to_old(workspace, layout, prefix, shards=not updates)
        if not checked:
            known = {(entry.name, entry.sha256) for entry in replaced.entries}
            new = [entry for entry in aside.entries if (entry.name, entry.sha256) not in known]
            check_files(layout.root, new, workspace.root)
        write_durably(layout.manifest, aside.dumps())
        current = aside.dumps()
    if current != data:
        _remove_files(layout, _moved(replaced, shards=not updates))
        for name in names:
            link_tree(layout.root / f"{prefix}{name}", layout.root / name)
        fsync_folder(layout.root)
        write_durably(layout.manifest, data)
    for name in names:
        remove_tree(layout.root / f"{prefix}{name}")
    _remove_files(layout, _left_over(replaced, successor))
    sweep_columns(layout, successor)
    fsync_folder(layout.root)
    return True


def unused_prefix(replaced: Manifest) -> str:
    """Return a prefix for new files that no name in the replaced dataset begins with."""
    prefix = ASIDE
    while any(name.startswith(prefix) for name in _top_names(replaced)):
        prefix += ASIDE
    return prefix


def _move_next_to_old(workspace: Workspace, layout: Layout, prefix: str, *, shards: bool) -> None:
    """Move the new files next to the old ones. Names get the prefix, those of shards only if `shards` is True."""
    for folder, before in ((workspace.ready, prefix if shards else ""), (workspace.final, prefix)):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            os.replace(path, layout.root / f"{before}{path.name}")
    fsync_folder(layout.root)


def set_aside(manifest: Manifest, prefix: str, *, shards: bool = True) -> Manifest:
    """Return the manifest of the same dataset with prefixed names; those of shards only if `shards` is True."""

    def renamed(entries: Iterable[FileEntry]) -> tuple[FileEntry, ...]:
        return tuple(replace(entry, name=prefix + entry.name) for entry in entries)

    def renamed_shard(shard: Shard) -> Shard:
        return replace(shard, name=prefix + shard.name, files=renamed(shard.files))

    if not shards:
        return replace(manifest, files=renamed(manifest.files))
    generations = tuple(replace(g, shards=tuple(map(renamed_shard, g.shards))) for g in manifest.generations)
    return replace(manifest, generations=generations, files=renamed(manifest.files))


def _moved(manifest: Manifest, *, shards: bool) -> list[FileEntry]:
    """Return the files that take the three steps."""
    of_shards = (entry for shard in manifest.shards for entry in shard.files)
    return [*(of_shards if shards else ()), *manifest.files]


def _left_over(replaced: Manifest, successor: Manifest) -> list[FileEntry]:
    """Return the files of old shards and columns that the next dataset does not list."""
    names = {entry.own_name for entry in successor.entries}
    return [entry for part in replaced.parts for entry in part.files if entry.own_name not in names]


def _top_names(manifest: Manifest) -> list[str]:
    """Return the names of the files and folders in a dataset's folder, without the manifest."""
    return sorted({entry.name.split("/")[0] for entry in manifest.entries})


def _remove_files(layout: Layout, entries: Iterable[FileEntry]) -> None:
    """Remove files of a dataset under both of their names, and the folders that become empty."""
    folders: set[Path] = set()
    for entry in entries:
        for path in (layout.file(entry), layout.root / entry.own_name):
            path.unlink(missing_ok=True)
            folders.update(
                parent for parent in path.parents if parent.is_relative_to(layout.root) and parent != layout.root
            )
    for folder in sorted(folders, key=lambda path: -len(path.parts)):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def move_columns(workspace: Workspace, layout: Layout, current: Manifest, successor: Manifest) -> None:
    """Move the finished columns of the next manifest into place. The current manifest does not list them yet."""
    listed = {column.name for column in current.columns}
    for column in successor.columns:
        staged, target = workspace.columns / column.field, layout.root / column.name
        if column.name in listed or (target.exists() and not staged.exists()):
            continue
        for entry in column.files:
            path = staged / entry.name.rpartition("/")[2]
            if not path.exists() or sha256_file(path) != entry.sha256:
                raise damaged(path)
        layout.columns.mkdir(exist_ok=True)
        remove_tree(target)
        os.replace(staged, target)
        fsync_folder(layout.columns)


def sweep_columns(layout: Layout, manifest: Manifest) -> None:
    """Remove columns that interrupted calls left behind and that the manifest does not list."""
    if not layout.columns.is_dir() or layout.columns.is_symlink():
        return
    listed = {column.name for column in manifest.columns}
    for path in sorted(layout.columns.iterdir()):
        if _OURS.match(path.name) and f"{COLUMNS_FOLDER}/{path.name}" not in listed:
            remove_tree(path)
    if not any(layout.columns.iterdir()):
        layout.columns.rmdir()
