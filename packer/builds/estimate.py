"""``--dry-run``: plan a build, and estimate its time and size by packing a few items."""

import itertools
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from packer.assembly.piece import Piece, count_columns
from packer.builds.job import BuildRequest
from packer.builds.planning.listing import list_items
from packer.builds.planning.plan import BuildPlan, make_plan
from packer.builds.provenance import describe_runtime
from packer.builds.records import settled_reports
from packer.builds.update.base import find_base
from packer.builds.update.compare import UpdateCounts, compare
from packer.builds.work import BuildWork
from packer.jobs.plan import OnItem, Task, Unit
from packer.jobs.progress import ProgressListener, Stage, counted_stage
from packer.jobs.result import Result
from packer.recipe import Recipe
from packer.recipe.engines import count_workers, has_core_to_spare
from packer.sources.base import Listing
from packer.sources.item import PACKED_ROW, Item, sum_lines
from packer.steps.chain import Step, StepResources, check_steps
from packer.workspace import Workspace
from packer.workspace.folder import refuse_files
from shardspec.columns import evenly
from shardspec.wording import counted, cut

TRIED_ITEMS = 12
"""Items that are packed as a trial, at equal distances in the plan."""

_QUICK_S = 0.5
"""If packing takes less time than this, it is repeated and timed again, so that slow first calls do not count."""


@dataclass(frozen=True, repr=False)
class Estimate(Result):
    """Estimate of the time, space and output of a build.

    In an update, all numbers except `growth` are about the items to be packed.

    Attributes
    ----------
    plan : BuildPlan
    tried_items : int
        Number of items that were packed as a trial.
    tried_samples, tried_rejects : int
        Samples and rejects among these items.
    tried_reason : str or None
        Reason of the first reject.
    samples : int
        Estimated number of samples: those of the items tried, scaled by the number of items, like bytes and seconds.
    bytes : int
        Estimated encoded bytes of all samples. Until the shards are written, the parts take the same space again.
    seconds : float
        Estimated time with `workers`, without loading models.
    workers : int
    free_bytes : int
        Free space on the output's file system.
    notes : tuple of str
        Notes for the user about the source, one line each, for example about missing labels or ignored files.
    growth : UpdateCounts or None
        In an update, how the source compares with the dataset; None for a new dataset.
    copied_bytes : int
        Size of the dataset's shards if the update removes samples, since most of it is then copied; otherwise 0.
    """

    plan: BuildPlan
    tried_items: int
    tried_samples: int
    tried_rejects: int
    tried_reason: str | None
    samples: int
    bytes: int
    seconds: float
    workers: int
    free_bytes: int
    notes: tuple[str, ...] = ()
    growth: UpdateCounts | None = None
    copied_bytes: int = 0

    @property
    def fits(self) -> bool:
        """True if the parts and the shards together fit into the free space."""
        return 2 * self.bytes + self.copied_bytes < self.free_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the estimate as JSON, with the plan's recipe and counts."""
        values = {name: value for name, value in vars(self).items() if name not in ("plan", "growth")}
        values |= {} if self.growth is None else {"update": self.growth.to_json()}
        plan = self.plan
        counts = {"items": plan.items, "tasks": len(plan.tasks), "ignored_files": plan.ignored}
        return {**counts, **values, "fits": self.fits, "recipe": dict(plan.recipe), "fingerprint": plan.fingerprint}

    def describe(self) -> str:
        """Return the estimate as text for the user."""
        plan = self.plan
        options = plan.options.options_in_use()
        shown = {name: cut(_show(value), 200) for name, value in options.items() if value not in (None, [], False)}
        recipe = ", ".join(f"{name}={value}" for name, value in shown.items())
        reason = f" ({self.tried_reason})" if self.tried_reason else ""
        grown = "" if self.growth is None else f"items of the source: {self.growth.describe()}\n"
        noted = "".join(f"{line}\n" for line in self.notes)
        room = "fits" if self.fits else "DOES NOT FIT"
        copied = f" and {self.copied_bytes / 1e6:.1f} MB of copies" if self.copied_bytes else ""
        return (
            f"{grown}{counted(plan.items, 'item')} in {counted(len(plan.tasks), 'task')}, "
            f"{plan.ignored} ignored\n"
            f"{noted}recipe: {recipe}\n"
            f"tried {counted(self.tried_items, 'item')}: {counted(self.tried_samples, 'sample')}, "
            f"{counted(self.tried_rejects, 'reject')}{reason}\n"
            f"about {counted(self.samples, 'sample')}, {self.bytes / 1e6:.1f} MB packed (twice that{copied} while packing; "
            f"{self.free_bytes / 1e6:.0f} MB free: {room}), {self.seconds:.0f} s with {counted(self.workers, 'worker')}"
        )


