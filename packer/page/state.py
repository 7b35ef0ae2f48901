"""How far a build is, as its page shows it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from packer.builds.parts.part import Part
from packer.page.cards import shown_text
from packer.page.workers import WorkerSeen
from shardspec.errors import BuildError

_WINDOW_S = 300.0
"""The rate is that of so many seconds before the last part."""


class Rejected(NamedTuple):
    """An item that gave no sample.

    Attributes
    ----------
    task, place : int
        The task, and the item's place in it.
    item, step, reason : str
    """

    task: int
    place: int
    item: str
    step: str
    reason: str


@dataclass(frozen=True)
class TaskDone:
    """A finished task.

    Attributes
    ----------
    task, items, samples : int
    rejects : tuple of Rejected
    finished_s : float
        When, in seconds since the epoch.
    """

    task: int
    items: int
    samples: int
    rejects: tuple[Rejected, ...]
    finished_s: float


class Busy(NamedTuple):
    """A task that a worker has in hand: what it has written so far, and seconds since it last wrote."""

    task: str
    bytes: int
    idle_s: float


@dataclass(frozen=True)
class State:
    """How far a build is.

    Attributes
    ----------
    running : bool or None
        Whether a process holds the folder; None where the system does not say.
    stage : str
    items, done, samples, rejected : int
    rate : float or None
        Items a second of late.
    left_s : float or None
        Seconds to the end of packing at that rate.
    sessions : int
        How often it was begun or resumed.
    shards : int
        Shards written.
    held_by : str
        The process that coordinates the build, or that did last; empty if it is not known.
    workers : list of WorkerSeen
    busy : list of Busy
    tasks : list of TaskDone
        Finished tasks, the last first.
    rejects : list of Rejected
        The last first.
    logs : list of (str, str)
        What workers wrote to their standard error: the name and the end of each log.
    changed_s : float
        Seconds since anything changed.
    """

    running: bool | None
    stage: str
    items: int
    done: int
    samples: int
    rejected: int
    rate: float | None
    left_s: float | None
    sessions: int
    shards: int
    held_by: str
    workers: list[WorkerSeen]
    busy: list[Busy]
    tasks: list[TaskDone]
    rejects: list[Rejected]
    logs: list[tuple[str, str]] = field(default_factory=list)
    changed_s: float = 0.0


def read_task(path: Path, task: int, finished_s: float) -> TaskDone | None:
    """What became of the items of a finished task; None if its part is gone, or of another version."""
    try:
        reports = Part(path).reports()
    except (OSError, BuildError, ValueError, KeyError, TypeError):
        return None
    rejects = tuple(
        Rejected(task, place, report.name, str(report.step), shown_text(str(report.reason)))
        for place, report in enumerate(reports)
        if not report.samples and not report.empty
    )
    return TaskDone(task, len(reports), sum(report.samples for report in reports), rejects, finished_s)


def item_rate(tasks: list[TaskDone]) -> float | None:
    """Items a second over the last `_WINDOW_S`; `tasks` are the finished ones, the last first."""
    late = [task for task in tasks if task.finished_s > tasks[0].finished_s - _WINDOW_S]
    if len(late) < 2 or late[0].finished_s <= late[-1].finished_s:
        return None
    return sum(task.items for task in late[:-1]) / (late[0].finished_s - late[-1].finished_s)
