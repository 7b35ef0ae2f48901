"""What the progress display counts: each item once, however often its task is run."""

from collections.abc import Sequence
from typing import NamedTuple

from packer.jobs.engines.base import Event
from packer.jobs.plan import Task


class Gain(NamedTuple):
    """What an event adds to the items, samples and rejects so far. Less than nothing, where an item gives less than it did before."""

    items: int
    samples: int
    rejects: int


class ItemTally:
    """Knows what the items gave of tasks that are not done yet, so that nothing of a task that runs again counts twice.

    A task that is done counts with all its items, those included of which no event said anything.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._of_plan = tasks
        self._tasks: dict[int, dict[int, Gain]] = {}

    def take(self, event: Event) -> Gain:
        """What the end of an item, or of a unit, adds."""
        if event.unit is None or event.item is None or event.kind != "item":
            if event.kind == "done" and event.unit is not None and event.unit.do in ("task", "join"):
                task = self._of_plan[event.unit.number]
                unheard = task.stop - task.start - len(self._tasks.pop(event.unit.number, {}))
                return Gain(unheard, 0, 0)
            return Gain(0, 0, 0)
        items = self._tasks.setdefault(event.unit.number, {})
        before = items.get(event.item, Gain(0, 0, 0))
        now = items[event.item] = Gain(1, event.samples, int(not event.samples))
        return Gain(*(a - b for a, b in zip(now, before, strict=True)))
