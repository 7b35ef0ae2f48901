"""Records of a dataset about a build: lines about its items, counts, generations and history."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packer.assembly.piece import PackedItem, Piece, PieceColumns, describe_difference
from packer.assembly.plan import count_labels
from packer.assembly.records import PACKED, REJECTED, ItemIdentity, NewGeneration, ReportedItem, join_neighbours
from packer.builds.planning.plan import BuildPlan
from packer.builds.update.compare import GROWN, UpdatePlan
from packer.recipe import TRACK_RULES, Recipe
from packer.steps.report import ItemReport
from packer.workspace.durable import encode_line
from shardspec.entries import REMOVE, Counts, Generation
from shardspec.errors import DatasetError
from shardspec.layout import Layout
from shardspec.manifest import Manifest, sha256_json
from shardspec.typing.field_types import LABEL


def report_of(item: PackedItem) -> ItemReport:
    """Return the report that a piece has of an item."""
    return ItemReport.from_json({"name": item.name, **item.report})


def settled_reports(piece: Piece, columns: PieceColumns) -> Iterator[ItemReport]:
    """Yield the reports of a piece's items. Items whose samples have other columns become rejects."""
    for item in piece.items:
        report = report_of(item)
        if item.group is not None and piece.groups[item.group].columns != columns:
            reason = (
                "expected the same fields as in most items, found others: "
                f"{describe_difference(columns, piece.groups[item.group].columns)}"
            )
            report = ItemReport(report.name, frames=report.frames, faces=report.faces, step="encode", reason=reason)
        yield report


def describe_item(report: ItemReport, identity: ItemIdentity, row: Mapping[str, Any]) -> ReportedItem:
    """Return the lines about an item.

    Parameters
    ----------
    row : mapping
        The row of a rejected item in the source; empty if it is not recorded.
    """
    packed = report.samples > 0 or report.empty
    item: dict[str, Any] = {"item": report.name, "state": PACKED if packed else REJECTED}
    item |= {"samples": report.samples, "frames": report.frames}
    if report.faces is not None:
        item["faces"] = report.faces
    if report.progressive:
        item["progressive"] = report.progressive
    lines: list[dict[str, Any]] = []
    if not packed:
        lines = [{"kind": "item", "item": report.name, "step": report.step, "reason": report.reason}]
        lines[0] |= {"columns": row} if row else {}
    elif report.skipped or report.damage is not None:
        lines = [
            {"kind": "frames", "item": report.name, "reason": reason, "frames": frames}
            for reason, frames in report.skipped.items()
        ]
        if report.damage is not None:
            lines.append({"kind": "damage", "item": report.name, "reason": report.damage})
        item["remarks"] = len(lines)
    item["source_digest"] = identity.source_digest
    if identity.generation:
        item["generation"] = identity.generation
    return ReportedItem(item, list(map(encode_line, lines)))


@dataclass(frozen=True)
class BrokenTracks:
    """Counts videos that lost frames because their tracks broke, in builds that keep one track of each video.

    A video counts if more than a third of the faces that could continue a track start a new one, so that tracks last
    less than three sampled frames on average, and if at most half of the frames with faces yielded a sample. For
    comparison: in every tenth frame of a street scene at 25 frames per second, one face in eight starts a new track.

    Attributes
    ----------
    videos : int
        Number of videos with broken tracks.
    of : int
        Number of videos in which faces could be followed from one frame to another.
    frames : int
        Frames with faces in the `videos`.
    samples : int
        Samples from the `videos`.
    """

    videos: int = 0
    of: int = 0
    frames: int = 0
    samples: int = 0


class PackingCounts:
    """Counts over the items of a build that the reports do not have.

    Attributes
    ----------
    enlarged : int
        Samples whose image was enlarged, of the items that are not rejected.
    broken_tracks : BrokenTracks
        Broken tracks of the items that are not rejected.
    unused_boxes : int
        Boxes for frames that were not sampled, of the items that are not rejected.
    wide_colours : Counter
        Videos that are not rejected, by the HDR or wide-gamut standard of their colours.
    """

    def __init__(self) -> None:
        self.enlarged = 0
        self.broken_tracks = BrokenTracks()
        self.unused_boxes = 0
        self.wide_colours: Counter[str] = Counter()

    def add(self, report: ItemReport) -> None:
        """Add the report of an item."""
        packed = report.samples > 0 or report.empty
        self.enlarged += report.enlarged if packed else 0
        self.unused_boxes += report.unused_boxes
        if report.wide_colours is not None and packed:
            self.wide_colours[report.wide_colours] += 1
        if not (report.followed or report.lost):
            return
        found = self.broken_tracks
        if report.followed:
            found = replace(found, of=found.of + 1)
        if 3 * report.lost > report.followed and 2 * report.samples <= report.face_frames:
            frames, samples = found.frames + report.face_frames, found.samples + report.samples
            found = replace(found, videos=found.videos + 1, frames=frames, samples=samples)
        self.broken_tracks = found


