"""After the tasks of a build: read its parts, write its reports, settle its schema, and plan its shards.

Also compute the counts and generations of the build for its manifest.
"""

import errno
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly.columns import carried_columns, carry_columns
from packer.assembly.plan import Piece, shuffled
from packer.builds.parts.rows import UpdatedRows, describe_rows, describe_updated, find_rows
from packer.builds.parts.summary import PartsReader, SchemaSettler
from packer.builds.planning.plan import DIGEST_BYTES, BuildPlan, source_row
from packer.builds.reports import BaseReports, BrokenTracks, ItemIdentity, ReportWriter
from packer.builds.update.compare import Comparison
from packer.jobs.plan import Assembly, Contents, Made, Task
from packer.jobs.stages import failed_item
from packer.recipe import TRACK_RULES, Recipe
from packer.recipe.fields import Declaration
from packer.sources.item import Item, read_items
from packer.steps.encode import declared_fields, image_codec
from packer.steps.faces.frame import advise
from packer.workspace import Workspace, read_lines
from packer.workspace.durable import write_durably
from packer.workspace.folder import discard
from readers.formats.machine import available_processors
from shardspec.entries import Counts, Generation, strip_aside
from shardspec.errors import DatasetError, SchemaError, TooManyRejectsError, UsageError
from shardspec.layout import ITEMS_NAME, REJECTS_NAME, Layout
from shardspec.manifest import Manifest, sha256_json
from shardspec.points import LAYOUTS
from shardspec.schema import Schema
from shardspec.wording import LONG, counted, cut, program, shorten


@dataclass(frozen=True)
class BuildTotals:
    """Counts over all items of a build.

    Attributes
    ----------
    refilled, broken_tracks, unused_boxes
        See `packer.builds.result.BuildResult`.
    mended : int
        Items that were rejected before and were packed by a retry.
    left : dict of str to dict
        Counts of the items that left each generation of the updated dataset, by the generation's number.
    """

    counts: Counts
    refilled: int | None = None
    broken_tracks: BrokenTracks | None = None
    unused_boxes: int | None = None
    mended: int = 0
    left: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def of_reports(cls, reports: ReportWriter, recipe: Recipe, ignored: int) -> "BuildTotals":
        """Return the totals of finished reports. Counts that do not apply to the recipe are None."""
        return cls(
            reports.counts(ignored),
            refilled=reports.refilled if recipe.refill else None,
            broken_tracks=reports.broken_tracks if recipe.choose in TRACK_RULES else None,
            unused_boxes=reports.unused_boxes if recipe.boxes is not None else None,
            mended=reports.mended,
            left={str(number): dict(counts) for number, counts in reports.left.items()},
        )

    def save(self, space: Workspace) -> None:
        """Write the totals to the workspace."""
        write_durably(space.counts, json.dumps({**asdict(self), "counts": self.counts.to_json()}).encode())

    @classmethod
    def load(cls, space: Workspace) -> "BuildTotals":
        """Read the totals from the workspace."""
        found: dict[str, Any] = json.loads(space.counts.read_bytes())
        tracks = found.pop("broken_tracks")
        tracks = None if tracks is None else BrokenTracks(**tracks)
        return cls(Counts(**found.pop("counts")), broken_tracks=tracks, **found)


def arrange_generations(plan: BuildPlan, totals: BuildTotals, compared: Comparison | None) -> list[Made]:
    """Return the generations of the dataset after a build or update."""
    counts = totals.counts
    if compared is None:
        return [
            Made(
                Generation("build", plan.fingerprint, plan.manifest_recipe, plan.runtime, counts, ()),
                counts.samples,
            )
        ]
    kept = [
        Made(replace(one, shards=()), one.counts.samples) if compared.rewrites else Made(one, 0)
        for one in _left_of_base(plan, totals, compared)
    ]
    if not counts.items:  # all retried items were rejected again
        return kept
    added = Generation(compared.kind, plan.fingerprint, compared.recipe, plan.runtime, counts, ())
    return [*kept, Made(added, counts.samples)]


def describe_contents(
    space: Workspace, plan: BuildPlan, totals: BuildTotals, compared: Comparison | None, finished: str
) -> Contents:
    """Return the contents of a build's manifest, including the history of an updated dataset."""
    made = arrange_generations(plan, totals, compared)
    if compared is None:
        return Contents(made)
    counts, removed, last = totals.counts, compared.growth.count_removed(), made[-1].generation
    kind = last.kind if counts.items else "update"
    now = [_note(kind, last, finished, counts, removed)] if counts.items or removed else []
    columns = carried_columns(space, compared.base)
    return Contents(made, columns, {"history": [*_read_history(compared.base), *now]})


