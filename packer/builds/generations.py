"""The counts of a build, and the generations and history of its dataset, for the manifest."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly.columns import carried_columns
from packer.builds.planning.plan import BuildPlan
from packer.builds.reports import BrokenTracks, ReportWriter
from packer.builds.update.compare import UpdatePlan
from packer.jobs.plan import ManifestParts, NewGeneration
from packer.recipe import TRACK_RULES, Recipe
from packer.workspace import Workspace
from packer.workspace.durable import read_needed, write_record
from shardspec.entries import Counts, Generation, total
from shardspec.errors import DatasetError
from shardspec.layout import Layout
from shardspec.manifest import Manifest, sha256_json
from shardspec.typing.field_types import LABEL


@dataclass(frozen=True)
class BuildTotals:
    """Counts over all items of a build.

    Attributes
    ----------
    enlarged, broken_tracks, unused_boxes, wide_colours
        See `packer.builds.result.BuildResult`.
    mended : int
        Items that were rejected before and were packed by a retry.
    left : dict of str to dict
        Counts of the items that left each generation of the updated dataset, by the generation's number.
    """

    counts: Counts
    enlarged: int | None = None
    broken_tracks: BrokenTracks | None = None
    unused_boxes: int | None = None
    wide_colours: Mapping[str, int] | None = None
    mended: int = 0
    left: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def of_reports(cls, reports: ReportWriter, recipe: Recipe, ignored: int) -> "BuildTotals":
        """Return the totals of finished reports. Counts that do not apply to the recipe are None."""
        return cls(
            reports.counts(ignored),
            enlarged=None if recipe.size is None else reports.enlarged,
            broken_tracks=reports.broken_tracks if recipe.choose in TRACK_RULES else None,
            unused_boxes=reports.unused_boxes if recipe.boxes is not None else None,
            wide_colours=dict(sorted(reports.wide_colours.items())) or None,
            mended=reports.mended,
            left={str(number): dict(counts) for number, counts in reports.left.items()},
        )

    def save(self, space: Workspace) -> None:
        """Write the totals to the workspace."""
        write_record(space.counts, {**asdict(self), "counts": self.counts.to_json()})

    @classmethod
    def load(cls, space: Workspace) -> "BuildTotals":
        """Read the totals from the workspace."""
        found = read_needed(space.counts)
        tracks = found.pop("broken_tracks")
        tracks = None if tracks is None else BrokenTracks(**tracks)
        return cls(Counts(**found.pop("counts")), broken_tracks=tracks, **found)


def arrange_generations(plan: BuildPlan, totals: BuildTotals, compared: UpdatePlan | None) -> list[NewGeneration]:
    """Return the generations of the dataset after a build or update."""
    counts = totals.counts
    if compared is None:
        return [
            NewGeneration(
                Generation("build", plan.fingerprint, plan.manifest_recipe, plan.runtime, counts, ()),
                counts.samples,
            )
        ]
    kept = [
        NewGeneration(replace(one, shards=()), one.counts.samples) if compared.rewrites else NewGeneration(one, 0)
        for one in _left_of_base(plan, totals, compared)
    ]
    if not counts.items:  # all retried items were rejected again
        return kept
    added = Generation(compared.kind, plan.fingerprint, compared.recipe, plan.runtime, counts, ())
    if not compared.joins:
        return [*kept, NewGeneration(added, counts.samples)]
    last, rows = kept[-1]
    fingerprint = sha256_json([last.fingerprint, plan.fingerprint])
    joined = replace(last, fingerprint=fingerprint, counts=total([last, added]))
    return [*kept[:-1], NewGeneration(joined, rows + counts.samples)]


def count_labels(index: Path) -> dict[int, int]:
    """Return the number of samples by label, from the index file of the field. Without labels, the result is empty."""
    try:
        labels = np.load(index, mmap_mode="r")
    except FileNotFoundError:
        return {}
    if labels.dtype.kind not in "iu":
        return {}
    return dict(zip(*(found.tolist() for found in np.unique(labels, return_counts=True)), strict=True))


def stored_labels(layout: Layout, manifest: Manifest) -> dict[int, int]:
    """Return the number of samples by label in a finished dataset. If its index is damaged, the result is empty."""
    entry = layout.find_index(manifest, LABEL)
    if entry is None:
        return {}
    try:
        layout.check_digest(entry)
    except DatasetError:
        return {}
    return count_labels(layout.file(entry))


def describe_contents(
    space: Workspace, plan: BuildPlan, totals: BuildTotals, compared: UpdatePlan | None, finished: str
) -> ManifestParts:
    """Return the contents of a build's manifest, including the history of an updated dataset."""
    made = arrange_generations(plan, totals, compared)
    if compared is None:
        return ManifestParts(made)
    counts, removed, last = totals.counts, compared.growth.count_removed(), made[-1].generation
    kind = last.kind if counts.items else "update"
    now = [_note(kind, last, finished, counts, removed)] if counts.items or removed else []
    columns = carried_columns(space, compared.base)
    return ManifestParts(made, columns, {"history": [*_read_history(compared.base), *now]})


def _left_of_base(plan: BuildPlan, totals: BuildTotals, compared: UpdatePlan) -> list[Generation]:
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
