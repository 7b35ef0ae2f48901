"""``packer copy``: the files of a packed dataset in another place, local or in an object store."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from packer.jobs.progress import ProgressListener, Stage, listener_of
from packer.jobs.result import Result
from packer.jobs.transfers import Transfers
from packer.packed.copy.copy_targets import BucketTarget, DatasetPlace, Folder, Repository
from packer.packed.copy.part import copy_part, is_part
from packer.recipe.checks import checked
from packer.workspace.card import is_generated
from packer.workspace.folder import output_folder
from packer.workspace.scratch import TemporaryFiles
from readers.staging.layout import dataset_layout
from shardspec.entries import CARD_NAME, FileEntry, tagged_start
from shardspec.errors import NotADatasetError, ShardCorruptError, UsageError
from shardspec.layout import MANIFEST_NAME, Layout, given_path
from shardspec.manifest import Manifest
from shardspec.stores import LOG_IN, Hub, Store, local_path, names_store, open_store, writable_store
from shardspec.wording import counted, list_some

_PARTIAL_OF = re.compile(r"\.[0-9a-f]{32}\.partial\Z")


@dataclass(frozen=True, repr=False)
class CopyResult(Result):
    """A copy of a dataset.

    Attributes
    ----------
    place : str
        Path or URL of the copy.
    manifest : Manifest
    files_copied, files_kept : int
        Files that this call wrote, and files that an earlier call had written.
    """

    place: str
    manifest: Manifest
    files_copied: int
    files_kept: int

    def describe(self) -> str:
        """Describe the copy in one line."""
        kept = f", {self.files_kept} there already" if self.files_kept else ""
        samples = counted(self.manifest.samples, "sample")
        return f"{self.place}: {samples}, {counted(self.files_copied, 'file')} copied{kept}, all digests right"

    def to_json(self) -> dict[str, Any]:
        """Return the place, the digest and the counts as JSON."""
        facts = {"out": self.place, "digest": self.manifest.digest, "samples": self.manifest.samples}
        return {**facts, "files_copied": self.files_copied, "files_kept": self.files_kept}


def copy(
    dataset: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    where: str | None = None,
    split: str | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | ProgressListener = True,
) -> CopyResult:
    """Copy a packed dataset, or a part of it, to or from an object store or Hugging Face, or from folder to folder.

    The SHA-256 of each file is compared with the manifest while the file is copied. The manifest is written last, so an
    unfinished copy cannot be opened. The same call resumes: files that are there with the right digest are kept. A
    dataset of the same files whose manifest differs, as after `packer.describe`, gets the new manifest.

    With `where` or `split`, the copy is a dataset of the selected samples, in their order. From a store, only the shards
    that hold selected samples are downloaded if an expression compares numbers. Texts, and so `split`, are read from all
    shards. The files are downloaded into the cache of remote datasets. On the way to a store, a dataset of the selected
    samples is first made in the system's folder for temporary files.

    Parameters
    ----------
    dataset : path or str
        A packed dataset: a folder, or a URL (`shardspec.stores.Store`, `shardspec.stores.Hub`).
    out : path or str
        A folder or a URL that is new, empty, or holds the copy to resume.
    where : str, optional
        An expression on small fields that selects samples (`readers.PackedDataset.where`).
    split : str, optional
        Value of the field ``split`` that the samples must have, such as ``"train"``.
    overwrite : bool
        Whether to replace another dataset. It can be read until the copy is complete, and then its other files are
        deleted, so the target needs room for both. A dataset whose file names have no digests, as those of early
        versions, may be deleted first.
    storage_options : mapping, optional
        Credentials, region and endpoint; by default from the environment (`shardspec.stores.Store`).
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    CopyResult

    Raises
    ------
    UsageError
        If the call is invalid, no sample is selected, or `out` holds something else.
    DatasetError
        If the dataset cannot be read, or a file differs from the manifest.
    StoreError
        If a store fails for longer than its retries last. The same call resumes.
    BuildError
        If the disk is full, or the folder cannot be written.
    BuildLockedError, ResumeMismatchError
        See `packer.convert`, for a part that is written to a folder.
    """
    overwrite, listener = checked("overwrite", overwrite, bool), listener_of(progress)
    given = {"where": checked("where", where, str | None), "split": checked("split", split, str | None)}
    choice = {name: value for name, value in given.items() if value is not None}
    source, target = _source(dataset, storage_options), _target(out, storage_options)
    if f"{target.name}/".startswith(f"{source.name}/"):
        raise UsageError(option="out", expected="a place outside the dataset", found=target.name)
    if choice:
        layout = dataset_layout(
            dataset, storage_options=storage_options if names_store(dataset) else None, name="dataset"
        )
        return _copy_part(layout, target, choice, overwrite, listener)
    data = source.manifest()
    if data is None:
        hint = LOG_IN if isinstance(source, Repository) else None
        expected = f"a packed dataset with a {MANIFEST_NAME}"
        raise NotADatasetError(place=source.name, expected=expected, found="none", hint=hint)
    return _copy_files(source, target, data, overwrite, listener)


def _copy_part(
    layout: Layout, target: DatasetPlace, choice: Mapping[str, str], overwrite: bool, listener: ProgressListener
) -> CopyResult:
    old = target.manifest()
    if old is not None and not overwrite:
        return _check_made(target, Manifest.loads(old, target.place(MANIFEST_NAME)), layout.load(), choice)
    if isinstance(target, Folder):
        names = sorted(target.names())
        if old is None and names and not Layout(target.root).build.exists():  # before anything is downloaded
            raise _other_files(target, names)
        made = copy_part(layout, target.root, choice, listener, overwrite=overwrite)
        return CopyResult(target.name, made, len(made.entries), 0)
    scratch = TemporaryFiles()
    try:
        part = Folder(scratch.path / "part")
        copy_part(layout, part.root, choice, listener)
        return _copy_files(part, target, (part.root / MANIFEST_NAME).read_bytes(), overwrite, listener)
    finally:
        scratch.close()


def _copy_files(
    source: DatasetPlace, target: DatasetPlace, data: bytes, overwrite: bool, listener: ProgressListener
) -> CopyResult:
    """Copy all files of the dataset with this manifest."""
    manifest = Manifest.loads(data, source.place(MANIFEST_NAME))
    (present, stale), copied = _prepare(target, manifest, overwrite), 0
    with Stage(listener, "copying", len(manifest.entries), "files") as stage:
        for entry, done in _in_threads(lambda entry: _copy_file(source, target, entry, present), manifest.entries):
            copied += done
            stage.advance(size=entry.bytes if done else 0)
    card, standing = source.card(), target.card()
    if standing is not None and (card == standing or not is_generated(standing)):  # the same, or edited by a person
        card = None
    elif card is None and standing is not None:
        stale.append(CARD_NAME)
    target.commit(data, card, stale)
    return CopyResult(target.name, manifest, copied, len(manifest.entries) - copied)


def _check_made(target: DatasetPlace, made: Manifest, manifest: Manifest, choice: Mapping[str, str]) -> CopyResult:
    """Check the files of the dataset in the target, which must be the same part of the same dataset."""
    if not is_part(made, manifest, choice):
        raise _another(target)
    present = target.names()
    for entry, right in _in_threads(lambda entry: _holds(target, entry, present), made.entries):
        if not right:
            raise ShardCorruptError(
                place=target.place(entry.name),
                expected=f"{entry.bytes} bytes with SHA-256 {entry.sha256}",
                found="other content" if entry.name in present else "no file",
                hint="make the copy again with `overwrite`",
            )
    return CopyResult(target.name, made, 0, len(made.entries))


def _prepare(target: DatasetPlace, manifest: Manifest, overwrite: bool) -> tuple[dict[str, int], list[str]]:
    """Return the sizes of the files in the target, by name, and the names of those to delete when the copy is complete.

    A manifest of the same files is left to be replaced.
    """
    present, old = target.names(), target.manifest()
    replaced = () if old is None else Manifest.loads(old, target.place(MANIFEST_NAME)).entries
    same_files = old is not None and replaced == manifest.entries  # as after `packer describe`
    if old is not None and not same_files and not overwrite:
        raise _another(target)
    names = {entry.name: entry.sha256 for entry in manifest.entries}
    stale = {name for name in present if _PARTIAL_OF.sub("", name) in names}
    if old is not None:  # files of the replaced dataset, and of interrupted copies
        known = {"", *(tagged_start(entry.name) for entry in replaced)}
        stale |= {entry.name for entry in replaced} | {name for name in present if tagged_start(name) not in known}
    stale = (stale & present.keys()) - names.keys()
    card = () if old is None else (CARD_NAME,)
    others = sorted(present.keys() - names.keys() - {*stale, MANIFEST_NAME, *card, *target.besides})
    if others and not same_files:
        raise _other_files(target, others)
    if any(names.get(entry.name, entry.sha256) != entry.sha256 for entry in replaced):
        target.delete(stale)
        target.delete([MANIFEST_NAME])  # last: without it, the files of the replaced dataset would look like others
        stale.clear()
    return present, sorted(stale)


def _other_files(target: DatasetPlace, names: Sequence[str]) -> UsageError:
    """Return the error about files in the target that belong to no dataset."""
    return UsageError(
        place=target.name,
        expected="a place that is new, empty, or holds this copy",
        found=list_some(names),
        hint="choose another place",
    )


def _another(target: DatasetPlace) -> UsageError:
    """Return the error about another dataset in the target."""
    return UsageError(
        place=target.name, expected="a new place", found="another dataset", hint="choose another, or `overwrite`"
    )


def _holds(place: DatasetPlace, entry: FileEntry, present: Mapping[str, int]) -> bool:
    """Return whether a file is in a place with the right size and digest."""
    return present.get(entry.name) == entry.bytes and place.digest(entry.name) == entry.sha256


def _in_threads(work: Callable[[FileEntry], bool], entries: Iterable[FileEntry]) -> Iterator[tuple[FileEntry, bool]]:
    """Call a function for each file in a few threads, and yield the results as they come."""
    with closing(Transfers[FileEntry, bool](work)) as transfers:
        for entry in entries:
            transfers.add(entry)
        yield from transfers.results()


def _copy_file(source: DatasetPlace, target: DatasetPlace, entry: FileEntry, present: Mapping[str, int]) -> bool:
    """Copy one file, and return whether that was necessary."""
    if _holds(target, entry, present):
        return False
    try:
        target.write(entry, source)
    except ShardCorruptError:
        if isinstance(source, Folder):
            raise
        target.write(entry, source)  # a flipped bit on the way; the same digest again is the store's
    return True


def _source(dataset: str | os.PathLike[str], options: Mapping[str, Any] | None) -> DatasetPlace:
    if names_store(dataset):
        return _bucket(open_store(str(dataset), options))
    return Folder(given_path("dataset", local_path(dataset)).absolute())


def _target(out: str | os.PathLike[str], options: Mapping[str, Any] | None) -> DatasetPlace:
    store = writable_store(out, options)
    return Folder(output_folder(out)) if store is None else _bucket(store)


def _bucket(store: Store | Hub) -> BucketTarget:
    return Repository(store) if isinstance(store, Hub) else BucketTarget(store)
