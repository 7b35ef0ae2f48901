"""The build as a job: tasks over items, a schema settled by their samples, reports, and the result."""

import errno
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly.columns import carried_columns, carry_columns
from packer.assembly.plan import Piece, shuffled
from packer.builds.parts.part import Columns
from packer.builds.parts.reuse import keep_parts
from packer.builds.parts.rows import PartRows, describe_rows
from packer.builds.parts.schema import SchemaSettler
from packer.builds.parts.shard_cutter import ShardCutter
from packer.builds.parts.summary import PartsReader, PartsSummary
from packer.builds.planning.changes import describe_changed_terms, describe_made, describe_mismatch, describe_taken_over
from packer.builds.planning.facts import FACTS_BYTES, facts_of, live_columns
from packer.builds.planning.listing import Remarks
from packer.builds.planning.plan import BuildPlan, ItemLines, make_plan, source_row
from packer.builds.reports import BrokenTracks, ReportWriter
from packer.builds.update.base_reports import GONE, BaseReports, ItemIdentity
from packer.builds.update.checks import FROM_INPUTS, FROM_PACKED
from packer.builds.update.compare import Comparison
from packer.builds.update.rows import UpdatedRows, describe_updated, find_rows
from packer.builds.work import BuildWork
from packer.jobs.history import note, noted
from packer.jobs.plan import Assembly, Made, TakeIn, Task
from packer.jobs.stages.tasks import failed_item
from packer.recipe import TRACK_RULES, Recipe
from packer.recipe.engines import ENGINES, FOR_FUNCTIONS
from packer.recipe.fields import Declaration
from packer.recipe.options import BuildOptions
from packer.recipe.resources import has_core_to_spare
from packer.sources.base import Listing
from packer.sources.item import PACKED_ROW, Item, read_items
from packer.steps.chain import Equipment, Step
from packer.steps.encode import codecs_by_field, image_codec
from packer.steps.faces.misses import advise
from packer.workspace import Workspace, read_lines
from packer.workspace.columns import FieldColumn
from packer.workspace.durable import write_durably
from packer.workspace.folder import discard
from packer.workspace.spool import Again
from shardspec.entries import Counts, Generation, strip_aside, total
from shardspec.errors import DatasetError, SchemaError, TooManyRejectsError, UsageError
from shardspec.layout import ITEMS_NAME, REJECTS_NAME, Layout
from shardspec.manifest import Manifest, sha256_json
from shardspec.points import LAYOUTS
from shardspec.schema import Schema
from shardspec.wording import LONG, counted, cut, list_some, program, shorten

_SHOWN_REASONS = 3

_NOT_THERE = os.strerror(errno.ENOENT)


