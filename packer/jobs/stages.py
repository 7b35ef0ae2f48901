"""The stages of a job, tasks and shards, and the workers that are reused from one stage to the next."""

import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing

from packer.assembly.plan import Merge, ShardPlan, merge_rows
from packer.assembly.shard import check_shard, published_shard
from packer.jobs.engines.base import Engine, Event
from packer.jobs.plan import PIECE, JobPlan, JobSettings, ResultReader, Task, Unit, WorkPlan
from packer.jobs.progress import ProgressListener, Stage
from packer.jobs.schedule import CountChange, ItemTally, Schedule, describe_lost
from packer.jobs.upload import Upload
from packer.recipe.engines import (
    ENGINES,
    WORKER_BYTES,
    ClusterSettings,
    WorkerSettings,
    count_workers,
    has_core_to_spare,
)
from packer.recipe.options import BuildOptions
from packer.sources.item import item_name
from packer.workspace import Workspace, append_line
from packer.workspace.durable import fsync_folder
from packer.workspace.paths import RECORD_NAME
from packer.workspace.shared_files import map_files
from shardspec.entries import Shard
from shardspec.errors import BuildError, Problems
from shardspec.registry import resolve
from shardspec.wording import counted

_WITH_MODELS = "faces"
"""The preset whose workers hold models. They end after a stage, so that the next stage can use their memory."""


