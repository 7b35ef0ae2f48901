"""A process that does measured work on request, and what the system says of it meanwhile."""

import json
import os
import selectors
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from packer.jobs.entry_point import inherited_environment, module_command
from shardspec.errors import BuildError

_POLL_S = 0.05
"""How often memory is looked at while a process works."""

_LOG_TAIL_BYTES = 1500


class MeasuredProcess:
    """``python -m MODULE`` that reads a line and answers with one, both JSON.

    Parameters
    ----------
    module : str
    request : mapping
        The first line. Its answer is taken by `gather`, like every other.

    Attributes
    ----------
    peak_bytes : int
        The most memory seen while it worked: anonymous and shared, without the page cache that it maps. 0 where the system
        does not say.
    """

    def __init__(self, module: str, request: Mapping[str, Any]) -> None:
        self.module = module
        self.peak_bytes = 0
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the process
        self.process = subprocess.Popen(  # noqa: S603 -- our own interpreter and module
            module_command(module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=inherited_environment(),
            text=True,
        )
        self.send(request)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()
        self._log.close()

    def send(self, request: Mapping[str, Any]) -> None:
        """Give it something to do."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the missing answer says so

    def answer(self) -> dict[str, Any]:
        """What it has done.

        Raises
        ------
        BuildError
            It has ended, or says that it cannot.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self._log.seek(-min(_LOG_TAIL_BYTES, self._log.seek(0, os.SEEK_END)), os.SEEK_END)
            tail = self._log.read().decode(errors="replace").strip()
            raise BuildError(
                f"{self.module}: expected an answer, found it ended with status {self.process.returncode}:\n{tail}"
            )
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise BuildError(found["error"])
        return found

    def look(self) -> None:
        """Note the memory that it takes now."""
        status = _read_fields(self.process.pid, "status")
        now = sum(status.get(name, 0) for name in ("RssAnon", "RssShmem")) * 1024
        self.peak_bytes = max(self.peak_bytes, now)

    def disk_bytes(self) -> int | None:
        """Bytes that the system has fetched from storage for it so far; None where it does not say."""
        return _read_fields(self.process.pid, "io").get("read_bytes")


def gather(processes: Sequence[MeasuredProcess]) -> list[dict[str, Any]]:
    """One answer of each, with an eye on their memory until all have come."""
    answers: dict[int, dict[str, Any]] = {}
    with selectors.DefaultSelector() as selector:
        for number, process in enumerate(processes):
            assert process.process.stdout is not None
            selector.register(process.process.stdout, selectors.EVENT_READ, number)
        while len(answers) < len(processes):
            for process in processes:
                process.look()
            for key, _ in selector.select(_POLL_S):
                answers[key.data] = processes[key.data].answer()
                selector.unregister(key.fileobj)
    return [answers[number] for number in range(len(processes))]


def _read_fields(pid: int, name: str) -> dict[str, int]:
    """The numbers in a file of ``/proc/PID``, by field; none where there is no such file or it may not be read."""
    found = {}
    try:
        for line in Path(f"/proc/{pid}/{name}").read_text().splitlines():
            field, _, value = line.partition(":")
            if value.split() and value.split()[0].isdecimal():
                found[field] = int(value.split()[0])
    except OSError:
        return {}
    return found
