"""The writer as a job: tasks done by the caller's own loop, and the schema of its samples."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from packer.assembly.plan import Piece, PlannedShards, shuffled
from packer.builds.parts.part import Part
from packer.builds.parts.rows import describe_rows
from packer.builds.parts.schema import SchemaSettler
from packer.builds.provenance import describe_writing
from packer.jobs.plan import Assembly, Made, OnItem, TakeIn, Task, Unit, Verdicts
from packer.recipe import Recipe
from packer.recipe.fields import Declaration
from packer.steps.encode import image_codec
from packer.workspace import Workspace
from packer.workspace.columns import FieldColumn
from packer.workspace.durable import writing
from shardspec.entries import Counts, Generation
from shardspec.layout import Layout
from shardspec.manifest import Manifest, sha256_json
from shardspec.points import LAYOUTS

RECIPE_KEYS = ("format", "encode", "quality", "subsampling", "shard_size", "shuffle")
"""The options of a recipe that a writer has."""


class WrittenJob:
    """The samples of a loop in the form that a job runs (`packer.jobs.plan.JobPlan`).

    Parameters
    ----------
    recipe : Recipe

    Attributes
    ----------
    declaration : Declaration
        Set once the fields are known.
    parts, samples, progressive : int
        What was written: finished parts, samples, and those that came as progressive JPEGs.
    """

    kind: ClassVar[str] = "write"
    preset: ClassVar[str] = "rows"
    stage: ClassVar[str] = "packing"
    items_are: ClassVar[str] = "samples"
    shares_detector: ClassVar[bool] = False
    needs_gpus: ClassVar[bool] = False
    notes: ClassVar[tuple[str, ...]] = ()
    tasks: ClassVar[tuple[Task, ...]] = ()
    base: ClassVar[None] = None

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = {name: getattr(recipe, name) for name in RECIPE_KEYS}
        self._image_codec = image_codec(recipe)
        self._digest = hashlib.sha256()
        self.runtime = describe_writing(recipe.format)
        self.declaration = Declaration()
        self.parts = self.samples = self.progressive = 0

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides the bytes: options, fields, library versions, samples."""
        decides = {"recipe": self._recipe, "runtime": self.runtime, "samples": self._digest.hexdigest()}
        return sha256_json({**decides, "declared": self.declaration.to_json()})

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON; it is never written, since nothing can resume it."""
        return {"kind": self.kind, "fingerprint": self.fingerprint}

    def take_item_lines(self) -> Sequence[str]:
        """See `JobPlan`: there are no items."""
        return ()

    def made(self, manifest: Manifest) -> bool:
        """See `JobPlan`: samples that are yet to be written made nothing."""
        return False

    def describe(self, space: Workspace, old: Mapping[str, Any]) -> str:
        """See `JobPlan`: there is no plan to compare."""
        return ""

    def describe_made(self, layout: Layout, manifest: Manifest) -> str:
        """See `JobPlan`: there is no plan to compare."""
        return ""

    def remedy(self, manifest: Manifest) -> str:
        """See `JobPlan`: nothing."""
        return ""

    def announce(self, done: int) -> str:
        """See `JobPlan`."""
        return ""

    def take_up(self, space: Workspace) -> None:
        """See `JobPlan`: there are no tasks to take up."""

    def take_over(self, space: Workspace, old: Mapping[str, Any]) -> str | None:
        """See `JobPlan`: there are no tasks to take over."""
        return None

    def finished(self, space: Workspace) -> Collection[int]:
        """See `JobPlan`: the loop has done them all."""
        return range(len(self.tasks))

    def open_work(self, space: Workspace) -> "WrittenWork":
        """See `JobPlan`."""
        return WrittenWork(space)

    def taking_in(self, space: Workspace) -> AbstractContextManager[TakeIn]:
        """See `JobPlan`: the loop has done them all."""
        return nullcontext(lambda made: ())

    def assemble(self, space: Workspace) -> Assembly:
        """Settle the schema over the parts."""
        paths = [space.part(number) for number in range(self.parts)]
        columns = dict(Part(paths[0]).groups[0].columns)
        layouts = {len(layout.names): name for name, layout in LAYOUTS.items()}
        declaration = self.declaration
        classes = {} if declaration.classes is None else {"label": list(declaration.classes)}
        settler = SchemaSettler(self._image_codec, classes, layouts, declaration.fields)
        settler.begin(columns)
        rows = []
        for path in paths:
            rows.append(settler.add(Part(path)))
            with path.open("rb") as file:
                self._digest.update(hashlib.file_digest(file, "sha256").digest())
        config = describe_rows(columns, rows, settler.settle())
        seed, shard_bytes = self._recipe["shuffle"], self._recipe["shard_size"]
        order = None if seed is None else shuffled(self.samples, seed)
        return Assembly(config, self._recipe["format"], [Piece(self.samples, shard_bytes)], order)

    def generations(self, space: Workspace) -> Sequence[Made]:
        """See `JobPlan`."""
        n = self.samples
        counts = Counts(n, n, 0, 0, n, 0, 0, self.progressive)
        recipe = {**self._recipe, "declared": self.declaration.to_json()}
        return [Made(Generation(self.kind, self.fingerprint, recipe, self.runtime, counts, ()), n)]

    def columns(self, space: Workspace) -> Sequence[FieldColumn]:
        """See `JobPlan`."""
        return ()

    def history(self, space: Workspace, last: Generation, finished: str) -> list[Any] | None:
        """See `JobPlan`."""
        return None

    def facts(self, tasks_run: int) -> dict[str, Any]:
        """See `JobPlan`."""
        return {}


class WrittenWork:
    """Writes the shards (`packer.jobs.plan.Work`).

    Parameters
    ----------
    workspace : Workspace
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._shards = PlannedShards(workspace)

    def prepare(self) -> None:
        """Nothing is slow to load."""

    def run(self, unit: Unit, verdicts: Verdicts, on_item: OnItem) -> dict[str, Any]:
        """Write one shard.

        Raises
        ------
        BuildError
            If a file cannot be written.
        """
        with writing(self._workspace.out):
            return self._shards.write(unit.number)

    def close(self) -> None:
        """Close the parts."""
        self._shards.close()
