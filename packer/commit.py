"""The commit: reports, index and manifest, after which the folder is a packed dataset."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packer.durable import fsync_folder, fsync_tree, write_durably
from packer.workspace import Workspace
from shardspec.entries import FileEntry, Generation
from shardspec.layout import INDEX_FOLDER, Layout, describe_file
from shardspec.manifest import Manifest
from shardspec.schema import Schema


def commit(
    workspace: Workspace, format: str, schema: Schema, generations: Sequence[Generation], wall_clock: Mapping[str, Any]
) -> Manifest:
    """Move the finished files into place and write the manifest, last. May be repeated after a crash at any moment."""
    layout = Layout(workspace.out)
    fsync_tree(workspace.final)
    for path in sorted(workspace.final.iterdir()):
        target = workspace.out / path.name
        if target.is_dir():
            shutil.rmtree(target)
        # Copied as links, so that the files to move are still there if this run is killed and the commit repeated.
        _link_tree(path, target)
    fsync_folder(workspace.out)
    manifest = Manifest(format, schema, tuple(generations), _files(layout), wall_clock)
    write_durably(layout.manifest, manifest.dumps())
    return manifest


def remove_dataset(layout: Layout, manifest: Manifest) -> None:
    """Remove a packed dataset: the manifest first, then every file that it names, and nothing else."""
    layout.manifest.unlink(missing_ok=True)
    fsync_folder(layout.root)
    names = [*manifest.files, *(entry for shard in manifest.shards for entry in shard.files)]
    folders: set[Path] = set()
    for entry in names:
        path = layout.file(entry)
        path.unlink(missing_ok=True)
        folders.update(
            parent for parent in path.parents if parent.is_relative_to(layout.root) and parent != layout.root
        )
    for folder in sorted(folders, key=lambda path: -len(path.parts)):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _files(layout: Layout) -> tuple[FileEntry, ...]:
    """Entries of the files that belong to no shard."""
    paths = [layout.items, layout.rejects]
    folder = layout.root / INDEX_FOLDER
    paths += sorted(folder.glob("*.npy")) if folder.is_dir() else []
    return tuple(describe_file(layout.root, path) for path in paths if path.exists())


def _link_tree(source: Path, target: Path) -> None:
    """Hard links, or copies where the file system has none, of a file or of a folder's files."""
    if source.is_dir():
        target.mkdir()
        for path in sorted(source.iterdir()):
            _link_tree(path, target / path.name)
        fsync_folder(target)
        return
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
