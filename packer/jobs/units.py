"""Units of work: what a worker can be told to do, and what a doer of units is."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

Verdicts = Mapping[int, tuple[str, str]]
"""Items that must not be tried (again), with the step and reason of their reject."""

Progress = Callable[[str, int, int, str], None]
"""Called with ``"start"`` or ``"end"``, the item's index, the samples that it gave, and why it gave none."""


class Unit(NamedTuple):
    """One thing to do.

    Attributes
    ----------
    do : {"task", "item", "join", "scan", "shard"}
        A whole task; one item of a task, by itself; the join of a task's items into its part; the check of a shard that rows are
        taken from; a shard to write.
    number : int
        Of the task, or of the shard.
    item : int
        For ``"item"``; else -1.
    """

    do: Literal["task", "item", "join", "scan", "shard"]
    number: int
    item: int = -1

    @property
    def has_items(self) -> bool:
        """Whether steps run over items in it."""
        return self.do in ("task", "item")


class UnitWork(Protocol):
    """Does units in one workspace. The same code runs in every engine."""

    def prepare(self) -> None:
        """Load what is slow to load, ahead of the first unit."""
        ...

    def run(self, unit: Unit, verdicts: Verdicts, progress: Progress) -> dict[str, Any]:
        """Do one unit and return what the journal should say of it.

        Raises
        ------
        BuildError
            The job cannot go on.
        """
        ...

    def close(self) -> None:
        """Let go of open files."""
        ...
