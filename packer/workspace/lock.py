"""Exclusive ownership of a build's folder, by a system lock and, on shared file systems, also by a lease.

A system lock (flock) ends with the process that holds it. Some shared file systems support no locks, or only among the
processes of one machine. On those, the holder also claims the folder and renews a lease, as agents do
(`packer.workspace.leases`).
"""

import errno
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import filelock

from packer.workspace import Workspace
from packer.workspace.agents import Claims
from packer.workspace.leases import Agent, Lease, Observer, record_of
from packer.workspace.shared_files import host
from readers.formats.machine import file_system_of, is_network_file_system
from shardspec.errors import BuildError, BuildLockedError, system_reason
from shardspec.wording import LONG, cut

_NOT_KEPT = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
_CHECK_S = 5.0


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
        self._holder = replace(Agent.here(), command=command)
        self._claims: Claims | None = None
        self._lease = ExitStack()
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
        if self._claims is None:
            return False
        with suppress(FileNotFoundError):
            self._claims.look()
            self._claims.forget()
            return not self._claims.held
        return True

    def release(self) -> None:
        """Release the folder."""
        try:  # even if this is interrupted, the lock must not outlive the call, for example in a notebook
            if not self.is_lost:
                with suppress(OSError):
                    self._space.holder.unlink()
            with suppress(OSError):
                self._lease.close()
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
        """Claim the folder. If another process holds it, wait until its lease has expired."""
        folder = self._space.leases
        folder.mkdir(exist_ok=True)
        claims, observer = Claims(folder, self._holder.name, "folder", 1), Observer(folder)

        def waiting() -> list[Agent]:
            claims.look()
            if claims.fresh() or claims.freed(observer):
                return []
            name = claims.owner(0)
            return [next((agent for agent in observer.agents if agent.name == name), Agent(name))]

        def announce(_: Sequence[Agent], limit_s: float) -> None:
            self._say(
                f"another build holds this folder ({self._describe_holder()}), and host {host()} cannot see whether "
                f"it is still running: waiting up to {limit_s:g} s for a sign of life"
            )

        with ExitStack() as stack:
            stack.callback(record_of(folder, self._holder.name).unlink, missing_ok=True)
            lease = stack.enter_context(Lease(folder, self._holder))
            observer.wait(waiting, lambda _: self._refusal(), announce)
            if not claims.take(0):
                raise self._refusal()
            lease.end("released")
            stack.callback(lambda: claims.give_back(list(claims.held)))
            self._claims, self._checked_s = claims, time.monotonic()
            self._lease = stack.pop_all()

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
        holder = Agent.read(self._space.holder)
        return "its process is unknown" if holder is None else holder.describe()


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