def _left_of_base(plan: BuildPlan, totals: BuildTotals, compared: Comparison) -> list[Generation]:
    """Return the dataset's old generations, without items that are gone or have moved to another generation."""
    kept = []
    for number, generation in enumerate(compared.base.generations):
        fewer = totals.left.get(str(number), {})
        counts = {name: count - fewer.get(name, 0) for name, count in generation.counts.to_json().items()}
        # A plan recognises its dataset by the fingerprint, so the fingerprint must change once items have left.
        same = not fewer.get("packed_items") and not (plan.gone and fewer)
        fingerprint = generation.fingerprint if same else sha256_json([generation.fingerprint, plan.fingerprint])
        kept.append(replace(generation, counts=Counts(**counts), fingerprint=fingerprint))
    return kept


def _read_history(base: Manifest) -> list[Any]:
    """Return the recorded history of a dataset. A dataset of a single build gets a history of one line."""
    history = base.wall_clock.get("history")
    if isinstance(history, list):
        return history
    finished = base.wall_clock.get("finished") if len(base.generations) == 1 else None
    return [_note(generation.kind, generation, finished, generation.counts) for generation in base.generations]


def _note(
    kind: str, last: Generation, finished: Any, counts: Counts | None = None, more: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return a line of the history.

    Parameters
    ----------
    last : Generation
        The generation whose version of this project is recorded.
    finished : str or None
        Time in UTC.
    counts : Counts, optional
        Counts of the items.
    more : mapping, optional
        Further keys.
    """
    made = {"kind": kind, "finished": finished, "version": last.runtime.get("facepack")}
    items = (0, 0, 0) if counts is None else (counts.items, counts.rejected_items, counts.samples)
    return {**made, **dict(zip(("items", "rejected", "samples"), items, strict=True)), **(more or {})}


_SHOWN_REASONS = 3

_NOT_THERE = os.strerror(errno.ENOENT)


class BuildAssembler:
    """Reads the parts of a build while tasks are running, and plans the shards after the last task.

    Parameters
    ----------
    digests : bytearray
        See `packer.builds.planning.plan`.
    comparison : Comparison, optional
        See `packer.builds.job.BuildJob`.
    rejects : bool
        Whether items may be rejected; otherwise the first reject is an error.
    """

    def __init__(
        self,
        space: Workspace,
        plan: BuildPlan,
        digests: bytearray,
        declaration: Declaration | None,
        comparison: Comparison | None,
        *,
        rejects: bool,
    ) -> None:
        self._space = space
        self._plan = plan
        self._recipe = Recipe.from_options(plan.recipe)
        self._digests = digests
        self._declaration = declaration
        self._comparison = comparison
        self._rejects = rejects
        fits = None if comparison is None else partial(self._make_settler().fits, schema=comparison.base.shard_schema)
        self._parts = PartsReader(
            space, plan.tasks, self._make_settler, self._make_reports, self._identify, self._rows_of, fits
        )

    def read(self, made: Iterable[int]) -> None:
        """Read the parts of finished tasks (`PartsReader.read`)."""
        self._parts.read(made)

    def close(self) -> None:
        """Close the files."""
        self._parts.close()

    def assemble(self) -> Assembly:
        """Write the reports and settle the schema.

        Raises
        ------
        TooManyRejectsError
            If no item yielded a sample.
        """
        space, recipe, compared = self._space, self._recipe, self._comparison
        with closing(self):
            self._parts.finish()
        parts = self._parts
        if parts.failed is not None and not self._rejects:
            raise failed_item(parts.failed.name, f"{parts.failed.step}: {parts.failed.reason}")
        totals = BuildTotals.of_reports(parts.reports, recipe, self._plan.ignored)
        totals.save(space)
        counts = totals.counts
        if not counts.samples and compared is None:
            raise _give_up(space, counts, recipe)
        parts.table.schema = self._settle(parts.settler)
        config = describe_rows(parts.columns, parts.rows, parts.table.schema)
        order = None if recipe.shuffle is None else shuffled(counts.samples, recipe.shuffle)
        made = arrange_generations(self._plan, totals, compared)
        pieces = [Piece(one.rows, recipe.shard_size) for one in made]
        added = Assembly(config, recipe.format, pieces, order, source=parts.table)
        return added if compared is None else self._assemble_update(compared, added, counts.samples)

    def _make_settler(self) -> SchemaSettler:
        layouts = {len(layout.names): name for name, layout in LAYOUTS.items()}
        fields = declared_fields(self._recipe) if self._declaration is None else self._declaration.fields
        return SchemaSettler(image_codec(self._recipe), self._plan.classes, layouts, fields)

    def _make_reports(self) -> ReportWriter:
        space, compared = self._space, self._comparison
        before = None if compared is None else BaseReports(compared.layout, compared.base, compared.gone)
        return ReportWriter(space.final / REJECTS_NAME, space.final / ITEMS_NAME, before)

    def _assemble_update(self, compared: Comparison, added: Assembly, samples: int) -> Assembly:
        """Plan shards for the new rows. If samples are removed, the new shards also hold the rows that are kept.

        Raises
        ------
        UsageError
            If no sample would be left.
        DatasetError
            If a shard to copy samples from does not match the manifest.
        """
        base, space = compared.base, self._space
        if compared.rewrites:  # check the shards before reading the sizes that decide how rows are cut
            _check_shards(compared.layout, base)
        removed = find_rows(compared.layout, base, compared.removed)
        carry_columns(space, base, removed, samples)
        first = _next_shard(base, space)
        if not compared.rewrites:
            return replace(added, first_shard=first, before=_index_files(compared.layout, base))
        if len(removed) == base.samples and not samples:
            discard(space, aside=True)
            raise UsageError(
                place=compared.layout.root,
                expected="an update that leaves samples",
                found=f"one that removes all {base.samples} and adds none",
                hint="give another source, or pack this one into another folder",
            )
        kept = np.delete(np.arange(base.samples), removed)
        order = base.samples + (np.arange(samples) if added.order is None else added.order)
        rows = describe_updated(base, added.rows)
        source = UpdatedRows(rows, space, added.source)
        return replace(added, rows=rows, order=np.concatenate([kept, order]), first_shard=first, source=source)

    def _settle(self, settler: SchemaSettler) -> Schema:
        """Return the schema of the rows, or in an update the schema of the extended dataset.

        Raises
        ------
        UsageError
            If the rows do not fit into the dataset.
        """
        if self._comparison is None:
            return settler.settle()
        try:
            return settler.settle_into(self._comparison.base.shard_schema)
        except SchemaError as error:
            discard(self._space, aside=True)  # resuming this build would fail again
            raise UsageError(
                expected="samples that fit into the dataset",
                found="others",
                hint=(
                    f"{error}: make them alike ({program()} merge names the options), or choose another output folder"
                ),
            ) from error

    def _rows_of(self, task: Task) -> Callable[[int], Mapping[str, Any]]:
        """Return a function that maps an item's position in a task to its row in the source.

        The function reads the items when it is first called.
        """
        items: list[Item] = []

        def row_of(place: int) -> Mapping[str, Any]:
            items.extend(() if items else read_items(self._space.items, *task))
            return source_row(items[place], self._plan)

        return row_of

    def _identify(self, task: Task) -> Iterator[ItemIdentity]:
        """Yield the identity of each item of a task. Later builds recognise the item by this identity."""
        if self._comparison is not None:
            yield from map(self._comparison.identify, read_items(self._space.items, *task))
            return
        digests, digits = self._digests[DIGEST_BYTES * task.start : DIGEST_BYTES * task.stop].hex(), 2 * DIGEST_BYTES
        for place, index in enumerate(range(task.start, task.stop)):
            yield ItemIdentity(digests[digits * place : digits * (place + 1)], index)


def _next_shard(base: Manifest, space: Workspace) -> int:
    """Return a shard number larger than that of any shard or file in the folder."""
    names = [*(shard.name for shard in base.shards), *(path.name for path in space.out.iterdir())]
    found = (re.match(r"shard-([0-9]+)", strip_aside(name)) for name in names)
    return max((int(match[1]) + 1 for match in found if match is not None), default=0)


def _check_shards(layout: Layout, base: Manifest) -> None:
    with ThreadPoolExecutor(available_processors()) as threads:
        for _ in threads.map(layout.check_digest, [entry for shard in base.shards for entry in shard.files]):
            pass


def _index_files(layout: Layout, base: Manifest) -> dict[str, Path]:
    """Check the index files of a dataset, and return their paths by field."""
    found = {}
    for name in (known.name for known in base.shard_schema if known.is_scalar):
        entry = layout.find_index(base, name)
        if entry is None:
            raise DatasetError(place=layout.root, expected=f"an index of the field {name!r}", found="none")
        layout.check_digest(entry)
        found[name] = layout.file(entry)
    return found


def _give_up(space: Workspace, counts: Counts, recipe: Recipe) -> TooManyRejectsError:
    """Discard a build without samples, and return the error to raise. Resuming such a build would not help."""
    reasons = list(islice(read_lines(space.final / REJECTS_NAME), _SHOWN_REASONS))
    shown = "; ".join(f"{shorten(line['item'], LONG)}, {line['step']}: {cut(line['reason'], LONG)}" for line in reasons)
    advice = advise((line["reason"] for line in reasons), recipe)
    if all(line["step"] == "source" and line["reason"].endswith(_NOT_THERE) for line in reasons):
        kind = "have / and a suffix, and" if recipe.frame_folders is None else "have / and all zeros of a name, and"
        advice = f"paths in a table {kind} are relative to its folder, or to --root DIR"
    space.give_up(space.final / REJECTS_NAME)
    all_items = f"none of the {counted(counts.items, 'item')} yielded a sample"
    return TooManyRejectsError(
        f"{'the only item yielded no sample' if counts.items == 1 else all_items}, so nothing was packed: {shown} "
        f"(all reasons: {space.reasons})"
        f"{f': {advice}' if advice else ''}"
    )
