"""The processes engine: workers, and the detector process that all workers may share.

The processes run our own entry point, so a user's script needs no ``__main__`` guard.
"""

import contextlib
import itertools
import queue
import socket
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from packer.jobs.child import AnswerQueue, Child
from packer.jobs.engines.base import LOOK_S, TICK_S, Clock, Ended, Event
from packer.jobs.plan import Unit, Verdicts, Work
from packer.jobs.process import CurrentItem
from packer.recipe.engines import WorkerSettings
from packer.vision.detect.remote import hand_over
from packer.workspace import Workspace
from packer.workspace.machines import OWNER, PLAN
from packer.workspace.scratch import delete_abandoned
from shardspec.wording import counted

_START_LIMIT_S = 300.0
_REQUEST_LIMIT_S = 300.0
"""Time limit of one request, which has at most four frames; half of an item's time limit if that is less."""
_HAND_OVER_LIMIT_S = 60.0
_END_S = 5.0


class CurrentRequest(NamedTuple):
    """Current request: its number, and the worker that sent it (None between two requests)."""

    number: int
    worker: int | None
    frames: int


class DetectorTimeout(NamedTuple):
    """A request that takes too long: its number, and the message about it."""

    number: int
    message: str


class DetectorChild(Child):
    """The detector process.

    Parameters
    ----------
    workspace : Workspace
    answers : AnswerQueue
    item_timeout : float
        Time limit of one item in seconds.

    Attributes
    ----------
    waiting : frozenset of int
        The workers whose requests wait; set by the reading thread.
    busy : CurrentRequest
        Set by the reading thread. After `end`, the request that was being processed when the process ended.
    """

    def __init__(self, workspace: Workspace, answers: AnswerQueue, item_timeout: float) -> None:
        self.busy = CurrentRequest(0, None, 0)
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

    def take(self, message: dict[str, Any], answers: AnswerQueue) -> None:
        """Record which workers wait or are served; queue all other answers."""
        what = message["event"]
        if what not in ("waits", "busy", "over"):
            super().take(message, answers)
            return
        worker = message["worker"]
        self.waiting = self.waiting | {worker} if what == "waits" else self.waiting - {worker}
        if what == "busy":
            self.busy = CurrentRequest(self.busy.number + 1, worker, message["frames"])
        elif self.busy.worker == worker and what == "over":
            self.busy = CurrentRequest(self.busy.number + 1, None, 0)

    def delays(self, worker: int) -> bool:
        """Return whether a worker waits while the request of another is processed, which has its own time limit."""
        return worker in self.waiting and self.busy.worker is not None

    def overdue(self, now_s: float) -> DetectorTimeout | None:
        """Return the request that takes too long, if any, at the engine's time `now_s`."""
        busy = self.busy
        if self._seen_s is None or busy.number != self._seen.number:
            self._seen, self._seen_s = busy, now_s
        passed_s = now_s - self._seen_s
        if not self.ready and passed_s > _START_LIMIT_S:
            return DetectorTimeout(busy.number, f"the detector process was not ready after {_START_LIMIT_S:g} s")
        limit_s = min(_REQUEST_LIMIT_S, self.item_timeout / 2)
        if busy.worker is not None and passed_s > limit_s:
            return DetectorTimeout(
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


_START_ATTEMPTS = 5
"""Number of consecutive processes that may die before they are ready (killed by another program, for example)."""


class _Worker(Child):
    """A worker process.

    Attributes
    ----------
    place : int
        Slot of the engine, reused when the worker has ended.
    serial : int
        Unique number of the worker.
    unit : Unit or None
    seen : int or None
        The item at the last check.
    taken_s : float
        Time that this item has taken.
    used : bool
        Whether the worker has received a unit.
    pending : dict or None
        A request that waits until the worker is ready.
    lost_detector : bool
        Whether the worker ends because it has lost its connection to the detector process. Set by the reading thread.
    """

    def __init__(
        self,
        place: int,
        serial: int,
        workspace: Workspace,
        decodes_ahead: bool,
        answers: AnswerQueue,
        detector: DetectorChild | None,
    ) -> None:
        self.place = place
        self.serial = serial
        self.unit: Unit | None = None
        self.seen: int | None = None
        self.taken_s = 0.0
        self.used = False
        self.pending: dict[str, Any] | None = None
        self.lost_detector = False
        note = workspace.logs / f"worker-{place:03d}.item"
        self._at = CurrentItem.create(note)
        command = ["packer.jobs.worker", str(workspace.root), str(note), str(int(decodes_ahead))]
        keep = []
        with ExitStack() as stack:
            if detector is not None:
                keep = [stack.enter_context(detector.connect(serial)).fileno()]
                command.append(str(keep[0]))
            log, variables = workspace.logs / f"worker-{place:03d}.log", {PLAN: workspace.key, OWNER: workspace.owner}
            if workspace.remote is not None:
                variables |= workspace.remote.variables()
            super().__init__(command, log, answers, keep=keep, variables=variables)

    def take(self, message: dict[str, Any], answers: AnswerQueue) -> None:
        if message["event"] == "lost":
            self.lost_detector = True
        else:
            super().take(message, answers)

    @property
    def item(self) -> int | None:
        """The current item, or the item at which the process died."""
        return self._at.get()

    @property
    def frames(self) -> int:
        """Number of frames of the current item examined so far, if it is a video."""
        return self._at.frames()


class ProcessesEngine:
    """Runs units in worker processes, and reports the deaths of workers.

    If a detector process serves all workers and dies, all workers are ended and started again.
    """

    def __init__(self, workspace: Workspace, _open_work: Callable[[], Work] | None, team: WorkerSettings) -> None:
        self._workspace = workspace
        self._team = team
        self._detector: DetectorChild | None = None
        self._answers = AnswerQueue()
        self._workers: list[_Worker | None] = [None] * team.workers
        self._serials = itertools.count()
        self._events: deque[Event] = deque()
        self._failed_starts: Counter[type] = Counter()
        self._clock = Clock()
        self._looked_s = self._timed_s = 0.0

    def idle(self) -> int:
        """Return the number of workers without a unit."""
        return sum(worker is None or worker.unit is None for worker in self._workers)

    def start(self, unit: Unit, verdicts: Verdicts, fresh: bool, *, alone: bool = False) -> None:
        """Send a unit to an idle worker, or to a new process if there is none.

        With `alone`, the other workers, which are all idle, end to free their memory.
        """
        if alone:
            assert all(worker is None or worker.unit is None for worker in self._workers)
            self._end_workers()
        free = [place for place, worker in enumerate(self._workers) if worker is None or worker.unit is None]
        place = next((place for place in free if self._workers[place] is not None), free[0])
        worker = self._workers[place]
        if worker is not None and fresh and worker.used:
            worker.end()
            worker = None
        if worker is None:
            worker = self._workers[place] = self._start_worker(place)
        worker.unit, worker.seen, worker.taken_s, worker.used = unit, None, 0.0, True
        worker.pending = {"unit": list(unit), "verdicts": {str(item): list(why) for item, why in verdicts.items()}}
        self._send_pending()

    def wait(self) -> Event:
        """Return the next event."""
        while True:
            pause_s = self._looked_s + LOOK_S - time.monotonic()
            if pause_s <= 0:
                self._look_for_late_detector()
                self._look_for_late_items()
                self._looked_s, pause_s = time.monotonic(), 0.0
            if self._events:
                return self._events.popleft()
            try:
                child, message = self._answers.get(timeout=pause_s or TICK_S)
            except queue.Empty:
                if pause_s:  # it is time to check the workers
                    continue
                self._look_for_silent_deaths()
                if not self._events:
                    return Event("tick", frames=self.frames())
            else:
                if child is None:
                    return Event("tick", frames=self.frames())
                self._translate(child, message)
            finally:
                self._clock.tick()

    def describe(self, units: int) -> str:
        """Return where this many units run."""
        workers = min(len(self._workers), units)
        return f"by {workers} worker processes" if workers > 1 else "by 1 worker process"

    def wake(self) -> None:
        """Have `wait` return soon, at the latest with a ``tick``. Any thread may call this."""
        self._answers.put((None, {}))

    def frames(self) -> int:
        """Return the number of frames examined so far of the videos under way."""
        return sum(worker.frames for worker in self._workers if worker is not None and worker.unit)

    def close(self) -> None:
        """Kill all workers and the detector process."""
        self._end_workers()
        if self._detector is not None:
            self._detector.end()
        self._detector = None
        delete_abandoned()

    def _end_workers(self) -> None:
        for worker in self._workers:
            if worker is not None:
                worker.kill()  # all at once, because the system takes time to release the memory of each
        for place, worker in enumerate(self._workers):
            if worker is not None:
                worker.end()
            self._workers[place] = None

    def _start_worker(self, place: int) -> _Worker:
        if self._team.shares_detector and self._detector is None:
            self._detector = DetectorChild(self._workspace, self._answers, self._team.item_timeout)
        serial, ahead = next(self._serials), self._team.decodes_ahead
        return _Worker(place, serial, self._workspace, ahead, self._answers, self._detector)

    def _send_pending(self) -> None:
        """Send pending requests to workers that are ready, so that no item's time passes while models are loaded."""
        if self._detector is not None and not self._detector.ready:
            return
        for worker in self._workers:
            if worker is not None and worker.ready and worker.pending is not None:
                worker.send(worker.pending)
                worker.pending = None

    def _translate(self, child: Child | _Worker, message: dict[str, Any]) -> None:
        """Turn a process's message into events. Ignore messages of processes that were ended."""
        kind = message["event"]
        if child is not (self._workers[child.place] if isinstance(child, _Worker) else self._detector):
            return
        if kind == "ready":
            child.ready = True
            self._failed_starts[type(child)] = 0
            self._send_pending()
        elif isinstance(child, _Worker):
            self._translate_work(child, kind, message)
        elif kind == "died":
            self._lose_detector()

    def _translate_work(self, worker: _Worker, kind: str, message: dict[str, Any]) -> None:
        unit = worker.unit
        if kind == "items":
            self._events.append(Event("items", unit, ends=[Ended(*one) for one in message["ends"]]))
        elif kind == "done":
            worker.unit = None
            self._events.append(Event("done", unit, result=message["result"]))
        elif kind == "failed":
            self._events.append(Event("failed", unit, message=message["message"]))
        elif kind == "died":
            self._bury(worker)

    def _look_for_late_items(self) -> None:
        """End the workers whose item takes too long, without the time in which the detector serves other workers."""
        now_s, limit_s = self._clock.now_s(), self._team.item_timeout
        passed_s, self._timed_s = now_s - self._timed_s, now_s
        for worker in self._workers:
            if worker is None or worker.unit is None:
                continue
            item = worker.item
            if item != worker.seen:
                worker.seen, worker.taken_s = item, 0.0
            elif item is not None and not (self._detector is not None and self._detector.delays(worker.serial)):
                worker.taken_s += passed_s
                if worker.taken_s > limit_s:
                    worker.end()
                    self._workers[worker.place] = None
                    self._events.append(Event("timeout", worker.unit, item, message=f"took longer than {limit_s:g} s"))

    def _look_for_silent_deaths(self) -> None:
        """Find processes that ended although one of their children keeps the pipe open."""
        if self._detector is not None and self._detector.has_ended():
            self._lose_detector()
        for worker in self._workers:
            if worker is not None and worker.has_ended():
                self._bury(worker)

    def _look_for_late_detector(self) -> None:
        if self._detector is not None and (late := self._detector.overdue(self._clock.now_s())):
            self._lose_detector(late)

    def _bury(self, worker: _Worker) -> None:
        """Report a worker that has died, and free its place."""
        message = worker.describe_death()
        worker.end()
        if worker.lost_detector and self._detector is not None:
            self._lose_detector()
            return
        self._workers[worker.place] = None
        if not worker.ready and self._failed_start("worker processes do", message, worker):
            return
        self._events.append(Event("died", worker.unit, worker.item, message=message))

    def _lose_detector(self, late: DetectorTimeout | None = None) -> None:
        """End the detector process and all workers, and blame the item whose request was being processed, if known.

        No item is blamed if the process finished the late request before it was ended.
        """
        detector = self._detector
        assert detector is not None
        message = late.message if late else detector.describe_death()
        detector.end()
        outrun = late is not None and detector.busy.number != late.number
        self._detector = None
        lost = [worker for worker in self._workers if worker is not None]
        self._workers[:] = [None] * len(self._workers)  # in place: a caller may be iterating over it
        for worker in lost:
            worker.end()
        if not detector.ready and self._failed_start("the detector process does", message, detector):
            return
        known = any(worker.serial == detector.busy.worker for worker in lost)
        for worker in lost:
            if worker.unit is None:
                continue
            if outrun or (known and worker.serial != detector.busy.worker):
                self._events.append(Event("again", worker.unit, message=message))
            elif known and late and worker.item is not None:
                self._events.append(Event("timeout", worker.unit, worker.item, message=message))
            else:
                item = worker.item if known else None
                self._events.append(Event("died", worker.unit, item, message=message))

    def _failed_start(self, what: str, message: str, child: Child | _Worker) -> bool:
        """Count a process that died before it was ready, and return whether the job must be given up."""
        self._failed_starts[type(child)] += 1
        if self._failed_starts[type(child)] < _START_ATTEMPTS:
            return False
        self._events.append(Event("failed", message=f"{what} not start: {message} (log: {child.log})"))
        return True
