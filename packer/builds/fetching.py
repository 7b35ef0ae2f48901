"""Download the files of items from stores, some items ahead of the work, into a temporary folder."""

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from packer.sources.archives.member import Member
from packer.sources.folders.frames import Frames
from packer.sources.folders.sidecars import PART
from packer.sources.item import Item, ItemFile
from packer.sources.stores.access import set_state, source_store, time_of
from packer.workspace.disk_list import writing_temporary
from packer.workspace.scratch import TemporaryFiles
from shardspec.errors import BuildError, ObjectDeniedError, StoreError
from shardspec.layout import is_url
from shardspec.registry import import_target
from shardspec.stores import Store
from shardspec.stores.daemons import Daemons
from shardspec.stores.store import StoredObject

_THREADS = 16
"""Downloads at a time. A request takes tens of milliseconds, however small the object."""
_AHEAD_ITEMS, _AHEAD_BYTES = 64, 256 * 10**6
"""Downloads begin while fewer items, and fewer bytes, are in the temporary folder."""
_FOOTER_BYTES = 1 << 16
"""End of a Parquet file that is requested first. It mostly contains the whole footer."""
_FOOTER_END = 8
"""Bytes after the footer: its length in four bytes, and ``PAR1`` (Parquet format, "File Format")."""
_BLOCK_BYTES = 8 << 20
"""Stored members that begin in the same block of an archive are downloaded together."""
_GAP_BYTES = 1 << 16
"""Members with a smaller gap between them are downloaded by one request. A further request takes longer than the gap."""


class _Download(NamedTuple):
    """A file, a folder of frames, or a part of an archive.

    Attributes
    ----------
    part : tuple of int or None
        `Member.run`, or the number of the block.
    """

    url: str
    part: tuple[int, ...] | None = None


class Fetcher:
    """Downloads the files of the items of a task, in the order of the items."""

    def __init__(self) -> None:
        self._daemons = Daemons(_THREADS, "download")
        self._items: Iterator[Item] = iter(())
        self._needs: dict[int, Mapping[_Download, list[ItemFile]]] = {}
        """The downloads of each item, with its files in each."""
        self._files: dict[_Download, list[ItemFile]] = {}
        """The files of all items in each download."""
        self._uses = Counter[_Download]()
        self._started: dict[_Download, Future[None]] = {}
        self._ahead: dict[int, int] = {}
        """Bytes of each item whose downloads have begun."""
        self._paths: dict[_Download, Path] = {}
        self._number = 0
        self._store = lru_cache(source_store)

    @contextmanager
    def fetching(self, items: Iterable[Item]) -> Iterator[None]:
        """Download the files of some items ahead of the block, which packs them. They are deleted at its end."""
        items = [item for item in items if item.reject is None and item.is_stored]
        self._needs = {item.index: needs for item in items if (needs := _needs(item))}
        self._uses = Counter(download for needs in self._needs.values() for download in needs)
        self._files = {download: [] for download in self._uses}
        for downloads in self._needs.values():
            for download, files in downloads.items():
                self._files[download] += files
        self._items = iter([item for item in items if item.index in self._needs])
        self._scratch = TemporaryFiles()
        try:
            self._start()
            yield
        finally:
            for future in self._started.values():  # those that run already are not waited for
                future.cancel()
            self._started, self._paths, self._ahead, self._needs = {}, {}, {}, {}
            self._scratch.close()

    def local(self, item: Item) -> Item:
        """Wait for the files of an item, and return it with their paths.

        It is rejected if a file has changed or vanished since it was listed, or if the store refuses to send it.

        Raises
        ------
        BuildError
            If the store fails for another reason. Later, the same request may succeed.
        """
        needs = self._needs.get(item.index, {})
        while not needs.keys() <= self._started.keys():
            self._start_one()
        for download, files in needs.items():
            try:
                self._started[download].result()
            except ObjectDeniedError:
                return item._replace(reject=f"expected {files[0].name!r} in the store, which refuses to send it")
            except StoreError as error:
                raise BuildError(error) from error
        if not needs:
            return item
        # Sidecars are part of the plan, and not read again.
        further = {option: file for option, file in item.files.items() if not option.startswith(PART)}
        further = {option: file._replace(path=self._path(file)) for option, file in further.items()}
        local = item._replace(path=self._path(item.file), files=further)
        return local._replace(reject=next(local.changes(), None))

    def release(self, index: int) -> None:
        """Delete the files of an item, unless another item of the task needs them."""
        for download in self._needs.pop(index, ()):
            self._uses[download] -= 1
            future = None if self._uses[download] else self._started.pop(download, None)
            if future is not None and not future.cancel():
                future.exception()  # until it ends, it writes
                _delete(self._paths.pop(download))
        self._ahead.pop(index, None)
        self._start()

    def close(self) -> None:
        """End the threads."""
        self._daemons.close()

    def _path(self, file: ItemFile) -> str:
        download = _download_of(file)
        return file.path if download is None else str(self._paths[download])

    def _start(self) -> None:
        """Begin downloads ahead of the work, within the limits."""
        while len(self._ahead) < _AHEAD_ITEMS and sum(self._ahead.values()) < _AHEAD_BYTES:
            if not self._start_one():
                break

    def _start_one(self) -> bool:
        """Begin the downloads of the next item; return False if there is none."""
        item = next(self._items, None)
        if item is None:
            return False
        self._ahead[item.index] = item.bytes + sum(file.bytes for file in item.files.values())
        for download in self._needs[item.index]:
            if download in self._started:
                continue
            self._number += 1
            files = self._files[download]
            path = self._paths[download] = self._scratch.path / f"{self._number}{PurePosixPath(files[0].name).suffix}"
            self._started[download] = self._daemons.submit(self._download, download.url, files, path)
        return True

    def _download(self, url: str, files: Sequence[ItemFile], path: Path) -> None:
        """Download a file, a folder of frames, or parts of an archive. A file that has vanished is not made."""
        scheme, _, place, name = url.split("/", 3)
        store, first = self._store(f"{scheme}//{place}"), files[0]
        with writing_temporary(), suppress(FileNotFoundError):
            if isinstance(first.member, Frames):
                path.mkdir()
                for frame in first.member.names:
                    set_state(path / frame, store.download(f"{name}/{frame}", path / frame))
            elif first.member is None or first.member.kind == "gzip":
                set_state(path, store.download(name, path))
            else:
                archive = _Archive(store, name, first, path)
                if first.member.kind == "parquet":
                    archive.download_group(first.member.place[0])
                else:
                    archive.download(_spans([file.member for file in files]))


