"""A temporary folder of this process, which does not outlive it for long even if it is killed."""

import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

import filelock

_PREFIX, _LOCK = "packer-scratch-", "lock"


class Scratch:
    """A folder in the system's folder for temporary files. It is deleted with this object, or at exit.

    Workers are killed when a build ends. So each process holds the lock of a file in its folder, and deletes those folders
    that it finds unlocked.

    Attributes
    ----------
    path : Path
        With resolved links.
    """

    def __init__(self) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX)).resolve()
            lock = filelock.FileLock(self.path / _LOCK, thread_local=False)
            with suppress(OSError):  # another process may delete the folder before it is locked
                lock.acquire()
            if (self.path / _LOCK).exists():
                break
        self.close = weakref.finalize(self, _close, self.path, lock)
        _delete_others(self.path)


def _close(path: Path, lock: filelock.BaseFileLock) -> None:
    shutil.rmtree(path, ignore_errors=True)
    lock.release()
    _delete_others(path)


def _delete_others(path: Path) -> None:
    for other in path.parent.glob(f"{_PREFIX}*/{_LOCK}"):
        if other.parent == path:
            continue
        # The lock fails if the folder is in use, or belongs to another user.
        with suppress(OSError, filelock.Timeout), filelock.FileLock(other, timeout=0):
            shutil.rmtree(other.parent, ignore_errors=True)
