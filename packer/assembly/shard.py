"""One shard, from row batches to a durable file: staged, flushed, digested, recorded, then moved into place."""

import json
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from packer.assembly.writers.base import ShardSize, ShardWriter
from packer.workspace.durable import fsync_folder, fsync_tree, write_durably
from shardspec.columns import Columns
from shardspec.entries import Shard
from shardspec.formats import get_format
from shardspec.layout import describe_file
from shardspec.problems import Problems
from shardspec.registry import resolve
from shardspec.schema import Schema

_RECORD = ".json"


def write_shard(
    root: Path, staging: Path, format: str, name: str, schema: Schema, size: ShardSize, batches: Iterable[Columns]
) -> Shard:
    """Write one shard below `root` and return its manifest entry. Once it returns, the shard is durable.

    A crash at any moment leaves either nothing that `finished_shard` accepts, or the whole shard: the files in
    `staging` are complete before the record is written beside it, and the record exists before the first file is moved.

    Parameters
    ----------
    root : Path
        Where finished shards are put. An older shard of the same name is replaced.
    staging : Path
        A folder on the same file system, which this call may empty, fill and remove; the record is ``staging`` +
        ``.json``.
    batches : iterable of Columns
        All rows, in order.
    """
    _record(staging).unlink(missing_ok=True)
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    writer: ShardWriter = resolve("format", format, {format: get_format(format).writer})(staging, name, schema, size)
    try:
        for batch in batches:
            writer.write(batch)
    except Exception:
        with suppress(Exception):  # it has fewer rows than it announced; only its files are to be closed
            writer.close()
        raise
    writer.close()
    with ThreadPoolExecutor(1) as thread:  # the digests are taken while the disk is at work
        flushed = thread.submit(fsync_tree, staging)
        files = tuple(describe_file(staging, path) for path in sorted(staging.rglob("*")) if path.is_file())
        flushed.result()
    shard = Shard(name, size.samples, writer.block_rows, files)
    write_durably(_record(staging), json.dumps(shard.to_json()).encode())
    _publish(root, staging)
    return shard


def finished_shard(root: Path, staging: Path) -> Shard | None:
    """The entry of a shard that an earlier call of `write_shard` finished. Moves the shard into place if need be.

    None if there is no record, or if a file that it names is missing or has another size.
    """
    try:
        document = json.loads(_record(staging).read_bytes())
    except FileNotFoundError:
        return None
    shard = Shard.from_json(document, Problems())
    if staging.is_dir():
        _publish(root, staging)
    if shard is None or any(_size(root / entry.name) != entry.bytes for entry in shard.files):
        return None
    return shard


def _record(staging: Path) -> Path:
    return staging.with_name(staging.name + _RECORD)


def _publish(root: Path, staging: Path) -> None:
    """Move the staged files into place; those that an interrupted call has moved are no longer staged."""
    for path in sorted(staging.iterdir()):
        target = root / path.name
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(path, target)
    fsync_folder(root)
    staging.rmdir()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
