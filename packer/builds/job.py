"""Run a build as a job: its plan, its work, the assembly of its results, and its relation to earlier builds."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

from packer.builds.assembly import BuildAssembler
from packer.builds.generations import BuildTotals, count_labels, describe_contents
from packer.builds.planning.changes import describe_changed_terms, describe_made, describe_mismatch, describe_taken_over
from packer.builds.planning.plan import BuildPlan, ItemLines, live_columns, make_plan, read_item_lines
from packer.builds.reports import GONE
from packer.builds.update.checks import FROM_INPUTS, FROM_PACKED
from packer.builds.update.compare import UpdatePlan
from packer.builds.work import BuildWork, keep_parts
from packer.jobs.plan import JobSettings, ManifestParts, ResultReader, ResumeRules, Task
from packer.recipe import Recipe
from packer.recipe.engines import ENGINES, FOR_FUNCTIONS, has_core_to_spare
from packer.recipe.fields import Declaration
from packer.recipe.options import BuildOptions
from packer.sources.base import Listing
from packer.sources.item import PACKED_ROW, Item
from packer.steps.chain import Step, StepResources
from packer.workspace import Workspace, read_lines
from packer.workspace.disk_list import Reiterable
from shardspec.errors import UsageError
from shardspec.layout import Layout
from shardspec.manifest import Manifest
from shardspec.typing.field_types import LABEL
from shardspec.wording import list_some


class BuildJob:
    """A build that can be run as a job (`packer.jobs.plan.JobPlan`).

    Parameters
    ----------
    runtime : mapping
        See `packer.builds.provenance.describe_runtime`.
    functions : dict of str to callable
        Steps passed as Python functions, by their names in the recipe.
    declaration : Declaration, optional
        The declared fields, for a recipe whose only step is a function from an input to samples.
    comparison : UpdatePlan, optional
        In an update, the dataset that the items of the listing are added to.

    Attributes
    ----------
    totals : BuildTotals or None
        Set once this call has finished the job.
    labels : dict of int to int
        Number of samples by label, once this call has finished the job. Empty if the samples have no labels.

    Raises
    ------
    UsageError
        If the options do not suit the source, the steps or this system.
    """

    def __init__(
        self,
        recipe: Recipe,
        runtime: Mapping[str, Any],
        listing: Listing,
        options: BuildOptions,
        functions: Mapping[str, Step] | None = None,
        declaration: Declaration | None = None,
        comparison: UpdatePlan | None = None,
    ) -> None:
        declared = None if declaration is None else declaration.to_json()
        base = "" if comparison is None else comparison.base.digest
        gone = "" if comparison is None else comparison.gone_digest
        plan, self._lines = make_plan(recipe, runtime, listing, declared, base, gone)
        self.plan = plan
        self.totals: BuildTotals | None = None
        self.labels: dict[int, int] = {}
        self._recipe = recipe
        self._digests, self._live = self._lines.digests, self._lines.live
        self._declaration = declaration
        self._comparison = comparison
        self._options = options
        self._functions = functions or {}
        self._about = listing.about if comparison is None else comparison.base.about
        self._from_packed = any(PACKED_ROW in item.columns for item in islice(listing.items, 1))
        if not ENGINES[options.engine].takes_functions:
            _refuse_functions(self._live.values(), self._functions)
        growth = () if comparison is None else (f"update: {comparison.growth.describe()}",)
        shares = shares_detector(recipe, options)
        self.settings = JobSettings(
            plan.kind,
            recipe.preset,
            target=f"{recipe.format} shards",
            shares_detector=shares,
            needs_gpus=recipe.detects and recipe.device.startswith("cuda") and not shares,
            notes=growth,
        )

    @property
    def resumption(self) -> ResumeRules:
        grows = not self._from_packed and self._declaration is None
        return _Resumption(self.plan, self._lines, can_update=grows)

    @property
    def base(self) -> Manifest | None:
        return None if self._comparison is None else self._comparison.base

    @property
    def fingerprint(self) -> str:
        return self.plan.fingerprint

    @property
    def tasks(self) -> Sequence[Task]:
        return self.plan.tasks

    def to_json(self) -> dict[str, Any]:
        return self.plan.to_json()

    def take_item_lines(self) -> Iterable[str]:
        lines, self._lines = self._lines, ItemLines()
        return lines

    def open_work(self, space: Workspace) -> BuildWork:
        resources = StepResources(decodes_ahead=has_core_to_spare(1))
        return BuildWork(space, self.plan, self._functions, self._live, resources=resources)

    @contextmanager
    def collect(self, space: Workspace) -> Iterator[ResultReader]:
        rejects = self._options.on_error != "fail"
        assembler = BuildAssembler(
            space, self.plan, self._digests, self._declaration, self._comparison, rejects=rejects
        )
        with closing(assembler):
            yield ResultReader(space.finished_tasks(), assembler.assemble, assembler.read)

    def contents(self, space: Workspace, finished: str, tasks_run: int) -> ManifestParts:
        self.totals = BuildTotals.load(space)
        self.labels = count_labels(Layout(space.final).index(LABEL))
        found = describe_contents(space, self.plan, self.totals, self._comparison, finished)
        kinds = {FROM_PACKED: self._from_packed, FROM_INPUTS: self._declaration is not None}
        marks = {name: True for name, is_so in kinds.items() if is_so}
        about = replace(self._about, **self._options.about)
        return replace(found, about=about, wall_clock={"tasks_run": tasks_run, **marks, **found.wall_clock})


class _Resumption(ResumeRules):
    """Compares a build's plan with earlier work in its folder. Parts of the same plan stay valid.

    Parameters
    ----------
    lines : ItemLines
        The plan's items.
    can_update : bool
        Whether a dataset made from files can be updated from the source.
    """

    def __init__(self, plan: BuildPlan, lines: ItemLines, *, can_update: bool) -> None:
        self._plan = plan
        self._lines = lines
        self._can_update = can_update

    def made(self, manifest: Manifest) -> bool:
        return self._plan.made(manifest)

    def describe_unfinished(self, space: Workspace, old: Mapping[str, Any]) -> str:
        return describe_mismatch(BuildPlan.from_json(old), self._plan, read_item_lines(space), self._lines)

    def describe_made(self, layout: Layout, manifest: Manifest) -> str:
        lines = Reiterable(lambda: (line for line in read_lines(layout.items) if line.get("state") != GONE))
        items = Reiterable(
            lambda: ((str(line.get("item")), bytes.fromhex(line.get("source_digest", ""))) for line in lines)
        )
        return describe_made(manifest, items if layout.items.exists() else None, self._plan, self._lines)

    def advise(self, manifest: Manifest) -> str:
        """Suggest an update if only the items differ."""
        if not self._can_update or manifest.wall_clock.get(FROM_PACKED):
            return ""
        differs = describe_changed_terms(manifest.generations[-1], self._plan)
        return "" if differs else ", or --update to add the new items of the source"

    def take_over(self, space: Workspace, old: Mapping[str, Any]) -> str | None:
        line = describe_taken_over(BuildPlan.from_json(old), self._plan, read_item_lines(space), self._lines)
        if line is not None:
            keep_parts(space, old)
        return line


def shares_detector(recipe: Recipe, options: BuildOptions) -> bool:
    """Return whether one process runs the detector for all workers.

    By default it does so on any device except the CPU.
    """
    asked, can = options.shared_detector, os.name == "posix"
    if asked is None:
        return recipe.detects and can and recipe.device != "cpu" and ENGINES[options.engine].shares_detector
    if asked and not (recipe.detects and can):
        found = "none in these steps" if can else f"an operating system without them ({os.name})"
        raise UsageError(option="shared_detector", expected="a detector, and Unix sockets", found=found)
    return asked


def _refuse_functions(live: Iterable[Item], functions: Mapping[str, Step]) -> None:
    """Refuse columns and steps that cannot be passed to worker processes."""
    for item in live:
        columns = [f"{name!r} ({type(item.columns[name]).__name__})" for name in live_columns(item)]
        raise UsageError(
            expected="columns of numbers, texts, lists or objects, which worker processes can read from the plan",
            found=list_some(columns),
            hint=(
                f"build with --engine {FOR_FUNCTIONS} (engine={FOR_FUNCTIONS!r} in Python), or leave the "
                "column out of the source"
            ),
        )
    if functions:
        raise UsageError(
            f"steps passed as functions need engine={FOR_FUNCTIONS!r}, "
            "or a 'module:function' name that worker processes can import"
        )
