"""The layout of a packed dataset's folder. Only this module turns a manifest's relative names into locations."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from shardspec.entries import FileEntry, Shard
from shardspec.errors import DatasetError, NotADatasetError, ShardCorruptError, ShardMissingError
from shardspec.formats import get_format
from shardspec.manifest import Manifest

MANIFEST_NAME = "manifest.json"
REJECTS_NAME = "rejects.jsonl"
ITEMS_NAME = "items.jsonl"
CARD_NAME = "README.md"
INDEX_FOLDER = "index"
BUILD_FOLDER = ".build"

_HASH_CHUNK_BYTES = 1 << 20
_DISAGREE = "the manifest and this file disagree, so one of them has changed since packing"


@dataclass(frozen=True)
class Layout:
    """Where the parts of a dataset lie.

    Attributes
    ----------
    root : Path
        The dataset's folder.
    """

    root: Path

    @property
    def manifest(self) -> Path:
        """The manifest's path."""
        return self.root / MANIFEST_NAME

    @property
    def rejects(self) -> Path:
        """One JSON line per reject and per run of frames without a sample."""
        return self.root / REJECTS_NAME

    @property
    def items(self) -> Path:
        """One JSON line per item: its state and what was seen in it."""
        return self.root / ITEMS_NAME

    @property
    def card(self) -> Path:
        """What the folder holds, for other tools; there in formats that have one."""
        return self.root / CARD_NAME

    @property
    def build(self) -> Path:
        """The working folder of a build that is not finished, or packed nothing."""
        return self.root / BUILD_FOLDER

    @property
    def reasons(self) -> Path:
        """Why no item gave a sample, one JSON line each: there where the last build packed nothing for that."""
        return self.build / REJECTS_NAME

    def index(self, field: str) -> Path:
        """The index file of a scalar field: its values for the whole dataset, in row order."""
        return self.root / INDEX_FOLDER / f"{field}.npy"

    def file(self, entry: FileEntry) -> Path:
        """The location of a file named in the manifest."""
        return self.root / entry.name

    def shard(self, shard: Shard, format: str) -> Path:
        """The file, or folder, that a shard's reader opens."""
        return self.root / (shard.name + get_format(format).suffix)

    def load(self) -> Manifest:
        """Read and validate the manifest.

        Raises
        ------
        NotADatasetError
            There is no manifest. The message says so if a build is unfinished there, or packed nothing.
        ManifestError, VersionError
        """
        try:
            data = self.manifest.read_bytes()
        except FileNotFoundError:
            if self.build.is_dir():
                raise NotADatasetError(
                    f"{self.root}: expected a packed dataset, found {self.describe_build()}"
                ) from None
            found = "a folder without one: pack it first ('packer build')" if self.root.is_dir() else "no such folder"
            raise NotADatasetError(
                f"{self.root}: expected a packed dataset with a {MANIFEST_NAME}, found {found}"
            ) from None
        except NotADirectoryError:
            raise NotADatasetError(
                f"{self.root}: expected the folder of a packed dataset, found a file: give the folder that holds its {MANIFEST_NAME}"
            ) from None
        except OSError as error:
            raise DatasetError(f"{self.manifest}: cannot be read: {error.strerror}") from error
        return Manifest.loads(data, str(self.manifest))

    def describe_build(self) -> str:
        """What the working folder holds, and what to do about it."""
        if self.reasons.exists():
            return f"a build that packed nothing, since no item gave a sample: the reasons lie in {self.reasons}"
        return "an unfinished build: run the same command again to resume it"

    def check_sizes(self, shard: Shard) -> None:
        """Compare the shard's files with the manifest by existence and size.

        Raises
        ------
        ShardMissingError, ShardCorruptError
        """
        for entry in shard.files:
            self.check_size(entry)

    def check_size(self, entry: FileEntry) -> None:
        """Compare one file with the manifest by existence and size."""
        path = self.file(entry)
        try:
            found = os.stat(path).st_size
        except (FileNotFoundError, NotADirectoryError):
            raise ShardMissingError(
                f"{path}: expected a file of {entry.bytes} bytes, found none: restore it or pack again"
            ) from None
        if found != entry.bytes:
            raise ShardCorruptError(f"{path}: expected {entry.bytes} bytes, found {found}: {_DISAGREE}")

    def check_digest(self, entry: FileEntry) -> None:
        """Compare one file with the manifest by size and SHA-256.

        Raises
        ------
        ShardMissingError, ShardCorruptError
        """
        self.check_size(entry)
        found = sha256_file(self.file(entry))
        if found != entry.sha256:
            raise ShardCorruptError(f"{self.file(entry)}: expected SHA-256 {entry.sha256}, found {found}: {_DISAGREE}")


def sha256_file(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def describe_file(root: Path, path: Path) -> FileEntry:
    """The manifest entry of a file below `root`, read from the disk."""
    return FileEntry(path.relative_to(root).as_posix(), path.stat().st_size, sha256_file(path))
