"""Access to files on shared file systems, where each access is slow and may show a state that is a minute old."""

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
"""Seconds to wait for a file that another machine has written. NFS caches file attributes for up to 60 s by default."""

THREADS = 32
"""Number of files that are accessed at a time on a network file system."""

_PAUSE_S = 0.25


def host() -> str:
    """Return the name of this machine."""
    return socket.gethostname()[:64]


def refresh_listing(folder: Path) -> None:
    """List a folder, which makes its new files visible on most shared file systems."""
    with suppress(OSError):
        os.listdir(folder)  # noqa: PTH208 -- only the listing counts


def wait_for(path: Path, limit_s: float | None = None, there: Callable[[], bool] | None = None) -> None:
    """Wait until a file that another machine has written is visible on this one.

    Parameters
    ----------
    limit_s : float, optional
        `WAIT_S` by default.
    there : callable, optional
        Returns whether the file is visible; by default, whether `path` exists.

    Raises
    ------
    BuildError
        If the file is not visible in time. The message names this host and the file system.
    """
    limit_s = WAIT_S if limit_s is None else limit_s
    there = path.exists if there is None else there
    until_s = time.monotonic() + limit_s
    while not there():
        refresh_listing(path.parent)
        if there():
            return
        if time.monotonic() > until_s:
            raise BuildError(
                f"another process has written it, and host {host()} has not seen it for {limit_s:g} s ({_describe_mount(path)})",
                place=path,
                hint=(
                    "check that all hosts have the same folder mounted there, and run the same command again to resume"
                ),
            )
        time.sleep(_PAUSE_S)


def is_on_network(folder: Path) -> bool:
    """Return whether a folder is on a network file system, where each access is slow."""
    return is_network_file_system(file_system_of(folder)[1])


def map_threaded(ask: Callable[[T], S], values: Iterable[T]) -> Iterator[S]:
    """Yield a function's result for each value, in order, computing `THREADS` of them at a time in threads."""
    with ThreadPoolExecutor(THREADS, "ahead") as threads:
        waiting: deque[Future[S]] = deque()
        try:
            for value in values:
                waiting.append(threads.submit(ask, value))
                if len(waiting) == 2 * THREADS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def map_files(folder: Path, ask: Callable[[T], S], values: Iterable[T]) -> Iterator[S]:
    """Yield a function's result for each value, in order. Use threads if the folder is on a network file system."""
    return map_threaded(ask, values) if is_on_network(folder) else map(ask, values)


@contextmanager
def reading() -> Iterator[None]:
    """Turn an `OSError` into a `BuildError` about a failed read, before `writing` reports it as a failed write."""
    try:
        yield
    except OSError as error:
        path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
        where = "" if path is None else f" on host {host()} ({_describe_mount(path)})"
        raise BuildError(f"cannot be read{where}: {system_reason(error)}", place=path or "a file") from error


def _describe_mount(path: Path) -> str:
    place, kind = file_system_of(path)
    return f"mount {place}, {kind}" if kind else "mount unknown"