class BuildJob:
    """A build in the form that a job runs (`packer.jobs.plan.JobPlan`).

    Parameters
    ----------
    recipe : Recipe
    runtime : mapping
        See `packer.builds.provenance.describe_runtime`.
    listing : Listing
    options : BuildOptions
    functions : dict of str to callable
        Steps passed as Python functions, by the name that stands in the recipe.
    declaration : Declaration, optional
        For a recipe whose one step is a function from an input to samples: what is said of the samples.
    comparison : Comparison, optional
        The dataset that the items of the listing update.

    Attributes
    ----------
    plan : BuildPlan
    base : Manifest or None
        See `JobPlan`.
    mended : int
        Items that were tried again and are packed now; known once the shards are planned.
    marked, refilled, broken_tracks, unused_boxes
        See `BuildResult`; known once the shards are planned.

    Raises
    ------
    UsageError
        If the options do not fit the source, the steps or this system.
    """

    kind = BuildPlan.kind
    stage = "packing"
    items_are = "items"

    def __init__(
        self,
        recipe: Recipe,
        runtime: Mapping[str, Any],
        listing: Listing,
        options: BuildOptions,
        functions: Mapping[str, Step] | None = None,
        declaration: Declaration | None = None,
        comparison: Comparison | None = None,
    ) -> None:
        declared = None if declaration is None else declaration.to_json()
        base = "" if comparison is None else comparison.base.digest
        gone = "" if comparison is None else comparison.gone_digest
        remarks = Remarks()
        plan, self._lines = make_plan(recipe, runtime, listing, declared, base, gone, remarks.add)
        self._set(recipe, plan, self._lines.facts, options, functions, declaration, comparison)
        self._from_packed = any(PACKED_ROW in item.columns for item in islice(listing.items, 1))
        if not ENGINES[options.engine].takes_functions:
            _refuse_functions(self._live.values(), self._functions)
        growth = () if comparison is None else (f"update: {comparison.growth.describe()}",)
        items = listing.items[: recipe.limit]
        self.notes += (*growth, *remarks.describe_repeats(items))
        self.remarks += tuple(remarks.describe_contradictions(items, self.plan.classes.get("label")))

    @classmethod
    def of_workspace(cls, space: Workspace, document: Mapping[str, Any], options: BuildOptions) -> "BuildJob":
        """The job of the plan in a workspace, to cut its rows into shards (`BuildPlan.is_whole`)."""
        plan = BuildPlan.from_json(document)
        assert plan.is_whole
        job = cls.__new__(cls)
        job._lines = ItemLines()
        job._set(Recipe.from_options(plan.recipe), plan, facts_of(_lines_of(space)), options)
        return job

    def _set(
        self,
        recipe: Recipe,
        plan: BuildPlan,
        facts: bytearray,
        options: BuildOptions,
        functions: Mapping[str, Step] | None = None,
        declaration: Declaration | None = None,
        comparison: Comparison | None = None,
    ) -> None:
        self._recipe = recipe
        self.plan = plan
        self._facts = facts
        self._declaration = declaration
        self._comparison = comparison
        self.base = None if comparison is None else comparison.base
        self.mended = 0
        self._options = options
        self._functions = functions or {}
        self.shares_detector = shares_detector(recipe, options)
        self.needs_gpus = recipe.detects and recipe.device.startswith("cuda") and not self.shares_detector
        self._live = self._lines.live
        self._from_packed = False
        self._reader: PartsReader | None = None
        self.notes: tuple[str, ...] = ()
        self.remarks: tuple[str, ...] = ()
        self.marked: int | None = None
        self.refilled: int | None = None
        self.broken_tracks: BrokenTracks | None = None
        self.unused_boxes: int | None = None

    @property
    def preset(self) -> str:
        """See `JobPlan`."""
        return self._recipe.preset

    @property
    def fingerprint(self) -> str:
        """See `BuildPlan`."""
        return self.plan.fingerprint

    @property
    def tasks(self) -> Sequence[Task]:
        """See `BuildPlan`."""
        return self.plan.tasks

    def to_json(self) -> dict[str, Any]:
        """See `BuildPlan`."""
        return self.plan.to_json()

    def take_item_lines(self) -> Iterable[str]:
        """See `JobPlan`."""
        lines, self._lines = self._lines, ItemLines()
        return lines

    def made(self, manifest: Manifest) -> bool:
        """See `BuildPlan`."""
        return self.plan.made(manifest)

    def describe(self, space: Workspace, old: Mapping[str, Any]) -> str:
        """See `JobPlan`."""
        return describe_mismatch(BuildPlan.from_json(old), self.plan, _lines_of(space), self._lines)

    def describe_made(self, layout: Layout, manifest: Manifest) -> str:
        """See `JobPlan`."""
        names = Again(lambda: (str(line.get("item")) for line in read_lines(layout.items) if line.get("state") != GONE))
        before = names if layout.items.exists() else None
        return describe_made(manifest, before, self.plan, self._lines)

    def remedy(self, manifest: Manifest) -> str:
        """See `JobPlan`: what the source has more, if nothing else differs and an update can add it."""
        if self._from_packed or self._declaration is not None or manifest.wall_clock.get(FROM_PACKED):
            return ""
        differs = describe_changed_terms(manifest.generations[-1], self.plan)
        return "" if differs else ", or --update to add what is new in the source"

    def announce(self, done: int) -> str:
        """See `JobPlan`."""
        before = f" ({done} of them before)" if done else ""
        return f"packing: {counted(self.plan.items, 'item')}{before} into {self._recipe.format} shards"

    def take_up(self, space: Workspace) -> None:
        """See `JobPlan`: parts stay valid."""

    def take_over(self, space: Workspace, old: Mapping[str, Any]) -> str | None:
        """See `JobPlan`."""
        line = describe_taken_over(BuildPlan.from_json(old), self.plan, _lines_of(space), self._lines)
        if line is not None:
            keep_parts(space, old)
        return line

    def finished(self, space: Workspace) -> Collection[int]:
        """See `JobPlan`."""
        return space.finished_tasks()

    def open_work(self, space: Workspace) -> BuildWork:
        """See `JobPlan`."""
        equipment = Equipment(decodes_ahead=has_core_to_spare(1))
        return BuildWork(space, self.plan, self._functions, self._live, equipment=equipment)

    @contextmanager
    def taking_in(self, space: Workspace) -> Iterator[TakeIn]:
        """See `JobPlan`: their reports are written, and their schema and the lengths of their rows noted."""
        recipe, cutter = self._recipe, None
        if recipe.shuffle is None and self.base is None:
            cutter = ShardCutter(space, recipe.format, recipe.shard_size)
        self._reader = self._open_parts(space, cutter)
        try:
            yield self._reader.read
        finally:
            if self._reader is not None:
                self._reader.close()
                self._reader = None

    def _open_parts(self, space: Workspace, cutter: ShardCutter | None = None) -> PartsReader:
        layouts = {len(layout.names): name for name, layout in LAYOUTS.items()}
        fields = codecs_by_field(self._recipe) if self._declaration is None else self._declaration.fields
        base, compared = self.base, self._comparison

        def make_settler() -> SchemaSettler:
            return SchemaSettler(image_codec(self._recipe), self.plan.classes, layouts, fields)

        def make_summary(columns: Columns | None) -> PartsSummary:
            before = None if compared is None else BaseReports(compared.layout, compared.base, compared.gone)
            reports = ReportWriter(space.final / REJECTS_NAME, space.final / ITEMS_NAME, before)
            known, rows_of = partial(self._known, space), partial(self._rows_of, space)
            return PartsSummary(make_settler(), reports, known, columns, rows_of)

        fits = None if base is None else partial(make_settler().fits, schema=base.shard_schema)
        return PartsReader(space, self.tasks, make_summary, fits, *([cutter.find] if cutter else []))

    def assemble(self, space: Workspace) -> Assembly:
        """Write the reports and settle the schema.

        Raises
        ------
        TooManyRejectsError
            If no item yielded a sample.
        """
        reader, self._reader = self._reader or self._open_parts(space), None
        with closing(reader):
            summary = reader.finish()
        if summary.failed is not None and self._options.on_error == "fail":
            raise failed_item(summary.failed.name, f"{summary.failed.step}: {summary.failed.reason}")
        reports, compared = summary.reports, self._comparison
        counts = reports.counts(self.plan.ignored)
        found = {
            "counts": counts.to_json(),
            "marked": reports.marked if self._recipe.restart_markers else None,
            "refilled": reports.refilled if self._recipe.refill else None,
            "broken_tracks": vars(reports.broken_tracks) if self._recipe.choose in TRACK_RULES else None,
            "unused_boxes": reports.unused_boxes if self._recipe.boxes is not None else None,
            "mended": reports.mended,
            "left": reports.left,
        }
        write_durably(space.counts, json.dumps(found).encode())
        if not counts.samples and compared is None:
            raise _give_up(space, counts, self._recipe)
        config = describe_rows(summary.columns, summary.rows, self._settle(summary.settler, space))
        order = None if self._recipe.shuffle is None else shuffled(counts.samples, self._recipe.shuffle)
        pieces = [Piece(made.rows, self._recipe.shard_size) for made in self.generations(space)]
        added = Assembly(config, self._recipe.format, pieces, order, source=PartRows(config, space, summary.table))
        return added if compared is None else self._assemble_update(compared, space, added, counts.samples)

    def _assemble_update(self, compared: Comparison, space: Workspace, added: Assembly, samples: int) -> Assembly:
        """How new rows become shards next to those of the dataset, or in new shards with the rows that are kept.

        Raises
        ------
        UsageError
            If no sample would be left.
        """
        base = compared.base
        removed = find_rows(compared.layout, base, compared.removed)
        carry_columns(space, base, removed, samples)
        first = _next_shard(base, space)
        if not compared.rewrites:
            return replace(added, first_shard=first, before=_index_files(compared.layout, base))
        if len(removed) == base.samples and not samples:
            discard(space, aside=True)
            raise UsageError(
                f"{compared.layout.root}: expected an update that leaves samples, found that all {base.samples} would be "
                "removed and no item gave a new one: give another source, or pack this one into another folder"
            )
        kept = np.delete(np.arange(base.samples), removed)
        order = base.samples + (np.arange(samples) if added.order is None else added.order)
        rows = describe_updated(base, added.rows)
        source = UpdatedRows(rows, space, added.source)
        return replace(added, rows=rows, order=np.concatenate([kept, order]), first_shard=first, source=source)

    def _settle(self, settler: SchemaSettler, space: Workspace) -> Schema:
        """The schema of the rows, which is that of the dataset that they are added to.

        Raises
        ------
        UsageError
            If they do not fit into that dataset.
        """
        if self.base is None:
            return settler.settle()
        try:
            return settler.settle_into(self.base.shard_schema)
        except SchemaError as error:
            discard(space, aside=True)  # the same call could never finish it
            raise UsageError(
                f"expected samples that fit into the dataset, found others: {error}: "
                f"make them alike ({program()} merge names the options), or build into a folder of their own"
            ) from error

    def _rows_of(self, space: Workspace, task: Task) -> Callable[[int], Mapping[str, Any]]:
        """Return what gives the row of an item in the source, by its place in a task; items are read for the first."""
        items: list[Item] = []

        def row_of(place: int) -> Mapping[str, Any]:
            items.extend(() if items else read_items(space.items, *task))
            return source_row(items[place], self.plan)

        return row_of

    def _known(self, space: Workspace, task: Task) -> Iterator[ItemIdentity]:
        """By what each item of a task is known again."""
        if self._comparison is not None:
            yield from map(self._comparison.identify, read_items(space.items, *task))
            return
        facts, digits = self._facts[FACTS_BYTES * task.start : FACTS_BYTES * task.stop].hex(), 2 * FACTS_BYTES
        for place, index in enumerate(range(task.start, task.stop)):
            yield ItemIdentity(facts[digits * place : digits * (place + 1)], index)

    def generations(self, space: Workspace) -> Sequence[Made]:
        """See `JobPlan`."""
        found = json.loads(space.counts.read_bytes())
        counts, self.marked, tracks = Counts(**found["counts"]), found["marked"], found.get("broken_tracks")
        self.broken_tracks = None if tracks is None else BrokenTracks(**tracks)
        self.refilled = found.get("refilled")
        self.unused_boxes = found.get("unused_boxes")
        self.mended = found.get("mended", 0)
        plan, compared = self.plan, self._comparison
        if compared is None:
            return [
                Made(
                    Generation("build", plan.fingerprint, plan.manifest_recipe, plan.runtime, counts, ()),
                    counts.samples,
                )
            ]
        kept = [
            Made(replace(one, shards=()), one.counts.samples) if compared.rewrites else Made(one, 0)
            for one in self._left_of_base(compared.base, found["left"])
        ]
        if not counts.items:  # what was tried again is rejected once more
            return kept
        added = Generation(compared.kind, plan.fingerprint, compared.recipe, plan.runtime, counts, ())
        if not compared.joins:
            return [*kept, Made(added, counts.samples)]
        last, rows = kept[-1]
        fingerprint = sha256_json([last.fingerprint, plan.fingerprint])
        joined = replace(last, fingerprint=fingerprint, counts=total([last, added]))
        return [*kept[:-1], Made(joined, rows + counts.samples)]

    def _left_of_base(self, base: Manifest, left: Mapping[str, Mapping[str, int]]) -> list[Generation]:
        """The dataset's generations without the items that count in another now, or are gone, and their samples."""
        kept = []
        for number, generation in enumerate(base.generations):
            fewer = left.get(str(number), {})
            counts = {name: count - fewer.get(name, 0) for name, count in generation.counts.to_json().items()}
            # A plan finds what it has made by the fingerprint, and this is not that any more.
            same = not fewer.get("packed_items") and not (self.plan.gone and fewer)
            fingerprint = (
                generation.fingerprint if same else sha256_json([generation.fingerprint, self.plan.fingerprint])
            )
            kept.append(replace(generation, counts=Counts(**counts), fingerprint=fingerprint))
        return kept

    def columns(self, space: Workspace) -> Sequence[FieldColumn]:
        """See `JobPlan`."""
        return [] if self.base is None else carried_columns(space, self.base)

    def history(self, space: Workspace, last: Generation, finished: str) -> list[Any] | None:
        """See `JobPlan`: what was added now, if anything was."""
        compared = self._comparison
        if compared is None:
            return None
        counts = Counts(**json.loads(space.counts.read_bytes())["counts"])
        removed = compared.growth.count_removed()
        kind = last.kind if counts.items else "update"
        now = [note(kind, last, finished, counts, removed)] if counts.items or removed else []
        return [*noted(compared.base), *now]

    def facts(self, tasks_run: int) -> dict[str, Any]:
        """See `JobPlan`."""
        kinds = {FROM_PACKED: self._from_packed, FROM_INPUTS: self._declaration is not None}
        return {"tasks_run": tasks_run, **{name: True for name, is_so in kinds.items() if is_so}}


