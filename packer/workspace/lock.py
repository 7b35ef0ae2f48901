"""Ownership of a build's folder: a system lock where it works, plus a lease where it may not.

A lock of the system (flock) ends with the process that holds it. Some file systems shared by several machines keep none,
or only among the processes of one machine. There the holder also renews a lease every few seconds. One that was not
renewed for its length (`packer.workspace.fresh.LEASE_S`) is over, by the clock of the process that waits for it: no
clocks are compared.
"""

import errno
import json
import os
import re
import shlex
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import filelock

from packer.workspace import Workspace
from packer.workspace.fresh import RENEWALS, host, is_dead, lease_s, look_again, process_mark, watched_s
from readers.formats.machine import file_system_of, is_network_file_system
from shardspec.errors import BuildError, BuildLockedError, system_reason
from shardspec.wording import LENGTH, LONG, cut

_HOLDER_BYTES = 4096
_NOT_KEPT = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
_CHECK_S = 5.0
_TOKEN = re.compile(r"[0-9a-f]{32}\Z")
_LOCKED = re.compile(r"(?<=\s)([0-9a-f]+):([0-9a-f]+):([0-9]+)(?=\s)")


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
        if self._lease is None or (not at_once and now_s - self._checked_s < _CHECK_S):
            return
        self._checked_s = now_s
        if not self._lease.is_ours():
            raise BuildLockedError(
                f"{self._space.out}: another build has taken this folder over ({self._describe_holder()}), since this "
                "process did not renew its lease of it in time: nothing more is done here"
            )

    @property
    def is_lost(self) -> bool:
        """True if another process has taken the folder over."""
        return self._lease is not None and not self._lease.is_ours()

    def release(self) -> None:
        """Give the folder back."""
        try:  # an interruption may end this, too; the lock would outlive the call, in a notebook say
            if not self.is_lost:
                with suppress(OSError):
                    self._space.holder.unlink()
            if self._lease is not None:
                self._lease.release()
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
                f"{self._space.out}: there is a build of {_owner(self._space.lock)}'s in this folder "
                f"({self._describe_holder()}), and its files may not be written ({system_reason(error)}): ask that "
                "user to finish it, or choose another folder"
            ) from error
        except (OSError, NotImplementedError) as error:
            if isinstance(error, OSError) and error.errno not in _NOT_KEPT:
                raise
            return False
        return not _locks_again(self._space.lock)

    def _acquire_lease(self) -> None:
        """Take the lease, if need be once that of a process which is gone is over."""
        lease, limit_s = _Lease(self._space), lease_s()
        first, still_s, looked_s = None, 0.0, time.monotonic()
        while not lease.claim():
            seen = lease.look()
            if is_dead(seen.process):
                self._take_over(lease, limit_s)
                break
            now_s = time.monotonic()
            still_s, looked_s = still_s + watched_s(now_s - looked_s, limit_s), now_s
            if first is None:
                first = seen
                self._say(
                    f"this folder is held by another build ({self._describe_holder()}); whether that is still at work "
                    f"cannot be seen from host {host()}: waiting up to {limit_s:g} s for a sign of life"
                )
            elif seen != first:
                raise self._refusal()
            elif still_s > limit_s:
                self._take_over(lease, limit_s)
                break
            time.sleep(min(1.0, limit_s / 20))
            look_again(self._space.root)
        lease.keep(limit_s / RENEWALS)
        self._lease, self._checked_s = lease, time.monotonic()

    def _take_over(self, lease: "_Lease", limit_s: float) -> None:
        """Take the lease of a holder that is gone, unless another process does so just now: the last one has it."""
        lease.take_over()
        time.sleep(2 * min(1.0, limit_s / 20))
        look_again(self._space.root)
        if not lease.is_ours():
            raise self._refusal()

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
            f"{self._space.out}: another build is at work in this folder ({self._describe_holder()}): "
            "wait for it, or end it"
        )

    def _describe_holder(self) -> str:
        return describe_holder(read_holder(self._space))


