"""Ownership of a build's folder: a system lock where it works, plus a lease where it may not.

A lock of the system (flock) ends with the process that holds it. Some file systems shared by several machines keep none,
or only among the processes of one machine. There the holder also claims the folder and holds a lease, as agents do
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
        That of the build; its folder exists.
    say : callable
        Called with a line for the user, if there is one: what is waited for, or that the system's locks are not kept.
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
                self._say(f"{place} ({kind or 'unknown file system'}) keeps no locks: this build holds a lease instead")
            if not kept or is_network_file_system(kind):
                self._acquire_lease()
        except BaseException:
            self._lock.release()
            raise
        self._note_holder()

    def check(self, *, at_once: bool = False) -> None:
        """Check, every few seconds, that the lease is still this process's: it may have been stopped for long.

        Parameters
        ----------
        at_once : bool
            However short the time since the last check seems: the clock may stand still while a machine sleeps.

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
                    f"another build has taken this folder over ({self._describe_holder()}), since this "
                    "process did not renew its lease of it in time: nothing more is done here"
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
        """Give the folder back."""
        try:  # an interruption may end this, too; the lock would outlive the call, in a notebook say
            if not self.is_lost:
                with suppress(OSError):
                    self._space.holder.unlink()
            with suppress(OSError):
                self._lease.close()
        finally:
            self._lock.release()

    def _acquire_lock(self) -> bool:
        """Take the system's lock; whether it is kept at all."""
        try:
            self._lock.acquire()
        except filelock.Timeout as error:
            raise self._refusal() from error
        except PermissionError as error:
            if not os.path.lexists(self._space.lock):
                raise
            raise BuildError(
                (
                    f"there is a build of {_owner(self._space.lock)}'s in this folder ({self._describe_holder()}), "
                    f"and its files may not be written ({system_reason(error)})"
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
        """Claim the folder, if necessary after the lease of an earlier holder has expired."""
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
                f"this folder is held by another build ({self._describe_holder()}); whether that is still at work "
                f"cannot be seen from host {host()}: waiting up to {limit_s:g} s for a sign of life"
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
        """Say who holds the folder, for those that find it locked."""
        with suppress(OSError):  # only a message depends on it
            self._holder.write(self._space.holder)

    def _refusal(self) -> BuildLockedError:
        return BuildLockedError(
            f"another build is at work in this folder ({self._describe_holder()})",
            place=self._space.out,
            hint="wait for it, or end it",
        )

    def _describe_holder(self) -> str:
        holder = Agent.read(self._space.holder)
        return "it does not say which" if holder is None else holder.describe()


def _owner(path: Path) -> str:
    """The name of the user whom a file belongs to, or the number of one without a name."""
    try:
        return path.owner()
    except (KeyError, NotImplementedError):
        return f"user {path.stat().st_uid}"


def _locks_again(path: Path) -> bool:
    """Return whether a lock that is held can be had a second time over another descriptor: then it keeps nobody out."""
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
