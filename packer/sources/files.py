"""The files that a source is listed from: those of this machine, and of stores (`packer.sources.stores.files`)."""

import errno
import glob
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from packer.workspace.shared_files import Entry, is_on_network, scan
from shardspec.layout import MANIFEST_NAME
from shardspec.manifest import MANIFEST_BYTES_MAX


class FileState(Protocol):
    """State of a file that is known without reading it, with the names of `os.stat_result`."""

    @property
    def st_mode(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_mtime_ns(self) -> int: ...


class LocalFiles:
    """The files of this machine."""

    def stat(self, path: str | Path) -> FileState:
        """Return the state of a file, following links; `OSError` if it cannot be examined."""
        return os.stat(path)

    def lstat(self, path: str | Path) -> FileState:
        """Return the state of a file or link; `OSError` if it cannot be examined."""
        return os.lstat(path)

    def resolve(self, path: str | Path) -> str:
        """Return a path without links; `OSError` if it does not exist."""
        return os.path.realpath(path, strict=True)

    def scan(self, folder: str | Path) -> Iterator[Entry]:
        """Yield the entries of a folder; `OSError` if it cannot be listed."""
        return scan(folder)

    def match(self, pattern: str) -> Iterable[str]:
        """Return the paths that match a pattern (`glob.glob`)."""
        return glob.glob(pattern, recursive=True)  # noqa: PTH207 -- from any folder

    def read(self, path: Path, most: int) -> bytes:
        """Return the content of a small file, of a larger one `most` bytes; `OSError` if it cannot be read."""
        with path.open("rb") as file:
            return file.read(most)

    def reading(self, path: Path) -> AbstractContextManager[None]:
        """Return a context in which an archive can be opened at its path."""
        return nullcontext()

    def ask(self, paths: Iterable[str]) -> None:
        """Prepare to examine some paths, which may take long one at a time."""

    def local(self, path: str) -> str:
        """Return the path that stands for a URL; return anything else unchanged."""
        return path

    def is_slow(self, folder: Path) -> bool:
        """Return whether each access to a folder takes long."""
        return is_on_network(folder)

    def exists(self, path: str | Path) -> bool:
        """Return whether there is a file or a folder, or a link to one; `OSError` if it cannot be examined."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return False
        except OSError as error:
            if error.errno != errno.ELOOP:  # a link that leads nowhere, too
                raise
            return False
        return True

    def lexists(self, path: str | Path) -> bool:
        """Return whether there is a file, a folder or a link, even if the link leads nowhere."""
        try:
            self.lstat(path)
        except (OSError, ValueError):
            return False
        return True

    def is_folder(self, path: str | Path) -> bool:
        """Return whether there is a folder, or a link to one."""
        return stat.S_ISDIR(self._mode(path))

    def is_file(self, path: str | Path) -> bool:
        """Return whether there is a regular file, or a link to one."""
        return stat.S_ISREG(self._mode(path))

    def _mode(self, path: str | Path) -> int:
        try:
            return self.stat(path).st_mode
        except (OSError, ValueError):
            return 0


LOCAL = LocalFiles()


def is_packed(path: Path, files: LocalFiles = LOCAL) -> bool:
    """Return whether a folder is a packed dataset. A folder of images may contain an unrelated ``manifest.json``."""
    try:
        document = json.loads(files.read(path / MANIFEST_NAME, MANIFEST_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "spec_version" in document
