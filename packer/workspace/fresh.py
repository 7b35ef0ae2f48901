"""Looks at a shared file system: each answer takes a while, and it may remember for a minute what was there before.

So a lease, by which processes show that they are at work, is longer than that.
"""

import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from readers.formats.machine import file_system_of, is_network_file_system
from shardspec.errors import BuildError, system_reason

T = TypeVar("T")
S = TypeVar("S")

WAIT_S = 90.0
"""Seconds for which a file is waited for that another machine has promised. NFS remembers for 60 s by default."""

AHEAD = 32
"""Files that are asked for at a time where each answer takes a while."""

LEASE_S = 90.0
"""Seconds without a renewal after which a lease is over: longer than a shared file system shows what it remembers."""

RENEWALS = 6
"""A lease is renewed so often within its length."""

_PAUSE_S = 0.25
_MARK_PARTS = 4
_START_WORD = 18
"""The place of a process's start among the words of ``/proc/PID/stat`` that follow its state."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def look_again(folder: Path) -> None:
    """List a folder, after which most shared file systems know of its new files."""
    with suppress(OSError):
        os.listdir(folder)  # noqa: PTH208 -- only the listing counts


def wait_for(path: Path, limit_s: float | None = None, there: Callable[[], bool] | None = None) -> None:
    """Wait until a promised file is seen here; no longer than a moment where it is seen already.

    Parameters
    ----------
    path : Path
    limit_s : float, optional
        `WAIT_S` by default.
    there : callable, optional
        Whether what was promised is seen; by default, whether `path` exists.

    Raises
    ------
    BuildError
        If it is not seen in time. The message names this host and the file system.
    """
    limit_s = WAIT_S if limit_s is None else limit_s
    there = path.exists if there is None else there
    until_s = time.monotonic() + limit_s
    while not there():
        look_again(path.parent)
        if there():
            return
        if time.monotonic() > until_s:
            raise BuildError(
                f"{path}: another process has written it, and host {host()} has not seen it for {limit_s:g} s "
                f"({_describe_mount(path)}): check that all hosts have the same folder mounted there, "
                "and run the same command again to resume"
            )
        time.sleep(_PAUSE_S)


def is_far(folder: Path) -> bool:
    """Return whether a folder lies on a network file system, so that each look at it takes a while."""
    return is_network_file_system(file_system_of(folder)[1])


def ask_ahead(ask: Callable[[T], S], values: Iterable[T]) -> Iterator[S]:
    """Yield a function's result for each value, in order, computing `AHEAD` of them at a time in threads."""
    with ThreadPoolExecutor(AHEAD, "ahead") as threads:
        waiting: deque[Future[S]] = deque()
        try:
            for value in values:
                waiting.append(threads.submit(ask, value))
                if len(waiting) == 2 * AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def ask_each(folder: Path, ask: Callable[[T], S], values: Iterable[T]) -> Iterator[S]:
    """Yield a function's result for each value, in order; in threads if the folder is on a network file system."""
    return ask_ahead(ask, values) if is_far(folder) else map(ask, values)


@contextmanager
def reading() -> Iterator[None]:
    """Name a failed read as such, with host and file system, where `writing` would call it a failed write."""
    try:
        yield
    except OSError as error:
        path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
        where = "" if path is None else f" on host {host()} ({_describe_mount(path)})"
        raise BuildError(f"{path or 'a file'}: cannot be read{where}: {system_reason(error)}") from error


def host() -> str:
    """The name of this machine."""
    return socket.gethostname()[:64]


def lease_s() -> float:
    """The length of the leases that this process takes; ``PACKER_LEASE_S`` in the environment is for tests."""
    try:
        chosen = float(os.environ.get("PACKER_LEASE_S", ""))
    except ValueError:
        return LEASE_S
    return chosen if math.isfinite(chosen) and chosen > 0 else LEASE_S


def watched_s(since_look_s: float, length_s: float) -> float:
    """The seconds since the last look at a lease that count as watched, while it was not renewed.

    However long this process was stopped, its holder has had the time for one renewal only, as far as can be seen.
    """
    return min(since_look_s, length_s / RENEWALS)


def process_mark() -> str:
    """A mark that no other process of this run of this machine has; empty where the system does not say."""
    return _mark_of(os.getpid())


def is_running(mark: str) -> bool | None:
    """Return whether the process with a `process_mark` runs.

    None if it belongs to another machine or container, or to an earlier run of this machine.
    """
    ours, theirs = process_mark().split(":"), mark.split(":")
    if len(ours) != _MARK_PARTS or len(theirs) != _MARK_PARTS or ours[:2] != theirs[:2] or not theirs[2].isdecimal():
        return None
    return _mark_of(int(theirs[2])) == mark


def _mark_of(process: int) -> str:
    try:
        state, *words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        space = Path("/proc/self/ns/pid").stat().st_ino
        boot = _BOOT_ID.read_text("utf-8").strip()
        return "" if state in "ZX" else f"{boot}:{space}:{process}:{words[_START_WORD]}"
    except (OSError, IndexError, ValueError):
        return ""


def _describe_mount(path: Path) -> str:
    place, kind = file_system_of(path)
    return f"mount {place}, {kind}" if kind else "mount unknown"
