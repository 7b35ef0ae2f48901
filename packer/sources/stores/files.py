"""The objects of stores as files to list a source from.

A table in a temporary file holds the name, size and ETag of each object. Objects have paths in a temporary folder, so
the code that lists folders, tables and archives needs no knowledge of stores. There is a file at such a path only while
the content of its object is needed. In the end, URLs take the place of the paths of the listed items, whose files the
workers download (`packer.builds.fetching`).
"""

import errno
import os
import posixpath
import re
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import unquote

from packer.sources.base import Listing, count_listed
from packer.sources.files import FileState, LocalFiles
from packer.sources.folders.patterns import Globs
from packer.sources.item import Item
from packer.sources.stores.access import is_web, set_state, source_store, time_of
from packer.sources.stores.zip_end import ZIP_END_BYTES, download_directory
from packer.workspace.disk_list import LazyMap, text_list, writing_temporary
from packer.workspace.scratch import TemporaryFiles
from packer.workspace.shared_files import Entry, map_threaded
from shardspec.errors import BuildError, ObjectDeniedError, ShardspecError, UsageError
from shardspec.layout import is_url
from shardspec.stores import Store
from shardspec.stores.store import StoredObject
from shardspec.wording import counted, shorten

_TABLE = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA locking_mode = EXCLUSIVE;
CREATE TABLE entries (folder TEXT, name TEXT, bytes INTEGER, mtime_ns INTEGER, PRIMARY KEY (folder, name)) WITHOUT ROWID;
CREATE TABLE contents (path TEXT PRIMARY KEY, data BLOB);
BEGIN;
"""
"""The files and folders, whose ``bytes`` is NULL, in the byte order of their names; and contents that were read ahead."""
_ADDED, _FETCHED = 1000, 1000
"""Rows of the table that are written or read at a time."""
_NAME_BYTES = 255
"""Longest name of a file."""
_CONTROL = re.compile(r"[\0-\x1f\x7f]")
_INDEX = {".rec": ".idx"}
"""Suffix of the file that accompanies an archive, by the suffix of the archive."""


class _Place(NamedTuple):
    """A URL, and the folder whose paths stand for the objects below it."""

    url: str
    folder: Path
    store: Store

    @property
    def is_web(self) -> bool:
        return is_web(self.url)

    def name_of(self, url: str) -> str | None:
        """Return the name of an object below the place; None if the URL is elsewhere."""
        url = unquote(url) if self.is_web else url
        return url[len(self.url) + 1 :] if url.startswith(f"{self.url}/") else None


class _State(NamedTuple):
    st_mode: int
    st_size: int
    st_mtime_ns: int


class _TableLock:
    """Lets one thread at a time use the table, and turns errors of the table into `BuildError`."""

    def __init__(self) -> None:
        self._lock = Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, _: type | None, error: BaseException | None, __: TracebackType | None) -> None:
        self._lock.release()
        if isinstance(error, sqlite3.Error):
            raise BuildError(
                f"the table of objects cannot be written or read: {error}",
                place=tempfile.gettempdir(),
                hint="set TMPDIR to a folder with enough free space",
            ) from error


class StoredFiles(LocalFiles):
    """The objects below some URLs, in addition to the files of this machine.

    Each has the size of its object, and the time that stands for its ETag (`time_of`).

    Parameters
    ----------
    is_read : callable
        Returns whether the content of an object is read for the listing. It is then read ahead.
    """

    def __init__(self, is_read: Callable[[StoredObject], bool]) -> None:
        self._is_read = is_read
        self._scratch = TemporaryFiles()
        self._root = f"{self._scratch.path}/"
        self._places: list[_Place] = []
        self._unusable, self._example = 0, ""
        self._lock = _TableLock()
        self._table = sqlite3.connect(f"{self._root}objects", check_same_thread=False, isolation_level=None)
        with self._lock:
            self._table.executescript(_TABLE)

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

    def add_object(self, url: str) -> Path | None:
        """Return the file for an object; None if there is no such object."""
        place = self._place(url.rpartition("/")[0])
        found = place.store.stat(place.name_of(url) or "")
        return place.folder / found.name if found is not None and self._add(place, [found]) else None

    def add_beside(self, path: Path) -> Path:
        """Return the folder of a file that `add_object` made, with the files of all objects next to and below it."""
        return self._list(self._find(path)[0])

    def holds(self, path: str | Path) -> bool:
        """Return whether a path stands for an object."""
        return str(path).startswith(self._root)

    def download(self, path: Path) -> None:
        """Download an object to its path. If it has vanished, there is no file."""
        place, name = self._find(path)
        with writing_temporary():  # here, because the errors of reading an archive reject it
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                set_state(path, place.store.download(name, path))

    def _list(self, place: _Place) -> Path:
        if place.is_web:
            return place.folder
        read = text_list()

        def found() -> Iterator[StoredObject]:
            for one in place.store.list():
                yield one
                if one.bytes and self._is_read(one):
                    read.append(f"{place.folder}/{one.name}")

        if not self._add(place, found()):
            raise UsageError(place=place.url, expected="objects below this URL", found="none", hint="check the name")
        for path, content in map_threaded(lambda path: (path, self._read(path)), read):
            if content is None:
                self._write("DELETE FROM entries WHERE folder = ? AND name = ?", [self._split(path)])
            else:
                self._write(
                    "UPDATE entries SET bytes = ?, mtime_ns = ? WHERE folder = ? AND name = ?",
                    [(content[0].bytes, time_of(content[0].etag), *self._split(path))],
                )
                self._write("REPLACE INTO contents VALUES (?, ?)", [(path, content[1])])
        return place.folder

    def _add(self, place: _Place, objects: Iterable[StoredObject]) -> int:
        """Add objects, and return their number. Those whose name cannot be that of a file are only counted."""
        key, number, last, usable = str(place.folder)[len(self._root) :], 0, "", False
        rows: list[tuple[str, str, int, int]] = []

        def write() -> None:
            self._write(
                "INSERT INTO entries VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE "
                "SET bytes = excluded.bytes, mtime_ns = excluded.mtime_ns WHERE bytes NOT NULL",
                rows,
            )
            count_listed(len(rows))
            rows.clear()

        for found in objects:
            number += 1
            folder, _, name = f"{key}/{found.name}".rpartition("/")
            is_name = _is_name(found.name)
            if is_name and folder != last:
                write()
                last, usable = folder, self._make_folder(folder)
            if is_name and usable:
                rows.append((folder, name, found.bytes, time_of(found.etag)))
            else:
                self._unusable, self._example = self._unusable + 1, self._example or found.name
            if len(rows) == _ADDED:
                write()
        write()
        return number

    def _make_folder(self, path: str) -> bool:
        """Add a folder and those above it. Return False if one of them is an object.

        Empty objects do not count: the web pages of some stores make them for folders.
        """
        above, _, name = path.rpartition("/")
        found = self._row(above, name) if above else (None, 0)
        if found is not None and (found[0] is None or found[0] > 0):
            return found[0] is None
        made = self._make_folder(above)
        if made:
            self._write("REPLACE INTO entries VALUES (?, ?, NULL, 0)", [(above, name)])
        return made

    def ask(self, paths: Iterable[str]) -> None:
        """Add the files of some paths or URLs on the web servers that were added."""
        paths = list(paths)
        for place in filter(lambda place: place.is_web, self._places):
            names = {posixpath.normpath((place.name_of(path) if is_url(path) else path) or "") for path in paths}
            new = [name for name in sorted(names) if _is_name(name) and not self.exists(place.folder / name)]
            self._add(place, filter(None, map_threaded(partial(_stat_of_row, place.store), new)))

    def local(self, path: str) -> str:
        """Return the path for a URL below one of the added URLs; return anything else unchanged."""
        if is_url(path):
            for place in reversed(self._places):  # the folder of a table comes before its roots
                name = place.name_of(path)
                if name is not None:
                    return f"{place.folder}/{name}"  # as text, because `..` must stay
        return path

    def stat(self, path: str | Path) -> FileState:
        """Return the state of an object, a folder of objects, or a file."""
        path = str(path)
        path = os.path.normpath(path) if "/." in path else path
        if not path.startswith(self._root):
            return super().stat(path)
        found = self._row(*self._split(path))
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return _State(stat.S_IFDIR, 0, 0) if found[0] is None else _State(stat.S_IFREG, found[0], found[1])

    def lstat(self, path: str | Path) -> FileState:
        """Return the state of an object, a folder of objects, a file or a link."""
        return self.stat(path) if self.holds(path) else super().lstat(path)

    def resolve(self, path: str | Path) -> str:
        """Return a path without ``..`` and links; `OSError` if it does not exist."""
        if not self.holds(path):
            return super().resolve(path)
        self.stat(path)
        return os.path.normpath(path)

    def scan(self, folder: str | Path) -> Iterator[Entry]:
        """Yield the entries of a folder."""
        if not self.holds(folder):
            yield from super().scan(folder)
            return
        query = "SELECT name, bytes IS NULL FROM entries WHERE folder = ?"
        for name, is_folder in self._rows(query, os.path.normpath(folder)[len(self._root) :]):
            yield name, bool(is_folder), False

    def match(self, pattern: str) -> Iterator[str]:
        """Return the paths that match a pattern. Hidden parts of a path match only parts that start with a dot, too."""
        if not self.holds(pattern):
            yield from super().match(pattern)
            return
        inner = pattern[len(self._root) :]
        globs, hidden = Globs([f"/{inner}"]), sum(map(_is_hidden, inner.split("/")))
        for folder, name, is_folder in self._rows("SELECT folder, name, bytes IS NULL FROM entries"):
            parts = (*folder.split("/"), name)
            # A part of the pattern with a dot takes a hidden part, so with equal numbers nothing else took one.
            if globs.match(parts, folder=bool(is_folder)) and sum(map(_is_hidden, parts)) == hidden:
                yield f"{self._root}{folder}/{name}"

    def read(self, path: Path, most: int) -> bytes:
        """Return the content of a small object or file, of a larger one `most` bytes."""
        if not self.holds(path):
            return super().read(path, most)
        known = next(self._rows("SELECT data FROM contents WHERE path = ?", str(path)), None)
        if known is None:
            found = self.stat(path)
            known = self._read(path, None if found.st_size <= most else (0, most))
            if known is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return bytes(known[-1])

    @contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """Keep an archive at its path while the block runs; of a zip file only the list of its files."""
        if not self.holds(path):
            yield
            return
        found, (place, name) = self.stat(path), self._find(path)
        index = path.with_suffix(_INDEX.get(path.suffix, path.suffix))
        is_zip = path.suffix.lower() == ".zip" and found.st_size > ZIP_END_BYTES
        try:
            with writing_temporary():
                path.parent.mkdir(parents=True, exist_ok=True)
            download = partial(place.store.download, name, path)
            if not is_zip or not download_directory(path, (found.st_size, found.st_mtime_ns), download):
                self.download(path)
            if index != path:
                self.download(index)
            yield
        finally:
            path.unlink(missing_ok=True)
            index.unlink(missing_ok=True)

    def is_slow(self, folder: Path) -> bool:
        """Return whether each access to a folder takes long. The objects are listed already."""
        return not self.holds(folder) and super().is_slow(folder)

    def locate(self, listing: Listing) -> Listing:
        """Return a listing with URLs in place of paths."""
        notes = [self._shown(note) for note in listing.notes]
        if self._unusable:
            example = shorten(self._example)
            notes.append(
                f"ignored {counted(self._unusable, 'object')} whose name cannot be that of a file, such as {example}"
            )
        ignored = listing.ignored + self._unusable
        return replace(listing, items=LazyMap(listing.items, self._located), ignored=ignored, notes=notes)

    @contextmanager
    def showing_urls(self) -> Iterator[None]:
        """Show URLs in place of paths in the messages of errors."""
        try:
            with writing_temporary():
                yield
        except ShardspecError as error:
            names = ("place", "expected", "found", "hint")
            parts = {name: self._shown(getattr(error, name)) for name in names}
            raise type(error)(
                self._shown(error.problem), option=error.option, problems=error.problems, **parts
            ) from error

    def _place(self, url: str) -> _Place:
        store = source_store(url)
        # The paths of items have the names of objects, which are not percent-encoded.
        shown = unquote(store.url) if is_web(url) else store.url
        for place in self._places:
            if place.url == shown:
                return place
        if not {".", ".."}.isdisjoint(shown.split("/")):
            raise UsageError(place=shown, expected="a URL without . and .. between slashes", found="one with them")
        key = f"{len(self._places)}/{shown.rpartition('/')[2] or 'source'}"
        self._make_folder(key)
        self._places.append(_Place(shown, self._scratch.path / key, store))
        return self._places[-1]

    def _find(self, path: str | Path) -> tuple[_Place, str]:
        """Return the place and the name of the object for a path."""
        number, _, *name = Path(path).relative_to(self._scratch.path).parts
        return self._places[int(number)], "/".join(name)

    def _read(self, path: str | Path, span: tuple[int, int] | None = None) -> tuple[StoredObject, bytes] | None:
        """Return an object and its content, or a part of it; None if it has vanished."""
        place, name = self._find(path)
        with writing_temporary(), tempfile.NamedTemporaryFile(dir=self._scratch.path) as file:
            try:
                return place.store.download(name, Path(file.name), span), file.read()
            except FileNotFoundError:
                return None

    def _split(self, path: str | Path) -> tuple[str, str]:
        """Return the folder and name in the table for a path."""
        folder, _, name = str(path)[len(self._root) :].rpartition("/")
        return folder, name

    def _row(self, folder: str, name: str) -> tuple[int | None, int] | None:
        with self._lock:
            query = "SELECT bytes, mtime_ns FROM entries WHERE folder = ? AND name = ?"
            row: tuple[int | None, int] | None = self._table.execute(query, (folder, name)).fetchone()
        return row

    def _rows(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        with self._lock:
            cursor = self._table.execute(query, values)
        while True:
            with self._lock:
                rows = cursor.fetchmany(_FETCHED)
            if not rows:
                return
            yield from rows

    def _write(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        with self._lock:
            self._table.executemany(statement, rows)

    def _located(self, item: Item) -> Item:
        files = {option: file._replace(path=self._shown(file.path)) for option, file in item.files.items()}
        return item._replace(path=self._shown(item.path), files=files)

    def _shown(self, text: Any) -> Any:
        if isinstance(text, str):
            for place in self._places:
                text = text.replace(str(place.folder), place.url)
        return text


def _stat_of_row(store: Store, name: str) -> StoredObject | None:
    try:
        return store.stat(name)
    except ObjectDeniedError:  # its download will be refused too, and rejects the item
        return StoredObject(name, 0, "")


def _is_name(name: str) -> bool:
    """Return whether the name of an object is possible for a file, and allowed by the client."""
    parts = name.split("/")
    if not {"", ".", ".."}.isdisjoint(parts) or _CONTROL.search(name):
        return False
    return len(name.encode()) <= _NAME_BYTES or max(len(part.encode()) for part in parts) <= _NAME_BYTES


def _is_hidden(name: str) -> bool:
    return name.startswith(".")
