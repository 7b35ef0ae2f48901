"""Worker processes that are started before all is known that they need. Imports little: a command begins with it."""

import contextlib
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packer.jobs.child import start_process
from packer.jobs.process import LATER, inherited_environment, module_command

_WORKER = "packer.jobs.worker"


class StandbyWorkers:
    """Workers that import what they need while this process still plans.

    They wait to be taken; a process that was not, or has died meanwhile, costs nothing but its time. `close` ends those
    that nobody took.

    Parameters
    ----------
    module : str
        Of the workers; it begins with `packer.jobs.process.wait_to_begin`.
    """

    def __init__(self, module: str = _WORKER) -> None:
        self._module = module
        self._waiting: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self._imports: list[str] = []

    def start(self, count: int) -> None:
        """Start workers until there were `count`, also if some of them were taken or have died since."""
        with contextlib.suppress(OSError):  # what hinders it is reported when a worker is needed
            while self._started < count:
                self._started += 1
                variables = {**inherited_environment(), LATER: "1"}
                process = start_process(module_command(self._module), subprocess.DEVNULL, variables)
                self._waiting.append(process)
                if self._imports:
                    _send(process, {"imports": self._imports})

    def have_imported(self, modules: Iterable[str]) -> None:
        """Have the workers import some modules while they wait: those that were started, and those to come."""
        self._imports = [*modules]
        for process in self._waiting:
            _send(process, {"imports": self._imports})

    def close(self) -> None:
        """End those that nobody took."""
        for process in self._waiting:
            process.kill()
        for process in self._waiting:
            process.communicate()
        self._waiting.clear()

    def take(self, command: Sequence[str], log: Path, variables: Mapping[str, str]) -> "subprocess.Popen[bytes] | None":
        """A process that begins a command now; None if there is none for it.

        Parameters
        ----------
        command : sequence of str
            A module and its arguments.
        log : Path
            Receives what the process writes to standard error from now on.
        variables : mapping of str to str
            Further environment variables.
        """
        if command[0] != self._module:
            return None
        log.write_bytes(b"")
        # Modules may be found in other folders than when it was started.
        variables = {"PYTHONPATH": inherited_environment()["PYTHONPATH"], **variables}
        while self._waiting:
            process = self._waiting.pop(0)
            if _send(process, {"log": str(log), "variables": variables, "arguments": [*command[1:]]}):
                return process
            process.kill()
            process.communicate()
        return None


def _send(process: "subprocess.Popen[bytes]", message: Mapping[str, Any]) -> bool:
    """Send a line to a process that waits; False if it has ended."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        return process.poll() is None
    return False