class _Archive:
    """Parts of an archive in a store, in a file of the archive's size that has nothing else."""

    def __init__(self, store: Store, name: str, planned: ItemFile, path: Path) -> None:
        assert isinstance(planned.member, Member)
        self._store, self._name, self._path = store, name, path
        self._planned = planned.member.archive_bytes, planned.mtime_ns

    def download(self, spans: Iterable[tuple[int, int]]) -> bool:
        """Download some bytes. Return False if the archive is not the planned one."""
        for start, end in spans:
            try:
                found = self._store.download(self._name, self._path, (start, end))
            except StoreError:  # the archive may have become shorter
                now = self._store.stat(self._name)
                if now is None or self._is_planned(now):
                    raise
                self._path.touch()
                found = now
            set_state(self._path, found)
            if not self._is_planned(found):
                return False
        return True

    def _is_planned(self, found: StoredObject) -> bool:
        return (found.bytes, time_of(found.etag)) == self._planned

    def download_group(self, number: int) -> None:
        """Download the footer and a row group of a Parquet file."""
        size = self._planned[0]
        if not self.download([(max(0, size - _FOOTER_BYTES), size)]):
            return
        with self._path.open("rb") as file:
            file.seek(-_FOOTER_END, os.SEEK_END)
            footer = int.from_bytes(file.read(4), "little") + _FOOTER_END
        if footer > _FOOTER_BYTES and not self.download([(max(0, size - footer), size - _FOOTER_BYTES)]):
            return
        read = import_target("pyarrow.parquet:read_metadata", what=f"images in {self._name}", extra="parquet")
        group = read(self._path).row_group(number)
        columns = [group.column(at) for at in range(group.num_columns)]
        starts = [min(filter(None, (one.dictionary_page_offset, one.data_page_offset))) for one in columns]
        ends = [start + one.total_compressed_size for start, one in zip(starts, columns, strict=True)]
        self.download([(min(starts), max(ends))])


def _needs(item: Item) -> dict[_Download, list[ItemFile]]:
    """Return the files of an item that are in stores, by the download of which they are a part."""
    arrays = [item.file._replace(member=member) for member in item.arrays.values()]
    files = [item.file, *arrays, *(file for option, file in item.files.items() if not option.startswith(PART))]
    needs: dict[_Download, list[ItemFile]] = {}
    for file in files:
        download = _download_of(file)
        if download is not None:
            needs.setdefault(download, []).append(file)
    return needs


def _download_of(file: ItemFile) -> _Download | None:
    if not is_url(file.path):
        return None
    if not isinstance(file.member, Member):
        return _Download(file.path)
    run = file.member.run
    return _Download(file.path, (file.member.place[0] // _BLOCK_BYTES,) if run is None else run)


def _spans(members: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """Yield start and end of the parts of an archive that hold some stored members."""
    pieces = sorted(
        (offset, offset + max(1, size))  # of an empty member a byte, so that the archive is examined
        for member in members
        for offset, size in member.spans
    )
    start, end = pieces[0]
    for first, last in pieces[1:]:
        if first > end + _GAP_BYTES:
            yield start, end
            start = first
        end = max(end, last)
    yield start, end


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
