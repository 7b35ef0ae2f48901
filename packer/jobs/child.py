"""A process of our own modules: its answers, its log, its end."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from packer.jobs.process import inherited_environment, module_command

_READER_JOIN_S = 5.0
"""A child that left the process's group may hold its pipe open; the reader is a daemon and may wait for it."""
_LOG_TAIL_BYTES = 1500
_SIGKILL = 9  # not every system has the name

Answers = queue.SimpleQueue["tuple[Child, dict[str, Any]]"]


class Child:
    """One process of our own entry points, and the thread that reads its answers: JSON objects, one a line, each with its ``event``.

    At their end it has died, which is an answer of its own: ``{"event": "died"}``.

    Parameters
    ----------
    command : sequence of str
        A module of ours and its arguments.
    log : Path
        What it writes to standard error.
    answers : Answers
    stdin : int
        As for ``subprocess.Popen``.
    keep : sequence of int
        Descriptors that it inherits.

    Attributes
    ----------
    ready : bool
        Whether it has said so.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        answers: Answers,
        *,
        stdin: int = subprocess.PIPE,
        keep: Sequence[int] = (),
    ) -> None:
        self.log = log
        self.ready = False
        with log.open("wb") as file:
            self.process = subprocess.Popen(  # noqa: S603 -- our own interpreter and module
                module_command(*command),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=file,
                env=inherited_environment(),
                start_new_session=True,
                pass_fds=keep,
            )
        self._reader = threading.Thread(target=self._read, args=(answers,), daemon=True)
        self._reader.start()

    def send(self, request: Mapping[str, Any]) -> None:
        """Give the process something to do; one that has died says so by the end of its answers."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """Kill the process, with all that it started, and wait until it is gone and all its answers are read."""
        if os.name == "posix":
            # Its own session's group (start_new_session); a child that lived on would also hold the pipes open.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self._reader.join(_READER_JOIN_S)
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()

    def describe_death(self) -> str:
        """How the process ended, with the end of what it wrote."""
        code = self.process.wait()
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        if code == -_SIGKILL:
            how += ", as when memory runs out"
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - _LOG_TAIL_BYTES))
            tail = log.read().decode(errors="replace").strip()
        return f"{how}: {tail.splitlines()[-1]}" if tail else how

    def take(self, message: dict[str, Any], answers: Answers) -> None:
        """Pass an answer on; called by the reading thread."""
        answers.put((self, message))

    def _read(self, answers: Answers) -> None:
        assert self.process.stdout is not None
        # Closed by this thread alone: another would wait for as long as this one reads.
        with self.process.stdout as lines:
            for line in lines:
                message = _parse(line)
                if message is not None:
                    self.take(message, answers)
        answers.put((self, {"event": "died"}))


class SyncChild(Child):
    """A process with one caller, who waits for its answers. A context manager, by whose end the process is ended.

    Parameters
    ----------
    command : sequence of str
    stdin : int
        As for `Child`.
    """

    def __init__(self, command: Sequence[str], *, stdin: int = subprocess.PIPE) -> None:
        self._answers: Answers = queue.SimpleQueue()
        self._folder = tempfile.TemporaryDirectory()
        super().__init__(command, Path(self._folder.name) / "log", self._answers, stdin=stdin)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self._folder.cleanup()

    def answer(self, timeout_s: float) -> dict[str, Any] | None:
        """The next answer, the one about the process's death included; None if there was none in time."""
        try:
            return self._answers.get(timeout=max(0.0, timeout_s))[1]
        except queue.Empty:
            return None


def _parse(line: bytes) -> dict[str, Any] | None:
    """An answer; None for a line cut by the process's death, or printed before the process had taken its standard output."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and "event" in message else None
