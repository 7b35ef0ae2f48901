"""Download the list of files in a zip file, which is at its end."""

import io
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from packer.sources.archives.zip_directory import read_directory
from packer.sources.stores.access import set_state, time_of
from packer.workspace.disk_list import writing_temporary
from shardspec.stores.store import StoredObject

ZIP_END_BYTES = 1 << 16
"""End of a zip file that is requested first. It mostly contains the whole list of its files."""


def download_directory(path: Path, state: tuple[int, int], download: Callable[[tuple[int, int]], StoredObject]) -> bool:
    """Download the end of a zip file. Return False if the object was replaced or deleted after it was listed.

    Parameters
    ----------
    path : Path
        Written as a file of the object's size that has nothing else.
    state : tuple of int
        Size of the object, and the time that stands for its ETag.
    download : callable
        Writes a part of the object to the file, given the part's start and end.
    """
    path.touch()
    os.truncate(path, state[0])
    with suppress(_ReplacedError):
        with io.BufferedReader(_ZipEnd(path, state, download)) as file:
            read_directory(file)
        return True
    return False


class _ZipEnd(io.RawIOBase):
    """Reads an empty file of an object's size, into which everything from the first byte read to its end is downloaded.

    Raises
    ------
    _ReplacedError
        While it is read, if the object is not the one that the file stands for.
    """

    def __init__(self, path: Path, state: tuple[int, int], download: Callable[[tuple[int, int]], StoredObject]) -> None:
        self._path, self._state = path, state
        self._size = self._known_from = state[0]
        self._download = download
        self._file = path.open("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def readinto(self, buffer: Any) -> int | None:
        start = min(self._file.tell(), self._size - ZIP_END_BYTES)
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
