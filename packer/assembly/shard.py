"""Write one durable shard from batches of rows: write, flush, digest, record, then publish.

An attempt has a folder of its own. Its rename to the shard's name is what publishes it, and it fails if the name is
taken, so of several attempts one counts, and a worker that was believed dead changes nothing. The coordinating process
alone moves published files into the dataset's folder (`place_shard`); the record stays, and with it the name is taken.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from packer.assembly.writers.base import ShardSize, ShardWriter
from packer.workspace.durable import begin_flush, fsync_tree, publish_folder, remove_tree, write_durably
from packer.workspace.fresh import host, is_dead, process_mark
from packer.workspace.paths import RECORD_NAME, attempt_beside
from readers.formats.machine import file_system_of, is_network_file_system
from shardspec.columns import Columns
from shardspec.entries import FileEntry, Shard
from shardspec.errors import BuildError, system_reason
from shardspec.formats import get_format
from shardspec.layout import describe_file
from shardspec.problems import Problems
from shardspec.registry import resolve
from shardspec.schema import Schema
from shardspec.wording import LONG, cut

NEEDS_SCRATCH = frozenset({"hdf5"})
"""Formats whose library writes at random offsets, which shared file systems do slowly or refuse."""

SCRATCH_VARIABLES = ("SLURM_TMPDIR", "TMPDIR", "")
"""Environment variables with local scratch folders, and the system's temporary folder."""

_SCRATCH_SHARE, _SCRATCH_BYTES = 3, 1 << 26
"""Free space that a shard needs in the scratch folder: a multiple of its size, and some more bytes."""


_SCRATCH_NAME = "packer-shard-"


def write_shard(
    published: Path,
    format: str,
    name: str,
    schema: Schema,
    size: ShardSize,
    batches: Iterable[Columns],
    owner: str = "",
) -> Shard:
    """Write and publish one shard, and return its manifest entry. The shard is then durable.

    Parameters
    ----------
    published : Path
        The folder under whose name the shard is published, in a folder that exists. If it is there already, nothing is
        written.
    batches : iterable of Columns
        All rows, in order.
    owner : str
        See `packer.workspace.Workspace`.
    """
    found = published_shard(published)
    if found is not None:
        return found
    attempt = attempt_beside(published, owner)
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
        raise BuildError(f"{published}: expected a finished shard, found something else: run the same command again")
    return found


def published_shard(published: Path) -> Shard | None:
    """Return the entry of a published shard, or None."""
    try:
        document = json.loads((published / RECORD_NAME).read_bytes())
    except FileNotFoundError:
        return None
    return Shard.from_json(document, Problems())


def place_shard(root: Path, published: Path) -> Shard | None:
    """Move the remaining files of a published shard into place, and return its entry.

    None if no shard was published, or if a file of it is missing or has another size. The moves are not flushed: if
    they are lost with the machine's memory, the files are where they were.

    Parameters
    ----------
    root : Path
        The dataset's folder. An older file of the same name is replaced.
    published : Path
        See `write_shard`.
    """
    shard = published_shard(published)
    if shard is None:
        return None
    for path in sorted(published.iterdir()):
        if path.name == RECORD_NAME:
            continue
        target = root / path.name
        if target.is_dir():
            remove_tree(target)
        os.replace(path, target)
    return None if any(_size(root / entry.name) != entry.bytes for entry in shard.files) else shard


def _write(folder: Path, format: str, name: str, schema: Schema, size: ShardSize, batches: Iterable[Columns]) -> Shard:
    scratch = find_scratch(folder, size) if format in NEEDS_SCRATCH else None
    found: tuple[FileEntry, ...] = ()
    if scratch is None:
        block_rows = _write_files(folder, format, name, schema, size, batches)
    else:
        with ExitStack() as stack:
            with _naming(scratch):
                sweep_scratch(scratch)
                mark = process_mark().replace(":", "_")
                place = Path(stack.enter_context(TemporaryDirectory(prefix=f"{_SCRATCH_NAME}{mark}-", dir=scratch)))
                block_rows = _write_files(place, format, name, schema, size, batches)
                found = _describe(place)
            for path in sorted(place.iterdir()):
                shutil.copyfile(path, folder / path.name)
    with ThreadPoolExecutor(1) as thread:  # the digests are taken while the disk is at work
        flushed = thread.submit(fsync_tree, folder)
        files = _describe(folder)
        flushed.result()
    if scratch is not None and found != files:
        raise BuildError(f"{folder}: the copy of a shard from {scratch} differs from it: check the disks")
    shard = Shard(name, size.samples, block_rows, files)
    write_durably(folder / RECORD_NAME, json.dumps(shard.to_json()).encode())
    return shard


def _write_files(
    folder: Path, format: str, name: str, schema: Schema, size: ShardSize, batches: Iterable[Columns]
) -> int:
    """Write the files, and return the number of rows per block."""
    writer: ShardWriter = resolve("format", format, {format: get_format(format).writer})(folder, name, schema, size)
    try:
        for batch in batches:
            writer.write(batch)
            begin_flush(folder)
    except Exception:
        with suppress(Exception):  # it has fewer rows than it announced; only its files are to be closed
            writer.close()
        raise
    writer.close()
    return writer.block_rows


def _describe(folder: Path) -> tuple[FileEntry, ...]:
    return tuple(describe_file(folder, path) for path in sorted(folder.rglob("*")) if path.is_file())


def find_scratch(folder: Path, size: ShardSize) -> Path | None:
    """Return a local folder to write a shard in if its destination is a shared file system.

    None if it is not, or if there is no such folder with room for the shard.
    """
    if not is_network_file_system(file_system_of(folder)[1]):
        return None
    for name in SCRATCH_VARIABLES:
        place = Path(os.environ.get(name) or "/tmp")  # noqa: S108 -- the last resort; a folder is made in it
        with suppress(OSError):
            own = place.is_absolute() and place.is_dir() and not is_network_file_system(file_system_of(place)[1])
            room = shutil.disk_usage(place).free if own else 0
            if room > _SCRATCH_SHARE * sum(size.field_bytes.values()) + _SCRATCH_BYTES and os.access(place, os.W_OK):
                return place
    return None


def sweep_scratch(scratch: Path) -> None:
    """Remove the files of killed workers from this machine's scratch folder."""
    for path in scratch.glob(f"{_SCRATCH_NAME}*"):
        mark = path.name.removeprefix(_SCRATCH_NAME).rpartition("-")[0].replace("_", ":")
        with suppress(OSError):
            if is_dead(mark) and path.lstat().st_uid == os.getuid():
                shutil.rmtree(path)


@contextmanager
def _naming(scratch: Path) -> Iterator[None]:
    """Add advice to errors of writing to the scratch folder, which is not the dataset's folder."""
    try:
        yield
    except (OSError, BuildError) as error:
        why = str(error) if isinstance(error, BuildError) else f"{error.filename or scratch}: {system_reason(error)}"
        raise BuildError(
            f"{cut(why, LONG)} (host {host()} writes shards in its scratch {scratch} first: free some space there, or "
            f"name another folder in {SCRATCH_VARIABLES[0]} or {SCRATCH_VARIABLES[1]})"
        ) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
