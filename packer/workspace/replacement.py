"""A packed dataset takes the place of another in the same folder, and at every moment one of both can be read, whole.

The shards of both have the same names, so the manifest is switched more than once, each time atomically:

1. the new shards lie beside the old ones as ``next-shard-00000`` and so on; the manifest is still the old one;
2. the old manifest without its index and reports, which then go;
3. the new manifest with the shards' ``next-`` names and without index and reports. The old shards go, and the new ones are
   linked to their own names;
4. the new manifest. The ``next-`` names go.

Where the old dataset stopped at step 3 of a replacement of its own, its shards have such names already, and the new ones get longer ones.

No reader needs to know of this: what is a shard, and how it is called, stands in the manifest.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from packer.workspace import Workspace
from packer.workspace.durable import fsync_folder, link_tree, remove_tree, write_durably
from shardspec.entries import FileEntry, Shard
from shardspec.layout import Layout
from shardspec.manifest import Manifest

_MARK = "next-"


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
    workspace.sweep()
    if not workspace.replaced.exists():  # it goes when all is done
        return True
    standing = layout.manifest.read_bytes() if layout.manifest.exists() else b""
    replaced = Manifest.loads(workspace.replaced.read_bytes(), str(workspace.replaced))
    prefix = _prefix_beside(replaced)
    aside = _set_aside(successor, prefix)
    if standing not in (data, aside.dumps()):
        _withdraw(workspace, layout, replaced, prefix)
        write_durably(layout.manifest, aside.dumps())
        standing = aside.dumps()
    if standing != data:
        _remove_files(layout, (entry for shard in replaced.shards for entry in shard.files))
        for name in _top_names(successor):
            link_tree(layout.root / f"{prefix}{name}", layout.root / name)
        for path in sorted(workspace.final.iterdir()):
            link_tree(path, layout.root / path.name)
        fsync_folder(layout.root)
        write_durably(layout.manifest, data)
    for name in _top_names(successor):
        remove_tree(layout.root / f"{prefix}{name}")
    fsync_folder(layout.root)
    return True


def _prefix_beside(replaced: Manifest) -> str:
    """A prefix for the new shards' names with which none of them is a name of the replaced dataset."""
    names = [*_top_names(replaced), *(entry.name for entry in replaced.files)]
    prefix = _MARK
    while any(name.startswith(prefix) for name in names):
        prefix += _MARK
    return prefix


def _withdraw(workspace: Workspace, layout: Layout, replaced: Manifest, prefix: str) -> None:
    """Lay the new shards beside the old ones, and take index and reports from the old dataset."""
    if workspace.ready.is_dir():
        for path in sorted(workspace.ready.iterdir()):
            os.replace(path, layout.root / f"{prefix}{path.name}")
        fsync_folder(layout.root)
    if layout.manifest.exists():
        write_durably(layout.manifest, replace(replaced, files=()).dumps())
        _remove_files(layout, replaced.files)


def _set_aside(manifest: Manifest, prefix: str) -> Manifest:
    """The manifest of the same samples while their shards bear the other names."""

    def renamed(shard: Shard) -> Shard:
        files = tuple(replace(entry, name=prefix + entry.name) for entry in shard.files)
        return replace(shard, name=prefix + shard.name, files=files)

    generations = tuple(replace(g, shards=tuple(map(renamed, g.shards))) for g in manifest.generations)
    return replace(manifest, generations=generations, files=())


def _top_names(manifest: Manifest) -> list[str]:
    """The shards' files, or folders, in the dataset's folder."""
    return sorted({entry.name.split("/")[0] for shard in manifest.shards for entry in shard.files})


def _remove_files(layout: Layout, entries: Iterable[FileEntry]) -> None:
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
