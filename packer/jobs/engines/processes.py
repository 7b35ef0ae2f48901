"""The processes engine: worker processes of our own entry point, so a user's script needs no ``__main__`` guard."""

import heapq
import itertools
import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Any

from packer.jobs.child import Answers, Child
from packer.jobs.current_item import CurrentItem
from packer.jobs.engines.base import LOOK_S, TICK_S, Clock, Ended, Event
from packer.jobs.engines.detector import DetectorChild, Late
from packer.jobs.plan import Unit, Verdicts, Work
from packer.recipe.engines import Team
from packer.workspace import Workspace
from packer.workspace.machines import OWNER, PLAN

_START_ATTEMPTS = 5
"""Processes in a row that may die before they are ready (killed from outside, say) before the job gives up."""


class _Worker(Child):
    """A worker process. The reading thread sets `lost_detector`, so it is known once `end` was called.

    Attributes
    ----------
    place : int
        Used again when the worker has ended.
    serial : int
        New for each worker.
    unit : Unit or None
    seen : int or None
        The item that was under way when the worker was last looked at.
    used : bool
        Whether it has been given a unit.
    pending : dict or None
        A request that waits until the worker is ready.
    lost_detector : bool
        Whether it ends because it has lost its connection to the detecting process.
    """

    def __init__(
        self,
        place: int,
        serial: int,
        workspace: Workspace,
        decodes_ahead: bool,
        answers: Answers,
        detector: DetectorChild | None,
    ) -> None:
        self.place = place
        self.serial = serial
        self.unit: Unit | None = None
        self.seen: int | None = None
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
            super().__init__(command, log, answers, keep=keep, variables=variables)

    def take(self, message: dict[str, Any], answers: Answers) -> None:
        if message["event"] == "lost":
            self.lost_detector = True
        else:
            super().take(message, answers)

    @property
    def item(self) -> int | None:
        """The item that is under way; if the process has died, the one that was."""
        return self._at.get()

    @property
    def frames(self) -> int:
        """How many frames of it were examined so far, if it is a video."""
        return self._at.frames()


