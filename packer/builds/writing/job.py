"""The job of `packer.Writer`. The caller's loop has already written the parts, so only the shards remain."""

import hashlib
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar

from packer.assembly.inputs import describe_pieces
from packer.assembly.packed_rows import PackedRows
from packer.assembly.piece import Piece
from packer.assembly.plan import Merge, shuffled
from packer.assembly.records import NewGeneration
from packer.assembly.schemas import FieldRules
from packer.assembly.shard import PlannedShards
from packer.assembly.table import RowTable
from packer.builds.provenance import library_versions
from packer.jobs.plan import JobSettings, PlanRecord, ResultReader, Task
from packer.recipe import Recipe
from packer.recipe.fields import Declaration
from packer.steps.encode import image_codec
from packer.workspace import Workspace
from shardspec.entries import Counts, Generation
from shardspec.manifest import sha256_json

RECIPE_KEYS = ("format", "encode", "quality", "subsampling", "shard_size", "shuffle")
"""Options of a recipe that apply to a writer."""


class WrittenJob(PlanRecord):
    """The samples of a writer, as a job (`packer.jobs.plan.JobPlan`). Its plan is never stored.

    Attributes
    ----------
    declaration : Declaration
        Set once the fields are known.
    parts, samples, progressive : int
        Numbers of finished parts, of samples, and of samples from progressive JPEGs.
    """

    settings: ClassVar[JobSettings] = JobSettings("write", item="sample")
    tasks: ClassVar[tuple[Task, ...]] = ()

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = {name: getattr(recipe, name) for name in RECIPE_KEYS}
        self._image_codec = image_codec(recipe)
        self._digest = hashlib.sha256()
        self.runtime = library_versions(recipe.format, encodes=True)
        self.declaration = Declaration()
        self.parts = self.samples = self.progressive = 0

    @property
    def record(self) -> PlanRecord:
        return self

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that affects the bytes: options, fields, library versions, samples."""
        decides = {"recipe": self._recipe, "runtime": self.runtime, "samples": self._digest.hexdigest()}
        return sha256_json({**decides, "declared": self.declaration.to_json()})

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.settings.kind, "fingerprint": self.fingerprint}

    def open_work(self, space: Workspace) -> PlannedShards:
        return PlannedShards(space)

    def collect(self, space: Workspace) -> AbstractContextManager[ResultReader]:
        # The caller's loop has finished all tasks.
        return nullcontext(ResultReader((), partial(self._assemble, space)))

    def _assemble(self, space: Workspace) -> Merge:
        """Merge the pieces, after collecting what the cut needs."""
        paths = [space.part(number) for number in range(self.parts)]
        declaration = self.declaration
        classes = {} if declaration.classes is None else {"label": list(declaration.classes)}
        rules = FieldRules(self._image_codec, classes, declaration.fields)
        table = RowTable(Piece(paths[0]).groups[0].columns, rules)
        pieces = []
        for path in paths:
            pieces.append(table.add(Piece(path)))
            with path.open("rb") as file:
                self._digest.update(hashlib.file_digest(file, "sha256").digest())
        table.settle()
        n, seed = self.samples, self._recipe["shuffle"]
        counts = Counts(n, n, 0, 0, n, 0, 0, self.progressive)
        recipe = {**self._recipe, "declared": self.declaration.to_json()}
        made = Generation(self.settings.kind, self.fingerprint, recipe, self.runtime, counts, ())
        rows = {"inputs": [describe_pieces(table, pieces)]}
        return Merge(
            rows,
            PackedRows(rows, space, table=table),
            self._recipe["format"],
            [NewGeneration(made, n, self._recipe["shard_size"])],
            None if seed is None else shuffled(n, seed),
        )
