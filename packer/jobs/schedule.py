"""Decide which unit runs next and what follows the death of a worker or a slow item, and count what is done."""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import add
from typing import NamedTuple

from packer.jobs.engines.base import LOOK_S, Clock, Engine, Event
from packer.jobs.plan import Task, Unit
from packer.sources.item import item_name
from packer.workspace import Workspace, append_line
from shardspec.errors import BuildError
from shardspec.wording import program

DEATHS = 2
"""Number of workers that a unit may bring down while others work, before it runs alone."""

DEATHS_ALONE = 3
"""Number of fresh workers that an item must bring down, while no other worker runs, to be rejected. If they die while no
item is being processed, the job is given up. A kill from outside hardly happens so often.
"""

_ENDS = {"died": "died", "timeout": "was ended"}


class Schedule:
    """Runs units until all are done.

    The unit of a worker that dies runs again. A unit that brings down `DEATHS` workers runs when everything else is done,
    alone and in a fresh worker, so that neither other units nor the number of workers affects the outcome. An item that
    brings down `DEATHS_ALONE` of these workers is rejected, and so is an item that takes too long. Its task runs again
    without the item.

    Parameters
    ----------
    engine : Engine
    workspace : Workspace
    tasks : sequence of Task
        The tasks of the plan.
    on_event : callable
        Called with every event, for the progress display and the journal.
    on_message : callable
        Called with a line for the user about each lost worker and what follows.
    item_timeout : float or None
        Time limit of one item in seconds, without the time in which it waits for another worker; None for no limit.
    """

    def __init__(
        self,
        engine: Engine,
        workspace: Workspace,
        tasks: Sequence[Task],
        on_event: Callable[[Event], None],
        on_message: Callable[[str], None],
        item_timeout: float | None = None,
    ) -> None:
        self._engine = engine
        self._workspace = workspace
        self._tasks = tasks
        self._on_event = on_event
        self._on_message = on_message
        self._waiting: deque[Unit] = deque()
        self._alone: deque[Unit] = deque()
        self._lonely: Unit | None = None
        self._running = 0
        self._deaths: Counter[Unit] = Counter()
        self._deaths_alone: Counter[tuple[Unit, int | None]] = Counter()
        self._times = ItemTimes(Clock())
        self._item_timeout = item_timeout
        self._looked_s = 0.0
        self._verdicts: dict[int, tuple[str, str]] = {}

    def run(self, units: Iterable[Unit], more: Callable[[], Collection[Unit]] = tuple) -> None:
        """Run all units.

        Parameters
        ----------
        units : iterable of Unit
        more : callable
            Called while a worker is idle and no unit must run alone; returns further units, if there are any now.

        Raises
        ------
        BuildError
            If the job cannot continue.
        """
        self._add(units)
        while True:
            if not self._waiting and not self._alone and self._engine.idle():
                self._add(more())
            if not (self._waiting or self._alone or self._running):
                return
            self._start()
            self._take(self._engine.wait())
            self._stop_overdue()

    def withdraw(self) -> None:
        """Drop all units that have not started."""
        self._waiting.clear()
        self._alone.clear()

    def _add(self, units: Iterable[Unit]) -> None:
        """Queue units, after reading the verdicts of other processes on their items."""
        added = list(units)
        self._waiting.extend(added)
        if any(unit.has_items for unit in added):
            for line in self._workspace.read_verdicts():
                self._verdicts[line["item"]] = line["step"], line["reason"]

    def _take(self, event: Event) -> None:
        self._times.take(event)
        follows = self._handle(event)
        if follows and event.unit is not None:
            unit, item = event.unit, event.item
            at = str(unit) if item is None else repr(item_name(self._workspace.items, self._tasks[unit.number], item))
            how = f"{_ENDS[event.kind]} at {at} ({event.message})"
            self._on_message(f"{program()}: a worker process {how}: {follows}")
        self._on_event(event)

    def _stop_overdue(self) -> None:
        """End the workers whose item takes too long; check about every `LOOK_S`."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        self._times.tick(self._engine.held())
        if self._item_timeout is None:
            return
        for unit, item in self._times.longer_than(self._item_timeout):
            if self._engine.stop(unit, item):
                self._take(Event("timeout", unit, item, message=f"took longer than {self._item_timeout:g} s"))

    def _start(self) -> None:
        if self._lonely is not None and self._running:
            return
        self._lonely = None
        while self._waiting and self._engine.idle():
            unit = self._waiting.popleft()
            self._running += 1
            self._engine.start(unit, self._verdicts_of(unit))
        if self._alone and not self._running:
            self._lonely = self._alone.popleft()
            self._running += 1
            self._engine.start(self._lonely, self._verdicts_of(self._lonely), alone=True)

    def _handle(self, event: Event) -> str:
        """Update the queue after an event; return what follows if a worker was lost."""
        unit = event.unit
        if event.kind == "failed":
            raise BuildError(event.message)
        if unit is None or event.kind not in ("done", "timeout", "died", "again"):
            return ""
        self._running -= 1
        if event.kind == "done":
            return ""
        follows = ""
        if event.kind == "died":
            follows = self._after_death(unit, event.item, event.message)
        elif event.kind == "timeout" and event.item is not None:
            self._reject(event.item, event.message)
            follows = "the item is rejected"
        (self._alone if self._deaths[unit] >= DEATHS else self._waiting).appendleft(unit)
        return follows

    def _after_death(self, unit: Unit, item: int | None, how: str) -> str:
        """Count a death, and reject the item after the last one that is allowed. Return what follows.

        Only deaths of units that ran alone count against an item, because otherwise another item may be to blame.
        """
        what = "its task" if unit.has_items else "it"
        self._deaths[unit] += 1
        if unit != self._lonely:
            again = f"{what} is run again"
            return f"{again}, alone, after all others" if self._deaths[unit] >= DEATHS else again
        self._deaths_alone[unit, item] += 1
        deaths = self._deaths_alone[unit, item]
        if deaths < DEATHS_ALONE:
            return f"{what} is run again, alone (time {deaths + 1} of {DEATHS_ALONE})"
        if item is None:
            raise BuildError(f"workers die while they do {unit} ({how})", hint="run the same command again to resume")
        self._reject(item, f"brought down a worker {deaths} times, with no other at work ({how})")
        return "the item is rejected"

    def _reject(self, item: int, reason: str) -> None:
        """Record that an item must not be tried again, even after a resume."""
        self._verdicts[item] = ("worker", reason)
        append_line(self._workspace.verdicts, {"item": item, "step": "worker", "reason": reason})

    def _verdicts_of(self, unit: Unit) -> dict[int, tuple[str, str]]:
        if not unit.has_items:
            return {}
        start, stop, _ = self._tasks[unit.number]
        return {item: why for item, why in self._verdicts.items() if start <= item < stop}


class ItemTimes:
    """Measures the time that the current item of each unit has taken."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked_s = clock.now_s()
        self._taken_s: dict[Unit, tuple[int, float]] = {}

    def take(self, event: Event) -> None:
        """Record that an item begins, or that a unit or its item ends."""
        if event.unit is None:
            return
        if event.kind == "start" and event.item is not None:
            self._taken_s[event.unit] = event.item, 0.0
        elif event.kind != "items" or self._taken_s.get(event.unit, (-1,))[0] <= event.ends[-1].last:
            self._taken_s.pop(event.unit, None)

    def tick(self, held: Collection[Unit]) -> None:
        """Add the time since the last call, except to `held` units, which wait for another worker."""
        self._clock.tick()
        passed_s, self._looked_s = self._clock.now_s() - self._looked_s, self._clock.now_s()
        for unit, (item, taken_s) in self._taken_s.items():
            if unit not in held:
                self._taken_s[unit] = item, taken_s + passed_s

    def longer_than(self, limit_s: float) -> list[tuple[Unit, int]]:
        """Return the units whose item has taken longer than a limit, each with the item."""
        return [(unit, item) for unit, (item, taken_s) in self._taken_s.items() if taken_s > limit_s]


class Gain(NamedTuple):
    """Changes of the numbers of items, samples and rejects; negative if a task runs again."""

    items: int
    samples: int
    rejects: int


_NOTHING = Gain(0, 0, 0)


class ItemTally:
    """Counts what the items of unfinished tasks yield. What a task has yielded counts no longer if the task runs again.

    A finished task counts with all its items, including those without an event.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._yielded: defaultdict[int, Gain] = defaultdict(lambda: _NOTHING)

    def take(self, event: Event) -> Gain:
        """Return the change caused by an event."""
        if event.unit is None or not event.unit.has_items:
            return _NOTHING
        number = event.unit.number
        if event.kind == "items":
            gained = Gain(
                sum(ended.items for ended in event.ends),
                sum(ended.items * ended.samples for ended in event.ends),
                sum(ended.items for ended in event.ends if ended.rejected),
            )
            self._yielded[number] = Gain(*map(add, self._yielded[number], gained))
            return gained
        if event.kind not in ("done", "died", "timeout", "again"):
            return _NOTHING
        before = self._yielded.pop(number, _NOTHING)
        if event.kind == "done":
            task = self._tasks[number]
            return Gain(task.stop - task.start - before.items, 0, 0)
        return Gain(*(-count for count in before))
