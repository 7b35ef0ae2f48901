"""``packer copy``: the files of a packed dataset in another place, local or in an object store."""

import hashlib
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from packer.jobs.progress import ProgressListener, Stage, listener_of
from packer.jobs.result import Result
from packer.jobs.transfers import Transfers
from packer.recipe.checks import checked
from packer.workspace.durable import fsync_folder, write_durably, writing
from packer.workspace.folder import output_folder
from shardspec.columns import Buffer
from shardspec.entries import FileEntry
from shardspec.errors import NotADatasetError, ShardCorruptError, StoreError, UsageError
from shardspec.layout import MANIFEST_NAME, Layout, given_path, is_url
from shardspec.manifest import MANIFEST_BYTES_MAX, Manifest
from shardspec.stores import Store, local_path
from shardspec.wording import counted, list_some, shorten

_PARTIAL_OF = re.compile(r"\.[0-9a-f]{32}\.partial\Z")
_CHUNK_BYTES = 4 << 20


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
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | ProgressListener = True,
) -> CopyResult:
    """Copy a packed dataset to or from an object store, or from folder to folder, and check every byte.

    The SHA-256 of each file is compared with the manifest while the file is copied. The manifest is written last, so an
    unfinished copy cannot be opened. The same call resumes: files that are there with the right digest are kept.

    Parameters
    ----------
    dataset : path or str
        A packed dataset: a folder, or a URL (`shardspec.stores.Store`).
    out : path or str
        A folder or a URL that is new, empty, or holds the copy to resume.
    overwrite : bool
        Whether to replace another dataset. Its files that do not belong to the copy are deleted first, so it can no
        longer be opened.
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
        If the call is invalid, or `out` holds something else.
    DatasetError
        If the dataset cannot be read, or a file differs from the manifest.
    StoreError
        If a store fails for longer than its retries last. The same call resumes.
    BuildError
        If the disk is full, or the folder cannot be written.
    """
    overwrite = checked("overwrite", overwrite, bool)
    source, target = _source(dataset, storage_options), _target(out, storage_options)
    if f"{target.name}/".startswith(f"{source.name}/"):
        raise UsageError(option="out", expected="a place outside the dataset", found=target.name)
    data = source.manifest()
    if data is None:
        raise NotADatasetError(place=source.name, expected=f"a packed dataset with a {MANIFEST_NAME}", found="none")
    manifest = Manifest.loads(data, source.place(MANIFEST_NAME))
    entries = manifest.entries
    present = _prepare(target, data, manifest, overwrite)
    done = {True: 0, False: 0}
    size = sum(entry.bytes for entry in entries)
    with Stage(listener_of(progress), "copying", len(entries), f"files, {size / 1e6:.1f} MB") as stage:
        transfers = Transfers[FileEntry, bool](lambda entry: _copy_file(source, target, entry, present))
        with closing(transfers):
            for entry in entries:
                transfers.add(entry)
            for entry, copied in transfers.results():
                done[copied] += 1
                stage.advance(size=entry.bytes if copied else 0)
    target.commit(data)
    return CopyResult(target.name, manifest, done[True], done[False])


def _copy_file(source: "_Place", target: "_Place", entry: FileEntry, present: Mapping[str, int]) -> bool:
    """Copy one file, and return whether that was necessary."""
    if present.get(entry.name) == entry.bytes and target.digest(entry.name) == entry.sha256:
        return False
    try:
        target.write(entry, source)
    except ShardCorruptError:
        if isinstance(source, _Folder):
            raise
        target.write(entry, source)  # a flipped bit on the way; the same digest again is the store's
    return True


def _prepare(target: "_Place", data: bytes, manifest: Manifest, overwrite: bool) -> dict[str, int]:
    """Return the sizes of the files in the target, by name, after deleting those of replaced and interrupted copies."""
    present, old = target.names(), target.manifest()
    if old is not None and old != data and not overwrite:
        raise UsageError(
            place=target.name, expected="a new place", found="another dataset", hint="choose another, or `overwrite`"
        )
    names = {entry.name for entry in manifest.entries}
    stale = [name for name in present if _PARTIAL_OF.sub("", name) in names and name not in names]
    if old is not None and old != data:
        replaced = Manifest.loads(old, target.place(MANIFEST_NAME)).entries
        stale += [entry.name for entry in replaced if entry.name in present and entry.name not in names]
    others = sorted(present.keys() - names - set(stale) - {MANIFEST_NAME})
    if others and old != data:
        raise UsageError(
            place=target.name,
            expected="a place that is new, empty, or holds this copy",
            found=list_some(others),
            hint="choose another place",
        )
    if stale:
        target.delete(stale)
    if old is not None and old != data:  # last: without it, the replaced dataset's files could not be told from others
        target.delete([MANIFEST_NAME])
    return present


