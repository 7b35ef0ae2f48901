"""Sources in object stores and on web servers.

A source is listed from a `StorePlaceholders`, a local folder with an empty file for each object. So the code that lists folders, tables
and archives needs no knowledge of stores. The paths of the listed items are URLs, whose files the workers download
(`packer.builds.fetching`).
"""

import contextvars
import errno
import hashlib
import io
import json
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from packer.sources.archives.zip_directory import read_directory
from packer.sources.base import Listing, Source, count_listed
from packer.sources.item import Item
from packer.workspace.disk_list import LazyMap, writing_temporary
from packer.workspace.scratch import TemporaryFiles
from packer.workspace.shared_files import map_threaded
from shardspec.errors import ObjectDeniedError, ShardspecError, UsageError
from shardspec.layout import is_url
from shardspec.stores import Store, check_sendable, names_store
from shardspec.stores.store import StoredObject
from shardspec.wording import counted, shorten

_COUNTED = 500
_NO_FILE = frozenset({errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ})
"""Errors of the file system for names that cannot be those of further files."""

_SETTINGS = "FACEPACK_SOURCE_OPTIONS"
"""Environment variable with settings for the stores of sources, which workers inherit as they do those of AWS."""
_OF_SERVERS = ("client_options", "connections")
"""Settings that apply to web servers and other kinds of stores, too."""
_ZIP_END_BYTES = 1 << 16
"""End of a zip file that is requested first. It mostly contains the whole list of its files."""
_CONTROL = re.compile(r"[\0-\x1f\x7f]")


@contextmanager
def sharing_settings(options: Mapping[str, Any] | None, out: str | os.PathLike[str]) -> Iterator[None]:
    """Use settings for the stores of sources while the block runs, also in workers that it starts.

    Parameters
    ----------
    options : mapping, optional
        See `Store`.
    out : path or URL
        The output. If it is in a store, only sources in a store of that kind take all of the settings.
    """
    scheme = urlsplit(str(out)).scheme if names_store(out) else ""
    before = os.environ.get(_SETTINGS)
    try:
        os.environ[_SETTINGS] = json.dumps([scheme, dict(check_sendable(options or {}))])
    except UsageError:  # they may be those of the output only
        os.environ[_SETTINGS] = ""
    try:
        yield
    finally:
        os.environ.pop(_SETTINGS, None)
        if before is not None:
            os.environ[_SETTINGS] = before


def shared_settings() -> tuple[str, dict[str, Any]]:
    """Return the scheme of the output, or an empty text, and the settings that `sharing_settings` shares.

    Raises
    ------
    UsageError
        If the settings cannot be sent to workers.
    """
    text = os.environ.get(_SETTINGS, '["", {}]')
    if not text:
        raise UsageError(
            option="storage_options",
            expected="text, numbers, booleans, and dicts and lists of them, which workers can read",
            found="a function or another object",
            hint="use keys, or a profile with `credential_process`",
        )
    scheme, options = json.loads(text)
    return scheme, options


def source_store(url: str) -> Store:
    """Open the store of a source, with the settings that are shared.

    Raises
    ------
    UsageError
        If the URL is invalid, or if the settings cannot be sent to workers.
    """
    scheme, options = shared_settings()
    if _is_web(url) or scheme not in ("", urlsplit(url).scheme):
        options = {name: value for name, value in options.items() if name in _OF_SERVERS}
    return Store(url, options)


