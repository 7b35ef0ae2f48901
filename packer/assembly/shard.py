"""Write the shards of a plan, each durably: write, flush, digest, record, then publish.

Each attempt writes to a separate folder. Renaming this folder to the shard's name publishes the shard. The rename fails
if the name is taken, so only one attempt counts, and a worker that was believed dead changes nothing. The files are moved
into the dataset's folder by the commit (`packer.workspace.replacement`).
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from packer.assembly.packed_rows import PackedRows
from packer.assembly.plan import ShardPlan
from packer.assembly.writers.base import ShardSize, ShardWriter
from packer.workspace import Workspace
from packer.workspace.durable import (
    check_files,
    fsync_tree,
    publish_folder,
    read_record,
    remove_tree,
    write_record,
    writing,
)
from packer.workspace.paths import RECORD_NAME, temporary_path
from shardspec.columns import Columns, IntArray
from shardspec.entries import TAG_DIGITS, Shard
from shardspec.errors import BuildError, Problems
from shardspec.formats import get_format
from shardspec.layout import describe_file
from shardspec.manifest import sha256_json
from shardspec.registry import resolve
from shardspec.schema import Schema

BATCH_BYTES = 16 * 10**6
BATCH_ROWS = 1024
"""Largest batch of rows that is passed to a writer, in bytes."""


class PlannedShards:
    """Writes the shards of a workspace's assembly plan. The plan is read when the first shard is written.

    It is all the work (`packer.jobs.plan.Work`) of a job without tasks.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._plan: ShardPlan | None = None

    def prepare(self) -> None:
        """Do nothing, because nothing is slow to load."""

    def run(self, unit: Any, *_: Any) -> dict[str, Any]:
        """Write the shard of a unit."""
        with writing(self._workspace.out):
            return self.write(unit.number)

    def write(self, number: int) -> dict[str, Any]:
        """Write one shard unless it is already published, and return its manifest entry as JSON."""
        if self._plan is None:
            self._plan = ShardPlan.load(self._workspace)
        plan = self._plan
        schema, size = plan.source.schema, plan.sizes[number]
        batches = _read_batches(plan.source, plan.shard_rows(number), schema.names, size.row_bytes)
        published, name = plan.published(number), plan.shard_name(number)
        published.parent.mkdir(parents=True, exist_ok=True)
        shard = write_shard(published, plan.format, name, schema, size, batches, self._workspace.owner)
        if self._workspace.remote is not None:
            self._workspace.remote.put_shard(self._workspace.root, published, shard)
        return shard.to_json()

    def close(self) -> None:
        """Close the rows."""
        if self._plan is not None:
            self._plan.source.close()


def write_shard(
    published: Path,
    format: str,
    name: str,
    schema: Schema,
    size: ShardSize,
    batches: Iterable[Columns],
    owner: str = "",
) -> Shard:
    """Write and publish one shard durably, and return its manifest entry.

    Parameters
    ----------
    published : Path
        The folder to publish the shard as. Its parent must exist. If the folder itself exists, nothing is written.
    name : str
        Name without a tag. The tag follows from the contents.
    batches : iterable of Columns
        All rows, in order.
    owner : str
        See `packer.workspace.Workspace`.
    """
    found = published_shard(published)
    if found is not None:
        return found
    attempt = temporary_path(published, owner)
    attempt.mkdir()
    try:
        shard = _write(attempt, format, name, schema, size, batches)
        if publish_folder(attempt, published):
            return shard
    except BaseException:
        with suppress(OSError):
            remove_tree(attempt)
        raise
    remove_tree(attempt)
    found = published_shard(published)
    if found is None:
        raise BuildError(
            place=published, expected="a finished shard", found="something else", hint="run the same command again"
        )
    return found


def published_shard(published: Path) -> Shard | None:
    """Return the manifest entry of a published shard, or None if it was not published or its record is damaged."""
    try:
        return Shard.from_json(read_record(published / RECORD_NAME), Problems())
    except (FileNotFoundError, BuildError):
        return None


def check_shard(root: Path, published: Path) -> Shard | None:
    """Return the manifest entry of a published shard after checking its files, or None if the shard must be written again.

    Parameters
    ----------
    root : Path
        The dataset's folder, to which an interrupted commit may have moved some of the files.
    published : Path
        See `write_shard`.
    """
    shard = published_shard(published)
    if shard is None:
        return None
    try:
        for entry in shard.files:
            check_files(published if (published / entry.name).exists() else root, [entry])
    except BuildError:
        return None
    return shard


def _write(folder: Path, format: str, name: str, schema: Schema, size: ShardSize, batches: Iterable[Columns]) -> Shard:
    block_rows = _write_files(folder, format, name, schema, size, batches)
    with ThreadPoolExecutor(1) as thread:  # compute the digests while the disk is writing
        flushed = thread.submit(fsync_tree, folder)
        files = tuple(describe_file(folder, path) for path in sorted(folder.rglob("*")) if path.is_file())
        flushed.result()
    tag = sha256_json([[entry.name, entry.sha256] for entry in files])[:TAG_DIGITS]
    tagged = f"{name}-{tag}"
    for path in sorted(folder.iterdir()):
        path.rename(folder / f"{tagged}{path.name.removeprefix(name)}")
    files = tuple(replace(entry, name=f"{tagged}{entry.name.removeprefix(name)}") for entry in files)
    shard = Shard(tagged, size.samples, block_rows, files)
    write_record(folder / RECORD_NAME, shard.to_json())
    return shard


def _write_files(
    folder: Path, format: str, name: str, schema: Schema, size: ShardSize, batches: Iterable[Columns]
) -> int:
    """Write the files, and return the number of rows per block."""
    writer: ShardWriter = resolve("format", format, {format: get_format(format).writer})(folder, name, schema, size)
    try:
        for batch in batches:
            writer.write(batch)
    except Exception:
        with suppress(Exception):  # close the files; the writer would complain about missing rows
            writer.close()
        raise
    writer.close()
    return writer.block_rows


def _read_batches(source: PackedRows, rows: IntArray, fields: Sequence[str], row_bytes: int) -> Iterator[Columns]:
    """Yield the rows in batches for a writer."""
    step = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, row_bytes)))
    for first in range(0, len(rows), step):
        yield source.read(rows[first : first + step], fields)
