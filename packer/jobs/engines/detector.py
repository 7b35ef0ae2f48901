"""The engine's side of the detector process, which all workers share."""

import contextlib
import socket
import subprocess
from typing import Any, NamedTuple

from packer.jobs.child import Answers, Child
from packer.vision.detect.remote import hand_over
from packer.workspace import Workspace
from shardspec.wording import counted

_START_LIMIT_S = 300.0
_REQUEST_LIMIT_S = 300.0
"""Time limit of one request, which has at most four frames; half of an item's time limit if that is less."""
_HAND_OVER_LIMIT_S = 60.0
_END_S = 5.0


class Busy(NamedTuple):
    """Current request: its number, and the worker that sent it (None between two requests)."""

    number: int
    worker: int | None
    frames: int


class Late(NamedTuple):
    """A request that takes too long: its number, and the message about it."""

    number: int
    message: str


class DetectorChild(Child):
    """The detector process.

    Parameters
    ----------
    workspace : Workspace
    answers : Answers
    item_timeout : float
        Time limit of one item in seconds.

    Attributes
    ----------
    waiting : frozenset of int
        The workers whose requests wait; set by the reading thread.
    busy : Busy
        Set by the reading thread. After `end`, the request that was being processed when the process ended.
    """

    def __init__(self, workspace: Workspace, answers: Answers, item_timeout: float) -> None:
        self.busy = Busy(0, None, 0)
        self.waiting: frozenset[int] = frozenset()
        self.item_timeout = item_timeout
        self._seen = self.busy
        self._seen_s: float | None = None
        self._control, theirs = socket.socketpair()
        self._control.settimeout(_HAND_OVER_LIMIT_S)
        command = ["packer.jobs.detector", str(workspace.root)]
        with theirs:
            super().__init__(command, workspace.logs / "detector.log", answers, stdin=theirs.fileno())

    def connect(self, worker: int) -> socket.socket:
        """Return a worker's end of a new connection. If the process has died, the connection is closed."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.suppress(OSError):
            hand_over(self._control, theirs, worker)
        return ours

    def end(self) -> None:
        super().end()
        self._control.close()

    def take(self, message: dict[str, Any], answers: Answers) -> None:
        """Record which workers wait or are served; queue all other answers."""
        what = message["event"]
        if what not in ("waits", "busy", "over"):
            super().take(message, answers)
            return
        worker = message["worker"]
        self.waiting = self.waiting | {worker} if what == "waits" else self.waiting - {worker}
        if what == "busy":
            self.busy = Busy(self.busy.number + 1, worker, message["frames"])
        elif self.busy.worker == worker and what == "over":
            self.busy = Busy(self.busy.number + 1, None, 0)

    def delays(self, worker: int) -> bool:
        """Return whether a worker waits while the request of another is processed, which has its own time limit."""
        return worker in self.waiting and self.busy.worker is not None

    def overdue(self, now_s: float) -> Late | None:
        """Return the request that takes too long, if any, at the engine's time `now_s`."""
        busy = self.busy
        if self._seen_s is None or busy.number != self._seen.number:
            self._seen, self._seen_s = busy, now_s
        passed_s = now_s - self._seen_s
        if not self.ready and passed_s > _START_LIMIT_S:
            return Late(busy.number, f"the detector process was not ready after {_START_LIMIT_S:g} s")
        limit_s = min(_REQUEST_LIMIT_S, self.item_timeout / 2)
        if busy.worker is not None and passed_s > limit_s:
            return Late(
                busy.number, f"the detector process took longer than {limit_s:g} s over {counted(busy.frames, 'frame')}"
            )
        return None

    def describe_death(self) -> str:
        """Describe how the process ended. It may still be ending when a worker has lost its connection."""
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "the detector process left a worker's connection"
        return f"the detector process died, {super().describe_death()}"
