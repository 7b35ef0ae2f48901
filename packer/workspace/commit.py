"""The commit: reports, index, card and manifest, after which the folder is a packed dataset."""

from collections.abc import Mapping, Sequence
from typing import Any

from packer.workspace import Workspace
from packer.workspace.columns import FieldColumn
from packer.workspace.durable import fsync_file, fsync_folder, link_tree, write_durably
from packer.workspace.replacement import finish_replacement
from shardspec.entries import FileEntry, Generation
from shardspec.formats import get_format
from shardspec.layout import INDEX_FOLDER, Layout, describe_file
from shardspec.manifest import Manifest
from shardspec.schema import Schema


def commit(
    workspace: Workspace,
    format: str,
    schema: Schema,
    generations: Sequence[Generation],
    wall_clock: Mapping[str, Any],
    columns: Sequence[FieldColumn] = (),
) -> Manifest:
    """Move the finished files into place, and write the manifest last.

    The files were flushed when the shards were planned. After a crash at any moment the call may be repeated. Only a
    replacement, or an addition, whose successor is written is continued by `finish_replacement` instead.
    """
    final = Layout(workspace.final)
    _write_card(final, format)
    fields, beside = tuple(one.field for one in columns), tuple(one.column for one in columns)
    whole = Schema((*schema, *fields)) if fields else schema
    manifest = Manifest(format, whole, tuple(generations), _files(final), wall_clock, beside)
    if workspace.replaced.exists() or workspace.base.exists():
        write_durably(workspace.successor, manifest.dumps())
        finish_replacement(workspace)
        return manifest
    for path in sorted(workspace.final.iterdir()):
        # Linked, so that the files are still in the workspace if this run is killed and the commit repeated.
        link_tree(path, workspace.out / path.name)
    fsync_folder(workspace.out)
    write_durably(Layout(workspace.out).manifest, manifest.dumps())
    return manifest


def _write_card(layout: Layout, format: str) -> None:
    card = get_format(format).card
    if card is not None:
        layout.card.write_bytes(card.encode())
        fsync_file(layout.card)


def _files(layout: Layout) -> tuple[FileEntry, ...]:
    """Entries of the files that belong to no shard."""
    paths = [layout.card, layout.items, layout.rejects]
    folder = layout.root / INDEX_FOLDER
    paths += sorted(folder.glob("*.npy")) if folder.is_dir() else []
    return tuple(describe_file(layout.root, path) for path in paths if path.exists())
