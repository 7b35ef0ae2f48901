"""The schedule: which unit runs next, and what follows when a worker dies or an item hangs."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from packer.builds.plan import Task
from packer.jobs.engines.base import Engine, Event
from packer.jobs.units import Unit
from packer.workspace import Workspace, append_line, read_lines
from shardspec.errors import BuildError

TASK_DEATHS = 2
"""Workers that a whole task may bring down before it is run item by item."""

ITEM_DEATHS = 3
"""Fresh workers that one item, alone, must bring down before it is rejected; a kill from outside cannot do that."""

UNIT_DEATHS = 5
"""Workers that a unit may bring down while no item is under way before the job is given up."""


class Schedule:
    """Runs units to their end.

    A worker that dies costs its unit, which runs again. A task that brings down `TASK_DEATHS` workers is run item by
    item, each in a fresh worker. Items at which a worker has died come last, one after another, alone: when all else is
    done, so that nothing that runs beside them, and no number of workers, decides what becomes of them. An item that
    takes too long is rejected, and its task runs again without it.

    Parameters
    ----------
    engine : Engine
    workspace : Workspace
    tasks : sequence of Task
        Of the plan, for units that have items.
    on_event : callable
        Told of every event, for the progress display and the journal.
    """

    def __init__(
        self, engine: Engine, workspace: Workspace, tasks: Sequence[Task], on_event: Callable[[Event], None]
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
        self._verdicts = {line["item"]: (line["step"], line["reason"]) for line in read_lines(workspace.verdicts)}

    def run(self, units: Iterable[Unit]) -> None:
        """Run all units.

        Raises
        ------
        BuildError
            The job cannot go on.
        """
        self._waiting.extend((unit, False) for unit in units)
        while self._waiting or self._alone or self._running:
            self._start()
            event = self._engine.wait()
            self._on_event(replace(event, follows=self._handle(event)))

    def _start(self) -> None:
        """Start what may run now."""
        if self._lonely is not None and self._running:
            return
        self._lonely = None
        while self._waiting and self._engine.idle():
            unit, fresh = self._waiting.popleft()
            self._running += 1
            self._engine.start(unit, self._verdicts_of(unit), fresh)
        if self._alone and not self._running:
            self._lonely = self._alone.popleft()
            self._running += 1
            self._engine.start(self._lonely, self._verdicts_of(self._lonely), True, alone=True)

    def _handle(self, event: Event) -> str:
        """Draw the consequences of an event; those of a worker's end in words."""
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
        """Only deaths of an item that ran alone count: whatever else ran may have been to blame."""
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
        """Have a unit run once more: ahead of the others, or alone when they are done."""
        if self._idle_deaths[unit] >= TASK_DEATHS or (unit.do == "item" and unit.item in self._suspects):
            self._alone.appendleft(unit)
        else:
            self._waiting.appendleft((unit, unit.do == "item"))

    def _after_idle_death(self, unit: Unit, how: str) -> str:
        """No item was under way, so none is to blame; what runs beside the unit may be, so it runs alone at last."""
        self._idle_deaths[unit] += 1
        if self._idle_deaths[unit] >= UNIT_DEATHS:
            raise BuildError(
                f"workers die while they do {unit.do} {unit.number} ({how}): run the same command again to resume"
            )
        self._again(unit)
        return "it is done again"

    def _narrow(self, task: int) -> None:
        """Run a task item by item."""
        start, stop, _ = self._tasks[task]
        self._items_left[task] = stop - start
        for item in reversed(range(start, stop)):
            self._again(Unit("item", task, item))

    def _item_done(self, task: int) -> None:
        self._items_left[task] -= 1
        if not self._items_left[task]:
            self._waiting.appendleft((Unit("join", task), False))

    def _reject(self, item: int, reason: str) -> None:
        """Remember, also over a resume, that an item must not be tried again."""
        self._verdicts[item] = ("worker", reason)
        append_line(self._workspace.verdicts, {"item": item, "step": "worker", "reason": reason})

    def _verdicts_of(self, unit: Unit) -> dict[int, tuple[str, str]]:
        if not unit.has_items:
            return {}
        start, stop, _ = self._tasks[unit.number]
        return {item: why for item, why in self._verdicts.items() if start <= item < stop}
