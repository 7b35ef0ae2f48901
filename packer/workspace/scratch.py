"""Temporary folders of this process, which do not outlive it for long even if it is killed."""

import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

import filelock

_PREFIX, _LOCK = "packer-scratch-", "lock"
_TRIES = 20
"""Times that a folder is deleted, because threads that still download may add a file meanwhile."""


class TemporaryFiles:
    """A temporary folder. It is deleted with this object, or at exit.

    Workers are killed when a build ends. So each process holds the lock of a file in its folder, and other processes
    delete the folders that they find unlocked (`delete_abandoned`).

    Parameters
    ----------
    root : Path, optional
        The folder that holds it; by default the system's folder for temporary files.

    Attributes
    ----------
    path : Path
        With resolved links.
    """

    def __init__(self, root: Path | None = None) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root)).resolve()
            lock = filelock.FileLock(self.path / _LOCK, thread_local=False)
            with suppress(OSError):  # another process may delete the folder before it is locked
                lock.acquire()
            if (self.path / _LOCK).exists():
                break
        self.close = weakref.finalize(self, _close, self.path, lock)
        delete_abandoned(self.path.parent)


def delete_abandoned(root: Path | None = None) -> None:
    """Delete the folders of processes that were killed (`TemporaryFiles`)."""
    for folder in (root or Path(tempfile.gettempdir())).glob(f"{_PREFIX}*"):
        # The lock fails if the folder is in use, or belongs to another user.
        with suppress(OSError, filelock.Timeout), filelock.FileLock(folder / _LOCK, timeout=0):
            shutil.rmtree(folder, ignore_errors=True)


def _close(path: Path, lock: filelock.BaseFileLock) -> None:
    for _ in range(_TRIES):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            break
    lock.release()
    delete_abandoned(path.parent)
