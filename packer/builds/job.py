"""Run a build as a job: its plan, its work, the assembly of its results, and its relation to earlier builds."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Self

from packer.assembly.inputs import PiecePlaces
from packer.assembly.plan import Merge, ShardPlan
from packer.assembly.records import GONE, REMOVED
from packer.builds.assembly import BuildAssembler
from packer.builds.planning.changes import describe_changed_terms, describe_made, describe_mismatch, describe_taken_over
from packer.builds.planning.plan import BuildPlan, ItemLines, live_columns, make_plan, read_item_lines
from packer.builds.update.checks import FROM_INPUTS, FROM_PACKED
from packer.builds.update.compare import UpdatePlan
from packer.builds.work import BuildWork, keep_pieces
from packer.jobs.plan import JobSettings, PlanRecord, ResultReader, Task
from packer.recipe import Recipe
from packer.recipe.engines import ENGINES, FOR_FUNCTIONS, has_core_to_spare
from packer.recipe.fields import Declaration
from packer.recipe.options import BuildOptions
from packer.sources.base import Listing, Source
from packer.sources.item import PACKED_ROW, Item
from packer.steps.chain import Step, StepResources
from packer.workspace import Workspace, read_lines
from packer.workspace.disk_list import Reiterable
from packer.workspace.remote import RemoteFiles
from shardspec.entries import About
from shardspec.errors import UsageError
from shardspec.layout import ITEMS_NAME, Layout
from shardspec.manifest import Manifest
from shardspec.stores import Store
from shardspec.wording import list_some


@dataclass(frozen=True)
class BuildRequest:
    """Arguments of a build: its source is opened, and its options are resolved.

    Attributes
    ----------
    out : Path
        The folder of the dataset, or that of the workspace if the dataset belongs in a store.
    functions : dict of str to callable
        Steps passed as Python functions, by their names in the recipe.
    declaration : Declaration, optional
        The declared fields, for a recipe whose only step is a function from an input to samples.
    store : Store, optional
        The place of the dataset, if it is not the folder.
    remote : RemoteFiles, optional
        The workspace, if it is in a store, too.
    """

    source: Source
    out: Path
    recipe: Recipe
    options: BuildOptions
    functions: Mapping[str, Step] = field(default_factory=dict)
    declaration: Declaration | None = None
    store: Store | None = None
    remote: RemoteFiles | None = None


class BuildJob:
    """A build that can be run as a job (`packer.jobs.plan.JobPlan`).

    Parameters
    ----------
    lines : ItemLines
        The plan's items.
    about : About
        What the source says about the dataset. The options take precedence.
    from_packed : bool
        Whether the items are samples of a packed dataset.
    functions : dict of str to callable
        Steps passed as Python functions, by their names in the recipe.
    comparison : UpdatePlan, optional
        In an update, the dataset that the items are added to.
    places : PiecePlaces, optional
        Folders that hold pieces of finished tasks; by default, all pieces are in the job's own workspace.

    Raises
    ------
    UsageError
        If the options do not suit the source, the steps or this system.
    """

    def __init__(
        self,
        plan: BuildPlan,
        lines: ItemLines,
        options: BuildOptions,
        recipe: Recipe,
        *,
        about: About,
        from_packed: bool,
        functions: Mapping[str, Step] | None = None,
        comparison: UpdatePlan | None = None,
        places: PiecePlaces | None = None,
    ) -> None:
        self.plan = plan
        self.about = about
        self.from_packed = from_packed
        self._digests, self._live = lines.digests, lines.live
        self._declaration = Declaration.from_json(plan.declared) if plan.declared else None
        self._comparison = comparison
        self._options = options
        self._functions = functions or {}
        self._places = places or PiecePlaces()
        if not ENGINES[options.engine].takes_functions:
            _refuse_functions(self._live.values(), self._functions)
        growth = () if comparison is None else (f"update: {comparison.growth.describe()}",)
        grows = not from_packed and self._declaration is None
        self.record = BuildRecord(plan, lines, self._places, comparison, can_update=grows)
        shares = shares_detector(recipe, options)
        self.settings = JobSettings(
            plan.kind,
            recipe.preset,
            target=f"{recipe.format} shards",
            shares_detector=shares,
            needs_gpus=recipe.detects and recipe.device.startswith("cuda"),
            notes=growth,
        )

    @classmethod
    def of_listing(
        cls,
        request: BuildRequest,
        runtime: Mapping[str, Any],
        listing: Listing,
        comparison: UpdatePlan | None = None,
    ) -> Self:
        """Plan the items of a listing.

        Parameters
        ----------
        runtime : mapping
            See `packer.builds.provenance.describe_runtime`.
        comparison
            See the class.
        """
        declared = None if request.declaration is None else request.declaration.to_json()
        base = "" if comparison is None else comparison.base.digest
        gone = "" if comparison is None else comparison.gone_digest
        plan, lines = make_plan(request.recipe, runtime, listing, declared, base, gone)
        about = listing.about if comparison is None else comparison.base.about
        from_packed = any(PACKED_ROW in item.columns for item in islice(listing.items, 1))
        return cls(
            plan,
            lines,
            request.options,
            request.recipe,
            about=about,
            from_packed=from_packed,
            functions=request.functions,
            comparison=comparison,
        )

    @property
    def tasks(self) -> Sequence[Task]:
        return self.plan.tasks

    def open_work(self, space: Workspace) -> BuildWork:
        resources = StepResources(decodes_ahead=has_core_to_spare(1))
        return BuildWork(space, self.plan, self._functions, self._live, resources=resources)

    @contextmanager
    def collect(self, space: Workspace) -> Iterator[ResultReader]:
        rejects = self._options.on_error != "fail"
        assembler = BuildAssembler(
            space,
            self.plan,
            self._digests,
            self._declaration,
            self._comparison,
            rejects=rejects,
            places=self._places,
        )
        merged = {*range(len(self._places.of_task))}  # a merge must not read the source
        with closing(assembler):
            yield ResultReader(space.finished_tasks() | merged, partial(self._assemble, assembler), assembler.read)

    def _assemble(self, assembler: BuildAssembler) -> Merge:
        """Merge the pieces, and add what the manifest says about the source."""
        merge = assembler.assemble()
        kinds = {FROM_PACKED: self.from_packed, FROM_INPUTS: self._declaration is not None}
        marks = {name: True for name, is_so in kinds.items() if is_so}
        about = replace(self.about, **self._options.about)
        return replace(merge, about=about, wall_clock={**marks, **merge.wall_clock})


class BuildRecord(PlanRecord):
    """The stored plan of a build. Pieces of the same plan stay valid.

    Parameters
    ----------
    lines : ItemLines
        The plan's items.
    places : PiecePlaces
        The folders of the pieces.
    comparison : UpdatePlan, optional
        In an update, the dataset that the items are added to.
    can_update : bool
        Whether a dataset made from files can be updated from the source.
    """

    def __init__(
        self,
        plan: BuildPlan,
        lines: ItemLines,
        places: PiecePlaces,
        comparison: UpdatePlan | None,
        *,
        can_update: bool,
    ) -> None:
        self.base = None if comparison is None else comparison.base
        self._plan = plan
        self._lines = lines
        self._places = places
        self._can_update = can_update

    @property
    def fingerprint(self) -> str:
        return self._plan.fingerprint

    def to_json(self) -> dict[str, Any]:
        folders = [{"path": folder} for folder in self._places.folders]
        return {**self._plan.to_json(), **({"rows": {"inputs": folders}} if folders else {})}

    def take_item_lines(self) -> Iterable[str]:
        lines, self._lines = self._lines, ItemLines()
        return lines

    def made(self, manifest: Manifest) -> bool:
        return self._plan.made(manifest)

    def describe_unfinished(self, space: Workspace, old: Mapping[str, Any]) -> str:
        return describe_mismatch(BuildPlan.from_json(old), self._plan, read_item_lines(space), self._lines)

    def describe_made(self, layout: Layout, manifest: Manifest) -> str:
        entry = manifest.find_file(ITEMS_NAME)
        if entry is None or not layout.file(entry).exists():
            return describe_made(manifest, None, self._plan, self._lines)
        path = layout.file(entry)
        lines = Reiterable(lambda: (line for line in read_lines(path) if line.get("state") not in (GONE, REMOVED)))
        items = Reiterable(
            lambda: ((str(line.get("item")), bytes.fromhex(line.get("source_digest", ""))) for line in lines)
        )
        return describe_made(manifest, items, self._plan, self._lines)

    def advise(self, manifest: Manifest) -> str:
        """Suggest an update if only the items differ."""
        if not self._can_update or manifest.wall_clock.get(FROM_PACKED):
            return ""
        differs = describe_changed_terms(manifest.newest, self._plan)
        return "" if differs else ", or --update to add the new items of the source"

    def resume(self, space: Workspace) -> None:
        """Record where the folders of pieces are now, since they may have been moved.

        If a merge began the dataset and its pieces are gone, a build packs the items again.
        """
        if not space.assembly.exists():
            return
        shards = ShardPlan.load(space)
        inputs = shards.rows["inputs"]
        if self._places.folders:
            pieces = {**inputs[0], "places": self._places._asdict()}
            replace(shards, rows={"inputs": [pieces]}).save()
            return
        known = [PiecePlaces(**entry["places"]) for entry in inputs if "places" in entry]
        if any(
            not places.find(space, task).part(task).exists() for places in known for task in range(len(places.of_task))
        ):
            space.assembly.unlink()

    def take_over(self, space: Workspace, old: Mapping[str, Any]) -> str | None:
        line = describe_taken_over(BuildPlan.from_json(old), self._plan, read_item_lines(space), self._lines)
        if line is not None:
            keep_pieces(space, old)
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
