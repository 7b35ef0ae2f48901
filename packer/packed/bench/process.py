"""A process that does measured work on request, and the system's figures about it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packer.jobs.child import SyncChild
from shardspec.errors import BuildError

_POLL_S = 0.05
"""Interval at which memory is measured while a process works."""


class MeasuredProcess(SyncChild):
    """``python -m MODULE`` that reads a line and answers with one, both JSON.

    Parameters
    ----------
    module : str
    request : mapping
        The first line. `gather` takes its answer, like every other.

    Attributes
    ----------
    peak_bytes : int
        The most memory seen while it worked: anonymous and shared, without the page cache that it maps. 0 if the system
        does not report it.
    """

    def __init__(self, module: str, request: Mapping[str, Any]) -> None:
        self.module = module
        self.peak_bytes = 0
        super().__init__([module])
        self.send(request)

    def result(self, timeout_s: float) -> dict[str, Any] | None:
        """The answer of the process; None if there is none yet.

        Raises
        ------
        BuildError
            If the process has ended, or reports a failure.
        """
        found = self.answer(timeout_s)
        if found is None:
            return None
        if found["event"] == "died":
            raise BuildError(f"{self.module}: expected an answer, found that it ended ({self.describe_death()})")
        if found["event"] == "failed":
            raise BuildError(found["message"])
        return found

    def look(self) -> None:
        """Note the memory that the process uses now."""
        status = _read_fields(self.process.pid, "status")
        now = sum(status.get(name, 0) for name in ("RssAnon", "RssShmem")) * 1024
        self.peak_bytes = max(self.peak_bytes, now)

    def disk_bytes(self) -> int | None:
        """Bytes fetched from storage for the process so far; None if the system does not report it."""
        return _read_fields(self.process.pid, "io").get("read_bytes")


def gather(processes: Sequence[MeasuredProcess]) -> list[dict[str, Any]]:
    """Take one answer from each process, and measure their memory until all have answered."""
    answers: dict[int, dict[str, Any]] = {}
    while len(answers) < len(processes):
        for number, process in enumerate(processes):
            process.look()
            if number not in answers and (answer := process.result(_POLL_S / len(processes))) is not None:
                answers[number] = answer
    return [answers[number] for number in range(len(processes))]


def _read_fields(pid: int, name: str) -> dict[str, int]:
    """The numbers in a file of ``/proc/PID``, by field; none if the file is missing or may not be read."""
    found = {}
    try:
        for line in Path(f"/proc/{pid}/{name}").read_text().splitlines():
            field, _, value = line.partition(":")
            if value.split() and value.split()[0].isdecimal():
                found[field] = int(value.split()[0])
    except OSError:
        return {}
    return found
