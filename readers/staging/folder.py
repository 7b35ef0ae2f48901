"""The folder of a cache: the files of remote datasets, and which of them may be deleted."""

import hashlib
import json
import os
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from readers.formats.machine import file_system_of, is_network_file_system
from shardspec.errors import ShardspecError
from shardspec.layout import MANIFEST_NAME
from shardspec.manifest import Manifest

_NAME = "facepack"
_TAG, _SIGNATURE = "CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55\n"
"""Mark of a cache, by the Cache Directory Tagging Specification, which backup programs know too."""
_SOURCE = "source.json"
PARTIAL = ".partial"
_KEY_LENGTH = 32
_UNSAFE = re.compile(r"[^\w.-]|^\.+$")


@dataclass(frozen=True)
class CachedDataset:
    """A remote dataset of which some files are in a cache.

    Attributes
    ----------
    root : Path
        Its folder.
    url : str
        The place that it was first opened from.
    manifest : Manifest or None
        None if the manifest in the cache is of a later version, or damaged. When the dataset is opened, the stager
        replaces a damaged manifest.
    files : dict of str to int
        Sizes of the files that are present, by name. Without a manifest, of all files in the folder.
    """

    root: Path
    url: str
    manifest: Manifest | None
    files: dict[str, int]

    @property
    def key(self) -> str:
        """Name of the dataset in the cache: a digest of its manifest."""
        return self.root.parent.name


class CacheFolder:
    """The part of a user's cache folder that belongs to this project; nothing outside of it is ever deleted.

    Parameters
    ----------
    given : Path
        The user's folder. On a network file system, each host has a separate part, because a file that one host deletes
        would vanish under a program on another.
    """

    def __init__(self, given: Path) -> None:
        shared = is_network_file_system(file_system_of(given)[1])
        self.given = given
        self.root = given / (f"{_NAME}-{socket.gethostname()}" if shared else _NAME)
        self.datasets = self.root / "datasets"
        self.address = self.root / "stager.json"
        self.log = self.root / "stager.log"

    def make(self) -> None:
        """Create the folder, readable by this user only, with its mark."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.datasets.mkdir(exist_ok=True)
        tag = self.root / _TAG
        if not tag.exists():
            tag.write_text(f"{_SIGNATURE}# A cache of remote datasets. `packer cache` lists and clears it.\n", "utf-8")

    @property
    def exists(self) -> bool:
        """True if there is a cache here."""
        try:
            return (self.root / _TAG).read_text("utf-8").startswith(_SIGNATURE)
        except OSError:
            return False

    def lock(self) -> FileLock:
        """Return the lock that the stager holds while it runs."""
        return FileLock(self.root / "stager.lock")

    def starting(self) -> FileLock:
        """Return the lock that a client holds while it starts the stager."""
        return FileLock(self.root / "starting.lock")

    def depose(self, pid: int) -> bool:
        """Let another stager start although that of a process number holds the lock.

        When that stager is no longer suspended, it finds another one's address, and ends. Return whether there was one
        of this number on this host.
        """
        address = read_address(self.address)
        if address is None or (address["pid"], address.get("host")) != (pid, socket.gethostname()):
            return False
        with suppress(OSError):  # Windows refuses it
            Path(self.lock().lock_file).unlink(missing_ok=True)
            self.address.unlink(missing_ok=True)
            return True
        return False

    def add(self, key: str, url: str, manifest: bytes) -> Path:
        """Make the folder of a dataset, with its manifest, and return it."""
        made = next((path for path in (self.datasets / key).glob("*") if path.is_dir()), None)
        root = made or self.datasets / key / (_UNSAFE.sub("_", url.rstrip("/").rpartition("/")[2]) or "dataset")
        root.mkdir(parents=True, exist_ok=True)
        if _read(root / MANIFEST_NAME) != manifest:
            write(root.parent / _SOURCE, json.dumps({"url": url}).encode())
            write(root / MANIFEST_NAME, manifest)
        return root

    def list(self) -> Iterator[CachedDataset]:
        """Yield the datasets, in the order of their keys."""
        for root in sorted(path for path in self.datasets.glob("*/*") if path.is_dir()) if self.exists else ():
            url, manifest, data = "(from an unknown place)", None, _read(root / MANIFEST_NAME)
            source = _read(root.parent / _SOURCE) or _read(root / _SOURCE)  # where earlier versions wrote it
            if not data and not source:  # cleared, but it holds other files
                continue
            with suppress(ValueError, KeyError, TypeError):
                url = str(json.loads(source)["url"])
            if key_of(data) == root.parent.name:
                with suppress(ShardspecError):  # of a later version, which another environment has cached
                    manifest = Manifest.loads(data, str(root / MANIFEST_NAME))
            yield CachedDataset(root, url, manifest, dict(present(root, manifest)))

    def sweep(self) -> None:
        """Delete partial downloads of a stager that was killed. Its lock must be held."""
        for path in self.datasets.rglob(f"*{PARTIAL}"):
            path.unlink(missing_ok=True)

    def clear(self, dataset: CachedDataset) -> None:
        """Delete the files of a dataset, and nothing else in its folder. The stager's lock must be held."""
        (dataset.root.parent / _SOURCE).unlink(missing_ok=True)
        names = [*dataset.files, MANIFEST_NAME, _SOURCE]
        for name in names:
            (dataset.root / name).unlink(missing_ok=True)
        folders = {folder for name in names for folder in (dataset.root / name).parents}
        for folder in sorted(folders, key=lambda one: len(one.parts), reverse=True):
            if folder.is_relative_to(dataset.root.parent):
                with suppress(OSError):  # it holds something else
                    folder.rmdir()


def key_of(manifest: bytes) -> str:
    """Return the name of a dataset in a cache, given the bytes of its manifest."""
    return hashlib.sha256(manifest).hexdigest()[:_KEY_LENGTH]


def _read(path: Path) -> bytes:
    """Return the content of a file; nothing if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def present(root: Path, manifest: Manifest | None) -> Iterator[tuple[str, int]]:
    """Yield names and sizes of a dataset's files that are present in full; without a manifest, of all files."""
    if manifest is None:
        yield from (
            (path.relative_to(root).as_posix(), path.stat().st_size) for path in root.rglob("*") if path.is_file()
        )
        return
    for entry in manifest.entries:
        with suppress(OSError):
            if (root / entry.name).stat().st_size == entry.bytes:
                yield entry.name, entry.bytes


def write(path: Path, data: bytes) -> None:
    """Write a small file that only this user can read, whole or not at all."""
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PARTIAL}")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_address(path: Path) -> dict[str, Any] | None:
    """Return port, token and process of a running stager, or None."""
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found