class _Place(Protocol):
    """A folder or a store that a dataset is copied from or to."""

    name: str

    def place(self, name: str) -> str: ...
    def manifest(self) -> bytes | None: ...
    def names(self) -> dict[str, int]: ...
    def chunks(self, entry: FileEntry) -> Iterator[Buffer]: ...
    def digest(self, name: str) -> str: ...
    def write(self, entry: FileEntry, source: "_Place") -> None: ...
    def commit(self, manifest: bytes) -> None: ...
    def delete(self, names: Iterable[str]) -> None: ...


class _Folder:
    def __init__(self, root: Path) -> None:
        self.root, self.name = root, str(root)

    def place(self, name: str) -> str:
        return str(self.root / name)

    def manifest(self) -> bytes | None:
        layout = Layout(self.root)
        if not layout.manifest.exists():
            if layout.build.is_dir():
                layout.load()  # says that the build is unfinished
            return None
        layout.load()  # raises an error if it is damaged
        return layout.manifest.read_bytes()

    def names(self) -> dict[str, int]:
        if not self.root.exists():
            return {}
        if not self.root.is_dir():
            raise UsageError(place=self.root, expected="a folder", found="a file")
        files = (path for path in self.root.rglob("*") if not path.is_dir())
        return {path.relative_to(self.root).as_posix(): path.lstat().st_size for path in files}

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        layout = Layout(self.root)
        layout.check_sizes([entry])
        with layout.file(entry).open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk

    def digest(self, name: str) -> str:
        with (self.root / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def write(self, entry: FileEntry, source: _Place) -> None:
        path = self.root / entry.name
        with writing(self.root):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, _checked_chunks(entry, source))

    def commit(self, manifest: bytes) -> None:
        with writing(self.root):
            write_durably(self.root / MANIFEST_NAME, manifest)

    def delete(self, names: Iterable[str]) -> None:
        with writing(self.root):
            for name in names:
                (self.root / name).unlink(missing_ok=True)
            fsync_folder(self.root)


class _Bucket:
    def __init__(self, store: Store) -> None:
        self.store, self.name = store, store.url

    def place(self, name: str) -> str:
        return self.store.place(name)

    def manifest(self) -> bytes | None:
        try:
            return self.store.read(MANIFEST_NAME, MANIFEST_BYTES_MAX)
        except FileNotFoundError:
            return None

    def names(self) -> dict[str, int]:
        return {one.name: one.bytes for one in self.store.list()}

    def chunks(self, entry: FileEntry) -> Iterator[memoryview]:
        try:
            yield from self.store.chunks(entry.name)
        except FileNotFoundError:
            raise StoreError(
                place=self.place(entry.name), expected=f"an object of {entry.bytes} bytes", found="none"
            ) from None

    def digest(self, name: str) -> str:
        digest = hashlib.sha256()
        for chunk in self.store.chunks(name):
            digest.update(chunk)
        return digest.hexdigest()

    def write(self, entry: FileEntry, source: _Place) -> None:
        """Upload a file, from the folder it is in, or through a temporary one if it comes from a store."""
        with TemporaryDirectory(prefix="packer-copy-") as folder:
            path = Path(source.place(entry.name)) if isinstance(source, _Folder) else Path(folder, uuid.uuid4().hex)
            if isinstance(source, _Folder):
                for _ in _checked_chunks(entry, source):
                    pass
            else:
                with writing(path), path.open("wb") as file:
                    file.writelines(_checked_chunks(entry, source))
            self.store.put(entry.name, path)

    def commit(self, manifest: bytes) -> None:
        self.store.put(MANIFEST_NAME, manifest)

    def delete(self, names: Iterable[str]) -> None:
        self.store.delete(names)


def _checked_chunks(entry: FileEntry, source: _Place) -> Iterator[Buffer]:
    """Yield the content of a file, and raise an error at its end if size or SHA-256 differ from the manifest."""
    digest, size = hashlib.sha256(), 0
    for chunk in source.chunks(entry):
        digest.update(chunk)
        size += len(chunk)
        if size > entry.bytes:  # a server may send data without end
            break
        yield chunk
    if (size, digest.hexdigest()) != (entry.bytes, entry.sha256):
        raise ShardCorruptError(
            place=source.place(entry.name),
            expected=f"{entry.bytes} bytes with SHA-256 {entry.sha256}",
            found=f"{size} bytes with {digest.hexdigest()}",
            hint="the file or the manifest has changed since packing",
        )


def _source(dataset: str | os.PathLike[str], options: Mapping[str, Any] | None) -> _Place:
    text = local_path(dataset) if isinstance(dataset, str) else dataset
    if isinstance(text, str) and is_url(text):
        return _Bucket(Store(text, options))
    return _Folder(given_path("dataset", text).absolute())


def _target(out: str | os.PathLike[str], options: Mapping[str, Any] | None) -> _Place:
    text = local_path(out) if isinstance(out, str) else out
    if isinstance(text, str) and is_url(text):
        if text.startswith("http"):
            raise UsageError(
                option="out", expected="a folder, s3://, gs:// or az://", found=f"{shorten(text)}, a web server"
            )
        return _Bucket(Store(text, options))
    return _Folder(output_folder(text))
