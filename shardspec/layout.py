"""The layout of a packed dataset's folder. Only this module turns names in a manifest into paths."""

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from shardspec.columns import Buffer
from shardspec.entries import CARD_NAME, COLUMNS_FOLDER, Column, FileEntry, Shard
from shardspec.errors import (
    DatasetChangedError,
    DatasetError,
    ManifestError,
    NotADatasetError,
    ShardCorruptError,
    ShardMissingError,
    UsageError,
    system_reason,
)
from shardspec.formats import get_format
from shardspec.manifest import MANIFEST_BYTES_MAX, Manifest
from shardspec.wording import list_some, program, shorten

MANIFEST_NAME = "manifest.json"
REJECTS_NAME = "rejects.jsonl"
ITEMS_NAME = "items.jsonl"
INDEX_FOLDER = "index"
BUILD_FOLDER = ".build"
PLAN_NAME = "plan.json"
COMPUTED_NAME = "computed"
"""File in the working folder of a build that can be resumed."""

_DISAGREE = "the file or the manifest has changed since packing"
_HOLES_BYTES = 1 << 30
_HOLES_FACTOR = 1000
"""A sparse file larger than `_HOLES_BYTES` is not hashed if it is `_HOLES_FACTOR` times as large as its data."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_ONE_SLASH = re.compile(r"(?:s3|gs|az|hf|https?|file):/(?!/)")
"""A misspelt URL, or a URL that was made a `Path`, which drops a slash."""
_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{end}": base**power
    for power, prefix in enumerate("kmgt", 1)
    for end, base in (("b", 10**3), ("ib", 2**10))
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*\Z", re.IGNORECASE)
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISLNK, "a link"),
)


@dataclass(frozen=True)
class Layout:
    """Paths in the folder `root` of a dataset, and checks of its files.

    `readers.staging.layout.CachedLayout` is that of a remote dataset: `root` is in a cache, and files are there once they
    are required.
    """

    root: Path

    is_local: ClassVar[bool] = True
    """True if all files are there."""
    reads_parts: ClassVar[bool] = False
    """True if parts of files are there once they are fetched (`packer.sources.stores.packed.RowsLayout`)."""

    @property
    def shown(self) -> str:
        """The folder or URL of the dataset, for messages."""
        return str(self.root)

    def require(self, entries: Iterable[FileEntry]) -> None:
        """Wait until files are on this machine."""

    def hold(self, entries: Iterable[FileEntry]) -> Callable[[], None]:
        """Wait until files are on this machine, and keep them there until the returned function is called."""
        return _do_nothing

    def doubt(self, entries: Iterable[FileEntry]) -> None:
        """Have files of a remote dataset checked again before their next use."""

    def fetch(self, extents: Iterable[Any]) -> None:
        """Wait until parts of files (`readers.formats.mapping.Extents`) are on this machine."""

    @property
    def manifest(self) -> Path:
        """Path of the manifest."""
        return self.root / MANIFEST_NAME

    @property
    def card(self) -> Path:
        """Path of the description for other tools, which some formats have (`Format.card`). No manifest lists it."""
        return self.root / CARD_NAME

    @property
    def build(self) -> Path:
        """Working folder of a build that is unfinished or packed nothing."""
        return self.root / BUILD_FOLDER

    @property
    def reasons(self) -> Path:
        """Path of the reason of every reject, one JSON line each, if the last build packed nothing."""
        return self.build / REJECTS_NAME

    def find_index(self, manifest: Manifest, field: str) -> FileEntry | None:
        """Return the entry of a scalar field's index file, or None. A column is its own index."""
        column = next((column for column in manifest.columns if column.field == field), None)
        return column.files[0] if column is not None else manifest.find_file(f"{INDEX_FOLDER}/{field}.npy")

    @property
    def columns(self) -> Path:
        """Folder of all columns."""
        return self.root / COLUMNS_FOLDER

    def local(self, name: str) -> Path:
        """Return the path on this machine of a file or folder of the dataset, given its name in the manifest.

        Every file of a shard, a column or the index is opened by a path from here. Files whose names begin with another
        file's name, such as a shard's index, are in the same folder as that file.
        """
        return self.root / name

    def file(self, entry: FileEntry) -> Path:
        """Return the path of a file named in the manifest."""
        return self.local(entry.name)

    def shard(self, shard: Shard | Column, format: str) -> Path:
        """Return the file or folder that the reader of a shard or column opens."""
        return self.local(shard.name + ("" if isinstance(shard, Column) else get_format(format).suffix))

    def load(self) -> Manifest:
        """Read and validate the manifest.

        Raises
        ------
        NotADatasetError
            If there is no manifest. The message says if a build is unfinished or packed nothing.
        ManifestError
            If the manifest breaks the contract.
        VersionError
            If the manifest has a newer version of the contract.
        DatasetError
            If the manifest cannot be read.
        """
        try:
            self._check_links([MANIFEST_NAME])
            with os.fdopen(open_regular(self.manifest), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size > MANIFEST_BYTES_MAX:
                    raise ManifestError(place=self.manifest, expected=f"at most {MANIFEST_BYTES_MAX} bytes", found=size)
                data = file.read()
        except FileNotFoundError:
            if self.build.is_dir():
                raise NotADatasetError(
                    place=self.root, expected="a packed dataset", found=self.describe_build()
                ) from None
            raise NotADatasetError(
                place=self.root, expected=f"a packed dataset with a {MANIFEST_NAME}", found=self._describe_other()
            ) from None
        except NotADirectoryError:
            raise NotADatasetError(
                place=self.root,
                expected="the folder of a packed dataset",
                found="a file",
                hint=f"give the folder that holds its {MANIFEST_NAME}",
            ) from None
        except OSError as error:
            raise DatasetError(f"cannot be read: {system_reason(error)}", place=self.manifest) from error
        return Manifest.loads(data, str(self.manifest))

    def check_unchanged(self, manifest: Manifest, hint: str) -> None:
        """Check that the folder does not hold another dataset than that of a manifest which was read before.

        Raises
        ------
        DatasetChangedError
            If it does.
        """
        try:
            same = self.load().entries == manifest.entries
        except DatasetError:
            return
        if not same:
            raise DatasetChangedError(
                place=self.root, expected="the dataset that was opened", found="another in its place", hint=hint
            )

    def _describe_other(self) -> str:
        if not self.root.is_dir():
            return "no such folder"
        inside = sorted(path.parent.name for path in self.root.glob(f"*/{MANIFEST_NAME}"))
        if inside:
            return f"a folder that holds packed datasets ({list_some(inside)}): give one of them"
        return f"a folder without one: pack it first ('{program()} build')"

    def describe_build(self) -> str:
        """Describe the working folder, and what the user can do."""
        if self.reasons.exists():
            return f"a build that packed nothing, because no item yielded a sample: the reasons are in {self.reasons}"
        if (self.build / COMPUTED_NAME).exists():
            return f"columns that '{program()} compute' has begun: repeat the command to resume it"
        if not (self.build / PLAN_NAME).exists():
            return "an interrupted writer that cannot be resumed: run the program again, which replaces it"
        with suppress(OSError, ValueError, RecursionError):
            if "pieces" in json.loads((self.build / PLAN_NAME).read_bytes()):
                return f"pieces of a build: '{program()} merge' makes a packed dataset from them"
        return "an unfinished build: repeat its command to resume it"

    def check_sizes(self, entries: Iterable[FileEntry]) -> None:
        """Check that files exist with the sizes in the manifest, as regular files inside the folder.

        Raises
        ------
        ShardMissingError
            If a file does not exist.
        ShardCorruptError
            If a file has another size, is not a regular file, or is a link that leads out of the folder.
        """
        entries = list(entries)
        self._check_links({entry.name.rpartition("/")[0] for entry in entries})
        root = str(self.root)
        for entry in entries:
            path = f"{root}/{entry.name}"  # as text, because Path objects would double the time
            try:
                status = os.lstat(path)
                if stat.S_ISLNK(status.st_mode):
                    self._check_links([entry.name])
                    status = os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                raise ShardMissingError(
                    place=path, expected=f"a file of {entry.bytes} bytes", found="none", hint="restore it or pack again"
                ) from None
            except OSError as error:
                raise DatasetError(f"cannot be read: {system_reason(error)}", place=path) from error
            _check_regular(path, status)
            if status.st_size != entry.bytes:
                raise ShardCorruptError(
                    place=path, expected=f"{entry.bytes} bytes", found=status.st_size, hint=_DISAGREE
                )

    def check_digest(self, entry: FileEntry) -> None:
        """Check that one file has the size and SHA-256 in the manifest.

        Raises
        ------
        ShardMissingError
            If the file does not exist.
        ShardCorruptError
            If its size or digest differs.
        """
        self.check_sizes([entry])
        _check_holes(self.file(entry), entry.bytes)
        found = sha256_file(self.file(entry))
        if found != entry.sha256:
            raise ShardCorruptError(
                place=self.file(entry), expected=f"SHA-256 {entry.sha256}", found=found, hint=_DISAGREE
            )

    def _check_links(self, names: Iterable[str]) -> None:
        """Check that no link in the paths of files leads out of the dataset's folder."""
        checked = {""}
        for name in names:
            above = name
            while above not in checked:
                checked.add(above)
                path = self.root / above
                if path.is_symlink():
                    target = os.path.realpath(path)
                    if not Path(target).is_relative_to(os.path.realpath(self.root)):
                        raise ShardCorruptError(
                            place=path,
                            expected="a file or folder inside the dataset's folder",
                            found=f"a link to {target}",
                            hint="put a copy in its place",
                        )
                above = above.rpartition("/")[0]


opened: dict[Path, Layout] = {}
"""Layouts of remote datasets that a command reads in this process, by their folders in the cache. They stay open."""


def layout_at(folder: Path) -> Layout:
    """Return the layout of a folder, which may be that of a remote dataset in the cache."""
    return opened.get(folder.absolute()) or Layout(folder)


def place_of(folder: Path) -> Path | str:
    """Return the folder, or the URL if it is the folder in the cache of a remote dataset, for results and messages."""
    layout = opened.get(folder.absolute())
    return folder if layout is None else layout.shown


def _do_nothing() -> None:
    pass


def given_path(name: str, value: Any) -> Path:
    """Return the value of the argument `name` as a path.

    Raises
    ------
    UsageError
        If the value is not a path, is a URL, with one slash or two, which would name a local folder, or is empty, which
        would mean the current folder when a variable of a script is not set.
    """
    try:
        given = os.fspath(value)
        path = Path(given)
    except TypeError:
        raise UsageError(option=name, expected="a path", found=shorten(value)) from None
    if not given:
        raise UsageError(option=name, expected="a path", found="an empty text; '.' is the current folder")
    if is_url(os.fsdecode(given)):
        raise UsageError(describe_url(given), option=name)
    if _ONE_SLASH.match(os.fsdecode(given)):
        raise UsageError(option=name, expected="a path, or a URL with '://' given as text", found=shorten(given))
    return path


def parse_size(text: str | int, name: str) -> tuple[int, str, str]:
    """Return a number of bytes such as ``"256MB"``, ``"64 MiB"``, ``1000000``, and its number and unit as written.

    Parameters
    ----------
    name : str
        Name of the option, for messages.

    Raises
    ------
    UsageError
        If the text is not a size.
    """
    match = _SIZE.match(str(text))
    if match is None or match[2].lower() not in _UNITS:
        raise UsageError(option=name, expected="a size such as 256MB, 64MiB or a number of bytes", found=shorten(text))
    return int(float(match[1]) * _UNITS[match[2].lower()]), match[1], match[2]


def is_url(text: str) -> bool:
    """Return whether a text is a URL, such as ``https://…`` or ``s3://…``, and not a path."""
    return _URL.match(text) is not None


def describe_url(given: str | bytes) -> str:
    """Describe the problem with a URL in place of a path."""
    return (
        f"expected a path on this machine, found the URL {shorten(given)}: mount it or copy it to a local folder first"
    )


def open_regular(path: Path) -> int:
    """Open a regular file for reading and return its descriptor.

    Raise `ShardCorruptError` for anything else: opening a pipe would wait for its writer, and a device may be endless.
    """
    flags = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_BINARY", "O_NONBLOCK"))
    descriptor = os.open(path, flags)
    try:
        _check_regular(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(path: Path | str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        found = next((what for is_kind, what in _KINDS if is_kind(status.st_mode)), "a device")
        raise ShardCorruptError(f"cannot be read: expected a regular file, found {found}", place=path)


def _check_holes(path: Path, size: int) -> None:
    """Raise `ShardCorruptError` for a file that consists almost entirely of holes and would take very long to read."""
    if size <= _HOLES_BYTES or not hasattr(os, "SEEK_DATA"):
        return
    held = place = 0
    descriptor = open_regular(path)
    try:
        while place < size and held * _HOLES_FACTOR < size:
            start = os.lseek(descriptor, place, os.SEEK_DATA)
            place = os.lseek(descriptor, start, os.SEEK_HOLE)
            held += place - start
    except OSError as error:
        if (
            error.errno != errno.ENXIO
        ):  # ENXIO means that there is no more data; otherwise the file system does not know
            return
    finally:
        os.close(descriptor)
    if held * _HOLES_FACTOR < size:
        raise ShardCorruptError(
            place=path,
            expected=f"a file of {size} bytes",
            found=f"a sparse file with {held} bytes of data",
            hint=_DISAGREE,
        )


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def missing_object(entry: FileEntry, place: str) -> ShardMissingError:
    """Return the error about a file that is not in the store, given its URL."""
    return ShardMissingError(
        place=place,
        expected=f"an object of {entry.bytes} bytes",
        found="none",
        hint="copy the dataset there again, which restores it",
    )


def checked_chunks(chunks: Iterable[Buffer], entry: FileEntry, place: str) -> Iterator[Buffer]:
    """Yield the content of a file, and raise `ShardCorruptError` at its end if it differs from the manifest."""
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
        if size > entry.bytes:  # a server may send data without end
            break
        yield chunk
    if (size, digest.hexdigest()) != (entry.bytes, entry.sha256):
        raise ShardCorruptError(
            place=place,
            expected=f"{entry.bytes} bytes with SHA-256 {entry.sha256}",
            found=f"{size} bytes with {digest.hexdigest()}",
            hint=_DISAGREE,
        )


def describe_file(root: Path, path: Path) -> FileEntry:
    """Return the manifest entry of a file below `root`."""
    return FileEntry(path.relative_to(root).as_posix(), path.stat().st_size, sha256_file(path))
