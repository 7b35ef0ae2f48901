"""The coordinating process of a job whose workspace is in an object store: its lease, and the copies of its files.

The process works in a temporary folder. What another process needs to resume the job is copied to the store whenever it
changes: the plan, the journal, the verdicts, the plan of the shards and the finished reports and indexes. A process on
any host begins by downloading these files. The contents of pieces stay in the store.
"""

import json
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from packer.workspace import Workspace
from packer.workspace.durable import read_record
from packer.workspace.holder import Holder, is_running
from packer.workspace.paths import RECORD_NAME
from packer.workspace.remote import RemoteFiles, name_of
from packer.workspace.shared_files import map_threaded
from shardspec.errors import BuildLockedError, StoreError, UsageError
from shardspec.layout import PLAN_NAME, REJECTS_NAME
from shardspec.stores import Store
from shardspec.stores.daemons import Daemons
from shardspec.wording import LONG, cut, list_some

_JOURNAL = "journal/"
"""Prefix of the objects with parts of the journal, of which each has the lines since the one before."""

_SCANS = "scans/"
"""Prefix of what the workers found in the shards that rows are read from. A resume checks these shards again."""

_PUSH_S = 10.0
"""Seconds between two parts of the journal."""

_LEAVING_S = 10.0
"""Seconds for which a process that fails or is interrupted tries to copy its files and to release its lease."""

_CHECK_S = 5.0
_PAUSE_S = 1.0
_RENEWALS = 6
_LEASE = "holder.json"
_PROBE = ".writable"
_LEASE_BYTES = 1 << 16

_FIRST = (PLAN_NAME, "assembly.json")
"""Files that refer to all others: they are deleted first and written last."""

_ITEMS = "items.jsonl"
_FILES = (_ITEMS, "order.npy", "upload.json", "replaced.json", "base.json", "verdicts.jsonl", REJECTS_NAME)
_OURS = re.compile(
    rf"(?:{'|'.join(map(re.escape, (*_FIRST, *_FILES, _LEASE, _PROBE)))}|{_JOURNAL}[0-9]+\.jsonl|(?:final|columns)/.+"
    rf"|staging/[^/]+/[^/]+/{RECORD_NAME}|parts/[^/]+/machine\.json|parts/[^/]+/[0-9]+/part-.+"
    rf"|{_SCANS}[^/]+/scan-[0-9]+\.npy)\Z"
)
_PIECES = re.compile(r"parts/[^/]+/[0-9]+/")