def estimate(request: BuildRequest, listener: ProgressListener) -> Estimate:
    """Plan a build, and pack a few items into a temporary folder. Nothing is written to `request.out`."""
    out, recipe, options, functions = request.out, request.recipe, request.options, request.functions
    check_steps(recipe, functions)
    refuse_files(out)
    listing = list_items(request.source, recipe, listener)
    runtime = describe_runtime(recipe)
    comparison = compare(*find_base(request), listing, recipe, runtime, options) if options.grows else None
    if comparison is not None:
        listing = replace(comparison.listing, notes=(*listing.notes, *comparison.notes))
    count = len(listing.items[: recipe.limit])
    places, numbers, items = set(evenly(count, TRIED_ITEMS).tolist()), itertools.count(), list[Item]()

    def take(item: Item) -> None:
        if next(numbers) in places:
            items.append(item)

    with counted_stage(listener, "planning", count):
        plan, _ = make_plan(recipe, runtime, listing, observe=take)
    workers = min(count_workers(options.workers, recipe.preset, len(plan.tasks)), max(1, len(plan.tasks)))
    resources = StepResources(decodes_ahead=has_core_to_spare(workers))
    with Stage(listener, "trying", len(items), "items") as stage, tempfile.TemporaryDirectory() as folder:
        tried = _pack(items, recipe, plan, Path(folder), functions, resources, stage) if items else _Tried()
    factor = count / max(1, len(items))
    free = shutil.disk_usage(next(folder for folder in (out, *out.parents) if folder.exists())).free
    return Estimate(
        plan,
        tried.items,
        tried.samples,
        tried.rejects,
        tried.reason,
        round(tried.samples * factor),
        round(tried.bytes * factor),
        tried.seconds * factor / workers,
        workers,
        free,
        tuple(listing.notes),
        None if comparison is None else comparison.growth,
        0 if comparison is None else comparison.copied_bytes,
    )


def _show(value: Any) -> str:
    """Format the value of an option. Strings in a list are joined with commas."""
    plain = isinstance(value, list | tuple) and all(isinstance(entry, str) for entry in value)
    return ",".join(value) if plain else str(value)


class _Tried(NamedTuple):
    """Result of packing a few items as a trial."""

    items: int = 0
    samples: int = 0
    bytes: int = 0
    rejects: int = 0
    seconds: float = 0.0
    reason: str | None = None


def _pack(
    items: list[Item],
    recipe: Recipe,
    plan: BuildPlan,
    folder: Path,
    functions: Mapping[str, Step],
    resources: StepResources,
    stage: Stage,
) -> _Tried:
    """Pack items as a trial. The time for loading models does not count, nor, in a quick trial, slow first calls."""
    space = Workspace(folder / "build")
    space.create()
    items = [item._replace(index=index) for index, item in enumerate(items)]
    small, lines = make_plan(recipe, plan.runtime, Listing(items, classes=dict(plan.classes), arrays=plan.arrays))
    small = replace(small, tasks=[Task(0, len(items), 0, sum_lines(lines))])
    space.create_results(1)
    space.items.write_text("".join(lines), "ascii")
    ended: list[int] = []

    def on_item(what: str, _item: int, samples: int, _reason: str) -> None:
        if what == "end":
            ended.append(samples)

    with closing(BuildWork(space, small, functions, dict(enumerate(items)), resources=resources)) as work:
        work.prepare()
        seconds = _time(work, on_item)
        stage.advance(len(ended), sum(ended), ended.count(0))
        if seconds < _QUICK_S or PACKED_ROW in items[0].columns:  # opening shards takes longer than packing a row
            seconds = _time(work, on_item)
    piece = Piece(space.part(0))
    columns = dict(next(iter(count_columns(piece).most_common(1)), ((), 0))[0])
    rejected = [report for report in settled_reports(piece, columns) if not report.samples]
    reason = f"{rejected[0].name!r}, {rejected[0].step}: {rejected[0].reason}" if rejected else None
    rows = piece.group(columns)
    samples, size = (0, 0) if rows is None else (len(rows), rows.bytes)
    return _Tried(len(items), samples, size, len(rejected), seconds, reason)


def _time(work: BuildWork, on_item: OnItem) -> float:
    """Run the only task, and return the time in seconds."""
    started_s = time.perf_counter()
    work.run(Unit("task", 0), {}, on_item)
    return time.perf_counter() - started_s
