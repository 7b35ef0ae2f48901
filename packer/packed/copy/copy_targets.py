"""Folders and stores that a dataset is copied from or to."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile, gettempdir
from typing import Protocol

from packer.workspace.durable import fsync_folder, write_durably, writing
from shardspec.columns import Buffer
from shardspec.entries import CARD_NAME, FileEntry
from shardspec.errors import StoreError, UsageError
from shardspec.layout import MANIFEST_NAME, Layout, checked_chunks
from shardspec.manifest import MANIFEST_BYTES_MAX
from shardspec.stores import Hub, Store

_CHUNK_BYTES = 4 << 20
_SHA256_CHARACTERS = 64
_CARD_BYTES_MAX = 1 << 20


class DatasetPlace(Protocol):
    """A folder or a store that a dataset is copied from or to.

    Attributes
    ----------
    name : str
        Its path or URL.
    besides : sequence of str
        Files that may be there besides a dataset.
    """

    name: str
    besides: Sequence[str]

    def place(self, name: str) -> str:
        """Return the path or URL of a file."""
        ...

    def manifest(self) -> bytes | None:
        """Return the content of the manifest, or None if there is none."""
        ...

    def names(self) -> dict[str, int]:
        """Return the sizes of all files by name."""
        ...

    def chunks(self, entry: FileEntry) -> Iterator[Buffer]:
        """Yield the content of a file in pieces."""
        ...

    def digest(self, name: str) -> str:
        """Return the SHA-256 of a file."""
        ...

    def write(self, entry: FileEntry, source: "DatasetPlace") -> None:
        """Write a file with the content that it has in another place."""
        ...

    def card(self) -> bytes | None:
        """Return the card, which no manifest lists because people edit it; None if there is none."""
        ...

    def commit(self, manifest: bytes, card: bytes | None, stale: Iterable[str]) -> None:
        """Write the manifest after all other files, then the card if it is given, and delete files that are not needed."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete some files."""
        ...


class Folder:
    """A folder on this machine."""

    besides: Sequence[str] = ()

    def __init__(self, root: Path) -> None:
        self.root, self.name = root, str(root)

    def place(self, name: str) -> str:
        """Return the path or URL of a file."""
        return str(self.root / name)

    def manifest(self) -> bytes | None:
        """Return the content of the manifest, or None if there is none."""
        layout = Layout(self.root)
        if not layout.manifest.exists():
            if layout.build.is_dir():
                layout.load()  # says that the build is unfinished
            return None
        layout.load()  # raises an error if it is damaged
        return layout.manifest.read_bytes()

    def names(self) -> dict[str, int]:
        """Return the sizes of all files by name."""
        if not self.root.exists():
            return {}
        if not self.root.is_dir():
            raise UsageError(place=self.root, expected="a folder", found="a file")
        found = {}
        for path in self.root.rglob("*"):
            with suppress(FileNotFoundError):  # a thread of a copy that has just failed may remove its partial file
                if not path.is_dir():
                    found[path.relative_to(self.root).as_posix()] = path.lstat().st_size
        return found

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """Yield the content of a file in pieces."""
        layout = Layout(self.root)
        layout.check_sizes([entry])
        with layout.file(entry).open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk

    def digest(self, name: str) -> str:
        """Return the SHA-256 of a file."""
        with (self.root / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def write(self, entry: FileEntry, source: DatasetPlace) -> None:
        """Write a file with the content that it has in another place."""
        path = self.root / entry.name
        with writing(self.root):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, _checked(entry, source))

    def card(self) -> bytes | None:
        """Return the card, or None if there is none."""
        path = Layout(self.root).card
        return path.read_bytes() if path.is_file() else None

    def commit(self, manifest: bytes, card: bytes | None, stale: Iterable[str]) -> None:
        """Write the manifest after all other files, then the card if it is given, and delete files that are not needed."""
        with writing(self.root):
            write_durably(self.root / MANIFEST_NAME, manifest)
            if card is not None:
                write_durably(self.root / CARD_NAME, card)
        self.delete(stale)

    def delete(self, names: Iterable[str]) -> None:
        """Delete some files."""
        with writing(self.root):
            for name in names:
                (self.root / name).unlink(missing_ok=True)
                for folder in PurePosixPath(name).parents[:-1]:
                    with suppress(OSError):  # raised unless it is empty
                        (self.root / folder).rmdir()
            fsync_folder(self.root)