class RemoteMirror:
    """Holds the lease of a workspace in a store, and keeps copies of its files there. Use as a context manager.

    On entry, the files that an earlier process left are downloaded into the workspace's folder. On exit, all objects
    are deleted if the folder has no plan any more.

    Parameters
    ----------
    space : Workspace
    say : callable
        Called with a line for the user while waiting.

    Raises
    ------
    BuildLockedError
        If another process is at work.
    StoreError
        If the store fails for longer than its retries last.
    """

    def __init__(self, space: Workspace, say: Callable[[str], None]) -> None:
        assert space.remote is not None
        self._space = space
        self._remote = space.remote
        self._store = space.remote.work
        self._lease = _StoredLease(self._store, say)
        self._pushed: dict[str, tuple[int, int]] = {}
        self._other_pieces: list[str] = []
        self._lines, self._parts = 0, 0
        self._journal_s = 0.0
        self._is_given_up = False

    def __enter__(self) -> Self:
        self._lease.acquire()
        try:
            self._pull()
            self._lease.check(at_once=True)  # a store without conditional writes may have given it to two processes
        except BaseException:
            self._try(self._lease.release)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._leave()
            return
        self._try(self._leave)

    def _try(self, call: Callable[[], None]) -> None:
        """Do not keep the user waiting if the store is away: the next process then waits until the lease expires."""
        threads = Daemons(1, "leaving")
        with suppress(StoreError, TimeoutError):
            threads.submit(call).result(_LEAVING_S)
        self._is_given_up = True  # the call may go on, while the process ends and removes its folder
        threads.close()

    def _leave(self) -> None:
        try:
            self._lease.look()  # the last check may have been long ago, if this process was suspended
            has_plan = self._space.plan.exists()
            if self._lease.is_lost or self._is_given_up:
                return
            if has_plan:
                self._push()
            else:
                self._remove()
        finally:
            self._lease.release()

    def check(self, *, at_once: bool = False) -> None:
        """Check the lease every few seconds, and copy what has changed. With `at_once`, do both now.

        Verdicts are copied at every call, before their items are tried again.
        """
        self._lease.check(at_once=at_once)
        now_s = time.monotonic()
        if at_once or self._has_changed(self._space.verdicts):
            self._push()
        elif now_s - self._journal_s > _PUSH_S:
            self._push_journal()

    def _pull(self) -> None:
        """Download the files of an unfinished job, and list its pieces."""
        found = {one.name: one.bytes for one in self._store.list() if one.name}
        if PLAN_NAME not in found:
            self._store.delete([name for name in found if name != _LEASE])
            return
        pieces = [name for name in found if _PIECES.match(name)]
        self._remote.add_pieces(pieces, self._space.key)
        self._other_pieces = [name for name in pieces if not name.startswith(f"parts/{self._space.key}/")]
        others = {*pieces, _LEASE}
        files = [name for name in found if name not in others and not name.startswith((_JOURNAL, _SCANS))]
        for name in map_threaded(self._download, files):
            self._pushed[name] = _state(self._path(name))
        self._parts, self._lines = _join_journal(self._store, found, self._space.journal)

    def _download(self, name: str) -> str:
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._store.download(name, path)
        return name

    def _push(self) -> None:
        """Make the copies equal to the files. A crash at any moment leaves a plan with its items, or none."""
        local = {name_of(self._space.root, path): _state(path) for path in self._files()}
        if self._is_given_up:
            return
        gone = [name for name in self._pushed if name not in local]
        changed = [name for name, state in local.items() if self._pushed.get(name) != state]
        if _ITEMS in changed or PLAN_NAME in gone:
            gone = list(dict.fromkeys([*(name for name in _FIRST if name in self._pushed), *gone]))
            changed += [name for name in _FIRST if name in local and name not in changed]
        for name in sorted(gone, key=lambda name: name not in _FIRST):
            self._store.delete([name])
            del self._pushed[name]
        first = [name for name in changed if name not in _FIRST]
        for name in map_threaded(self._upload, first):
            self._pushed[name] = local[name]
        self._push_journal()
        for name in reversed(_FIRST):
            if name in changed:
                self._upload(name)
                self._pushed[name] = local[name]
        if PLAN_NAME in changed:
            self._store.delete(self._other_pieces)
            self._other_pieces = []

    def _push_journal(self) -> None:
        self._journal_s = time.monotonic()
        path = self._space.journal
        data = path.read_bytes() if path.exists() else b""
        if len(data) < self._lines:  # of another plan
            self._store.delete([f"{_JOURNAL}{number:08d}.jsonl" for number in range(self._parts)])
            self._lines = self._parts = 0
        if len(data) > self._lines:
            self._store.put(f"{_JOURNAL}{self._parts:08d}.jsonl", data[self._lines :])
            self._lines, self._parts = len(data), self._parts + 1

    def _upload(self, name: str) -> str:
        self._store.put(name, self._path(name))
        return name

    def _remove(self) -> None:
        """Delete all objects, but the reasons why no item yielded a sample; the plan first, so no job is resumed."""
        kept = {_LEASE}
        if self._space.reasons.exists():
            self._store.put(REJECTS_NAME, self._space.reasons)
            kept.add(REJECTS_NAME)
        found = [one.name for one in self._store.list() if is_ours(one.name)]
        self._store.delete([PLAN_NAME] if PLAN_NAME in found else [])
        self._store.delete([name for name in found if name not in kept and name != PLAN_NAME])
        self._lease.remove()

    def _files(self) -> Iterable[Path]:
        """Yield the files that are copied. Of records of shards and machines, only those that were downloaded."""
        root = self._space.root
        known = (self._path(name) for name in self._pushed if name.startswith(("staging/", "parts/")))
        folders = (self._space.final, self._space.columns) if self._space.assembly.exists() else ()  # else unfinished
        final = (path for folder in folders for path in folder.rglob("*"))
        found = (*(root / name for name in (*_FIRST, *_FILES)), *final, *known)
        return [path for path in found if path.is_file() and not path.name.endswith(".partial")]

    def _has_changed(self, path: Path) -> bool:
        return path.exists() and self._pushed.get(name_of(self._space.root, path)) != _state(path)

    def _path(self, name: str) -> Path:
        return self._space.root / name


