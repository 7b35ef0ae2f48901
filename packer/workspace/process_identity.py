"""Names of this host and of processes, by which other processes can tell whether they still run."""

import os
import socket
from pathlib import Path

_MARK_PARTS = 4

_START_WORD = 18
"""Position of the start time among the words of ``/proc/PID/stat`` after the state."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host() -> str:
    """Return the name of this machine."""
    return socket.gethostname()[:64]


def process_mark() -> str:
    """Return a text that identifies this process on this machine until it restarts; empty outside Linux."""
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
