"""The stage of the tasks: run every unfinished task, and read the result of each as it ends."""

import time
from typing import Any

from packer.jobs.engines.base import Event
from packer.jobs.plan import JobPlan, JobSettings, TaskResults, Unit
from packer.jobs.progress import ProgressListener, Stage
from packer.jobs.schedule import ItemTally
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
    tally = ItemTally(plan.tasks)
    with Stage(listener, settings.stage, items, f"{settings.item}s", done) as stage:
        results.read(results.finished)

        def on_event(event: Event) -> None:
            reasons = [ended.reason for ended in event.ends if ended.rejected]
            gain, frames = tally.take(event), event.frames if event.kind == "tick" else None
            stage.advance(*gain, size=event.result.get("bytes", 0), reasons=reasons, frames=frames)
            failed = next((ended for ended in event.ends if ended.rejected), None)
            if failed is not None and not rejects:
                assert event.unit is not None
                task = plan.tasks[event.unit.number]
                raise failed_item(item_name(space.items, task, failed.item), failed.reason)
            made = []
            if event.kind == "done" and event.unit is not None:
                append_line(space.journal, done_line(event))
                if event.unit.do in ("task", "join"):
                    made.append(event.unit.number)
            results.read(made)

        units = [Unit("task", number) for number in missing]
        announced = _announce(settings, items, done)
        workers.run(units, on_event, shares_detector=settings.shares_detector, announced=announced)


def _announce(settings: JobSettings, items: int, done: int) -> str:
    if not settings.target:
        return ""
    before = f" ({done} of them before)" if done else ""
    return f"{settings.stage}: {counted(items, settings.item)}{before} into {settings.target}"


def done_line(event: Event) -> dict[str, Any]:
    """Return the journal's line about a finished unit."""
    assert event.unit is not None
    unit, at_s = event.unit, round(time.time(), 2)
    return {"did": unit.do, "number": unit.number, "at_s": at_s, **event.result}


def failed_item(item: str, why: str) -> BuildError:
    """Return the error for an item that yielded no sample, if rejects end the job."""
    return BuildError(f"item {item!r} gave no sample, and --on-error is fail: {why}")
