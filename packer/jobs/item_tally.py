"""What the progress display counts: each item once, however often its task is run."""

from typing import NamedTuple

from packer.jobs.engines.base import Event


class Gain(NamedTuple):
    """What an event adds to the items, samples and rejects so far. Less than nothing, where an item gives less than it did before."""

    items: int
    samples: int
    rejects: int


class ItemTally:
    """Knows what the items gave of tasks that are not done yet, so that nothing of a task that runs again counts twice."""

    def __init__(self) -> None:
        self._tasks: dict[int, dict[int, Gain]] = {}

    def take(self, event: Event) -> Gain:
        """What the end of an item, or of a unit, adds."""
        if event.unit is None or event.item is None or event.kind != "item":
            if event.kind == "done" and event.unit is not None and event.unit.do in ("task", "join"):
                self._tasks.pop(event.unit.number, None)
            return Gain(0, 0, 0)
        items = self._tasks.setdefault(event.unit.number, {})
        before = items.get(event.item, Gain(0, 0, 0))
        now = items[event.item] = Gain(1, event.samples, int(not event.samples))
        return Gain(*(a - b for a, b in zip(now, before, strict=True)))
