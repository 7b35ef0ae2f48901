"""Exclusive ownership of a build's folder, by a system lock and, on shared file systems, also by a lease.

A system lock (flock) ends with the process that holds it. Some shared file systems support no locks, or only among the
processes of one machine. On those, the holder also has a lease, which it renews every few seconds. The clocks of two hosts
are never compared: a lease has expired once another process has seen no renewal for its length, by its own clock.
"""

import errno
import json
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import filelock

from packer.workspace import Workspace
from packer.workspace.holder import Holder, is_running, lease_s
from packer.workspace.shared_files import host, refresh_listing
from readers.formats.machine import file_system_of, is_network_file_system
from shardspec.errors import BuildError, BuildLockedError, system_reason
from shardspec.wording import LONG, cut

_NOT_KEPT = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
_CHECK_S = 5.0
_PAUSE_S = 1.0
_RENEWALS = 6
"""Number of renewals within the length of a lease."""


class FolderLock:
    """The lock of a build's folder.

    Parameters
    ----------
    workspace : Workspace
        Workspace of the build. The output folder must exist.
    say : callable
        Called with a line for the user while waiting, or if the file system does not support locks.
    """

    def __init__(self, workspace: Workspace, say: Callable[[str], None]) -> None:
        self._space = workspace
        self._say = say
        self._lock = filelock.FileLock(workspace.lock, timeout=0, fallback_to_soft=False)
        program = Path(*sys.argv[:1])
        name = program.parent.name if program.name == "__main__.py" else program.name  # of python -m packer
        command = cut(shlex.join([name, *sys.argv[1:]]), LONG)
        self._holder = replace(Holder.here(), command=command)
        self._lease: _Lease | None = None
        self._checked_s = 0.0

    def acquire(self) -> None:
        """Take the lock.

        Raises
        ------
        BuildLockedError
            If another process holds it.
        """
        kept = self._acquire_lock()
        place, kind = file_system_of(self._space.root)
        try:
            if not kept:
                self._say(
                    f"{place} ({kind or 'unknown file system'}) supports no file locks: this build uses a lease instead"
                )
            if not kept or is_network_file_system(kind):
                self._acquire_lease()
        except BaseException:
            self._lock.release()
            raise
        self._note_holder()

    def check(self, *, at_once: bool = False) -> None:
        """Check every few seconds that this process still holds the lease. It loses the lease if it is suspended.

        Parameters
        ----------
        at_once : bool
            Check now, no matter when the last check was: the clock may stop while a machine sleeps.

        Raises
        ------
        BuildLockedError
            If another process has taken the folder over.
        """
        now_s = time.monotonic()
        if not at_once and now_s - self._checked_s < _CHECK_S:
            return
        self._checked_s = now_s
        if self.is_lost:
            raise BuildLockedError(
                (
                    f"another build has taken over this folder ({self._describe_holder()}), because this "
                    "process did not renew its lease in time: this build stops"
                ),
                place=self._space.out,
            )

    @property
    def is_lost(self) -> bool:
        """True if another process has taken the folder over."""
        return self._lease is not None and self._lease.is_lost

    def release(self) -> None:
        """Release the folder."""
        try:  # even if this is interrupted, the lock must not outlive the call, for example in a notebook
            if not self.is_lost:
                with suppress(OSError):
                    self._space.holder.unlink()
            if self._lease is not None:
                self._lease.release()
        finally:
            self._lock.release()

    def _acquire_lock(self) -> bool:
        """Take the system lock. Return whether the file system supports locks."""
        try:
            self._lock.acquire()
        except filelock.Timeout as error:
            raise self._refusal() from error
        except PermissionError as error:
            if not os.path.lexists(self._space.lock):
                raise
            raise BuildError(
                (
                    f"the build in this folder belongs to {_owner(self._space.lock)} ({self._describe_holder()}), "
                    f"and its files cannot be written ({system_reason(error)})"
                ),
                place=self._space.out,
                hint="ask that user to finish it, or choose another folder",
            ) from error
        except (OSError, NotImplementedError) as error:
            if isinstance(error, OSError) and error.errno not in _NOT_KEPT:
                raise
            return False
        return not _locks_again(self._space.lock)

    def _acquire_lease(self) -> None:
        """Take the lease. If another process has one, wait until it has expired."""
        lease = _Lease(self._space.leases, self._holder)

        def announce(limit_s: float) -> None:
            self._say(
                f"another build holds this folder ({self._describe_holder()}), and host {host()} cannot see whether "
                f"it is still running: waiting up to {limit_s:g} s for a sign of life"
            )

        if not lease.acquire(announce):
            raise self._refusal()
        self._lease, self._checked_s = lease, time.monotonic()

    def _note_holder(self) -> None:
        """Record who holds the folder, for the message to processes that find it locked."""
        with suppress(OSError):  # only a message depends on it
            self._holder.write(self._space.holder)

    def _refusal(self) -> BuildLockedError:
        return BuildLockedError(
            f"another build is at work in this folder ({self._describe_holder()})",
            place=self._space.out,
            hint="wait until it has finished, or stop it",
        )

    def _describe_holder(self) -> str:
        holder = Holder.read(self._space.holder)
        return "its process is unknown" if holder is None else holder.describe()


