"""List and read files.

On shared file systems each access is slow and may show a state that is a minute old.
"""

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from readers.formats.machine import file_system_of, is_network_file_system
from shardspec.errors import BuildError, system_reason
from shardspec.stores.daemons import Daemons
from shardspec.wording import LONG, cut

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


def map_threaded(ask: Callable[[T], S], values: Iterable[T], threads: int = THREADS) -> Iterator[S]:
    """Yield a function's result for each value, in order, computing this number of them at a time in threads."""
    daemons = Daemons(threads, "ahead")
    waiting: deque[Future[S]] = deque()
    try:
        for value in values:
            waiting.append(daemons.submit(ask, value))
            if len(waiting) == 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        daemons.close()


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


@contextmanager
def listing_folders() -> Iterator[None]:
    """Turn the error of a folder that cannot be listed into a `BuildError`."""
    try:
        yield
    except OSError as error:
        raise BuildError(f"cannot be listed: {system_reason(error)}", place=cut(str(error.filename), LONG)) from error


def walk(root: Path, *, followlinks: bool = False) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder with its subfolders and files, from the top, like ``os.walk`` but without a limit of depth.

    Parameters
    ----------
    followlinks : bool
        Whether to enter folders behind links; the caller must prevent endless loops.

    Raises
    ------
    BuildError
        If a folder cannot be listed.
    """
    waiting = [os.fspath(root)]
    while waiting:
        folder = waiting.pop()
        with listing_folders():
            entries = list(scan(folder))
        folders = [name for name, is_folder, _ in entries if is_folder]
        links = {name for name, is_folder, is_link in entries if is_folder and is_link}
        yield folder, folders, [name for name, is_folder, _ in entries if not is_folder]
        below = [name for name in reversed(folders) if followlinks or name not in links]
        waiting += [os.path.join(folder, name) for name in below]  # noqa: PTH118 -- many


Entry = tuple[str, bool, bool]
"""Entry of a folder: its name, whether it is a folder, and whether it is a link. A plain tuple takes little memory."""


def scan(folder: str | Path) -> Iterator[Entry]:
    """Yield the entries of a folder; `OSError` if it cannot be listed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                is_folder = entry.is_dir()
            except OSError:
                is_folder = False
            yield entry.name, is_folder, entry.is_symlink()
