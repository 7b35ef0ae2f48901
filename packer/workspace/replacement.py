"""Commit a dataset. At every moment, the old dataset in the folder or the new one can be read in full.

The name of each file that a manifest lists has a tag made from the file's contents, so a name never has other contents.
New files are put next to the old ones, and one atomic write replaces the manifest. Files that it does not list are then
removed. The card has a fixed name, because people read and edit it. No manifest lists it, and it is written last.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from packer.workspace import Workspace
from packer.workspace.card import write_card
from packer.workspace.durable import (
    check_files,
    damaged,
    fsync_folder,
    link_file,
    read_manifest,
    write_durably,
)
from shardspec.entries import UNSAID, About, Column, FileEntry, Generation, tagged_start
from shardspec.errors import Problems
from shardspec.layout import BUILD_FOLDER, INDEX_FOLDER, ITEMS_NAME, REJECTS_NAME, Layout, describe_file, sha256_file
from shardspec.manifest import Manifest
from shardspec.schema import Field, Schema


class FieldColumn(NamedTuple):
    """A field that is stored outside the shards, and its entry in the manifest."""

    field: Field
    column: Column

    @classmethod
    def from_json(cls, field: Any, column: Any) -> "FieldColumn":
        """Read a column that a plan of shards has saved."""
        read, entry = Field.from_json(field, Problems()), Column.from_json(column, Problems())
        assert read is not None
        assert entry is not None
        return cls(read, entry)


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
    """Return the manifest of the finished files, after comparing the digests of those that belong to no shard."""
    check_files(workspace.final, files)
    fields, entries = tuple(one.field for one in columns), tuple(one.column for one in columns)
    whole = Schema((*schema, *fields)) if fields else schema
    tagged = tuple(entry.with_tag() for entry in files)
    return Manifest(format, whole, tuple(generations), tagged, wall_clock, entries, about)


def commit(workspace: Workspace, manifest: Manifest, staged: Iterable[tuple[Path, FileEntry]]) -> None:
    """Put all finished files into place, and then the manifest. Remove the files of the dataset that it replaces.

    Parameters
    ----------
    staged : iterable of (Path, FileEntry)
        The finished files of new shards.

    Notes
    -----
    The files were flushed when they were written. After a crash at any moment, repeat the call, or call `finish`
    if the manifest is in place.
    """
    layout = Layout(workspace.out)
    put_files(layout.root, staged)
    _put_columns(workspace, layout.root, manifest.columns)
    # Links are moved, so that the commit can be repeated if this run is killed.
    put_files(layout.root, [(link_file(workspace.final / entry.own_name), entry) for entry in manifest.files])
    write_durably(layout.manifest, manifest.dumps())
    _clean_up(workspace, layout, manifest)


def describe_final(workspace: Workspace) -> tuple[FileEntry, ...]:
    """Return the entries of the index and the reports, by their names without tags."""
    root = workspace.final
    paths = [root / ITEMS_NAME, root / REJECTS_NAME, *sorted((root / INDEX_FOLDER).glob("*.npy"))]
    return tuple(describe_file(root, path) for path in paths if path.exists())


def is_committed(workspace: Workspace) -> bool:
    """Return whether the manifest in the dataset's folder is that of the workspace's build."""
    layout = Layout(workspace.out)
    if not workspace.assembly.exists() or not layout.manifest.exists():
        return False
    return layout.load() not in earlier_manifests(workspace)


def finish(workspace: Workspace) -> bool:
    """Remove the files of the earlier dataset if the workspace's build is committed, and return whether it is.

    If so, the workspace can be deleted.
    """
    if not is_committed(workspace):
        return False
    layout = Layout(workspace.out)
    workspace.sweep()
    _clean_up(workspace, layout, layout.load())
    return True


def earlier_manifests(workspace: Workspace) -> list[Manifest]:
    """Return the manifest of the dataset that the workspace's build replaces or updates, if there is one."""
    return [read_manifest(path) for path in (workspace.replaced, workspace.base) if path.exists()]


def _clean_up(workspace: Workspace, layout: Layout, manifest: Manifest) -> None:
    """Remove the files of the earlier dataset, and write the card."""
    listed = {entry.name for entry in manifest.entries}
    old = (entry.name for one in earlier_manifests(workspace) for entry in one.entries)
    _remove_files(layout.root, (name for name in old if name not in listed))
    sweep(layout, manifest)
    write_card(layout, manifest)


def sweep(layout: Layout, *manifests: Manifest) -> None:
    """Remove files of interrupted calls: those with a tag that is in no manifest."""
    listed = {"", *(tagged_start(entry.name) for manifest in manifests for entry in manifest.entries)}
    _remove_files(layout.root, [name for name in _file_names(layout.root) if tagged_start(name) not in listed])


def _file_names(root: Path) -> Iterator[str]:
    """Yield the names of files at most two folders deep. Links to folders are not followed."""
    for folder, below, files in os.walk(root):
        here = Path(folder).relative_to(root)
        below[:] = [name for name in below if len(here.parts) < 2 and name != BUILD_FOLDER]
        yield from ((here / name).as_posix() for name in files)


def _remove_files(root: Path, names: Iterable[str]) -> None:
    """Remove files, and folders that become empty. A file that cannot be removed, as when it is open on Windows, stays."""
    folders = {PurePosixPath(INDEX_FOLDER)}  # a killed call may have made it and put nothing into it
    for name in names:
        with suppress(OSError):
            (root / name).unlink()
        folders.update(PurePosixPath(name).parents)
    for folder in sorted(folders - {PurePosixPath()}, key=lambda folder: -len(folder.parts)):
        with suppress(OSError):  # raised if it is not empty
            (root / folder).rmdir()
    fsync_folder(root)


def put_files(root: Path, files: Iterable[tuple[Path, FileEntry]]) -> None:
    """Move finished files to their places in a dataset's folder, durably, unless an earlier call has moved them."""
    folders = {root}
    for path, entry in files:
        target = root / entry.name
        if path.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
        elif not target.exists():
            raise damaged(path)
        folders.update(root / folder for folder in PurePosixPath(entry.name).parents)
    for folder in folders:
        fsync_folder(folder)


def _put_columns(workspace: Workspace, root: Path, columns: Iterable[Column]) -> None:
    files = [(workspace.columns / one.field / Path(entry.name).name, entry) for one in columns for entry in one.files]
    for path, entry in files:
        if path.exists() and sha256_file(path) != entry.sha256:
            raise damaged(path)
    put_files(root, files)
