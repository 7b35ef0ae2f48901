"""Who holds the folder of a build: a lock of the system where it is kept, and a lease besides where it may not be.

A lock of the system (flock) ends with the process that holds it. Some file systems shared by several machines keep none,
or only among the processes of one machine. There the holder also renews a lease every few seconds. One that another
machine has not renewed for `LEASE_S` is over, by the clock of the process that waits for it: no clocks are compared.
"""

import errno
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import filelock

from packer.workspace import Workspace
from packer.workspace.fresh import host, look_again
from readers.formats.machine import file_system_of, is_network_file_system
from shardspec.errors import BuildLockedError
from shardspec.wording import LENGTH, LONG, cut

LEASE_S = 90.0
"""Seconds after which a lease that was not renewed is over: longer than a shared file system shows what it remembers."""

_RENEWALS = 6
_HOLDER_BYTES = 4096
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
        self._root = workspace.root
        self._say = say
        self._lock = filelock.FileLock(workspace.lock, timeout=0, fallback_to_soft=False)
        self._lease: filelock.SoftFileLease | None = None
        self._token: str | None = None
        self._checked_s = 0.0

    def acquire(self) -> None:
        """Take the lock.

        Raises
        ------
        BuildLockedError
            If another process holds it.
        """
        kept = self._acquire_lock()
        shared = is_network_file_system(file_system_of(self._root)[1])
        try:
            if not kept or shared:
                if not kept:
                    place, kind = file_system_of(self._root)
                    self._say(
                        f"{place} ({kind or 'unknown file system'}) keeps no locks: this build holds a lease instead"
                    )
                self._acquire_lease()
        except BaseException:
            self._lock.release()
            raise
        self._note_holder()

    def check(self) -> None:
        """Check, every few seconds, that the lease is still this process's: it may have been stopped for long.

        Raises
        ------
        BuildLockedError
            If another process has taken the folder over.
        """
        now_s = time.monotonic()
        if self._lease is None or now_s - self._checked_s < _CHECK_S:
            return
        self._checked_s = now_s
        owner = self._lease.owner
        if self._lease.compromise is not None or owner is None or owner.token != self._token:
            raise BuildLockedError(
                f"{self._root.parent}: this process did not renew its lease of the folder for {LEASE_S:g} s, and "
                f"another build has taken it over ({self._describe_holder()}): nothing more is done here"
            )

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken the folder over."""
        self._checked_s = -_CHECK_S
        try:
            self.check()
        except BuildLockedError:
            return True
        return False

    def release(self) -> None:
        """Give the folder back."""
        if not self.is_lost:
            with suppress(OSError):
                self._space.holder.unlink()
        if self._lease is not None:
            with suppress(OSError):
                self._lease.release()
        self._lock.release()

    def _acquire_lock(self) -> bool:
        """Take the system's lock; whether it is kept at all."""
        try:
            self._lock.acquire()
        except filelock.Timeout as error:
            raise self._refusal() from error
        except (OSError, NotImplementedError) as error:
            if isinstance(error, OSError) and error.errno not in _NOT_KEPT:
                raise
            return False
        return not _locks_again(self._space.lock)

    def _acquire_lease(self) -> None:
        lease = filelock.SoftFileLease(
            self._space.lease,
            lease_duration=LEASE_S,
            heartbeat_interval=LEASE_S / _RENEWALS,
            timeout=0,
            thread_local=False,
            poll_interval=0.2,
        )
        until_s = time.monotonic() + LEASE_S * (1 + 2 / _RENEWALS) + 1
        first: tuple[float, int] | None = None
        while True:
            try:
                lease.acquire()
                break
            except filelock.Timeout as error:
                look_again(self._root)
                seen = _stamp(self._space.lease)
                if first is None and seen is not None:
                    first = seen
                    self._say(
                        f"another build has held this folder ({self._describe_holder()}), and whether it is at work "
                        f"cannot be seen from here: waiting up to {LEASE_S:g} s for its next sign of life"
                    )
                if time.monotonic() > until_s or (seen is not None and seen != first):
                    raise self._refusal() from error
            time.sleep(min(1.0, LEASE_S / 50))
        self._lease, self._token = lease, lease.token
        self._checked_s = time.monotonic()

    def _note_holder(self) -> None:
        """Say who holds the folder, for those that find it locked."""
        program = Path(*sys.argv[:1])
        name = program.parent.name if program.name == "__main__.py" else program.name  # of python -m packer
        command = shlex.join([name, *sys.argv[1:]])
        since = datetime.now(UTC).isoformat(timespec="seconds")
        holder = {"host": host(), "process": os.getpid(), "since": since, "command": cut(command, LONG)}
        with suppress(OSError):  # only a message depends on it
            self._space.holder.write_text(json.dumps(holder), "ascii")

    def _refusal(self) -> BuildLockedError:
        return BuildLockedError(
            f"{self._root.parent}: another build is at work in this folder ({self._describe_holder()}): "
            "wait for it, or end it"
        )

    def _describe_holder(self) -> str:
        return describe_holder(read_holder(self._space))


def read_holder(workspace: Workspace) -> Mapping[str, Any]:
    """Who holds a build's folder, or has held it last: ``host``, ``process``, ``since``, ``command``; empty if unknown."""
    try:
        with workspace.holder.open("rb") as file:
            found = json.loads(file.read(_HOLDER_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def describe_holder(holder: Mapping[str, Any]) -> str:
    """The holder of a folder in words."""
    shown = {name: cut(_printable(holder[name]), LENGTH) for name in ("process", "host", "since") if name in holder}
    if len(shown) < 3:
        return "it does not say which"
    command = cut(_printable(holder.get("command", "")), LONG)
    return f"process {shown['process']} on host {shown['host']}, since {shown['since']}" + (
        f": {command}" if command else ""
    )


def _printable(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)[: 2 * LONG]
    return "".join(character if character.isprintable() else "?" for character in text)


def _locks_again(path: Path) -> bool:
    """Whether a lock that is held can be had a second time over another descriptor: then it keeps nobody out."""
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


def _stamp(path: Path) -> tuple[float, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime, status.st_ino
