"""Files of a dataset on their way from one place to another, in a few threads."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing

from packer.jobs.progress import ProgressListener, Stage
from packer.jobs.transfers import Transfers
from packer.packed.copy.places import DatasetPlace, Folder
from shardspec.entries import FileEntry
from shardspec.errors import ShardCorruptError, UsageError
from shardspec.layout import MANIFEST_NAME
from shardspec.manifest import Manifest
from shardspec.wording import list_some

_PARTIAL_OF = re.compile(r"\.[0-9a-f]{32}\.partial\Z")


def transfer(
    source: DatasetPlace,
    target: DatasetPlace,
    entries: Sequence[FileEntry],
    present: Mapping[str, int],
    listener: ProgressListener,
) -> int:
    """Copy files that the target does not hold with the right digest, and return their number.

    Parameters
    ----------
    present : mapping of str to int
        The sizes of the files in the target, by name.
    """
    done = 0
    with Stage(listener, "copying", len(entries), "files") as stage:
        for entry, copied in in_threads(lambda entry: _copy_file(source, target, entry, present), entries):
            done += copied
            stage.advance(size=entry.bytes if copied else 0)
    return done


def prepare(target: DatasetPlace, data: bytes, manifest: Manifest, overwrite: bool) -> dict[str, int]:
    """Return the sizes of the files in the target, by name, after deleting those of replaced and interrupted copies.

    A manifest of the same files is left to be replaced.
    """
    present, old = target.names(), target.manifest()
    replaced = () if old is None else Manifest.loads(old, target.place(MANIFEST_NAME)).entries
    same_files = old is not None and replaced == manifest.entries  # as after `packer describe`
    if old is not None and not same_files and not overwrite:
        raise another(target)
    names = {entry.name for entry in manifest.entries}
    stale = [name for name in present if _PARTIAL_OF.sub("", name) in names and name not in names]
    stale += [entry.name for entry in replaced if entry.name in present and entry.name not in names]
    others = sorted(present.keys() - names - {*stale, MANIFEST_NAME, *target.besides})
    if others and not same_files:
        raise other_files(target, others)
    if stale:
        target.delete(stale)
    if (
        old is not None and not same_files
    ):  # last: without it, the replaced dataset's files could not be told from others
        target.delete([MANIFEST_NAME])
    return present


def other_files(target: DatasetPlace, names: Sequence[str]) -> UsageError:
    """Return the error about files in the target that belong to no dataset."""
    return UsageError(
        place=target.name,
        expected="a place that is new, empty, or holds this copy",
        found=list_some(names),
        hint="choose another place",
    )


def another(target: DatasetPlace) -> UsageError:
    """Return the error about another dataset in the target."""
    return UsageError(
        place=target.name, expected="a new place", found="another dataset", hint="choose another, or `overwrite`"
    )


def holds(place: DatasetPlace, entry: FileEntry, present: Mapping[str, int]) -> bool:
    """Return whether a file is in a place with the right size and digest."""
    return present.get(entry.name) == entry.bytes and place.digest(entry.name) == entry.sha256


def in_threads(work: Callable[[FileEntry], bool], entries: Iterable[FileEntry]) -> Iterator[tuple[FileEntry, bool]]:
    """Call a function for each file in a few threads, and yield the results as they come."""
    with closing(Transfers[FileEntry, bool](work)) as transfers:
        for entry in entries:
            transfers.add(entry)
        yield from transfers.results()


def _copy_file(source: DatasetPlace, target: DatasetPlace, entry: FileEntry, present: Mapping[str, int]) -> bool:
    """Copy one file, and return whether that was necessary."""
    if holds(target, entry, present):
        return False
    try:
        target.write(entry, source)
    except ShardCorruptError:
        if isinstance(source, Folder):
            raise
        target.write(entry, source)  # a flipped bit on the way; the same digest again is the store's
    return True