def _lines_of(space: Workspace) -> Iterable[str]:
    """The lines of the items of the plan in a workspace."""

    def read() -> Iterator[str]:
        with space.items.open(encoding="ascii") as lines:
            yield from lines

    return Again(read)


def _next_shard(base: Manifest, space: Workspace) -> int:
    """The first number that is in the name of no shard, nor of a file in the folder."""
    names = [*(shard.name for shard in base.shards), *(path.name for path in space.out.iterdir())]
    found = (re.match(r"shard-([0-9]+)", strip_aside(name)) for name in names)
    return max((int(match[1]) + 1 for match in found if match is not None), default=0)


def _index_files(layout: Layout, base: Manifest) -> dict[str, Path]:
    """The checked index files of a dataset, by field."""
    found = {}
    for name in (field.name for field in base.shard_schema if field.is_scalar):
        entry = layout.find_index(base, name)
        if entry is None:
            raise DatasetError(f"{layout.root}: expected an index of the field {name!r}, found none")
        layout.check_digest(entry)
        found[name] = layout.file(entry)
    return found


def shares_detector(recipe: Recipe, options: BuildOptions) -> bool:
    """Return whether one process runs the detector for all workers.

    If asked for, or by default for any device but the CPU.
    """
    asked, can = options.shared_detector, os.name == "posix"
    if asked is None:
        return recipe.detects and can and recipe.device != "cpu" and ENGINES[options.engine].shares_detector
    if asked and not (recipe.detects and can):
        found = "none in these steps" if can else f"an operating system without them ({os.name})"
        raise UsageError(f"shared_detector: expected a detector, and Unix sockets, found {found}")
    return asked