class BucketTarget:
    """A store."""

    besides: Sequence[str] = ()

    def __init__(self, store: Store | Hub) -> None:
        self.store, self.name = store, store.url

    def place(self, name: str) -> str:
        """Return the path or URL of a file."""
        return self.store.place(name)

    def manifest(self) -> bytes | None:
        """Return the content of the manifest, or None if there is none."""
        return self._read(MANIFEST_NAME, MANIFEST_BYTES_MAX)

    def card(self) -> bytes | None:
        """Return the card, or None if there is none."""
        return self._read(CARD_NAME, _CARD_BYTES_MAX)

    def names(self) -> dict[str, int]:
        """Return the sizes of all files by name."""
        return {one.name: one.bytes for one in self.store.list()}

    def chunks(self, entry: FileEntry) -> Iterator[Buffer]:
        """Yield the content of a file in pieces."""
        try:
            yield from self.store.chunks(entry.name, entry.bytes)
        except FileNotFoundError:
            raise StoreError(
                place=self.place(entry.name), expected=f"an object of {entry.bytes} bytes", found="none"
            ) from None

    def digest(self, name: str) -> str:
        """Return the SHA-256 of a file."""
        digest = hashlib.sha256()
        for chunk in self.store.chunks(name):
            digest.update(chunk)
        return digest.hexdigest()

    def write(self, entry: FileEntry, source: DatasetPlace) -> None:
        """Upload a file, from the folder it is in, or through a temporary file if it comes from a store."""
        if isinstance(source, Folder):
            for _ in _checked(entry, source):
                pass
            self.store.put(entry.name, Path(source.place(entry.name)))
        else:
            # It has no name, so the system deletes it however this process ends.
            with TemporaryFile(prefix="packer-") as file:
                with writing(Path(gettempdir())):
                    file.writelines(_checked(entry, source))
                    file.seek(0)
                self.store.put(entry.name, file)

    def commit(self, manifest: bytes, card: bytes | None, stale: Iterable[str]) -> None:
        """Write the manifest after all other files, then the card if it is given, and delete files that are not needed."""
        self.store.put(MANIFEST_NAME, manifest)
        if card is not None:
            self.store.put(CARD_NAME, card)
        self.delete(stale)

    def delete(self, names: Iterable[str]) -> None:
        """Delete some files."""
        self.store.delete(names)

    def _read(self, name: str, most: int) -> bytes | None:
        try:
            return self.store.read(name, most)
        except FileNotFoundError:
            return None


class Repository(BucketTarget):
    """A repository of the Hugging Face Hub, whose files all change in one commit."""

    besides: Sequence[str] = (".gitattributes", CARD_NAME)

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self._hub = hub
        self._etags: dict[str, str] = {}

    def names(self) -> dict[str, int]:
        """Return the sizes of all files by name."""
        found = list(self._hub.list())
        self._etags = {one.name: one.etag or "" for one in found}
        return {one.name: one.bytes for one in found}

    def digest(self, name: str) -> str:
        """Return the SHA-256 of a file, which the Hub lists for large ones."""
        etag = self._etags[name]
        return etag if len(etag) == _SHA256_CHARACTERS else super().digest(name)

    def commit(self, manifest: bytes, card: bytes | None, stale: Iterable[str]) -> None:
        """Make all changes visible, with the manifest and the card."""
        if self._hub.is_changed or self.manifest() != manifest or card is not None:
            super().commit(manifest, card, stale)
            self._hub.commit()


def _checked(entry: FileEntry, source: DatasetPlace) -> Iterator[Buffer]:
    return checked_chunks(source.chunks(entry), entry, source.place(entry.name))