def has_files(remote: RemoteFiles) -> bool:
    """Return whether a place holds an unfinished job, or what an interrupted one left."""
    return any(one.name not in ("", REJECTS_NAME) for one in remote.work.list())


def peek(store: Store, root: Path) -> Workspace | None:
    """Download into a folder what says how far a job in a store is, and who has its lease. Return None if there is no job.

    Neither the items nor the contents of pieces are downloaded. Records of finished shards, and what was found in shards
    that are read, become empty files. Nothing is written to the store.
    """
    found = {one.name: one.bytes for one in store.list() if one.name}
    space = Workspace(root, remote=RemoteFiles(store, store))
    root.mkdir(parents=True, exist_ok=True)
    names = [name for name in (*_FIRST, REJECTS_NAME, _LEASE) if name in found]
    for name in names:
        with suppress(FileNotFoundError):  # the job has just ended
            store.download(name, root / name)
    for name in found:
        if name.startswith((_SCANS, "staging/")):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
    if space.plan.exists():
        with suppress(FileNotFoundError):
            _join_journal(store, found, space.journal)
        space = space.of_plan(str(read_record(space.plan).get("fingerprint", "")))
        assert space.remote is not None
        space.remote.add_pieces(found, space.key)
    return space if names else None


def is_renewed(store: Store, holder: Holder) -> bool:
    """Wait until a lease is renewed; return False if it was released, or is not renewed in twice the usual time."""
    until_s = time.monotonic() + 2 * holder.lease_s / _RENEWALS
    while True:
        now, _ = _read_lease(store)
        if now is None or now.ended:
            return False
        if (now.name, now.beat) != (holder.name, holder.beat):
            return True
        if time.monotonic() > until_s:
            return False
        time.sleep(min(_PAUSE_S, holder.lease_s / 20))


def _join_journal(store: Store, found: Mapping[str, int], path: Path) -> tuple[int, int]:
    """Append the parts of the journal among some objects, given with their sizes, to a file. Return parts and bytes."""
    parts = sorted(name for name in found if name.startswith(_JOURNAL))
    with path.open("ab") as journal:
        journal.writelines(map_threaded(lambda name: store.read(name, found[name]), parts))
        return len(parts), journal.tell()


def check_place(store: Store) -> None:
    """Check that a place holds nothing except a workspace.

    Raises
    ------
    UsageError
        If it has other objects.
    """
    strange = [one.name for one in store.list() if one.name and not is_ours(one.name)]
    if strange:
        raise UsageError(
            place=store.url,
            expected="a place that is new, empty, or holds an unfinished build",
            found=f"other objects ({list_some(strange)})",
            hint="choose another place for --work",
        )


def check_writable(store: Store) -> None:
    """Check that objects can be written to a workspace's place and deleted, before any work.

    Raises
    ------
    StoreError
        If they cannot.
    """
    store.put(_PROBE, b"")
    store.delete([_PROBE])


def is_ours(name: str) -> bool:
    """Return whether a workspace may hold an object of this name."""
    return _OURS.match(name) is not None


_held: set[str] = set()
"""Names of the leases that this process holds or is acquiring."""