class ProcessesEngine:
    """Runs units in worker processes and notices those that die.

    If an extra process runs the detector for all workers and dies, all workers are ended, and everything starts afresh.
    """

    def __init__(self, workspace: Workspace, _open_work: Callable[[], Work] | None, team: Team) -> None:
        self._workspace = workspace
        self._team = team
        self._detector: DetectorChild | None = None
        self._answers = Answers()
        self._workers: list[_Worker | None] = [None] * team.workers
        self._serials = itertools.count()
        self._events: deque[Event] = deque()
        self._failed_starts: Counter[type] = Counter()
        self._clock = Clock()
        self._looked_s = 0.0
        self._waiting: list[int] | None = None
        self._vacant: list[int] = []

    def idle(self) -> int:
        """Number of workers without a unit."""
        return self._count_free()

    def start(self, unit: Unit, verdicts: Verdicts, fresh: bool, *, alone: bool = False) -> None:
        """Give a unit to an idle worker, starting a process if there is none.

        If the unit is to be alone, the other workers, all idle, end and free their memory.
        """
        if alone:
            assert all(worker is None or worker.unit is None for worker in self._workers)
            self._end_workers()
        place = self._take_place()
        worker = self._workers[place]
        if worker is not None and fresh and worker.used:
            worker.end()
            worker = None
        if worker is None:
            worker = self._workers[place] = self._start_worker(place)
        worker.unit, worker.seen, worker.used = unit, None, True
        worker.pending = {"unit": list(unit), "verdicts": {str(item): list(why) for item, why in verdicts.items()}}
        self._send_pending(worker)

    def wait(self) -> Event:
        """The next event."""
        while True:
            pause_s = self._looked_s + LOOK_S - time.monotonic()
            if pause_s <= 0:
                self._look_for_late_detector()
                self._look_at_items()
                self._looked_s, pause_s = time.monotonic(), 0.0
            if self._events:
                return self._events.popleft()
            try:
                child, message = self._answers.get(timeout=pause_s or TICK_S)
            except queue.Empty:
                if pause_s:  # what came last is to be looked at first
                    continue
                self._look_for_silent_deaths()
                if not self._events:
                    return Event("tick", frames=sum(w.frames for w in self._workers if w is not None and w.unit))
            else:
                self._translate(child, message)
            finally:
                self._clock.tick()

    def describe(self, units: int) -> str:
        """Where this many units are done, in words."""
        workers = min(len(self._workers), units)
        return f"by {workers} worker processes" if workers > 1 else "by 1 worker process"

    def held(self) -> Collection[Unit]:
        """Units whose item waits for the faces of another worker's frames."""
        detector = self._detector
        if detector is None:
            return ()
        return [w.unit for w in self._workers if w is not None and w.unit is not None and detector.delays(w.serial)]

    def stop(self, unit: Unit, item: int) -> bool:
        """End the worker that is at an item."""
        for worker in self._workers:
            if worker is not None and (worker.unit, worker.item) == (unit, item):
                worker.end()
                self._vacate(worker)
                return True
        return False

    def close(self) -> None:
        """Kill all workers, and the detecting process."""
        self._end_workers()
        if self._detector is not None:
            self._detector.end()
        self._detector = None

    def _end_workers(self) -> None:
        """End all workers."""
        for worker in self._workers:
            if worker is not None:
                worker.kill()  # all at once, since the system takes a moment to clear the memory of each
        for place, worker in enumerate(self._workers):
            if worker is not None:
                worker.end()
            self._workers[place] = None
        self._waiting = None

    def _count_free(self) -> int:
        """The number of places where a unit can be started."""
        if self._waiting is None:  # a worker was lost; the places of both lists are ascending, so heaps
            free = [p for p, w in enumerate(self._workers) if w is None or w.unit is None]
            self._waiting = [place for place in free if self._workers[place] is not None]
            self._vacant = [place for place in free if self._workers[place] is None]
        return len(self._waiting) + len(self._vacant)

    def _take_place(self) -> int:
        """The first place where a unit can be started, with a worker if there is one."""
        assert self._count_free()
        return heapq.heappop(self._waiting or self._vacant)

    def _vacate(self, worker: _Worker) -> None:
        """Forget a worker that has ended."""
        self._workers[worker.place] = None
        self._waiting = None

    def _start_worker(self, place: int) -> _Worker:
        if self._team.shares_detector and self._detector is None:
            self._detector = DetectorChild(self._workspace, self._answers, self._team.item_timeout)
        return _Worker(
            place,
            next(self._serials),
            self._workspace,
            self._team.decodes_ahead,
            self._answers,
            self._detector,
        )

    def _send_pending(self, ready: _Worker | None = None) -> None:
        """Send waiting units to workers that are ready, so that no item's time passes while models are loaded.

        Parameters
        ----------
        ready : _Worker or None
            The only one that may be ready since the last call; None if all may be.
        """
        if self._detector is not None and not self._detector.ready:
            return
        for worker in self._workers if ready is None else (ready,):
            if worker is not None and worker.ready and worker.pending is not None:
                worker.send(worker.pending)
                worker.pending = None

    def _translate(self, child: Child | _Worker, message: dict[str, Any]) -> None:
        """Turn a process's message into events. Messages of a process that was ended no longer count."""
        kind = message["event"]
        if child is not (self._workers[child.place] if isinstance(child, _Worker) else self._detector):
            return
        if kind == "ready":
            child.ready = True
            self._failed_starts[type(child)] = 0
            self._send_pending(child if isinstance(child, _Worker) else None)
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
            if self._waiting is not None:
                heapq.heappush(self._waiting, worker.place)
            self._events.append(Event("done", unit, result=message["result"]))
        elif kind == "failed":
            self._events.append(Event("failed", unit, message=message["message"]))
        elif kind == "died":
            self._bury(worker)

    def _look_at_items(self) -> None:
        """Report which items are under way. Those that begin and end between two looks need no time limit."""
        for worker in self._workers:
            if worker is not None and worker.unit is not None and (item := worker.item) != worker.seen:
                worker.seen = item
                if item is not None:
                    self._events.append(Event("start", worker.unit, item))

    def _look_for_silent_deaths(self) -> None:
        """Find processes that ended while a child of theirs keeps the pipe open and so hides the end of the answers."""
        if self._detector is not None and self._detector.has_ended():
            self._lose_detector()
        for worker in self._workers:
            if worker is not None and worker.has_ended():
                self._bury(worker)

    def _look_for_late_detector(self) -> None:
        if self._detector is not None and (late := self._detector.overdue(self._clock.now_s())):
            self._lose_detector(late)

    def _bury(self, worker: _Worker) -> None:
        """Forget a worker that has died."""
        message = worker.describe_death()
        worker.end()
        if worker.lost_detector and self._detector is not None:
            self._lose_detector()
            return
        self._vacate(worker)
        if not worker.ready and self._failed_start("worker processes do", message, worker):
            return
        self._events.append(Event("died", worker.unit, worker.item, message=message))

    def _lose_detector(self, late: Late | None = None) -> None:
        """End the detecting process and all workers, and blame the item whose request was under way, if it is known.

        No item is to blame if the process finished the late request before it was ended.
        """
        detector = self._detector
        assert detector is not None
        message = late.message if late else detector.describe_death()
        detector.end()
        outrun = late is not None and detector.busy.number != late.number
        self._detector = None
        lost = [worker for worker in self._workers if worker is not None]
        self._workers[:] = [None] * len(self._workers)  # in place: a caller may be iterating over it
        self._waiting = None
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
        """Count processes that died before they were ready, and return whether the job is given up."""
        self._failed_starts[type(child)] += 1
        if self._failed_starts[type(child)] < _START_ATTEMPTS:
            return False
        self._events.append(Event("failed", message=f"{what} not start: {message} (log: {child.log})"))
        return True
