"""One shard, from row batches to a durable file: staged, closed, flushed, digested, renamed into place."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from packer.durable import fsync_folder, fsync_tree
from packer.writers.base import ShardSize, ShardWriter
from shardspec.columns import Columns
from shardspec.formats import get_format
from shardspec.layout import describe_file
from shardspec.manifest import FileEntry, Shard
from shardspec.registry import resolve
from shardspec.schema import Schema


def write_shard(
    root: Path, staging: Path, format: str, name: str, schema: Schema, size: ShardSize, batches: Iterable[Columns]
) -> Shard:
    """Write one shard below `root` and return its manifest entry. Once it returns, the shard is durable.

    Parameters
    ----------
    root : Path
        The dataset's folder. An older shard of that name is replaced.
    staging : Path
        A folder on the same file system that this call may empty, fill and remove.
    batches : iterable of Columns
        All rows, in order.
    """
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    writer: ShardWriter = resolve("format", format, {format: get_format(format).writer})(staging, name, schema, size)
    for batch in batches:
        writer.write(batch)
    writer.close()
    fsync_tree(staging)
    files: tuple[FileEntry, ...] = tuple(
        describe_file(staging, path) for path in sorted(staging.rglob("*")) if path.is_file()
    )
    for path in sorted(staging.iterdir()):
        target = root / path.name
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(path, target)
    fsync_folder(root)
    staging.rmdir()
    return Shard(name, size.samples, writer.block_rows, files)
