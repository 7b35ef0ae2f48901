"""The protocol of an engine."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from packer.jobs.plan import Unit, Verdicts

TICK_S = 0.5
"""Longest time that an engine waits for an event, in seconds."""

LOOK_S = 0.1
"""Shortest time between two looks at all workers, in seconds: there may be thousands, and as many events a second."""

EventKind = Literal["start", "items", "done", "failed", "died", "timeout", "again", "tick"]


class Ended(NamedTuple):
    """An item that ended, or several that follow one another and ended alike.

    Attributes
    ----------
    item : int
        The first of them.
    samples : int
        How many samples each yielded.
    reason : str
        Why none; without a reason it is no reject.
    items : int
        How many they are.
    """

    item: int
    samples: int
    reason: str
    items: int = 1

    @property
    def rejected(self) -> bool:
        """True if it ended as a reject."""
        return not self.samples and bool(self.reason)

    @property
    def last(self) -> int:
        """The last of the items."""
        return self.item + self.items - 1


@dataclass(frozen=True)
class Event:
    """Something that happened in a worker.

    Attributes
    ----------
    kind : {"start", "items", "done", "failed", "died", "timeout", "again", "tick"}
        An item is under way, as was seen for the first time (those that end soon are not seen); items ended; a unit
        ended; the job cannot continue; a worker died; an item took too long and its worker was ended; a unit must run
        again through no fault of its own; nothing happened for a while.
    unit : Unit or None
    item : int or None
        The item that is or was under way.
    ends : sequence of Ended
        The items that ended, in order.
    result : dict
        The result of a finished unit.
    message : str
        What is known of a failure or a death.
    follows : str
        After a worker died, or was ended over an item that took too long: what happens to the unit. The schedule sets
        it.
    frames : int
        With a tick: how many frames of the videos under way were examined.
    """

    kind: EventKind
    unit: Unit | None = None
    item: int | None = None
    ends: Sequence[Ended] = ()
    result: dict[str, Any] = field(default_factory=dict)
    message: str = ""
    follows: str = ""
    frames: int = 0

    @property
    def ends_task(self) -> bool:
        """True if the event ends a whole task."""
        return self.kind == "done" and self.unit is not None and self.unit.do in ("task", "join")


class Engine(Protocol):
    """Runs units, several at a time, and reports what happens."""

    def idle(self) -> int:
        """Number of units that can be started now."""
        ...

    def start(self, unit: Unit, verdicts: Verdicts, fresh: bool, *, alone: bool = False) -> None:
        """Start a unit; `fresh` asks for a worker that has done nothing yet, `alone` also ends all other workers."""
        ...

    def wait(self) -> Event:
        """The next event; a ``tick`` after about `TICK_S` without one."""
        ...

    def describe(self, units: int) -> str:
        """Where this many units are done, in words."""
        ...

    def held(self) -> Collection[Unit]:
        """Units whose item waits while a shared process serves another worker."""
        ...

    def stop(self, unit: Unit, item: int) -> bool:
        """End the worker that is at an item of a unit; no event of it follows. False if no worker is at it now."""
        ...

    def close(self) -> None:
        """End all workers at once."""
        ...


class Clock:
    """A clock that stands still while this process and its workers are stopped (Ctrl-Z, a suspended Slurm job)."""

    def __init__(self) -> None:
        self._passed_s = 0.0
        self._ticked_s = time.monotonic()

    def tick(self) -> None:
        """Add the time since the last tick, but not much more than `TICK_S`: no wait takes longer."""
        now_s = time.monotonic()
        self._passed_s += min(now_s - self._ticked_s, 2 * TICK_S)
        self._ticked_s = now_s

    def now_s(self) -> float:
        """Seconds passed until the last tick."""
        return self._passed_s