class _Lease:
    """A lease of a folder: a numbered file, which only one process can create, with the record of its holder.

    The file with the highest number is the lease in force. It is renewed in a thread by rewriting it.

    Parameters
    ----------
    folder : Path
        Folder of the leases.
    holder : Holder
    """

    def __init__(self, folder: Path, holder: Holder) -> None:
        self._folder = folder
        self._holder = holder
        self._number = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def acquire(self, announce: Callable[[float], None]) -> bool:
        """Take the lease; return False if another process renews it, or was faster.

        Parameters
        ----------
        announce : callable
            Called with the longest wait in seconds if the lease of another process has to expire first.
        """
        self._folder.mkdir(exist_ok=True)
        seen: tuple[int, int] | None = None
        still_s, looked_s = 0.0, time.monotonic()
        while True:
            refresh_listing(self._folder)
            number = self._last()
            other = Holder.read(self._path(number))
            if not number or (other is not None and (other.ended or is_running(other.process) is False)):
                break
            length_s, now = (lease_s(), 0) if other is None else (other.lease_s, other.beat)
            if seen is not None and seen != (number, now):
                return False
            # At most the time between two renewals counts, because this process itself may have been suspended.
            still_s += min(time.monotonic() - looked_s, length_s / _RENEWALS)
            looked_s = time.monotonic()
            if still_s >= length_s:
                break
            if seen is None:
                announce(length_s)
            seen = number, now
            time.sleep(min(_PAUSE_S, length_s / 20))
        self._number = number + 1
        try:
            descriptor = os.open(self._path(self._number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            json.dump(asdict(self._holder), file)
        self._thread.start()
        return True

    @property
    def is_lost(self) -> bool:
        """True if another process has taken the lease over, or the folder was removed."""
        try:
            return self._last() != self._number
        except FileNotFoundError:
            return True

    def release(self) -> None:
        """Release the lease, so that no other process waits until it expires."""
        self._stop.set()
        self._thread.join()
        with suppress(OSError):
            replace(self._holder, ended=True).write(self._path(self._number))

    def _renew(self) -> None:
        while not self._stop.wait(self._holder.lease_s / _RENEWALS):
            self._holder = replace(self._holder, beat=self._holder.beat + 1)
            with suppress(OSError):  # a server that does not answer: the next renewal may succeed in time
                self._holder.write(self._path(self._number))

    def _last(self) -> int:
        """Return the number of the lease in force; 0 if there is none."""
        return max((int(name) for name in os.listdir(self._folder) if name.isdecimal()), default=0)  # noqa: PTH208

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06d}"


def _owner(path: Path) -> str:
    """Return the name of a file's owner, or the user number if it has no name."""
    try:
        return path.owner()
    except (KeyError, NotImplementedError):
        return f"user {path.stat().st_uid}"


def _locks_again(path: Path) -> bool:
    """Return whether a held lock can be taken again through another descriptor: then it keeps no other process out."""
    if os.name == "nt":
        return False
    import fcntl

    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
