"""``packer.work``: an agent that works on a submitted build, together with other agents on any hosts."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import add
from pathlib import Path
from types import FrameType
from typing import Any

from packer.builds.job import shares_detector
from packer.builds.planning.plan import BuildPlan
from packer.cluster.claiming import BlockClaimer, TimedEngine, TimeLimit
from packer.jobs.engines.base import Event
from packer.jobs.hosts.base import UNTIL_INPUT_ENDS
from packer.jobs.progress import ProgressListener, Stage, listener_of
from packer.jobs.result import Result
from packer.jobs.schedule import CountChange, Schedule, describe_lost
from packer.jobs.stages import TaskEvents
from packer.recipe import Recipe
from packer.recipe.engines import WorkerSettings, count_workers, has_core_to_spare
from packer.recipe.options import BuildOptions
from packer.sources.item import item_name
from packer.workspace import Workspace
from packer.workspace.agents import Claims, count_blocks, describe_closed, read_terms
from packer.workspace.durable import read_record, writing
from packer.workspace.folder import committed, output_folder
from packer.workspace.leases import Agent, Lease, Observer
from packer.workspace.machines import enter_plan
from shardspec.errors import BuildError, UsageError
from shardspec.layout import BUILD_FOLDER, Layout
from shardspec.wording import counted, program

ENGINE = "processes"
_SHOWN = 8


@dataclass(frozen=True, repr=False)
class WorkResult(Result):
    """Summary of an agent's work.

    Attributes
    ----------
    path : Path
        The dataset's folder.
    tasks, items, samples, rejected : int
        Work that this agent has finished.
    ended : str
        Why the agent ended: ``"nothing is left"``, ``"the time is up"``, ``"the build is finished"``, or the process
        that has taken the build over.
    """

    path: Path
    tasks: int
    items: int
    samples: int
    rejected: int
    ended: str

    def describe(self) -> str:
        """Return one line with the work done and the reason for the end."""
        done = [counted(self.tasks, "task"), counted(self.items, "item"), f"{self.rejected} rejected"]
        return f"{self.path}: {', '.join(done)}; ended: {self.ended}"

    def to_json(self) -> dict[str, Any]:
        """Return the attributes as JSON."""
        return {**vars(self), "path": str(self.path)}


class _OverError(Exception):
    """Raised to end the agent in order; the message is the reason."""


def work(
    out: str | os.PathLike[str],
    *,
    workers: str | int = "auto",
    time_limit: str | float = "auto",
    progress: bool | ProgressListener = True,
) -> WorkResult:
    """Work on a submitted build, together with other agents, until nothing is left or the time is up.

    SIGUSR1 ends the agent at once. Its finished work is kept.

    Parameters
    ----------
    out : path
        Folder of the dataset, with the plan that `submit` has written.
    workers : int or "auto"
        Number of worker processes.
    time_limit : float or "auto"
        Minutes that the agent may run; ``"auto"`` for the limit of its Slurm job, or no limit outside Slurm.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    WorkResult

    Raises
    ------
    UsageError
        If the call is invalid, or the folder holds no submitted build.
    BuildError
        If this agent cannot continue. Other agents may continue.
    """
    limit, target = TimeLimit(time_limit), output_folder(out)
    listener = listener_of(progress)
    if os.environ.pop(UNTIL_INPUT_ENDS, ""):
        _end_with_input()
    space = Workspace(target / BUILD_FOLDER)
    document = _read_plan(space)
    terms = None if document is None else read_terms(space)
    if document is None or terms is None or "closed" in terms:
        return WorkResult(target, 0, 0, 0, 0, _why_closed(space, document, terms))
    options = BuildOptions(workers=workers, **terms["options"])
    agent = Agent.here()
    space, document = enter_plan(space.of_plan(document["fingerprint"]).of_owner(agent.name))
    return _AgentRun(space, document, agent, options, limit, listener).run()


def _end_with_input() -> None:
    """End this process in order when its standard input ends, because its starter has died or closed the input."""
    requests = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def read() -> None:
        while os.read(requests, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=read, name="input", daemon=True).start()


def _read_plan(space: Workspace) -> dict[str, Any] | None:
    try:
        document = read_record(space.plan)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if document["kind"] != "build":
        raise UsageError(
            place=space.out, expected="a submitted build", found=f"a {document['kind']}", hint="run its command again"
        )
    return document


def _why_closed(space: Workspace, document: Mapping[str, Any] | None, terms: Mapping[str, Any] | None) -> str:
    """Return why there is no work for an agent.

    Raises
    ------
    UsageError
        If the build was never submitted.
    """
    if document is None and committed(Layout(space.out)) is not None:
        return "the build is finished"
    if terms is None or document is None:
        found = "a build that was not" if document is not None else "a file" if space.out.is_file() else "no build"
        raise UsageError(
            place=space.out, expected="a submitted build", found=found, hint=f"{program()} submit SOURCE {space.out}"
        )
    return describe_closed(terms["closed"])


class _AgentRun:
    def __init__(
        self,
        space: Workspace,
        document: Mapping[str, Any],
        agent: Agent,
        options: BuildOptions,
        limit: TimeLimit,
        listener: ProgressListener,
    ) -> None:
        self._document = document
        self._plan = BuildPlan.from_json(document)
        self._tasks = self._plan.tasks
        self._options = options
        self._limit = limit
        self._listener = listener
        self._agent = agent
        self._space = space
        self._observer = Observer(self._space.agents)
        self._engine: TimedEngine | None = None
        self._items: dict[int, int] = {}
        self._workers = 0
        self._asked = False
        self._failed = ""
        self._done = 0
        self._gained = CountChange(0, 0, 0)

    def run(self) -> WorkResult:
        space = self._space
        self._lease = Lease(space.agents, self._agent, self._watch)
        try:
            with writing(space.out), _asked_to_end(self._ask), self._lease:
                try:
                    why = self._work()
                except _OverError as over:
                    why = str(over)
                except (BuildError, FileNotFoundError) as error:
                    why = self._why_gone()
                    if not why:
                        self._lease.end(f"failed: {error}")
                        raise
                self._lease.end(why)
        except FileNotFoundError:
            why = self._why_gone()
            if not why:
                raise
        items, samples, rejected = self._gained
        return WorkResult(space.out, self._done, items, samples, rejected, why)

    def _work(self) -> str:
        """Run tasks until none is left or the time is up, and return why this agent ends."""
        self._space.logs.mkdir()
        self._check()
        if self._space.assembly.exists():
            return "nothing is left"
        options, count = self._options, len(self._tasks)
        recipe = Recipe.from_options(self._plan.recipe)
        workers = self._workers = count_workers(options.workers, recipe.preset, count)
        shares = shares_detector(recipe, options)
        engine = TimedEngine(
            self._space, WorkerSettings(workers, options.item_timeout, shares or has_core_to_spare(workers), shares)
        )
        claims = Claims(self._space.claims, self._agent.name, "task", count_blocks(count))
        claimer = BlockClaimer(
            count,
            self._make_is_done(),
            claims,
            self._observer,
            engine,
            workers,
            lambda: self._limit.left_s,
            self._check,
        )
        self._listener.on_message(f"packing: agent {self._agent.name}, with {counted(workers, 'worker')}")
        self._engine = engine
        try:
            with claimer, Stage(self._listener, "packing", None, "items") as stage:
                try:
                    done = self._run_tasks(engine, claimer, stage)
                finally:
                    engine.close()
        finally:
            self._engine = None
        return "nothing is left" if done else "the time is up"

    def _run_tasks(self, engine: TimedEngine, claimer: BlockClaimer, stage: Stage) -> bool:
        """Run tasks, and return whether the tasks of all agents are done."""
        events = TaskEvents(self._tasks, self._space, stage, rejects=self._options.on_error != "fail")

        def on_event(event: Event) -> None:
            if lost := describe_lost(event, self._space, self._tasks):
                self._listener.on_message(lost)
            self._note(event)
            try:
                self._gained = CountChange(*map(add, self._gained, events.take(event)))
            except BuildError as error:
                self._failed = str(error)
                raise
            self._done += event.ends_task
            claimer.take(event, schedule)

        schedule = Schedule(engine, self._space, self._tasks, on_event, self._options.item_timeout)
        return claimer.run(schedule)

    def _make_is_done(self) -> Callable[[int, bool], bool]:
        """Return a function that tells whether a task is done. It looks up as few files as possible."""
        space = self._space
        before = {path.name for path in space.part_files()}
        # Looking up each file would cost a shared file system as much as the claims do.
        return lambda number, first: space.part(number).name in before or (not first and space.part(number).exists())

    def _note(self, event: Event) -> None:
        """Record which items are under way, and end the agent if necessary."""
        if event.unit is not None:
            if event.kind == "start" and event.item is not None:
                self._items[event.unit.number] = event.item
            elif event.kind not in ("start", "items"):
                self._items.pop(event.unit.number, None)
        self._heed()

    def _heed(self) -> None:
        """Raise if the agent was asked to end, its time is up, or the build is gone."""
        if self._asked:
            raise _OverError("it was asked to")
        if self._limit.left_s <= 0:
            raise _OverError("the time is up")
        if self._lease.gone:
            raise _OverError(self._why_gone() or "the build is gone")

    def _check(self) -> bool:
        """Raise if this agent must end; return whether its lease had expired since the last call."""
        self._heed()
        why = self._why_gone()
        if why:
            raise _OverError(why)
        for agent in self._observer.agents:
            if agent.failed:
                raise BuildError(f"{agent.failed} (found by {agent.describe()})")
        lost, self._lease.lost = self._lease.lost, False
        return lost

    def _why_gone(self) -> str:
        """Return why the build is no longer open to this agent; empty if it is open."""
        space = self._space
        terms = read_terms(space)
        if terms is not None and "closed" in terms:
            return describe_closed(terms["closed"])
        if terms is not None and space.claims.is_dir() and space.agents.is_dir():
            return ""
        with suppress(BuildError):
            if not space.plan.exists() and committed(Layout(space.out)) is not None:
                return "the build is finished"
        return "the build was removed, or started again"

    def _ask(self) -> None:
        self._asked = True

    def _watch(self) -> dict[str, Any]:
        """Return the changed attributes of this agent; called by the thread that renews the lease."""
        engine = self._engine
        units = [] if engine is None else list(engine.running)[:_SHOWN]
        doing = []
        for unit in units:
            item = self._items.get(unit.number)
            named = ""
            if item is not None:
                with suppress(OSError, ValueError, IndexError):
                    named = f": {item_name(self._space.items, self._tasks[unit.number], item)}"
            doing.append(f"{unit.do} {unit.number}{named}")
        more = 0 if engine is None else len(engine.running) - len(units)
        doing += [f"and {more} more"] if more > 0 else []
        return {"doing": tuple(doing), "workers": self._workers, "failed": self._failed, "tasks": self._done}


@contextmanager
def _asked_to_end(ask: Any) -> Iterator[None]:
    """Let SIGUSR1 end the agent inside the block, if the system has the signal and this is the main thread."""
    number = getattr(signal, "SIGUSR1", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(_number: int, _frame: FrameType | None) -> None:
        ask()

    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before)