class _StoredLease:
    """The lease of a workspace in a store: an object with the record of its holder, who rewrites it every few seconds.

    A process that dies stops renewing its lease. If two processes take it at the same moment, only the first gets it. At
    stores without conditional writes (`Store.put_if`), the first finds at its next check that it has lost it.
    """

    def __init__(self, store: Store, say: Callable[[str], None]) -> None:
        self._store = store
        self._say = say
        program = Path(*sys.argv[:1])
        name = program.parent.name if program.name == "__main__.py" else program.name
        self._holder = replace(Holder.here(), command=cut(shlex.join([name, *sys.argv[1:]]), LONG))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._checked_s = 0.0
        self.is_lost = False

    def acquire(self) -> None:
        """Take the lease. If another process has it, wait until it has expired."""
        _held.add(self._holder.name)
        try:
            self._wait()
        except BaseException:
            _held.discard(self._holder.name)
            raise
        self._thread.start()

    def _wait(self) -> None:
        seen: tuple[str, int] | None = None
        still_s, looked_s = 0.0, time.monotonic()
        while True:
            other, etag = _read_lease(self._store)
            if other is not None and other.name == self._holder.name:
                break
            if other is None or self._has_ended(other) or still_s >= other.lease_s:
                if not self._write(etag):  # another process was faster, or the store names the object in two ways
                    time.sleep(_PAUSE_S)
                still_s = 0.0
                continue
            now = other.name, other.beat
            if is_running(other.process) or (seen is not None and seen != now):
                raise BuildLockedError(
                    f"another build is at work in this place ({other.describe()})",
                    place=self._store.url,
                    hint="wait until it has finished, or stop it",
                )
            # At most the time between two renewals counts, because this process itself may have been suspended.
            still_s += min(time.monotonic() - looked_s, other.lease_s / _RENEWALS)
            looked_s = time.monotonic()
            if seen is None:
                self._say(
                    f"another build holds {self._store.url} ({other.describe()}): waiting up to {other.lease_s:g} s "
                    "for a sign of life"
                )
            seen = now
            time.sleep(min(_PAUSE_S, other.lease_s / 20))

    def _has_ended(self, other: Holder) -> bool:
        """Return whether the holder of a lease has released it, or certainly runs no more."""
        if other.process and other.process == self._holder.process:
            return other.ended or other.name not in _held  # a call that could not reach the store in the end
        return other.ended or is_running(other.process) is False

    def check(self, *, at_once: bool) -> None:
        """Check every few seconds that this process still has the lease.

        Raises
        ------
        BuildLockedError
            If another process has taken it.
        """
        now_s = time.monotonic()
        if not at_once and now_s - self._checked_s < _CHECK_S:
            return
        self._checked_s = now_s
        self.look()
        if self.is_lost:
            raise BuildLockedError("another build has taken over this place: this build stops", place=self._store.url)

    def release(self) -> None:
        """Release the lease, so that no other process waits until it expires."""
        _held.discard(self._holder.name)
        self._stop.set()
        self._thread.join()
        with suppress(StoreError):
            etag = self.look()
            if not self.is_lost:
                self._holder = replace(self._holder, ended=True)
                self._write(etag)

    def remove(self) -> None:
        """Delete the lease with the other objects."""
        self._stop.set()
        self._thread.join()
        self._store.delete([_LEASE])

    def look(self) -> str | None:
        """Find out whether another process has taken or removed the lease. Return its ETag."""
        other, etag = _read_lease(self._store)
        self.is_lost = self.is_lost or other is None or other.name != self._holder.name
        return etag

    def _renew(self) -> None:
        while not self._stop.wait(self._holder.lease_s / _RENEWALS):
            with suppress(StoreError):  # a store that is away: the next renewal may succeed in time
                etag = self.look()
                if self.is_lost:
                    return
                self._holder = replace(self._holder, beat=self._holder.beat + 1)
                self._write(etag)

    def _write(self, etag: str | None) -> bool:
        """Replace the lease that has this ETag (`Store.put_if`). The caller reads it again, since the answer may be lost."""
        return self._store.put_if(_LEASE, json.dumps(asdict(self._holder)).encode(), etag)


def _read_lease(store: Store) -> tuple[Holder | None, str | None]:
    """Return the lease and its ETag."""
    data, etag = store.read_small(_LEASE, _LEASE_BYTES)
    with suppress(ValueError):
        return Holder.from_json(json.loads(data)), etag
    return None, etag


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size