def is_held(lock: Path) -> bool | None:
    """Return whether a process holds a lock file, as Linux lists it; the lock itself is left alone."""
    try:
        status = lock.stat()
        held = Path("/proc/locks").read_text()
    except OSError:
        return None if lock.exists() else False
    return find_lock(held, status.st_dev, status.st_ino)


def find_lock(locks: str, device: int, inode: int) -> bool | None:
    """Return whether a file is in the list ``/proc/locks``; None if a file of its number on another device is.

    That may be the file, too: of a file on btrfs, `stat` gives another device than the list does.
    """
    place = (os.major(device), os.minor(device))
    found = [(int(one[1], 16), int(one[2], 16)) for one in _LOCKED.finditer(locks) if int(one[3]) == inode]
    return place in found or (None if found else False)


def read_holder(workspace: Workspace) -> Mapping[str, Any]:
    """Read the current or last holder of a build's folder: ``host``, ``process``, ``since``, ``command``.

    Empty if unknown.
    """
    return _read_object(workspace.holder)


def describe_holder(holder: Mapping[str, Any]) -> str:
    """The holder of a folder in words."""
    shown = {name: cut(_printable(holder[name]), LENGTH) for name in ("process", "host", "since") if name in holder}
    if len(shown) < 3:
        return "it does not say which"
    command = cut(_printable(holder.get("command", "")), LONG)
    return f"process {shown['process']} on host {shown['host']}, since {shown['since']}" + (
        f": {command}" if command else ""
    )


def _owner(path: Path) -> str:
    """The name of the user whom a file belongs to, or the number of one without a name."""
    try:
        return path.owner()
    except (KeyError, NotImplementedError):
        return f"user {path.stat().st_uid}"


def _printable(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)[: 2 * LONG]
    return "".join(character if character.isprintable() else "?" for character in text)


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


class _Seen(NamedTuple):
    """Observed state of a lease: its holder, the holder's process, and the number of renewals."""

    token: str | None
    process: str
    renewals: str


class _Lease:
    """A file that says who holds the folder, and another, written anew every few seconds, that says it still does.

    Nothing is kept open: some file systems show a file to others only once it was closed.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._path = workspace.lease
        self._token = uuid.uuid4().hex
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def claim(self) -> bool:
        """Take the lease if nobody has it."""
        try:
            with self._path.open("xb") as file:
                file.write(self._record())
        except FileExistsError:
            return False
        return True

    def take_over(self) -> None:
        """Take the lease of a holder that is gone."""
        self._replace(self._path, self._record())

    def look(self) -> _Seen:
        """Return the observed state of the lease."""
        record = _read_object(self._path)
        token = record.get("token")
        if not isinstance(token, str) or not _TOKEN.match(token):
            return _Seen(None, "", "")
        renewals = _read_object(self._of(token)).get("renewals")
        return _Seen(token, str(record.get("process"))[:LENGTH], str(renewals)[:LENGTH])

    def is_ours(self) -> bool:
        """Return whether this process has the lease."""
        return self.look().token == self._token

    def keep(self, every_s: float) -> None:
        """Renew the lease from now on, in a thread."""
        self._renew(0)

        def run() -> None:
            renewals = 0
            while not self._stop.wait(every_s):
                renewals += 1
                with suppress(OSError):  # the next may succeed in time
                    self._renew(renewals)

        self._thread = threading.Thread(target=run, name="lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Give the lease back, if it is still this process's."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with suppress(OSError):
            if self.is_ours():
                self._path.unlink()
        with suppress(OSError):
            self._of(self._token).unlink()

    def _of(self, token: str) -> Path:
        return self._path.with_name(f"{self._path.name}.{token}")

    def _record(self) -> bytes:
        return json.dumps({"token": self._token, "process": process_mark()}).encode()

    def _renew(self, renewals: int) -> None:
        self._replace(self._of(self._token), json.dumps({"renewals": renewals}).encode())

    def _replace(self, path: Path, data: bytes) -> None:
        new = self._path.with_name(f"{self._path.name}.{self._token}.new")
        new.write_bytes(data)
        os.replace(new, path)


def _read_object(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_HOLDER_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
