"""Plan of a job: its tasks and units, the interface of the work on them, and how the results become a dataset."""

import re
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, overload

from packer.assembly.plan import Merge
from packer.workspace import Workspace
from shardspec.layout import Layout
from shardspec.manifest import Manifest
from shardspec.wording import LONG, shorten

PIECE = "piece"
"""Key of the result of a task, for the name of its piece if the workspace is in a store."""

Verdicts = Mapping[int, tuple[str, str]]
"""Items that must not be processed (again), with the step and reason of their reject."""

OnItem = Callable[[str, int, int, str], None]
"""Called with what happened, the item's index, a number, and a reason.

* ``"start"``: the item begins.
* ``"frame"``: the number of frames examined so far.
* ``"end"``: the number of samples, and the reason if there are none.
"""


class Task(NamedTuple):
    """Items ``start`` to ``stop`` (exclusive).

    ``offset`` is the place of the first line in the plan's items file, and ``sum`` the CRC-32 of all their lines.

    In a job over packed datasets, the items are the shards that it reads, one for each task.
    """

    start: int
    stop: int
    offset: int
    sum: int = 0


_NUMBERS = len(Task._fields)


class Tasks(Sequence[Task]):
    """The tasks of a plan as an array of numbers, because there may be hundreds of thousands."""

    def __init__(self, tasks: Iterable[Sequence[int]] = ()) -> None:
        self._numbers = array("q")
        for task in tasks:
            self.append(task)

    def append(self, task: Sequence[int]) -> None:
        """Append a task."""
        self._numbers.extend(Task(*task))

    def __len__(self) -> int:
        return len(self._numbers) // _NUMBERS

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return Tasks(self[number] for number in range(len(self))[index])
        at = _NUMBERS * range(len(self))[index]
        return Task(*self._numbers[at : at + _NUMBERS])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        return f"Tasks({list(self)})"

    def to_json(self) -> list[int]:
        """Return the numbers of each task."""
        return self._numbers.tolist()

    @classmethod
    def from_json(cls, document: Sequence[int]) -> "Tasks":
        """Read the numbers that `to_json` returns."""
        tasks = cls()
        tasks._numbers.extend(document)
        return tasks


class Unit(NamedTuple):
    """A unit of work.

    Attributes
    ----------
    do : {"task", "item", "join", "shard"}
        A whole task; one item of a task by itself; the join of the parts of a task's items; a shard to write.
    number : int
        The number of the task or shard.
    item : int
        The item for ``"item"``; otherwise -1.
    """

    do: Literal["task", "item", "join", "shard"]
    number: int
    item: int = -1

    @property
    def has_items(self) -> bool:
        """True if the unit works on items."""
        return self.do in ("task", "item")

    def __str__(self) -> str:
        return f"{self.do} {self.number}"


class Work(Protocol):
    """Runs units in one workspace. The same code runs in every engine."""

    def prepare(self) -> None:
        """Load everything that is slow to load before the first unit."""
        ...

    def run(self, unit: Unit, verdicts: Verdicts, on_item: OnItem) -> dict[str, Any]:
        """Run one unit, and return what the journal records about it.

        Raises
        ------
        BuildError
            If the job cannot continue.
        """
        ...

    def close(self) -> None:
        """Close open files."""
        ...


@dataclass(frozen=True)
class ResultReader:
    """Results of a job's tasks, which are read while other tasks run.

    Attributes
    ----------
    finished : collection of int
        The tasks that an earlier call finished; may contain numbers that are no tasks.
    assemble : callable
        Called after the last task. Writes the reports, and returns how the rows become a dataset. Raises a `BuildError` if
        there are no rows.
    read : callable
        Called with the tasks that have finished since the last call. Returns quickly.
    """

    finished: Collection[int]
    assemble: Callable[[], Merge]
    read: Callable[[Iterable[int]], None] = lambda _: None


@dataclass(frozen=True)
class JobSettings:
    """How a job is run and shown.

    Attributes
    ----------
    kind : str
        A key of `packer.jobs.worker.WORKS`.
    preset : str
        A key of `packer.recipe.engines.WORKER_BYTES`, which has the memory of a worker.
    stage, item : str
        Names of the stage of tasks and of an item, such as ``"packing"`` and ``"item"``.
    target : str
        Description of the output, for the line that announces the stage; empty for no line.
    shares_detector : bool
        Whether a detector process serves all workers.
    needs_gpus : bool
        Whether workers on a cluster need GPUs.
    one_per_gpu : bool
        Whether they hold a model on the GPU, so that each needs a GPU, or a part of one, for itself.
    notes : sequence of str
        Lines for the user, reported before the work begins.
    """

    kind: str
    preset: str = "rows"
    stage: str = "packing"
    item: str = "item"
    target: str = ""
    shares_detector: bool = False
    needs_gpus: bool = False
    one_per_gpu: bool = False
    notes: Sequence[str] = ()


class PlanRecord:
    """A plan as it is stored in its folder, and its relation to earlier work there.

    Attributes
    ----------
    base : Manifest or None
        The dataset in the folder that the job updates; None if it makes a new one.
    """

    base: Manifest | None = None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides the bytes."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON, with ``kind`` and ``fingerprint``."""
        raise NotImplementedError

    def take_item_lines(self) -> Iterable[str]:
        """Return the lines of the plan's items file, maybe millions, which may be iterated over several times.

        Called once: afterwards the lines are in the file, and the plan need not keep them.
        """
        return ()

    def made(self, manifest: Manifest) -> bool:
        """Return whether the plan has made a dataset."""
        return False

    def describe_made(self, layout: Layout, manifest: Manifest) -> str:
        """Describe what differs from the plan that made a finished dataset."""
        return ""

    def advise(self, manifest: Manifest) -> str:
        """Return advice about another dataset in the folder, to append to a message."""
        return ""

    def describe_unfinished(self, space: Workspace, old: Mapping[str, Any]) -> str:
        """Describe what differs from the unfinished plan of the same kind in a workspace."""
        return ""

    def resume(self, space: Workspace) -> None:
        """Prepare the results of an earlier call for the job that resumes."""

    def take_over(self, space: Workspace, old: Mapping[str, Any]) -> str | None:
        """Keep the results of another unfinished plan that this plan can use, and describe them; None if there are none.

        After a crash, the same call continues.
        """
        return None


class WorkPlan(Protocol):
    """The part of a plan that engines need (`packer.jobs.stages.Workers`)."""

    @property
    def settings(self) -> JobSettings:
        """How the job is run and shown."""
        ...

    @property
    def tasks(self) -> Sequence[Task]:
        """All tasks, in order."""
        ...

    def open_work(self, space: Workspace) -> Work:
        """Open the work, which runs units in this process."""
        ...


class JobPlan(WorkPlan, Protocol):
    """Plan of a job. `packer.jobs.job.Job` runs it; a resume compares it with the unfinished plan."""

    @property
    def record(self) -> PlanRecord:
        """The plan as it is stored in the folder."""
        ...

    def collect(self, space: Workspace) -> AbstractContextManager[ResultReader]:
        """Collect the results of the tasks inside the block."""
        ...


_DIGESTS = re.compile(r": was (None|'[0-9a-f]{64}'), now (None|'[0-9a-f]{64}')\Z")


def join_changes(changes: Sequence[str]) -> str:
    """Join descriptions of changes, without those of digests if there are others."""
    return "; ".join([change for change in changes if not _DIGESTS.search(change)] or changes)


def describe_changes(what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Describe every key whose value has changed."""
    return [
        f"{what} {key}: was {shorten(old.get(key), LONG)}, now {shorten(new.get(key), LONG)}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]
