"""Reports about every item: ``rejects.jsonl``, ``items.jsonl`` and the counts."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, repeat
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packer.steps.report import ItemReport
from packer.workspace.json_lines import encode_line
from packer.workspace.paths import temporary_path
from shardspec.entries import Counts
from shardspec.errors import DatasetError
from shardspec.layout import ITEMS_NAME, REJECTS_NAME, Layout
from shardspec.manifest import Manifest

GONE = "gone"
"""State of an item that was dropped because the source no longer has it."""


class ItemIdentity(NamedTuple):
    """Identity of an item in later builds, and its generation.

    Attributes
    ----------
    source_digest : str
        The first digits of the SHA-256 of what the source says of it (`packer.builds.planning.plan.item_digest`).
    number : int
        The item's number in the dataset, which is that of its line in ``items.jsonl``, from 0.
    generation : int
        The number of the generation that packs it, or rejects it for the first time.
    """

    source_digest: str
    number: int
    generation: int = 0


@dataclass(frozen=True)
class BrokenTracks:
    """Videos that lost frames because their tracks broke, when one track of each video is kept.

    Tracks count as broken if more than a third of the faces that could continue a track start another: then tracks last
    three sampled frames on average. It matters if no more than half of the frames with faces yielded a sample. (In
    every tenth frame of a street scene at 25 frames per second, one face in eight starts another track.)

    Attributes
    ----------
    videos : int
        How many videos.
    of : int
        The number of videos in which faces could be followed from one frame to another.
    frames : int
        Frames with faces in the `videos`.
    samples : int
        Samples from the `videos`.
    """

    videos: int = 0
    of: int = 0
    frames: int = 0
    samples: int = 0


class ReportWriter:
    """Writes both reports item by item, and counts. Use as a context manager.

    ``items.jsonl`` has one line per item: ``item``, ``state`` (packed, rejected or gone), ``samples``, ``frames``
    looked at, ``faces`` found if a detector ran, and, if there are any, the samples that came as ``progressive`` JPEGs,
    the ``refilled`` frames, and the ``remarks`` (lines in ``rejects.jsonl``) about a packed item; ``source_digest``, by which
    an update knows the item again, and its ``generation`` unless that is 0.
    ``rejects.jsonl`` has one line per reject (``kind`` item), per reason why frames of a packed item yielded no sample
    (``kind`` frames), and per video whose rest could not be read (``kind`` damage).

    Parameters
    ----------
    rejects, items : Path
    base : BaseReports, optional
        The reports of the dataset that the items are added to.

    Attributes
    ----------
    left : dict of int to Counter
        By generation of the updated dataset, the counts of the items that have left it.
    mended : int
        Items that were rejected and are packed now.
    marked : int
        Samples whose image has restart markers (`packer.steps.report.ItemReport`).
    refilled : int
        Sampled frames that were replaced by a nearby frame.
    broken_tracks : BrokenTracks
        Over the items that are not rejected.
    unused_boxes : int
        Boxes given for frames that were not sampled, over the items that are not rejected.
    """

    def __init__(self, rejects: Path, items: Path, base: "BaseReports | None" = None) -> None:
        self._base = base
        # Not readable until complete.
        self._names = {temporary_path(path): path for path in (rejects, items)}
        self._rejects, self._items = (path.open("xb") for path in self._names)
        self._counts = dict.fromkeys(Counts.__dataclass_fields__, 0)
        self.mended = 0
        self.marked = 0
        self.refilled = 0
        self.broken_tracks = BrokenTracks()
        self.unused_boxes = 0

    def __enter__(self) -> "ReportWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        self.close()

    @property
    def left(self) -> dict[int, Counter[str]]:
        """See the class; known once all lines are written."""
        return {} if self._base is None else self._base.left

    def add(
        self,
        reports: Iterable[ItemReport],
        identities: Iterable[ItemIdentity | None] = repeat(None),
        row_of: Callable[[int], Mapping[str, Any]] = lambda _: {},
    ) -> None:
        """Write the reports of items, in order, each with the item's identity.

        Parameters
        ----------
        row_of : callable
            Returns the columns of a rejected item, by its position among these.
        """
        for place, (report, identity) in enumerate(zip(reports, identities, strict=False)):
            self._add(report, identity, row_of, place)

    def finish(self) -> None:
        """Copy the remaining lines of the base dataset, and publish the files."""
        if self._base is not None:
            self._base.copy(None, self._items, self._rejects)
        self._rejects.close()
        self._items.close()
        for made, path in self._names.items():
            made.replace(path)
        self._names = {}

    def close(self) -> None:
        """Close the files, and remove them if they were not finished."""
        self._rejects.close()
        self._items.close()
        for made in self._names:
            made.unlink(missing_ok=True)
        self._names = {}

    def counts(self, ignored: int) -> Counts:
        """Return the counts of the added items, without retried items that are rejected again."""
        return Counts(**{**self._counts, "ignored_files": ignored})

    def _add(
        self,
        report: ItemReport,
        identity: ItemIdentity | None,
        row_of: Callable[[int], Mapping[str, Any]],
        place: int,
    ) -> None:
        base = self._base
        earlier = None if base is None or identity is None else base.copy(identity.number, self._items, self._rejects)
        packed = report.samples > 0 or report.empty
        again = earlier is not None and earlier.state == "rejected"
        if base is not None and earlier is not None and (earlier.state == "packed" or (again and packed)):
            base.leave(earlier)
        self.mended += again and packed
        if packed or not again:
            self._counts["items"] += 1
            self._counts["packed_items" if packed else "rejected_items"] += 1
        self._counts["samples"] += report.samples
        self._counts["progressive_jpegs"] += report.progressive
        self.marked += report.marked
        self.refilled += report.refilled
        self.unused_boxes += report.unused_boxes
        if report.followed or report.lost:
            self._add_tracks(report)
        line: dict[str, Any] = {"item": report.name, "state": "packed" if packed else "rejected"}
        line |= {"samples": report.samples, "frames": report.frames}
        if report.faces is not None:
            line["faces"] = report.faces
        if report.progressive:
            line["progressive"] = report.progressive
        if report.refilled:
            line["refilled"] = report.refilled
        if identity is not None:
            remarks = len(report.skipped) + (report.damage is not None) if packed else 0
            if remarks:
                line["remarks"] = remarks
            line["source_digest"] = identity.source_digest
            stays = earlier is not None and again and not packed
            generation = earlier.generation if earlier is not None and stays else identity.generation
            if generation:
                line["generation"] = generation
        self._items.write(encode_line(line))
        if packed:
            self._remark(report)
            return
        row = row_of(place)
        more = {"columns": row} if row else {}
        self._reject(kind="item", item=report.name, step=report.step, reason=report.reason, **more)

    def _remark(self, report: ItemReport) -> None:
        """Write the remarks about a packed item."""
        for reason, frames in report.skipped.items():
            self._counts["frames_without_sample"] += len(frames)
            self._reject(kind="frames", item=report.name, reason=reason, frames=frames)
        if report.damage is not None:
            self._counts["damaged_items"] += 1
            self._reject(kind="damage", item=report.name, reason=report.damage)

    def _reject(self, **line: Any) -> None:
        self._rejects.write(encode_line(line))

    def _add_tracks(self, report: ItemReport) -> None:
        found = self.broken_tracks
        if report.followed:
            found = replace(found, of=found.of + 1)
        if 3 * report.lost > report.followed and 2 * report.samples <= report.face_frames:
            frames, samples = found.frames + report.face_frames, found.samples + report.samples
            found = replace(found, videos=found.videos + 1, frames=frames, samples=samples)
        self.broken_tracks = found


class BaseItem(NamedTuple):
    """Lines of the dataset's reports about one item.

    Attributes
    ----------
    item : dict
        Its line in ``items.jsonl``.
    rejects : list of bytes
        Its lines in ``rejects.jsonl``.
    """

    item: dict[str, Any]
    rejects: list[bytes]

    @property
    def state(self) -> str:
        """``"packed"``, ``"rejected"`` or ``"gone"``."""
        return str(self.item["state"])

    @property
    def generation(self) -> int:
        """The number of the generation that it counts in."""
        return int(self.item.get("generation", 0))

    def counts(self) -> dict[str, int]:
        """Return the numbers that the item adds to the counts."""
        if self.state == "rejected":
            return {"items": 1, "rejected_items": 1}
        frames = damaged = 0
        for line in map(json.loads, self.rejects):
            frames += len(line.get("frames", ()))
            damaged += line["kind"] == "damage"
        more = {"progressive_jpegs": self.item.get("progressive", 0), "samples": self.item["samples"]}
        return {"items": 1, "packed_items": 1, "frames_without_sample": frames, "damaged_items": damaged, **more}


class BaseReports:
    """The reports of the dataset that an update starts from. Their lines are copied around those of new reports.

    Parameters
    ----------
    layout : Layout
    manifest : Manifest
    gone : (items,) bool, optional
        Which items, by their numbers, are dropped. Their lines in ``items.jsonl`` stay, with the state ``"gone"``, so that every
        item's number stays that of its line.

    Attributes
    ----------
    left : dict of int to Counter
        By generation, what no longer counts in it.

    Raises
    ------
    DatasetError
        If a report is missing or does not match the manifest.
    """

    def __init__(self, layout: Layout, manifest: Manifest, gone: npt.NDArray[np.bool_] | None = None) -> None:
        self._items = checked_lines(layout, manifest, ITEMS_NAME)
        self._rejects = checked_lines(layout, manifest, REJECTS_NAME)
        self._number = 0
        self._gone = gone
        self.left: dict[int, Counter[str]] = {}

    def copy(self, stop: int | None, items: IO[bytes], rejects: IO[bytes]) -> BaseItem | None:
        """Copy the lines of the items before number `stop`, and return what its own say; copy all for None."""
        for raw in self._items:
            line = json.loads(raw)
            item = BaseItem(line, self._take_rejects(line))
            number, self._number = self._number, self._number + 1
            if number == stop:
                return item
            if self._gone is not None and self._gone[number] and item.state != GONE:
                self.leave(item)
                gone = {
                    "item": line["item"],
                    "state": GONE,
                    "samples": 0,
                    "frames": 0,
                    "source_digest": line["source_digest"],
                }
                items.write(encode_line(gone))
            else:
                items.write(raw)
                rejects.writelines(item.rejects)
        if next(self._rejects, None) is not None:  # which also closes the file
            raise DatasetError(expected=f"the lines of all items in {REJECTS_NAME}", found="more")
        return None

    def leave(self, item: BaseItem) -> None:
        """Note that an item no longer counts in its generation."""
        self.left.setdefault(item.generation, Counter()).update(item.counts())

    def _take_rejects(self, item: Mapping[str, Any]) -> list[bytes]:
        """The lines in ``rejects.jsonl`` about the item whose line was just read."""
        count = 1 if item["state"] == "rejected" else item.get("remarks", 0)
        taken = list(islice(self._rejects, count))
        if len(taken) < count:
            raise DatasetError(expected=f"the lines of all items in {REJECTS_NAME}", found="fewer")
        return taken


def checked_lines(layout: Layout, manifest: Manifest, name: str) -> Iterator[bytes]:
    """Compare the digest of a dataset's report with the manifest, and return its lines.

    Raises
    ------
    DatasetError
        If the report is missing or does not match the manifest.
    """
    entry = manifest.find_file(name)
    if entry is None:
        raise DatasetError(place=layout.root, expected=f"a report {name}", found="none")
    layout.check_digest(entry)
    return _lines_of(layout.file(entry))


def _lines_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file
