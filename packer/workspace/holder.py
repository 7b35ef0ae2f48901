"""Records about processes that hold a build's folder or work in it, and whether such a process still runs."""

import json
import math
import os
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from packer.workspace.shared_files import host
from shardspec.wording import LENGTH, LONG, cut

LEASE_S = 90.0
"""Seconds without a renewal after which a lease expires: longer than a shared file system caches files."""

_RECORD_BYTES = 2**16

_MARK_PARTS = 4
_START_WORD = 18
"""Position of the start time among the words of ``/proc/PID/stat`` after the state."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def lease_s() -> float:
    """Return the length of this process's leases in seconds. Tests set the environment variable ``PACKER_LEASE_S``."""
    try:
        chosen = float(os.environ.get("PACKER_LEASE_S", ""))
    except ValueError:
        return LEASE_S
    return chosen if math.isfinite(chosen) and chosen > 0 else LEASE_S


@dataclass(frozen=True)
class Holder:
    """Record about a process, which the process itself publishes.

    Attributes
    ----------
    name : str
        Unique name, also used as `Workspace.owner`.
    host, node : str
        Name of the host, and Slurm's name of the node (the host's name outside Slurm).
    pid : int
    process : str
        See `process_mark`.
    job : str
        Slurm's number of the job, such as ``"17_3"``; empty outside Slurm.
    began_s : float
        Start in seconds since 1970 by the process's own clock, for display only.
    lease_s : float
        Seconds without a renewal of its lease after which others may take over.
    beat : int
        Number of renewals.
    ended : bool
        Whether it has released its lease.
    command : str
        The command line.
    """

    name: str
    host: str = ""
    node: str = ""
    pid: int = 0
    process: str = ""
    job: str = ""
    began_s: float = 0.0
    lease_s: float = field(default_factory=lease_s)
    beat: int = 0
    ended: bool = False
    command: str = ""

    @classmethod
    def here(cls) -> "Holder":
        """Return the record of the calling process, under a new name."""
        here, pid = host().partition(".")[0], os.getpid()
        plain = re.sub(r"[^A-Za-z0-9]+", "-", here).strip("-")[:32] or "host"
        return cls(
            name=f"{plain}-{pid}-{uuid.uuid4().hex[:6]}",
            host=here,
            node=os.environ.get("SLURMD_NODENAME", here),
            pid=pid,
            process=process_mark(),
            job=slurm_job(os.environ),
            began_s=round(time.time(), 3),
        )

    @classmethod
    def from_json(cls, document: Any) -> "Holder | None":
        """Read a record from JSON. Return None if the document is not a record."""
        if not isinstance(document, dict) or not isinstance(document.get("name"), str):
            return None
        kinds: dict[str, Any] = {"began_s": (int, float), "lease_s": (int, float)}
        values: dict[str, Any] = {}
        default = cls("")
        for spec in fields(cls):
            value: Any = document.get(spec.name, getattr(default, spec.name))
            plain: Any = spec.type if isinstance(spec.type, type) else str
            if not isinstance(value, kinds.get(spec.name, plain)):
                return None
            values[spec.name] = _printable(value)
        return cls(**values)

    def describe(self) -> str:
        """Describe process, host and start."""
        host, node = cut(self.host, LENGTH), cut(self.node, LENGTH)
        where = node if node == host else f"{node} ({host})"
        job = f", Slurm job {cut(self.job, LENGTH)}" if self.job else ""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.began_s))
        command = f": {cut(self.command, LONG)}" if self.command else ""
        return f"process {self.pid} on {where}{job}, since {since}{command}"

    def write(self, path: Path) -> None:
        """Write the record to a file and replace an earlier one. Neither flush the file nor make the folder."""
        new = path.with_name(f"{path.name}.{self.name}.new")
        new.write_text(json.dumps(asdict(self)), "ascii")
        os.replace(new, path)

    @classmethod
    def read(cls, path: Path) -> "Holder | None":
        """Read a record from a file. Return None if the file holds no record."""
        try:
            with path.open("rb") as file:
                return cls.from_json(json.loads(file.read(_RECORD_BYTES)))
        except (OSError, ValueError, RecursionError):
            return None


def slurm_job(environment: Mapping[str, str]) -> str:
    """Return Slurm's number of the job, such as ``"17"`` or, in an array, ``"17_3"``; empty outside Slurm."""
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID", "")


def _printable(value: Any) -> Any:
    """Replace control characters in text, since other users may have written the record."""
    if not isinstance(value, str):
        return value
    return "".join(character if character.isprintable() else "?" for character in value)


def process_mark() -> str:
    """Return a string that identifies this process until the machine restarts; empty outside Linux."""
    return _mark_of(os.getpid())


def is_running(mark: str) -> bool | None:
    """Return whether the process with a `process_mark` is running.

    Return None if the mark was made on another machine or in another container, or before this machine restarted.
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
