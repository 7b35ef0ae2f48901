"""Watching processes from outside."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 120.0


def wait_for(what: str, look: Callable[[], T], pause_s: float = 0.002, patience_s: float = PATIENCE_S) -> T:
    """Wait until a condition holds. Nothing is measured: a machine may be as slow as it likes, within reason."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        found = look()
        if found:
            return found
        time.sleep(pause_s)
    raise AssertionError(f"waited {patience_s:g} s for {what}")


def kill(*processes: int) -> None:
    """Kill processes. One that has ended meanwhile, or whose number is 0, is no error."""
    for process in filter(None, processes):  # 0 would be all of our own process group
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def workers_of(parent: int, module: bytes = b"packer.jobs.worker") -> list[int]:
    """Worker processes that a build has started, or processes of another module of ours."""
    found = []
    for task in Path(f"/proc/{parent}/task").glob("*"):
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        found += [int(child) for child in children if module in command_of(int(child))]
    return found


def command_of(process: int) -> bytes:
    """The command line of a process; empty for one that is gone or dead."""
    return _read(Path(f"/proc/{process}/cmdline"))


def workers_in(folder: Path, module: bytes = b"packer.jobs.worker") -> list[int]:
    """Worker processes, or those of another module of ours, that have to do with a folder, with any parent or none.

    The folder is in their command line, in their environment, or a file in it is mapped.
    """
    return [
        int(path.name)
        for path in Path("/proc").iterdir()
        if path.name.isdecimal()
        and module in command_of(int(path.name))
        and any(os.fsencode(folder) in _read(path / name) for name in ("cmdline", "environ", "maps"))
    ]


def _read(path: Path) -> bytes:
    """A file of a process; empty for one that is gone or dead."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def is_alive(process: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