def _refuse_functions(live: Iterable[Item], functions: Mapping[str, Step]) -> None:
    """Check that worker processes can get everything that the build needs."""
    for item in live:
        columns = [f"{name!r} ({type(item.columns[name]).__name__})" for name in live_columns(item)]
        raise UsageError(
            "expected columns of numbers, texts, lists or objects, which worker processes can read from the plan, "
            f"found {list_some(columns)}: build with --engine {FOR_FUNCTIONS} (engine={FOR_FUNCTIONS!r} in Python), "
            "or leave the column out of the source"
        )
    if functions:
        raise UsageError(
            f"steps passed as functions need engine={FOR_FUNCTIONS!r}, "
            "or a 'module:function' name that worker processes can import"
        )


def _give_up(space: Workspace, counts: Counts, recipe: Recipe) -> TooManyRejectsError:
    """End a build without any sample. A resume would gain nothing: a call that solves the problem has another plan."""
    reasons = list(islice(read_lines(space.final / REJECTS_NAME), _SHOWN_REASONS))
    shown = "; ".join(f"{shorten(line['item'], LONG)}, {line['step']}: {cut(line['reason'], LONG)}" for line in reasons)
    advice = advise((line["reason"] for line in reasons), recipe)
    if all(line["step"] == "source" and line["reason"].endswith(_NOT_THERE) for line in reasons):
        kind = "have / and a suffix, and" if recipe.frame_folders is None else "have / and all zeros of a name, and"
        advice = f"paths in a table {kind} are relative to its folder, or to --root DIR"
    space.give_up(space.final / REJECTS_NAME)
    return TooManyRejectsError(
        f"no item gave a sample ({counts.items} in all), so nothing was packed: {shown} (all reasons: {space.reasons})"
        f"{f': {advice}' if advice else ''}"
    )