def time_of(etag: str) -> int:
    """Return a modification time in nanoseconds that stands for an ETag, in the fingerprint and in files.

    It has 31 bits of the ETag's SHA-256, in steps of two seconds, which all file systems can store.
    """
    # Azure puts quotation marks around the ETag in some answers only.
    digest = hashlib.sha256(etag.removeprefix("W/").strip('"').encode()).digest()
    return (1 + int.from_bytes(digest[:4], "big") // 2) * 2 * 10**9


def set_state(path: Path, found: StoredObject) -> None:
    """Give a file the size of an object and the time that stands for its ETag."""
    os.truncate(path, found.bytes)
    os.utime(path, ns=(time_of(found.etag),) * 2)


class _StoredPath(NamedTuple):
    """A URL, and the folder of a mirror for the objects below it."""

    url: str
    folder: Path
    store: Store

    @property
    def is_web(self) -> bool:
        """True for a web server, whose files cannot be listed."""
        return _is_web(self.url)


class StorePlaceholders:
    """A temporary folder with a file for each object below some URLs.

    Each file has the size of its object and the time that stands for its ETag (`time_of`). Only a few files have content.

    Parameters
    ----------
    is_wanted : callable
        Returns whether the content of an object is needed for the listing.
    """

    def __init__(self, is_wanted: Callable[[StoredObject], bool]) -> None:
        self._is_wanted = is_wanted
        self._scratch = TemporaryFiles()
        self._places: list[_StoredPath] = []
        self._unusable: list[str] = []

    def add(self, url: str) -> Path:
        """Return the folder for a URL, with the files of all objects below it. Those of a web server are added by `ask`.

        Raises
        ------
        UsageError
            If there are no objects.
        StoreError
            If they cannot be listed.
        """
        return self._list(self._place(url))

    def _list(self, place: _StoredPath) -> Path:
        if place.is_web:
            return place.folder
        wanted: list[Path] = []
        empty: list[StoredObject] = []
        number = 0
        for number, found in enumerate(place.store.list(), 1):
            if not found.bytes:
                empty.append(found)
                continue
            path = self._make(place, found)
            if path is not None and self._is_wanted(found):
                wanted.append(path)
            if not number % _COUNTED:
                count_listed(_COUNTED)
        if not number:
            raise UsageError(place=place.url, expected="objects below this URL", found="none", hint="check the name")
        for found in empty:
            # The web pages of some stores make empty objects for folders, whose names the client gives without a slash.
            if not (place.folder / found.name).exists():
                self._make(place, found)
        for _ in map_threaded(self.fill, wanted):
            pass
        return place.folder

    def add_object(self, url: str) -> Path | None:
        """Return the file for an object; None if there is no such object."""
        place = self._place(url.rpartition("/")[0])
        found = place.store.stat(_below(place, url) or "")
        return None if found is None else self._make(place, found)

    def holds(self, path: Path) -> bool:
        """Return whether a file stands for an object."""
        return path.is_relative_to(self._scratch.path)

    def add_beside(self, path: Path) -> Path:
        """Return the folder of a file that `add_object` made, with the files of all objects next to and below it."""
        path.unlink()
        return self._list(self._find(path)[0])

    def ask(self, paths: Iterable[str]) -> None:
        """Add the files of some paths or URLs on the web servers that were added."""
        paths = list(paths)
        for place in filter(lambda place: place.is_web, self._places):
            names = {posixpath.normpath((_below(place, path) if is_url(path) else path) or "") for path in paths}
            new = [name for name in sorted(names) if _is_name(name) and not os.path.lexists(place.folder / name)]
            for found in map_threaded(partial(_stat_of_row, place.store), new):
                if found is not None:
                    self._make(place, found)

    def local(self, path: str) -> str:
        """Return the path in the mirror for a URL below one of the added URLs; return anything else unchanged."""
        if is_url(path):
            for place in reversed(self._places):  # the folder of a table comes before its roots
                name = _below(place, path)
                if name is not None:
                    return f"{place.folder}/{name}"  # as text, because `..` must stay
        return path

    def fill(self, path: Path) -> None:
        """Download the content of a file. If the object has vanished, the file is deleted."""
        place, name = self._find(path)
        with writing_temporary():  # here, because the errors of reading an archive reject it
            try:
                set_state(path, place.store.download(name, path))
            except FileNotFoundError:
                path.unlink()

    def _fill_directory(self, path: Path) -> None:
        """Download the end of a zip file, which lists its files; the whole file if it is small or was replaced."""
        place, name = self._find(path)
        with suppress(_ReplacedError):
            with io.BufferedReader(_ZipEnd(path, partial(place.store.download, name, path))) as file:
                read_directory(file)
            return
        self.fill(path)

    @contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """Keep the content of a file while the block runs; of a zip file only the list of its files."""
        is_zip = path.suffix.lower() == ".zip" and path.stat().st_size > _ZIP_END_BYTES
        (self._fill_directory if is_zip else self.fill)(path)
        state = path.stat()
        try:
            yield
        finally:
            os.truncate(path, 0)
            os.truncate(path, state.st_size)
            os.utime(path, ns=(state.st_mtime_ns,) * 2)

    def locate(self, listing: Listing) -> Listing:
        """Return a listing with URLs in place of the paths in the mirror."""
        notes = [self._shown(note) for note in listing.notes]
        unusable = len(self._unusable)
        if unusable:
            example = shorten(self._unusable[0])
            notes.append(
                f"ignored {counted(unusable, 'object')} whose name cannot be that of a file, such as {example}"
            )
        return replace(
            listing, items=LazyMap(listing.items, self._located), ignored=listing.ignored + unusable, notes=notes
        )

    @contextmanager
    def showing_urls(self) -> Iterator[None]:
        """Show URLs in place of the paths in the mirror in the messages of errors."""
        try:
            with writing_temporary():
                yield
        except ShardspecError as error:
            names = ("place", "expected", "found", "hint")
            parts = {name: self._shown(getattr(error, name)) for name in names}
            raise type(error)(
                self._shown(error.problem), option=error.option, problems=error.problems, **parts
            ) from error

    def _place(self, url: str) -> _StoredPath:
        store = source_store(url)
        # The paths of items have the names of objects, which are not percent-encoded.
        shown = unquote(store.url) if _is_web(url) else store.url
        for place in self._places:
            if place.url == shown:
                return place
        if not {".", ".."}.isdisjoint(shown.split("/")):
            raise UsageError(place=shown, expected="a URL without . and .. between slashes", found="one with them")
        folder = self._scratch.path / str(len(self._places)) / (shown.rpartition("/")[2] or "source")
        folder.mkdir(parents=True)
        self._places.append(_StoredPath(shown, folder, store))
        return self._places[-1]

    def _make(self, place: _StoredPath, found: StoredObject) -> Path | None:
        """Make the file of an object. Return None if its name cannot be that of a file."""
        path = place.folder / found.name
        if not _is_name(found.name):
            self._unusable.append(found.name)
            return None
        try:
            try:
                path.open("xb").close()
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.open("xb").close()
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            self._unusable.append(found.name)
            return None
        set_state(path, found)
        return path

    def _find(self, path: Path) -> tuple[_StoredPath, str]:
        number, _, *name = path.relative_to(self._scratch.path).parts
        return self._places[int(number)], "/".join(name)

    def _located(self, item: Item) -> Item:
        files = {option: file._replace(path=self._shown(file.path)) for option, file in item.files.items()}
        return item._replace(path=self._shown(item.path), files=files)

    def _shown(self, text: Any) -> Any:
        if isinstance(text, str):
            for place in self._places:
                text = text.replace(str(place.folder), place.url)
        return text


class _ZipEnd(io.RawIOBase):
    """Reads an empty file of an object's size, into which everything from the first byte read to its end is downloaded.

    Parameters
    ----------
    download : callable
        Writes a part of the object to the file, given the part's start and end.

    Raises
    ------
    _ReplacedError
        While it is read, if the object is not the one that the file stands for.
    """

    def __init__(self, path: Path, download: Callable[[tuple[int, int]], StoredObject]) -> None:
        self._path, state = path, path.stat()
        self._state = state.st_size, state.st_mtime_ns
        self._size = self._known_from = state.st_size
        self._download = download
        self._file = path.open("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def readinto(self, buffer: Any) -> int | None:
        start = min(self._file.tell(), self._size - _ZIP_END_BYTES)
        if start < self._known_from:
            self._download_from(start)
        return self._file.readinto(buffer)

    def _download_from(self, start: int) -> None:
        with writing_temporary():  # here, because `zipfile` takes errors of reading for damage
            try:
                found = self._download((start, self._known_from))
            except FileNotFoundError:
                raise _ReplacedError from None
        if (found.bytes, time_of(found.etag)) != self._state:
            raise _ReplacedError
        set_state(self._path, found)
        self._known_from = start

    def close(self) -> None:
        self._file.close()
        super().close()


class _ReplacedError(Exception):
    """An object was replaced or deleted after it was listed."""


def check_url(url: str) -> str:
    """Return the URL of a source without a slash at its end.

    Raises
    ------
    UsageError
        If it is not a URL of a store whose objects can be sources.
    MissingDependencyError
        If the client library is not installed.
    """
    if url.startswith("hf://"):
        raise UsageError(
            option="source",
            expected="a path, or s3://, gs://, az:// or http(s)://",
            found=shorten(url),
            hint="download the files with `hf download`",
        )
    return source_store(url).url


def _is_web(url: str) -> bool:
    return url.startswith("http")


def _below(place: _StoredPath, url: str) -> str | None:
    """Return the name of an object below a place; None if the URL is elsewhere."""
    url = unquote(url) if place.is_web else url
    return url[len(place.url) + 1 :] if url.startswith(f"{place.url}/") else None


def _stat_of_row(store: Store, name: str) -> StoredObject | None:
    try:
        return store.stat(name)
    except ObjectDeniedError:  # its download will be refused too, and rejects the item
        return StoredObject(name, 0, "")


def _is_name(name: str) -> bool:
    """Return whether the name of an object is possible for a file, and allowed by the client."""
    return {"", ".", ".."}.isdisjoint(name.split("/")) and not _CONTROL.search(name)


class StoredSource:
    """A source with files in stores, which is opened when it is listed.

    Parameters
    ----------
    open_mirrored : callable
        Opens the source, given the mirror.
    is_wanted : callable
        See `StorePlaceholders`.
    """

    def __init__(
        self, open_mirrored: Callable[[StorePlaceholders], Source], is_wanted: Callable[[StoredObject], bool]
    ) -> None:
        self._open = open_mirrored
        self._is_wanted = is_wanted

    def list_items(self, label_from: str, path_column: str) -> Listing:
        """List the items. Paths in the mirror, which `Listing.mirror` has, stand for URLs."""
        mirror = StorePlaceholders(self._is_wanted)
        with mirror.showing_urls():
            source = self._open(mirror)
            # In a context of its own, because the mirror has counted the objects already.
            listing = contextvars.Context().run(source.list_items, label_from, path_column)
        return replace(listing, mirror=mirror)