class Workers:
    """The workers of one job, started when there is work for them.

    Parameters
    ----------
    on_message : callable
        Called with lines for the user.
    check : callable, optional
        Called before each event is handled; raises if the work must stop.
    """

    def __init__(
        self,
        plan: WorkPlan,
        space: Workspace,
        options: BuildOptions,
        on_message: Callable[[str], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._plan = plan
        self._space = space
        self._options = options
        self._on_message = on_message
        self._check = check
        self._engine: Engine | None = None
        self._size = 0

    def run(
        self,
        units: Iterable[Unit],
        count: int,
        on_event: Callable[[Event], None],
        *,
        shares_detector: bool = False,
        announced: str = "",
    ) -> None:
        """Run units, and report each lost worker in one line.

        The workers of one stage are reused in the next, unless they hold models or more workers are needed.

        Parameters
        ----------
        units : iterable of Unit
        count : int
            Their number.
        on_event : callable
            Called with each event.
        shares_detector : bool
            Whether one process runs the detector for all workers of a host.
        announced : str
            Start of the line that announces the work; empty for none.
        """
        if not count:
            return
        engine = self._engine_for(count, shares_detector)

        def report(event: Event) -> None:
            self._check()
            if lost := describe_lost(event, self._space, self._plan.tasks):
                self._on_message(lost)
            on_event(event)

        if announced:
            self._on_message(f"{announced} {engine.describe(count)}")
        try:
            Schedule(engine, self._space, self._plan.tasks, report).run(units)
        except BaseException:
            self.close()
            raise
        if self._plan.settings.preset == _WITH_MODELS:
            self.close()

    def close(self) -> None:
        """End the workers."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None

    def _engine_for(self, units: int, shares_detector: bool) -> Engine:
        """Return the open engine if it has enough workers, or else a new one."""
        workers = self._count_workers(units)
        if self._engine is None or self._size < workers:
            self.close()
            self._engine, self._size = self._open_engine(units, workers, shares_detector), workers
        return self._engine

    def _count_workers(self, units: int) -> int:
        entry, requested = ENGINES[self._options.engine], self._options.workers
        if entry.many_hosts:
            return 0  # the engine decides by what each node has
        return count_workers(requested, self._plan.settings.preset, units) if entry.many_workers else 1

    def _open_engine(self, units: int, workers: int, shares_detector: bool) -> Engine:
        options, settings, cluster = self._options, self._plan.settings, None
        # A worker that waits for the detecting process can decode meanwhile.
        ahead = shares_detector or has_core_to_spare(min(workers, units))
        if ENGINES[options.engine].many_hosts:
            in_all = None if options.workers == "auto" else int(options.workers)
            gpus = options.ray_gpus if settings.needs_gpus else 0
            worker_bytes = WORKER_BYTES[settings.preset]
            alone = bool(gpus) and settings.one_per_gpu
            cluster = ClusterSettings(options.ray_address, options.workers_per_node, in_all, worker_bytes, gpus, alone)
        team = WorkerSettings(workers, options.item_timeout, ahead, shares_detector, cluster)
        make = resolve("engine", options.engine, ENGINES)
        engine: Engine = make(self._space, lambda: self._plan.open_work(self._space), team)
        return engine


def run_tasks(
    plan: JobPlan,
    space: Workspace,
    workers: Workers,
    listener: ProgressListener,
    results: ResultReader,
    *,
    rejects: bool,
    chosen: Sequence[int] | None = None,
) -> None:
    """Run every unfinished task.

    Parameters
    ----------
    rejects : bool
        Whether items may be rejected; otherwise the first reject ends the job.
    chosen : sequence of int, optional
        The numbers of the tasks to run; by default all.

    Raises
    ------
    BuildError
        If the job cannot continue.
    """
    numbers = range(len(plan.tasks)) if chosen is None else chosen
    if not numbers:
        return
    missing = array("q", (number for number in numbers if number not in results.finished))
    settings, tasks = plan.settings, plan.tasks
    items, left = (sum(tasks[number].stop - tasks[number].start for number in some) for some in (numbers, missing))
    done = items - left
    with Stage(listener, settings.stage, items, f"{settings.item}s", done) as stage:
        results.read(results.finished)
        events = TaskEvents(tasks, space, stage, rejects=rejects)

        def on_event(event: Event) -> None:
            events.take(event)
            if space.remote is not None and event.unit is not None and PIECE in event.result:
                space.remote.pieces[event.unit.number] = event.result[PIECE]
            results.read([event.unit.number] if event.ends_task and event.unit is not None else [])

        units = (Unit("task", number) for number in missing)
        announced = _announce(settings, items, done)
        workers.run(units, len(missing), on_event, shares_detector=settings.shares_detector, announced=announced)


def _announce(settings: JobSettings, items: int, done: int) -> str:
    if not settings.target:
        return ""
    before = f" ({done} of them before)" if done else ""
    return f"{settings.stage}: {counted(items, settings.item)}{before} into {settings.target}"


class TaskEvents:
    """Counts, shows and journals what the items of tasks yield.

    Parameters
    ----------
    tasks : sequence of Task
    space : Workspace
    stage : Stage
        Shows the progress.
    rejects : bool
        Whether items may be rejected; otherwise the first reject ends the job.
    """

    def __init__(self, tasks: Sequence[Task], space: Workspace, stage: Stage, *, rejects: bool) -> None:
        self._tasks = tasks
        self._space = space
        self._stage = stage
        self._rejects = rejects
        self._tally = ItemTally(tasks)

    def take(self, event: Event) -> CountChange:
        """Take an event, and return the change that it causes.

        Raises
        ------
        BuildError
            If an item was rejected although none may be.
        """
        failed = [ended for ended in event.ends if ended.rejected]
        gain, frames = self._tally.take(event), event.frames if event.kind == "tick" else None
        reasons = [ended.reason for ended in failed]
        self._stage.advance(*gain, size=event.result.get("bytes", 0), reasons=reasons, frames=frames)
        unit = event.unit
        if failed and not self._rejects:
            assert unit is not None
            raise failed_item(item_name(self._space.items, self._tasks[unit.number], failed[0].item), failed[0].reason)
        if event.kind == "done" and unit is not None:
            line = {"did": unit.do, "number": unit.number, "at_s": round(time.time(), 2), **event.result}
            append_line(self._space.journal, line)
        return gain


def failed_item(item: str, why: str) -> BuildError:
    """Return the error for a rejected item in a job that allows no rejects."""
    return BuildError(f"item {item!r} gave no sample, and --on-error is fail: {why}")


def cut_into_shards(assemble: Callable[[], Merge], space: Workspace) -> ShardPlan:
    """Cut the rows of all tasks into shards, and write the reports, the index, and last the plan of the shards."""
    merge = assemble()
    with closing(merge.source):
        plan = merge_rows(merge, space)
    for folder in space.part_folders():  # no task runs again from here on, so the names of the pieces must be durable
        fsync_folder(folder)
    plan.save()
    return plan


def assemble_shards(
    plan: ShardPlan, workers: Workers, listener: ProgressListener, upload: Upload | None = None
) -> tuple[Shard, ...]:
    """Write the unfinished shards of a plan, and return all shards in order. Uploads may not have ended yet."""
    workspace, count = plan.workspace, len(plan.sizes)
    root = workspace.out
    shards: dict[int, Shard] = {}
    plan.staging.mkdir(exist_ok=True)

    def find(number: int) -> Shard | None:
        """Return a shard that an earlier call finished, unless its files have been damaged since."""
        published = plan.published(number)
        return check_shard(root, published) if upload is None else upload.place(published)

    placed = map_files(root, find, range(count))
    for number, shard in enumerate(placed):
        if shard is not None:
            shards[number] = shard
        else:
            workspace.take_away(plan.published(number))
    with Stage(listener, "writing", count, "shards", len(shards)) as stage:

        def on_event(event: Event) -> None:
            size = 0
            if event.kind == "done" and event.unit is not None:
                number = event.unit.number
                append_line(workspace.journal, {"did": "shard", "number": number})
                published = plan.published(number)
                if workspace.remote is not None:
                    shard = Shard.from_json(event.result, Problems())
                else:
                    workspace.promised(published / RECORD_NAME)
                    shard = published_shard(published) if upload is None else upload.place(published)
                if shard is None:
                    raise BuildError(
                        place=published,
                        expected="the files of a finished shard",
                        found="others",
                        hint="run the same command again to resume",
                    )
                shards[number] = shard
                size = shard.bytes
            stage.advance(int(event.kind == "done"), size=size)

        units = [Unit("shard", number) for number in range(count) if number not in shards]
        workers.run(units, len(units), on_event)
    return tuple(shards[number] for number in range(count))
