"""The job of `packer.Writer`. The caller's loop has already written the parts, so only the shards remain."""

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar

from packer.assembly.plan import PlannedShards, ShardRun, shuffled
from packer.builds.parts.part import Part
from packer.builds.parts.rows import describe_rows
from packer.builds.parts.schema import SchemaSettler
from packer.builds.provenance import library_versions
from packer.jobs.plan import JobSettings, ManifestParts, NewGeneration, ResultReader, ResumeRules, RowLayout, Task
from packer.recipe import Recipe
from packer.recipe.fields import Declaration
from packer.steps.encode import image_codec
from packer.workspace import Workspace
from shardspec.entries import Counts, Generation
from shardspec.manifest import sha256_json
from shardspec.points import LAYOUTS

RECIPE_KEYS = ("format", "encode", "quality", "subsampling", "shard_size", "shuffle")
"""Options of a recipe that apply to a writer."""


class WrittenJob:
    """The samples of a writer, as a job (`packer.jobs.plan.JobPlan`).

    Attributes
    ----------
    declaration : Declaration
        Set once the fields are known.
    parts, samples, progressive : int
        Numbers of finished parts, of samples, and of samples from progressive JPEGs.
    """

    settings: ClassVar[JobSettings] = JobSettings("write", item="sample")
    resumption: ClassVar[ResumeRules] = ResumeRules()
    tasks: ClassVar[tuple[Task, ...]] = ()
    base: ClassVar[None] = None

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = {name: getattr(recipe, name) for name in RECIPE_KEYS}
        self._image_codec = image_codec(recipe)
        self._digest = hashlib.sha256()
        self.runtime = library_versions(recipe.format, encodes=True)
        self.declaration = Declaration()
        self.parts = self.samples = self.progressive = 0

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that affects the bytes: options, fields, library versions, samples."""
        decides = {"recipe": self._recipe, "runtime": self.runtime, "samples": self._digest.hexdigest()}
        return sha256_json({**decides, "declared": self.declaration.to_json()})

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON. It is never written, since a writer cannot be resumed."""
        return {"kind": self.settings.kind, "fingerprint": self.fingerprint}

    def take_item_lines(self) -> Sequence[str]:
        return ()

    def open_work(self, space: Workspace) -> PlannedShards:
        return PlannedShards(space)

    def collect(self, space: Workspace) -> AbstractContextManager[ResultReader]:
        # The caller's loop has finished all tasks.
        return nullcontext(ResultReader((), partial(self._assemble, space)))

    def _assemble(self, space: Workspace) -> RowLayout:
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
        return RowLayout(config, self._recipe["format"], [ShardRun(self.samples, shard_bytes)], order)

    def contents(self, space: Workspace, finished: str, tasks_run: int) -> ManifestParts:
        n = self.samples
        counts = Counts(n, n, 0, 0, n, 0, 0, self.progressive)
        recipe = {**self._recipe, "declared": self.declaration.to_json()}
        generation = Generation(self.settings.kind, self.fingerprint, recipe, self.runtime, counts, ())
        return ManifestParts([NewGeneration(generation, n)])
