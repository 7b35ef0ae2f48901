"""A packed dataset takes the place of another in the same folder, and at every moment one of both can be read, whole.

The shards of both have the same names, so the manifest is switched more than once, each time atomically:

1. the new shards lie beside the old ones as ``next-shard-00000`` and so on; the manifest is still the old one;
2. the old manifest without its index and reports, which then go;
3. the new manifest with the shards' ``next-`` names and without index and reports. The old shards go, and the new ones are
   linked to their own names;
4. the new manifest. The ``next-`` names go.

No reader needs to know of this: what is a shard, and how it is called, stands in the manifest.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from packer.durable import fsync_folder, link_tree, remove_tree, write_durably
from packer.workspace import Workspace
from shardspec.entries import FileEntry, Shard
from shardspec.layout import Layout
from shardspec.manifest import Manifest

_PREFIX = "next-"


def finish_replacement(workspace: Workspace) -> bool:
    """Go on with the replacement that stands in the workspace, wherever it was broken off.

    Returns
    -------
    bool
        Whether there was one. The workspace holds nothing of worth any more.
    """
    if not workspace.successor.exists():
        return False
    layout = Layout(workspace.out)
    data = workspace.successor.read_bytes()
    successor = Manifest.loads(data, str(workspace.successor))
    aside = _set_aside(successor)
    workspace.sweep()
    standing = layout.manifest.read_bytes() if layout.manifest.exists() else b""
    if standing not in (data, aside.dumps()):
        _withdraw(workspace, layout)
        write_durably(layout.manifest, aside.dumps())
        standing = aside.dumps()
    if standing != data:
        replaced = Manifest.loads(workspace.replaced.read_bytes(), str(workspace.replaced))
        remove_files(layout, (entry for shard in replaced.shards for entry in shard.files))
        for name in _top_names(successor):
            link_tree(layout.root / f"{_PREFIX}{name}", layout.root / name)
        for path in sorted(workspace.final.iterdir()):
            link_tree(path, layout.root / path.name)
        fsync_folder(layout.root)
        write_durably(layout.manifest, data)
    for name in _top_names(successor):
        remove_tree(layout.root / f"{_PREFIX}{name}")
    fsync_folder(layout.root)
    return True


def _withdraw(workspace: Workspace, layout: Layout) -> None:
    """Lay the new shards beside the old ones, and take index and reports from the old dataset."""
    if workspace.ready.is_dir():
        for path in sorted(workspace.ready.iterdir()):
            os.replace(path, layout.root / f"{_PREFIX}{path.name}")
        fsync_folder(layout.root)
    if layout.manifest.exists():
        replaced = Manifest.loads(workspace.replaced.read_bytes(), str(workspace.replaced))
        write_durably(layout.manifest, replace(replaced, files=()).dumps())
        remove_files(layout, replaced.files)


def _set_aside(manifest: Manifest) -> Manifest:
    """The manifest of the same samples while their shards bear the other names."""

    def renamed(shard: Shard) -> Shard:
        files = tuple(replace(entry, name=_PREFIX + entry.name) for entry in shard.files)
        return replace(shard, name=_PREFIX + shard.name, files=files)

    generations = tuple(replace(g, shards=tuple(map(renamed, g.shards))) for g in manifest.generations)
    return replace(manifest, generations=generations, files=())


def _top_names(manifest: Manifest) -> list[str]:
    """The shards' files, or folders, in the dataset's folder."""
    return sorted({entry.name.split("/")[0] for shard in manifest.shards for entry in shard.files})


def remove_files(layout: Layout, entries: Iterable[FileEntry]) -> None:
    """Remove files of a dataset and the folders that this empties, and nothing else."""
    folders: set[Path] = set()
    for entry in entries:
        path = layout.file(entry)
        path.unlink(missing_ok=True)
        folders.update(
            parent for parent in path.parents if parent.is_relative_to(layout.root) and parent != layout.root
        )
    for folder in sorted(folders, key=lambda path: -len(path.parts)):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
