"""The protocol of an engine."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from packer.jobs.plan import Unit, Verdicts

TICK_S = 0.5
"""Longest time in seconds that an engine waits for an event."""

LOOK_S = 0.1
"""Shortest time in seconds between two checks of all workers."""

EventKind = Literal["items", "done", "failed", "died", "timeout", "again", "note", "tick"]


class Ended(NamedTuple):
    """An item that ended, or several consecutive items that ended alike.

    Attributes
    ----------
    item : int
        The first item.
    samples : int
        Number of samples of each item.
    reason : str
        Why an item without samples was rejected; empty if it was not.
    items : int
        Number of items.
    """

    item: int
    samples: int
    reason: str
    items: int = 1

    @property
    def rejected(self) -> bool:
        """True if the items were rejected."""
        return not self.samples and bool(self.reason)

    @property
    def last(self) -> int:
        """The last item."""
        return self.item + self.items - 1


@dataclass(frozen=True)
class Event:
    """Something that happened in a worker.

    Attributes
    ----------
    kind : {"items", "done", "failed", "died", "timeout", "again", "note", "tick"}
        ``"items"``: items ended. ``"done"``: a unit ended. ``"failed"``: the job cannot continue. ``"died"``: a worker
        died. ``"timeout"``: an item took too long, and its worker was ended. ``"again"``: a unit must run again through
        no fault of its own. ``"note"``: a line for the user. ``"tick"``: nothing happened for a while.
    unit : Unit or None
    item : int or None
        The item that is or was under way.
    ends : sequence of Ended
        The items that ended, in order.
    result : dict
        The result of a finished unit.
    message : str
        Description of a failure or a death, or the line for the user.
    follows : str
        What happens to the unit after its worker was lost; set by the schedule.
    frames : int
        With a tick, the number of frames examined so far of the videos under way.
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
        """Start a unit: with `fresh` in a new worker, with `alone` after ending all other workers."""
        ...

    def wait(self) -> Event:
        """Return the next event; a ``tick`` after about `TICK_S` without one."""
        ...

    def describe(self, units: int) -> str:
        """Return where this many units run, for a message."""
        ...

    def close(self) -> None:
        """End all workers at once."""
        ...


class Clock:
    """A clock that pauses while this process and its workers are stopped (Ctrl-Z, a suspended Slurm job)."""

    def __init__(self) -> None:
        self._passed_s = 0.0
        self._ticked_s = time.monotonic()

    def tick(self) -> None:
        """Add the time since the last tick, at most about `TICK_S`, because no wait takes longer."""
        now_s = time.monotonic()
        self._passed_s += min(now_s - self._ticked_s, 2 * TICK_S)
        self._ticked_s = now_s

    def now_s(self) -> float:
        """Return the seconds passed until the last tick."""
        return self._passed_s
