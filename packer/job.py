"""The whole build: plan, work, assemble, commit; and the resume, which is the same call again."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packer.assemble import AssemblyPlan, plan_assembly
from packer.commit import commit
from packer.durable import write_durably
from packer.encode import image_codec
from packer.engines.base import Engine, Event
from packer.engines.inline import InlineEngine
from packer.engines.processes import ProcessesEngine
from packer.folder import committed, discard, locked, make_room
from packer.index import write_index
from packer.item import Item
from packer.options import BuildOptions
from packer.part import Part
from packer.part_rows import SchemaSettler
from packer.pipeline import Step
from packer.plan import Plan, describe_mismatch, is_storable, make_plan
from packer.progress import Progress
from packer.recipe import Recipe
from packer.reports import ReportWriter
from packer.resources import count_workers
from packer.runtime import describe_runtime
from packer.schedule import Schedule
from packer.shard_stage import assemble_shards
from packer.sources.base import Listing, Source
from packer.work import Unit, Work
from packer.workspace import Workspace, append_line, read_lines
from shardspec.errors import BuildError, ResumeMismatchError, TooManyRejectsError, UsageError
from shardspec.layout import BUILD_FOLDER, INDEX_FOLDER, ITEMS_NAME, REJECTS_NAME, Layout
from shardspec.manifest import Counts, Generation, Manifest, Shard
from shardspec.points import LAYOUTS


@dataclass(frozen=True)
class BuildResult:
    """What a build made.

    Attributes
    ----------
    path : Path
        The dataset's folder.
    manifest : Manifest
    resumed : bool
        Whether some of the work had been done by an earlier call.
    """

    path: Path
    manifest: Manifest
    resumed: bool

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
        self._shown = shown
        self._layout = Layout(out)
        self._workspace = Workspace(out / BUILD_FOLDER)
        self._live: dict[int, Item] = {}
        self._sessions = 1
        self._started_s = time.time()

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
        listing = self._source.list_items(self._recipe.label_from, self._recipe.path_column)
        if not listing.items:
            raise UsageError(
                f"expected items to pack, found none ({listing.ignored} files are no pictures or videos by suffix)"
            )
        plan, lines = make_plan(self._recipe, describe_runtime(self._recipe), listing)
        self._keep_live(listing)
        with locked(self._workspace):
            finished = self._enter(plan, lines)
            if finished is not None:
                self._workspace.remove()
                return BuildResult(self._layout.root, finished, resumed=True)
            resumed = self._sessions > 1
            if not self._workspace.assembly.exists():
                self._work(plan)
                self._plan_assembly(plan)
            shards = self._assemble(plan)
            manifest = self._commit(plan, shards)
            self._workspace.remove()
        result = BuildResult(self._layout.root, manifest, resumed)
        self._check_rejects(result)
        return result

    def _keep_live(self, listing: Listing) -> None:
        """Hold on to items that only this process has."""
        self._live = {item.index: item for item in listing.items if not is_storable(item)}
        if self._live or self._functions:
            what = "arrays in the source" if self._live else "steps passed as functions"
            if self._options.engine != "inline":
                raise UsageError(
                    f"{what} need engine='inline', or a 'module:function' name that worker processes can import"
                )

    def _enter(self, plan: Plan, lines: list[str]) -> Manifest | None:
        """Take up the folder: a finished build of this plan is returned, an unfinished one resumed, else a new one planned."""
        space = self._workspace
        manifest = committed(self._layout)
        if (
            manifest is not None
            and not self._options.overwrite
            and manifest.generations[-1].fingerprint == plan.fingerprint
        ):
            return manifest
        if manifest is None and space.plan.exists():
            old = Plan.from_json(json.loads(space.plan.read_bytes()))
            if old.fingerprint == plan.fingerprint:
                space.sweep()
                self._sessions += sum(line.get("did") == "session" for line in read_lines(space.journal))
                append_line(space.journal, {"did": "session"})
                return None
            if not self._options.overwrite:
                difference = describe_mismatch(old, plan, space.items.read_text("ascii").splitlines(), lines)
                raise ResumeMismatchError(
                    f"{self._layout.root}: the unfinished build here was planned otherwise ({difference}): "
                    "run it as it was planned to resume it, or discard it with --overwrite"
                )
        make_room(self._layout, space, manifest, self._options.overwrite, "made by another plan")
        if space.items.exists():
            discard(space)
        write_durably(space.items, "".join(lines).encode("ascii"))
        write_durably(space.plan, json.dumps(plan.to_json()).encode())
        append_line(space.journal, {"did": "session"})
        return None

    def _engine(self, plan: Plan, units: int) -> Engine:
        if self._options.engine == "inline":
            return InlineEngine(Work(self._workspace, plan, self._functions, self._live))
        workers = count_workers(self._options.workers, self._recipe, units)
        return ProcessesEngine(self._workspace, workers, self._options.item_timeout)

    def _work(self, plan: Plan) -> None:
        """Run every task that has no part yet."""
        missing = [number for number in range(len(plan.tasks)) if not self._workspace.part(number).exists()]
        done = plan.items - sum(plan.tasks[number].stop - plan.tasks[number].start for number in missing)
        with Progress("packing", plan.items, "items", shown=self._shown, done=done) as progress:

            def on_event(event: Event) -> None:
                if event.kind == "item":
                    rejected = not event.samples
                    progress.advance(1, event.samples, int(rejected))
                    if rejected and self._options.on_error == "fail":
                        raise BuildError(
                            f"item {event.item} gave no sample, and --on-error is fail: {self._reason(plan, event)}"
                        )
                elif event.kind == "done" and event.unit is not None:
                    append_line(
                        self._workspace.journal, {"did": event.unit.do, "number": event.unit.number, **event.result}
                    )
                else:
                    progress.advance(0)

            self._schedule(plan, [Unit("task", number) for number in missing], on_event)

    def _schedule(self, plan: Plan, units: list[Unit], on_event: Any) -> None:
        if not units:
            return
        engine = self._engine(plan, len(units))
        try:
            Schedule(engine, self._workspace, plan, on_event).run(units)
        finally:
            engine.close()

    def _reason(self, plan: Plan, event: Event) -> str:
        """The name of the item, for a build that ends with its first reject."""
        task = plan.tasks[event.unit.number] if event.unit is not None else plan.tasks[0]
        work = Work(self._workspace, plan, self._functions, self._live)
        return next((repr(item.name) for item in work.items(task) if item.index == event.item), "")

    def _plan_assembly(self, plan: Plan) -> None:
        """Settle the schema, write reports and index, cut the shards. The assembly plan is written last."""
        space = self._workspace
        settler = SchemaSettler(
            image_codec(self._recipe), plan.classes, {len(layout.names): name for name, layout in LAYOUTS.items()}
        )
        rows = []
        with ReportWriter(space.final / REJECTS_NAME, space.final / ITEMS_NAME) as reports:
            for number, task in enumerate(plan.tasks):
                part = Part(space.part(number))
                reports.add(part.reports())
                settler.add(part, f"task {number} (items {task.start} to {task.stop - 1})")
                rows.append(len(part))
            counts = reports.counts(plan.ignored)
        write_durably(space.root / "counts.json", json.dumps(counts.to_json()).encode())
        if not counts.samples:
            first = next(read_lines(space.final / REJECTS_NAME))
            raise TooManyRejectsError(
                f"none of {counts.items} items gave a sample; {first['item']!r}, {first['step']}: {first['reason']} "
                f"(all: {space.final / REJECTS_NAME})"
            )
        config = {"kind": "parts", "tasks": rows, "schema": settler.settle().to_json()}
        assembly = plan_assembly(space, config, self._recipe.format, self._recipe.shard_size, self._recipe.shuffle)
        write_index(assembly.source, assembly.order, space.final / INDEX_FOLDER)
        assembly.save()

    def _assemble(self, plan: Plan) -> tuple[Shard, ...]:
        """Write every shard that is not written yet, and delete parts that no shard needs any more."""
        return assemble_shards(
            self._workspace, lambda units, on_event: self._schedule(plan, units, on_event), self._shown
        )

    def _commit(self, plan: Plan, shards: tuple[Shard, ...]) -> Manifest:
        space = self._workspace
        counts = Counts(**json.loads((space.root / "counts.json").read_bytes()))
        generation = Generation("build", plan.fingerprint, plan.recipe, plan.runtime, counts, shards)
        assembly = AssemblyPlan.load(space)
        lines = [line["did"] for line in read_lines(space.journal)]
        wall_clock = {
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self._started_s, 3),
            "sessions": self._sessions,
            "tasks_run": lines.count("task") + lines.count("join"),
            "shards_written": lines.count("shard"),
        }
        return commit(space, self._recipe.format, assembly.source.schema, [generation], wall_clock)

    def _check_rejects(self, result: BuildResult) -> None:
        counts = result.counts
        share = counts.rejected_items / counts.items
        if share > self._options.max_rejects:
            raise TooManyRejectsError(
                f"{result.path}: packed, but {counts.rejected_items} of {counts.items} items ({share:.1%}) were rejected, "
                f"more than {self._options.max_rejects:.1%}: see {result.path / REJECTS_NAME}, or raise --max-rejects"
            )
