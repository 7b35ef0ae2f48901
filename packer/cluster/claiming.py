"""Claims of an agent to blocks of tasks, until its time is nearly up."""

import bisect
import math
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from packer.jobs.engines.base import Event
from packer.jobs.engines.processes import ProcessesEngine
from packer.jobs.hosts.srun import run_slurm
from packer.jobs.plan import Unit, Verdicts
from packer.jobs.schedule import Schedule
from packer.recipe.engines import WorkerSettings
from packer.workspace import Workspace
from packer.workspace.agents import Claims, block_size, count_blocks
from packer.workspace.leases import Observer, slurm_job
from shardspec.errors import BuildError, UsageError
from shardspec.wording import shorten

BATCH_S = 20.0
"""Seconds of work that are claimed at a time, so that the shared file system sees few claims."""

PAUSE_S = 1.0
"""Seconds between two looks for work while other agents hold all that is left."""

_LEFT = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)\Z")

MARGIN_S = 20.0
"""Seconds before the time limit at which an agent releases its claims; a twentieth of its time if that is less."""


class TimedEngine(ProcessesEngine):
    """The processes engine, which also records the units under way and how long units take.

    Attributes
    ----------
    running : dict of Unit to float
        The start of each unit under way, by the monotonic clock.
    longest_s, mean_s : float
        Longest and mean time of the finished units; 0 before the first.
    """

    def __init__(self, workspace: Workspace, team: WorkerSettings) -> None:
        super().__init__(workspace, None, team)
        self.running: dict[Unit, float] = {}
        self.longest_s = self.mean_s = 0.0
        self._finished = 0

    def start(self, unit: Unit, verdicts: Verdicts, fresh: bool, *, alone: bool = False) -> None:
        """Start a unit."""
        super().start(unit, verdicts, fresh, alone=alone)
        self.running[unit] = time.monotonic()

    def wait(self) -> Event:
        """Return the next event."""
        event = super().wait()
        if event.unit is not None and event.kind in ("done", "died", "timeout", "again"):
            began_s = self.running.pop(event.unit, None)
            if event.kind == "done" and began_s is not None:
                took_s = time.monotonic() - began_s
                self._finished += 1
                self.longest_s = max(self.longest_s, took_s)
                self.mean_s += (took_s - self.mean_s) / self._finished
        return event

    def stop(self, unit: Unit, item: int) -> bool:
        """End the worker that is at an item."""
        stopped = super().stop(unit, item)
        if stopped:
            self.running.pop(unit, None)
        return stopped

    def close(self) -> None:
        """End all workers."""
        super().close()
        self.running.clear()


