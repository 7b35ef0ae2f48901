"""The stage of the tasks: run every unfinished task, and read the result of each as it ends."""

import time
from collections.abc import Sequence

from packer.jobs.engines.base import Event
from packer.jobs.plan import JobPlan, JobSettings, Task, TaskResults, Unit
from packer.jobs.progress import ProgressListener, Stage
from packer.jobs.schedule import Gain, ItemTally
from packer.jobs.workers import Workers
from packer.sources.item import item_name
from packer.workspace import Workspace, append_line
from shardspec.errors import BuildError
from shardspec.wording import counted


def run_tasks(
    plan: JobPlan,
    space: Workspace,
    workers: Workers,
    listener: ProgressListener,
    results: TaskResults,
    *,
    rejects: bool,
) -> None:
    """Run every unfinished task.

    Parameters
    ----------
    rejects : bool
        Whether items may be rejected; otherwise the first reject ends the job.

    Raises
    ------
    BuildError
        If the job cannot continue.
    """
    missing = [number for number in range(len(plan.tasks)) if number not in results.finished]
    if not plan.tasks:
        return
    settings = plan.settings
    items = sum(task.stop - task.start for task in plan.tasks)
    done = items - sum(plan.tasks[number].stop - plan.tasks[number].start for number in missing)
    with Stage(listener, settings.stage, items, f"{settings.item}s", done) as stage:
        results.read(results.finished)
        events = TaskEvents(plan.tasks, space, stage, rejects=rejects)

        def on_event(event: Event) -> None:
            events.take(event)
            results.read([event.unit.number] if event.ends_task and event.unit is not None else [])

        units = [Unit("task", number) for number in missing]
        announced = _announce(settings, items, done)
        workers.run(units, on_event, shares_detector=settings.shares_detector, announced=announced)


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

    def take(self, event: Event) -> Gain:
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
    """Return the error for an item that yielded no sample, if rejects end the job."""
    return BuildError(f"item {item!r} gave no sample, and --on-error is fail: {why}")