@dataclass(frozen=True)
class BuildTotals:
    """Counts over all items of a build.

    Attributes
    ----------
    enlarged, broken_tracks, unused_boxes, wide_colours
        See `packer.builds.result.BuildResult`.
    mended : int
        Items that were rejected before and were packed by a retry.
    """

    enlarged: int | None = None
    broken_tracks: BrokenTracks | None = None
    unused_boxes: int | None = None
    wide_colours: Mapping[str, int] | None = None
    mended: int = 0

    @classmethod
    def of_counts(cls, counts: PackingCounts, mended: int, recipe: Recipe) -> "BuildTotals":
        """Return the totals. Counts that do not apply to the recipe are None."""
        return cls(
            enlarged=None if recipe.size is None and recipe.resize != "bucket" else counts.enlarged,
            broken_tracks=counts.broken_tracks if recipe.choose in TRACK_RULES else None,
            unused_boxes=counts.unused_boxes if recipe.boxes is not None else None,
            wide_colours=dict(sorted(counts.wide_colours.items())) or None,
            mended=mended,
        )

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "BuildTotals":
        """Read the result of `dataclasses.asdict`."""
        tracks = document["broken_tracks"]
        return cls(**{**document, "broken_tracks": None if tracks is None else BrokenTracks(**tracks)})


def arrange_generations(
    plan: BuildPlan, counts: Counts, compared: UpdatePlan | None, left: Mapping[int, Mapping[str, int]]
) -> list[NewGeneration]:
    """Return the generations of the dataset after a build or update.

    Parameters
    ----------
    left : dict of int to dict
        Counts of the items that left each generation of the updated dataset.
    """
    kind, recipe = ("build", plan.manifest_recipe) if compared is None else (compared.kind, compared.recipe)
    added = NewGeneration(
        Generation(kind, plan.fingerprint, recipe, plan.runtime, counts, ()), counts.samples, plan.options.shard_size
    )
    if compared is None:
        return [added]
    kept = [
        NewGeneration(replace(one, shards=()), one.counts.samples, added.shard_bytes)
        if compared.rewrites
        else NewGeneration(one, 0, added.shard_bytes)
        for one in _left_of_base(plan, compared, left)
    ]
    # If all retried items were rejected again, there is nothing to add.
    return list(join_neighbours([*kept, added] if counts.items else kept, GROWN))


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


def continue_history(made: Sequence[NewGeneration], counts: Counts, compared: UpdatePlan) -> dict[str, Any]:
    """Return the history of an updated dataset for its ``wall_clock``. The commit adds the time of the last line."""
    removed, last = compared.growth.count_removed(), made[-1].generation
    kind = last.kind if counts.items else "update"
    now = [note_generation(kind, last, None, counts, removed)] if counts.items or removed else []
    return {"history": [*read_history(compared.base), *now]}


def _left_of_base(plan: BuildPlan, compared: UpdatePlan, left: Mapping[int, Mapping[str, int]]) -> list[Generation]:
    """Return the dataset's old generations, without items that are gone or have moved to another generation."""
    kept = []
    for number, generation in enumerate(compared.base.generations):
        fewer = left.get(number, {})
        counts = {name: count - fewer.get(name, 0) for name, count in generation.counts.to_json().items()}
        # A plan recognises its dataset by the fingerprint, so the fingerprint must change once items have left.
        same = not fewer.get("packed_items") and not (plan.gone and fewer)
        fingerprint = generation.fingerprint if same else sha256_json([generation.fingerprint, plan.fingerprint])
        kept.append(replace(generation, counts=Counts(**counts), fingerprint=fingerprint))
    return kept


def read_history(base: Manifest) -> list[Any]:
    """Return the recorded history of a dataset, or a line for each generation if none is recorded."""
    history = base.wall_clock.get("history")
    if isinstance(history, list):
        return history
    # A convert, a merge and a split do not say when their inputs were packed.
    alone = len(base.generations) == 1 and "job" not in base.wall_clock
    finished = base.wall_clock.get("finished") if alone else None
    return [
        note_generation(one.kind, one, finished, one.counts, one.recipe if one.kind == REMOVE else None)
        for one in base.generations
    ]


def note_generation(
    kind: str, last: Generation, finished: Any, counts: Counts | None = None, more: Mapping[str, Any] | None = None
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
