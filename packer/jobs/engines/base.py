"""What an engine is."""

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from packer.jobs.units import Unit, Verdicts

EventKind = Literal["item", "done", "failed", "died", "timeout", "again", "tick"]


@dataclass(frozen=True)
class Event:
    """Something that happened in a worker.

    Attributes
    ----------
    kind : {"item", "done", "failed", "died", "timeout", "again", "tick"}
        An item ended; a unit ended; the job cannot go on; a worker died; an item took too long and its worker was ended;
        a unit must run again through no fault of its own; nothing for a while.
    unit : Unit or None
    item : int or None
        The item that was under way.
    samples : int
        That the item gave.
    result : dict
        Of a unit that is done.
    message : str
        What is known of a failure or a death, or why an item gave no sample.
    follows : str
        Of a worker's death, or its end over an item that took too long: what becomes of the unit. The schedule says it.
    """

    kind: EventKind
    unit: Unit | None = None
    item: int | None = None
    samples: int = 0
    result: dict[str, Any] = field(default_factory=dict)
    message: str = ""
    follows: str = ""


class Engine(Protocol):
    """Runs units, several at a time, and reports what happens."""

    def idle(self) -> int:
        """Number of units that can be started now."""
        ...

    def start(self, unit: Unit, verdicts: Verdicts, fresh: bool, *, alone: bool = False) -> None:
        """Start a unit; `fresh` asks for a worker that has done nothing yet, `alone` for the end of all others too."""
        ...

    def wait(self) -> Event:
        """The next event; a ``tick`` after about a second without one."""
        ...

    def close(self) -> None:
        """End all workers at once."""
        ...
