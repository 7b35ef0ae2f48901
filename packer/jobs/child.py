"""Start processes of our own modules, read their answers, and end them."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from packer.jobs.process import inherited_environment, module_command

_READER_JOIN_S = 5.0
"""Limit on waiting for the reading thread: a grandchild outside the process group may keep the pipe open."""
_LOG_TAIL_BYTES = 1500
_SIGKILL = 9  # not every system has the name


class AnswerQueue:
    """Queue of answers, each with its process, for one reader.

    In CPython 3.11, ``queue.SimpleQueue.get`` hangs if a signal is handled just as its timeout ends: it continues with
    the time left, and takes a negative time for no limit.
    """

    def __init__(self) -> None:
        self._there: deque[tuple[Any, dict[str, Any]]] = deque()
        self._bell = threading.Lock()
        self._bell.acquire()

    def put(self, answer: tuple[Any, dict[str, Any]]) -> None:
        """Append an answer."""
        self._there.append(answer)
        with contextlib.suppress(RuntimeError):  # already released
            self._bell.release()

    def get(self, timeout: float) -> tuple[Any, dict[str, Any]]:
        """Return the next answer.

        Raises
        ------
        queue.Empty
            If there is none within `timeout` seconds.
        """
        until_s = time.monotonic() + timeout
        while not self._there:
            if not self._bell.acquire(timeout=max(0.0, until_s - time.monotonic())) and not self._there:
                raise queue.Empty
        return self._there.popleft()


class Child:
    """A process that runs one of our entry points, and the thread that reads its answers.

    An answer is a JSON object with an ``event``, on one line. When the process dies, the thread adds a last answer,
    ``{"event": "died"}``.

    Parameters
    ----------
    command : sequence of str
        The module and its arguments.
    log : Path
        File for standard error.
    answers : AnswerQueue
    stdin : int
        As in ``subprocess.Popen``.
    keep : sequence of int
        Descriptors that the process inherits.
    variables : mapping of str to str, optional
        Further environment variables.

    Attributes
    ----------
    ready : bool
        Whether the process has reported that it is ready.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        answers: AnswerQueue,
        *,
        stdin: int = subprocess.PIPE,
        keep: Sequence[int] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        self.ready = False
        with log.open("wb") as file:
            self.process = subprocess.Popen(  # noqa: S603 -- our own interpreter and module
                module_command(*command),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=file,
                env={**inherited_environment(), **(variables or {})},
                start_new_session=True,
                pass_fds=keep,
            )
        self._reader = threading.Thread(target=self._read, args=(answers,), daemon=True)
        self._reader.start()

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request to the process. If the process has died, its last answer reports that."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()

    def kill(self) -> None:
        """Kill the process and its children."""
        if os.name == "posix":
            # The process leads a group (start_new_session). A surviving child would keep the pipes open.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()

    def end(self) -> None:
        """Kill the process and its children, and wait until it is gone and its answers are read."""
        self.kill()
        self.process.wait()
        self._reader.join(_READER_JOIN_S)
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()

    def has_ended(self) -> bool:
        """Return whether the process has ended, even if one of its children keeps the pipe open."""
        return self.process.poll() is not None

    def describe_death(self) -> str:
        """Describe how the process ended, with the last line of its log."""
        code = self.process.wait()
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        if code == -_SIGKILL:
            how += ", as when memory runs out"
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - _LOG_TAIL_BYTES))
            tail = log.read().decode(errors="replace").strip()
        return f"{how}: {tail.splitlines()[-1]}" if tail else how

    def take(self, message: dict[str, Any], answers: AnswerQueue) -> None:
        """Queue an answer; called by the reading thread."""
        answers.put((self, message))

    def _read(self, answers: AnswerQueue) -> None:
        assert self.process.stdout is not None
        # Only this thread may close the pipe: another thread would block while this one reads.
        with self.process.stdout as lines:
            for line in lines:
                message = _parse(line)
                if message is not None:
                    self.take(message, answers)
        self.take({"event": "died"}, answers)


class SyncChild(Child):
    """A process whose caller waits for its answers. Use as a context manager, which ends the process.

    Parameters
    ----------
    command : sequence of str
    stdin : int
        As for `Child`.
    """

    def __init__(self, command: Sequence[str], *, stdin: int = subprocess.PIPE) -> None:
        self._answers = AnswerQueue()
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
        """Return the next answer, which may report the process's death; None if there is none in time."""
        try:
            return self._answers.get(timeout=max(0.0, timeout_s))[1]
        except queue.Empty:
            return None


def _parse(line: bytes) -> dict[str, Any] | None:
    """Parse an answer; None for a line cut by the process's death, or printed before `take_streams`."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and "event" in message else None