class BlockClaimer:
    """Claims blocks of tasks while workers are idle. Use as a context manager, which releases unfinished blocks.

    Parameters
    ----------
    tasks : int
        Number of tasks of the plan.
    is_done : callable
        Returns whether a task is done already, given its number and whether this is the first claim to its block.
    claims : Claims
        Claims to the blocks.
    left_s : callable
        Returns the seconds left to this agent.
    check : callable
        Called before each claim. Raises if the agent must end; returns whether its lease had expired meanwhile, so that
        others may have taken its blocks.

    Attributes
    ----------
    stopping : bool
        Whether no more blocks are claimed, since the time is nearly up.
    """

    def __init__(
        self,
        tasks: int,
        is_done: Callable[[int, bool], bool],
        claims: Claims,
        observer: Observer,
        engine: TimedEngine,
        workers: int,
        left_s: Callable[[], float],
        check: Callable[[], bool],
    ) -> None:
        self._tasks = tasks
        self._is_done = is_done
        self._size = block_size(tasks)
        self._claims = claims
        self._observer = observer
        self._engine = engine
        self._workers = workers
        self._left_s = left_s
        self._check = check
        self._next = random.randrange(max(1, count_blocks(tasks)))  # noqa: S311 -- no secret
        self._missing: dict[int, set[int]] = {}
        self._look_s = 0.0
        self.stopping = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._claims.give_back(list(self._claims.held))

    def run(self, schedule: Schedule) -> bool:
        """Run tasks until all agents are done or the time is nearly up; return whether all are done."""
        self._claims.look()
        while not self._claims.all_done:
            schedule.run((), self._more)
            if self.stopping:
                return self._claims.all_done
            if not self._claims.all_done:
                time.sleep(max(0.0, self._look_s - time.monotonic()))
        return True

    def take(self, event: Event, schedule: Schedule) -> None:
        """Record a finished task, and stop claiming if the time is nearly up."""
        if event.ends_task and event.unit is not None:
            block = event.unit.number // self._size
            missing = self._missing.get(block)
            if missing is not None:
                missing.discard(event.unit.number)
                if not missing:
                    del self._missing[block]
                    self._claims.finish(block)
        if not self.stopping and not self._fits():
            self.stopping = True
            schedule.withdraw()

    def _more(self) -> list[Unit]:
        if self.stopping or time.monotonic() < self._look_s:
            return []
        lost = self._check()
        self._claims.look()
        if lost:
            self._claims.forget()
            self._missing = {block: self._missing[block] for block in self._claims.held}
        self._observer.look()
        blocks = self._choose(self._claims.fresh())
        if not blocks:
            blocks = self._claims.freed(self._observer)[: self._enough(math.inf)]
        units = [unit for block in blocks if self._claims.take(block) for unit in self._open(block)]
        if not units:
            self._look_s = time.monotonic() + PAUSE_S
        return units

    def _fits(self) -> bool:
        """Return whether there is time for another unit that takes as long as the longest so far."""
        return self._left_s() > self._engine.longest_s

    def _choose(self, fresh: list[int]) -> list[int]:
        """Choose consecutive blocks. Agents begin at random places, so that they seldom choose the same blocks."""
        if not fresh:
            return []
        at = bisect.bisect_left(fresh, self._next)
        chosen = [fresh[(at + i) % len(fresh)] for i in range(min(self._enough(len(fresh)), len(fresh)))]
        self._next = chosen[-1] + 1
        return chosen

    def _enough(self, fresh: float) -> int:
        """Return the number of blocks that keep the workers busy for a while; near the end, at most a fair share."""
        idle, mean_s = max(1, self._engine.idle()), self._engine.mean_s
        if not mean_s:
            return -(-idle // self._size)
        seconds = max(0.0, min(BATCH_S, self._left_s()))
        fair = fresh * self._size / (2 * max(1, len(self._observer.at_work())))
        return math.ceil(max(idle, min(self._workers * seconds / mean_s, fair)) / self._size)

    def _open(self, block: int) -> list[Unit]:
        """Return the unfinished tasks of a claimed block. A block without any is marked as finished."""
        first = self._claims.held[block] == 1
        numbers = range(block * self._size, min(self._tasks, (block + 1) * self._size))
        missing = [number for number in numbers if not self._is_done(number, first)]
        if missing:
            self._missing[block] = set(missing)
        else:
            self._claims.finish(block)
        return [Unit("task", number) for number in missing]


class TimeLimit:
    """The end of an agent's time, by this host's monotonic clock.

    Parameters
    ----------
    minutes : float or "auto"
        Minutes from now; ``"auto"`` for Slurm's limit, or no limit outside Slurm.
    """

    def __init__(self, minutes: str | float = "auto", environment: Mapping[str, str] | None = None) -> None:
        if minutes == "auto":
            seconds = _of_slurm(os.environ if environment is None else environment)
        else:
            seconds = _parse_minutes(minutes) * 60
        margin_s = 0.0 if seconds is None else min(MARGIN_S, seconds / 20)
        self._end_s = math.inf if seconds is None else time.monotonic() + seconds - margin_s

    @property
    def left_s(self) -> float:
        """Seconds left for work; infinite without a limit."""
        return self._end_s - time.monotonic()


def parse_left(text: str) -> float | None:
    """Parse the output of ``squeue`` for ``%L``, ``[[days-]hours:]minutes:seconds``; None for no limit.

    Of several lines, the shortest time counts.
    """
    found = []
    for match in filter(None, (_LEFT.match(line.strip()) for line in text.splitlines())):
        days, hours, minutes, seconds = (int(group or 0) for group in match.groups())
        found.append(float(((days * 24 + hours) * 60 + minutes) * 60 + seconds))
    return min(found, default=None)


def _of_slurm(environment: Mapping[str, str]) -> float | None:
    """Return the seconds until Slurm's limit; None without a limit."""
    # Slurm may report the whole array for the number of one element.
    job = slurm_job(environment)
    if not job:
        return None
    end = environment.get("SLURM_JOB_END_TIME", "")
    if end.isdecimal():
        return max(0.0, int(end) - time.time())
    try:
        return parse_left(run_slurm("squeue", "--noheader", "--jobs", job, "--format=%L"))
    except BuildError:
        return None


def _parse_minutes(minutes: str | float) -> float:
    try:
        found = float(minutes)
    except (TypeError, ValueError):
        found = math.nan
    if isinstance(minutes, bool) or not math.isfinite(found) or found <= 0:
        raise UsageError(option="time_limit", expected="'auto' or minutes, more than 0", found=shorten(minutes))
    return found
