"""The whole build: plan, work, assemble, commit; and the resume, which is the same call again."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from packer.assembly.index import write_index
from packer.assembly.plan import Piece, plan_assembly, shuffled
from packer.builds.listing import describe_repeats, list_items
from packer.builds.part import Part
from packer.builds.parts import SchemaSettler, choose_columns, describe_rows, settled_reports
from packer.builds.plan import Plan, describe_made, describe_mismatch, is_storable, make_plan
from packer.builds.provenance import describe_runtime
from packer.builds.reports import ReportWriter
from packer.builds.work import Work
from packer.jobs.engines.base import Event
from packer.jobs.item_tally import ItemTally
from packer.jobs.job import JobResult, JobSession
from packer.jobs.progress import Progress
from packer.jobs.units import Unit
from packer.recipe import Recipe
from packer.recipe.options import BuildOptions
from packer.recipe.resources import has_core_to_spare
from packer.sources.base import Listing, Source
from packer.sources.item import Item, ItemReport, item_name
from packer.steps.chain import Step, check_steps
from packer.steps.encode import image_codec
from packer.steps.equipment import Equipment
from packer.vision.decode.restart_markers import LEAST_AREA
from packer.workspace import read_lines
from packer.workspace.durable import write_durably
from packer.workspace.folder import locked
from shardspec.entries import Counts, Generation, Shard
from shardspec.errors import BuildError, TooManyRejectsError, UsageError
from shardspec.layout import INDEX_FOLDER, ITEMS_NAME, REJECTS_NAME
from shardspec.manifest import Manifest
from shardspec.plurals import counted
from shardspec.points import LAYOUTS

_SHOWN_REASONS = 3
_COUNTS_NAME = "counts.json"


@dataclass(frozen=True, repr=False)
class BuildResult(JobResult):
    """What a build made.

    Attributes
    ----------
    marked : int or None
        Samples whose picture has restart markers; None where the recipe asks for none, or all was finished already.
    """

    marked: int | None = None

    def describe(self) -> str:
        """See `JobResult`; and what progressive JPEGs, and JPEGs without the restart markers that were asked for, mean for reading."""
        return f"{super().describe()}{self._describe_progressive()}{self._describe_marked()}"

    def _contents(self) -> str:
        """With what became of the items."""
        counts = self.counts
        lost = [f"{counts.rejected_items} rejected"]
        if counts.damaged_items:
            lost.append(f"{counts.damaged_items} packed only in part, since they are damaged")
        if counts.frames_without_sample:
            lost.append(f"{counted(counts.frames_without_sample, 'frame')} without a sample")
        return f"{super()._contents()} from {counts.packed_items} of {counted(counts.items, 'item')}, {', '.join(lost)}"

    def _describe_progressive(self) -> str:
        count, stored = self.counts.progressive_jpegs, self.manifest.generations[-1].recipe.get("progressive")
        if not count:
            return ""
        pictures = counted(self.counts.samples, "picture")
        if stored == "baseline":
            return f"\n{count} of {pictures} came as progressive JPEGs: stored as baseline, without loss"
        return (
            f"\n{count} of {pictures} came as progressive JPEGs, and stored as they are they decode about three "
            "times slower in every epoch than baseline ones, which --progressive baseline makes of them without loss"
        )

    def _describe_marked(self) -> str:
        if self.marked is None or self.marked == self.counts.samples:
            return ""
        return (
            f"\nrestart markers: in {self.marked} of {counted(self.counts.samples, 'picture')}, since a JPEG whose bytes are kept stays as "
            f"it came (a --size would have it encoded), and pictures of less than {LEAST_AREA:,} pixels get none"
        )

    @property
    def counts(self) -> Counts:
        """What became of the items."""
        return self.manifest.generations[-1].counts


class Job:
    """One build into one folder.

    Parameters
    ----------
    source : Source
    out : Path
    recipe : Recipe
    options : BuildOptions
    functions : dict of str to callable
        Steps passed as Python functions, by the name that stands in the recipe.
    shown : bool
        Whether progress is shown on standard error.
    """

    def __init__(
        self,
        source: Source,
        out: Path,
        recipe: Recipe,
        options: BuildOptions,
        functions: Mapping[str, Step] | None = None,
        shown: bool = True,
    ) -> None:
        self._source = source
        self._recipe = recipe
        self._options = options
        self._functions = functions or {}
        self._session = JobSession(out, recipe.preset, options, shown=shown)
        self._workspace = self._session.workspace
        self._live: dict[int, Item] = {}

    def run(self) -> BuildResult:
        """Build, or go on with an unfinished build, or find that it is done.

        Raises
        ------
        UsageError, ResumeMismatchError
            The folder holds something else than an unfinished or finished build of this plan.
        BuildError
            The build cannot go on. Running it again resumes.
        TooManyRejectsError
            It is finished, with more rejects than allowed.
        """
        check_steps(self._recipe, self._functions)
        self._shares_detector()
        listing = list_items(self._source, self._recipe)
        plan, lines = make_plan(self._recipe, describe_runtime(self._recipe), listing)
        self._keep_live(listing)
        finished = self._session.find_finished(plan)
        if finished is None and (repeats := describe_repeats(listing.items[: self._recipe.limit])):
            self._session.say(repeats)
        del listing  # the plan's file has the items, and may have millions
        result = self._enter(plan, lines) if finished is None else self._found(finished)
        self._check_rejects(result)
        return result

    def _enter(self, plan: Plan, lines: list[str]) -> BuildResult:
        """Take up the folder, and do what is not done yet."""
        with locked(self._workspace):
            finished = self._session.enter(
                plan,
                lines,
                lambda old: self._describe(old, plan, lines),
                lambda made: self._describe_made(made, plan, lines),
            )
            lines.clear()  # in the plan's file from here on
            return self._make(plan) if finished is None else self._found(finished)

    def _found(self, finished: Manifest) -> BuildResult:
        return BuildResult(self._session.layout.root, finished, resumed=True, found_finished=True)

    def _make(self, plan: Plan) -> BuildResult:
        """Do what is not done yet."""
        if not self._workspace.assembly.exists():
            self._work(plan)
            self._plan_assembly(plan)
        return self._commit(plan, self._session.write_shards(lambda: self._inline_work(plan)))

    def _keep_live(self, listing: Listing) -> None:
        """Hold on to items that only this process has."""
        self._live = {item.index: item for item in listing.items if not is_storable(item)}
        if self._live or self._functions:
            what = "arrays in the source" if self._live else "steps passed as functions"
            if self._options.engine != "inline":
                raise UsageError(
                    f"{what} need engine='inline', or a 'module:function' name that worker processes can import"
                )

    def _describe(self, old: Mapping[str, Any], plan: Plan, lines: list[str]) -> str:
        before = self._workspace.items.read_text("ascii").splitlines()
        return describe_mismatch(Plan.from_json(old), plan, before, lines)

    def _describe_made(self, made: Manifest, plan: Plan, lines: list[str]) -> str:
        reports = self._session.layout.items
        before = [str(line.get("item")) for line in read_lines(reports)] if reports.exists() else None
        return describe_made(made, before, plan, lines)

    def _inline_work(self, plan: Plan) -> Work:
        equipment = Equipment(decodes_ahead=has_core_to_spare(1))
        return Work(self._workspace, plan, self._functions, self._live, equipment=equipment)

    def _work(self, plan: Plan) -> None:
        """Run every task that has no part yet."""
        missing = [number for number in range(len(plan.tasks)) if not self._workspace.part(number).exists()]
        done = plan.items - sum(plan.tasks[number].stop - plan.tasks[number].start for number in missing)
        tally = ItemTally()
        with Progress("packing", plan.items, "items", shown=self._session.shown, done=done) as progress:

            def on_event(event: Event) -> None:
                progress.advance(*tally.take(event))
                if event.kind == "item" and not event.samples and self._options.on_error == "fail":
                    assert event.unit is not None
                    assert event.item is not None
                    name = item_name(self._workspace.items, plan.tasks[event.unit.number], event.item)
                    self._check_reject(name, event.message)
                if event.kind == "done" and event.unit is not None:
                    self._session.note_done(event)

            before = f" ({done} of them before)" if done else ""
            self._session.run_units(
                lambda: self._inline_work(plan),
                plan.tasks,
                [Unit("task", number) for number in missing],
                on_event,
                shared_detector=self._shares_detector(),
                announced=f"packing: {counted(plan.items, 'item')}{before} into {self._recipe.format} shards",
            )

    def _shares_detector(self) -> bool:
        """Whether one process detects for all workers: asked for, or by default where the detector needs a device of its own."""
        detects = self._recipe.boxes is None and any(step.use == "faces" for step in self._recipe.chain)
        asked, can = self._options.shared_detector, os.name == "posix"
        if asked is None:
            return detects and can and self._recipe.device != "cpu" and self._options.engine == "processes"
        if asked and not (detects and can):
            found = "none in these steps" if can else f"an operating system without them ({os.name})"
            raise UsageError(f"shared_detector: expected a detector, and Unix sockets, found {found}")
        return asked

    def _plan_assembly(self, plan: Plan) -> None:
        """Settle the schema, write reports and index, cut the shards. The assembly plan is written last."""
        space = self._workspace
        parts = [space.part(number) for number in range(len(plan.tasks))]
        columns = choose_columns(map(Part, parts))
        layouts = {len(layout.names): name for name, layout in LAYOUTS.items()}
        settler = SchemaSettler(columns, image_codec(self._recipe), plan.classes, layouts)
        rows = []
        with ReportWriter(space.final / REJECTS_NAME, space.final / ITEMS_NAME) as reports:
            for part in map(Part, parts):
                reports.add(self._check_reports(settled_reports(part, columns)))
                rows.append(settler.add(part))
            counts = reports.counts(plan.ignored)
        counted_up = {"counts": counts.to_json(), "marked": reports.marked if self._recipe.restart_markers else None}
        write_durably(space.root / _COUNTS_NAME, json.dumps(counted_up).encode())
        if not counts.samples:
            reasons = list(islice(read_lines(space.final / REJECTS_NAME), _SHOWN_REASONS))
            shown = "; ".join(f"{line['item']!r}, {line['step']}: {line['reason']}" for line in reasons)
            # Nothing is worth a resume: the call that mends this has another plan, which what is here would only refuse.
            space.give_up(space.final / REJECTS_NAME)
            raise TooManyRejectsError(
                f"no item gave a sample ({counts.items} in all), so nothing was packed: {shown} (all reasons: {space.reasons})"
            )
        config = describe_rows(columns, rows, settler.settle())
        order = None if self._recipe.shuffle is None else shuffled(counts.samples, self._recipe.shuffle)
        pieces = [Piece(counts.samples, self._recipe.shard_size)]
        assembly = plan_assembly(space, config, self._recipe.format, pieces, order)
        write_index(assembly.source, assembly.order, space.final / INDEX_FOLDER)
        assembly.save()

    def _check_reports(self, reports: Iterable[ItemReport]) -> Iterator[ItemReport]:
        for report in reports:
            if not report.samples:
                self._check_reject(report.name, f"{report.step}: {report.reason}")
            yield report

    def _check_reject(self, item: str, why: str) -> None:
        if self._options.on_error == "fail":
            raise BuildError(f"item {item!r} gave no sample, and --on-error is fail: {why}")

    def _commit(self, plan: Plan, shards: tuple[Shard, ...]) -> BuildResult:
        found = json.loads((self._workspace.root / _COUNTS_NAME).read_bytes())
        generation = Generation(
            "build", plan.fingerprint, plan.told_recipe, plan.runtime, Counts(**found["counts"]), shards
        )
        manifest = self._session.commit([generation], {"tasks_run": self._session.done("task", "join")})
        return BuildResult(self._session.layout.root, manifest, self._session.resumed, marked=found["marked"])

    def _check_rejects(self, result: BuildResult) -> None:
        counts = result.counts
        share = counts.rejected_items / counts.items
        if share > self._options.max_rejects:
            raise TooManyRejectsError(
                f"{result.path}: packed, but {counts.rejected_items} of {counted(counts.items, 'item')} ({share:.1%}) were rejected, "
                f"more than {self._options.max_rejects:.1%}: see {result.path / REJECTS_NAME}, or raise --max-rejects",
                result,
            )
