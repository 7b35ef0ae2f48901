"""Decide which unit runs next and what follows the death of a worker or a slow item, and count what is done."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from packer.jobs.engines.base import Engine, Event
from packer.jobs.plan import Task, Unit
from packer.sources.item import item_name
from packer.workspace import Workspace, append_line
from shardspec.errors import BuildError
from shardspec.wording import program

TASK_DEATHS = 2
"""Number of workers that a task may bring down before it is run item by item."""

ITEM_DEATHS = 3
"""Number of fresh workers that an item must bring down, running alone, to be rejected.

A kill from outside hardly happens so often.
"""

UNIT_DEATHS = 5
"""Number of workers that a unit may bring down while no item is being processed, before the job is given up."""

_ENDS = {"died": "died", "timeout": "was ended"}


class Schedule:
    """Runs units until all are done.

    The unit of a worker that dies runs again. A task that brings down `TASK_DEATHS` workers is run item by item, each
    in a fresh worker. Items at which a worker has died run last, one at a time, when everything else is done, so that
    neither other items nor the number of workers affects the outcome. An item that takes too long is rejected, and its
    task runs again without the item.

    Parameters
    ----------
    engine : Engine
    workspace : Workspace
    tasks : sequence of Task
        The tasks of the plan.
    on_event : callable
        Called with every event, for the progress display and the journal.
    """

    def __init__(
        self,
        engine: Engine,
        workspace: Workspace,
        tasks: Sequence[Task],
        on_event: Callable[[Event], None],
    ) -> None:
        self._engine = engine
        self._workspace = workspace
        self._tasks = tasks
        self._on_event = on_event
        self._waiting: deque[tuple[Unit, bool]] = deque()
        self._alone: deque[Unit] = deque()
        self._lonely: Unit | None = None
        self._suspects: set[int] = set()
        self._running = 0
        self._deaths: Counter[Unit] = Counter()
        self._idle_deaths: Counter[Unit] = Counter()
        self._items_left: dict[int, int] = {}
        self._verdicts: dict[int, tuple[str, str]] = {}

    def run(self, units: Iterable[Unit]) -> None:
        """Run all units.

        Raises
        ------
        BuildError
            If the job cannot continue.
        """
        for line in self._workspace.read_verdicts():
            self._verdicts[line["item"]] = line["step"], line["reason"]
        new = iter(units)
        while self._has_next(new) or self._alone or self._running:
            self._start(new)
            event = self._engine.wait()
            follows = self._handle(event)
            self._on_event(replace(event, follows=follows) if follows else event)

    def _has_next(self, new: Iterator[Unit]) -> bool:
        """Return whether a unit waits. New units, of which there may be a million, are taken one by one."""
        if not self._waiting:
            self._waiting.extend((unit, False) for unit in islice(new, 1))
        return bool(self._waiting)

    def _start(self, new: Iterator[Unit]) -> None:
        if self._lonely is not None and self._running:
            return
        self._lonely = None
        while self._engine.idle() and self._has_next(new):
            unit, fresh = self._waiting.popleft()
            self._running += 1
            self._engine.start(unit, self._verdicts_of(unit), fresh)
        if self._alone and not self._running and self._engine.idle():
            self._lonely = self._alone.popleft()
            self._running += 1
            self._engine.start(self._lonely, self._verdicts_of(self._lonely), True, alone=True)

    def _handle(self, event: Event) -> str:
        """Update the queue after an event; return what follows if a worker was lost."""
        unit = event.unit
        if event.kind == "failed":
            raise BuildError(event.message)
        if unit is None:
            return ""
        if event.kind == "done":
            self._running -= 1
            if unit.do == "item":
                self._item_done(unit.number)
        elif event.kind == "timeout":
            self._running -= 1
            self._reject(event.item if event.item is not None else unit.item, event.message)
            self._waiting.appendleft((unit, False))
            return "the item is rejected"
        elif event.kind == "died":
            self._running -= 1
            return self._after_death(unit, event.item, event.message)
        elif event.kind == "again":
            self._running -= 1
            self._again(unit)
        return ""

    def _after_death(self, unit: Unit, item: int | None, how: str) -> str:
        if item is None:
            return self._after_idle_death(unit, how)
        self._suspects.add(item)
        if unit.do == "item":
            return self._after_item_death(unit, how)
        self._deaths[unit] += 1
        if self._deaths[unit] < TASK_DEATHS:
            self._again(unit)
            return "its task is run again"
        self._narrow(unit.number)
        return "its task is run again, item by item"

    def _after_item_death(self, unit: Unit, how: str) -> str:
        """Count only the deaths of an item that ran alone, because otherwise another item may be to blame."""
        if unit == self._lonely:
            self._deaths[unit] += 1
        deaths = self._deaths[unit]
        if deaths < ITEM_DEATHS:
            self._again(unit)
            return f"the item is tried again by itself (time {deaths + 1} of {ITEM_DEATHS})"
        self._reject(unit.item, f"brought down a worker {deaths} times, by itself ({how})")
        self._waiting.appendleft((unit, False))
        return "the item is rejected"

    def _again(self, unit: Unit) -> None:
        """Queue a unit again: before the others, or to run alone after the others."""
        if self._idle_deaths[unit] >= TASK_DEATHS or (unit.do == "item" and unit.item in self._suspects):
            self._alone.appendleft(unit)
        else:
            self._waiting.appendleft((unit, unit.do == "item"))

    def _after_idle_death(self, unit: Unit, how: str) -> str:
        """Blame no item, since none was being processed. Other units may be to blame, so in the end this one runs alone."""
        self._idle_deaths[unit] += 1
        if self._idle_deaths[unit] >= UNIT_DEATHS:
            raise BuildError(f"workers die while they do {unit} ({how})", hint="run the same command again to resume")
        self._again(unit)
        return "it is done again"

    def _narrow(self, task: int) -> None:
        start, stop, *_ = self._tasks[task]
        self._items_left[task] = stop - start
        for item in reversed(range(start, stop)):
            self._again(Unit("item", task, item))

    def _item_done(self, task: int) -> None:
        self._items_left[task] -= 1
        if not self._items_left[task]:
            self._waiting.appendleft((Unit("join", task), False))

    def _reject(self, item: int, reason: str) -> None:
        """Record that an item must not be tried again, even after a resume."""
        self._verdicts[item] = ("worker", reason)
        append_line(self._workspace.verdicts, {"item": item, "step": "worker", "reason": reason})

    def _verdicts_of(self, unit: Unit) -> dict[int, tuple[str, str]]:
        if not unit.has_items:
            return {}
        start, stop, *_ = self._tasks[unit.number]
        return {item: why for item, why in self._verdicts.items() if start <= item < stop}


def describe_lost(event: Event, workspace: Workspace, tasks: Sequence[Task]) -> str:
    """Describe a lost worker and what follows, or return the text of a note; return an empty text for any other event."""
    if event.kind == "note":
        return f"{program()}: {event.message}"
    if not event.follows or event.unit is None:
        return ""
    unit = event.unit
    item = unit.item if event.item is None and unit.do == "item" else event.item
    at = str(unit) if item is None else repr(item_name(workspace.items, tasks[unit.number], item))
    return f"{program()}: a worker process {_ENDS[event.kind]} at {at} ({event.message}): {event.follows}"


class CountChange(NamedTuple):
    """Changes of the numbers of items, samples and rejects; negative if an item yields less than before."""

    items: int
    samples: int
    rejects: int


_NOTHING = CountChange(0, 0, 0)


class ItemTally:
    """Counts what the items of unfinished tasks yield, so that nothing counts twice if a task runs again.

    A finished task counts with all its items, including those without an event.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._of_plan = tasks
        self._tasks: dict[int, dict[int, CountChange]] = {}

    def take(self, event: Event) -> CountChange:
        """Return the change caused by an event, which is zero unless an item or a unit ends."""
        if event.unit is None:
            return _NOTHING
        if event.kind == "done" and event.unit.do in ("task", "join"):
            task = self._of_plan[event.unit.number]
            unheard = task.stop - task.start - len(self._tasks.pop(event.unit.number, {}))
            return CountChange(unheard, 0, 0)
        if not event.ends:
            return _NOTHING
        known, gained = self._tasks.setdefault(event.unit.number, {}), [0, 0, 0]
        for ended in event.ends:
            now, items = CountChange(1, ended.samples, int(ended.rejected)), range(ended.item, ended.item + ended.items)
            before = [known[item] for item in items if item in known] if known else []
            known.update(dict.fromkeys(items, now))
            gained = [sum_ + len(items) * gain for sum_, gain in zip(gained, now, strict=True)]
            for gain in before:
                gained = [sum_ - less for sum_, less in zip(gained, gain, strict=True)]
        return CountChange(*gained)
