"""The folder beside an export's own in which it is written, until it is whole."""

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from packer.workspace import Workspace
from packer.workspace.durable import fsync_folder, fsync_tree
from packer.workspace.lock import FolderLock

_SUFFIX = ".exporting"


class Staging:
    """Holds one call's files until they are published, and a lock that keeps other calls away. A context manager.

    What a killed call has left is removed: nobody holds its lock any more.

    Parameters
    ----------
    target : Path
        The folder of the export.
    say : callable
        See `FolderLock`.

    Attributes
    ----------
    folder : Path
        Where the files are to be written; it exists inside the block.

    Raises
    ------
    BuildLockedError
        If another call exports into the same folder (on entering).
    """

    def __init__(self, target: Path, say: Callable[[str], None]) -> None:
        self._space = _Beside(target.with_name(f".{target.name}{_SUFFIX}"))
        self._lock = FolderLock(self._space, say)
        self.folder = self._space.attempt(self._space.root / "files")

    def __enter__(self) -> Self:
        self._space.create()
        self._lock.acquire()
        try:
            self._space.sweep()
            self.folder.mkdir()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._leave()

    def publish(self) -> None:
        """Give the files the export's folder, which is new or empty.

        Raises
        ------
        BuildLockedError
            If another call has taken the lock over, as when this process was stopped for long.
        """
        fsync_tree(self.folder)  # or else a crash of the machine could leave a finished export with empty files
        self._lock.check(at_once=True)
        os.replace(self.folder, self._space.out)
        fsync_folder(self._space.out.parent)

    def _leave(self) -> None:
        try:
            if not self._lock.is_lost:
                self._space.remove()
        finally:
            self._lock.release()


class _Beside(Workspace):
    """A workspace that lies beside its folder, since that gets its name only at the end."""

    @property
    def out(self) -> Path:
        """The folder of the export."""
        return self.root.with_name(self.root.name[1 : -len(_SUFFIX)])
