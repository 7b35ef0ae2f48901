"""Write the reports about every item, ``rejects.jsonl`` and ``items.jsonl``, and count the items."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packer.steps.report import ItemReport
from packer.workspace.durable import encode_line
from packer.workspace.paths import temporary_path
from shardspec.entries import Counts
from shardspec.errors import DatasetError
from shardspec.layout import ITEMS_NAME, REJECTS_NAME, Layout
from shardspec.manifest import Manifest

GONE = "gone"
"""State of an item that an update dropped because the source no longer contains it."""


class ItemIdentity(NamedTuple):
    """Identity of an item, by which later builds recognise it, and its generation.

    Attributes
    ----------
    source_digest : str
        The first digits of the item's digest (`packer.builds.planning.plan.item_digest`).
    number : int
        The item's number in the dataset, which is also the number of its line in ``items.jsonl``, from 0.
    generation : int
        The number of the generation that packed the item, or that first rejected it.
    """

    source_digest: str
    number: int
    generation: int = 0


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


class ReportWriter:
    """Writes both reports item by item, and counts the items.

    ``items.jsonl`` has one line per item: ``item``, ``state`` (packed, rejected or gone), ``samples``, the number of
    ``frames`` examined, the number of ``faces`` found if a detector ran, the ``source_digest``, by which an update
    recognises the item, and the ``generation`` unless that is 0. If they are not zero, the line also has the numbers of
    samples from ``progressive`` JPEGs and of ``remarks`` about a packed item, which are lines
    in ``rejects.jsonl``.

    ``rejects.jsonl`` has one line per reject (``kind`` item), per reason why frames of a packed item yielded no sample
    (``kind`` frames), and per video that could not be read to its end (``kind`` damage).

    Parameters
    ----------
    base : BaseReports, optional
        In an update, the reports of the dataset.

    Attributes
    ----------
    left : dict of int to Counter
        Counts of the items that have left each generation of the updated dataset.
    mended : int
        Items that were rejected before and are packed now.
    enlarged : int
        Samples whose image was enlarged, of the items that are not rejected.
    broken_tracks : BrokenTracks
        Broken tracks of the items that are not rejected.
    unused_boxes : int
        Boxes for frames that were not sampled, of the items that are not rejected.
    wide_colours : Counter
        Videos that are not rejected, by the HDR or wide-gamut standard of their colours.
    """

    def __init__(self, rejects: Path, items: Path, base: "BaseReports | None" = None) -> None:
        self._base = base
        # Not readable until complete.
        self._names = {temporary_path(path): path for path in (rejects, items)}
        self._rejects, self._items = (path.open("xb") for path in self._names)
        self._counts = dict.fromkeys(Counts.__dataclass_fields__, 0)
        self.mended = 0
        self.enlarged = 0
        self.broken_tracks = BrokenTracks()
        self.unused_boxes = 0
        self.wide_colours: Counter[str] = Counter()

    @property
    def left(self) -> dict[int, Counter[str]]:
        """See the class. The counts are complete once all lines are written."""
        return {} if self._base is None else self._base.left

    def add(
        self,
        reports: Iterable[ItemReport],
        identities: Iterable[ItemIdentity],
        row_of: Callable[[int], Mapping[str, Any]],
    ) -> None:
        """Write the reports of some items in order, each with the item's identity.

        Parameters
        ----------
        row_of : callable
            Called with the position of a rejected item in `reports`. Returns the item's row in the source.
        """
        for place, (report, identity) in enumerate(zip(reports, identities, strict=True)):
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
        """Close the files. Remove them if `finish` was not called."""
        self._rejects.close()
        self._items.close()
        for made in self._names:
            made.unlink(missing_ok=True)
        self._names = {}

    def counts(self, ignored: int) -> Counts:
        """Return the counts of the added items. Retried items that are rejected again do not count."""
        return Counts(**{**self._counts, "ignored_files": ignored})

    def _add(
        self,
        report: ItemReport,
        identity: ItemIdentity,
        row_of: Callable[[int], Mapping[str, Any]],
        place: int,
    ) -> None:
        base = self._base
        earlier = None if base is None else base.copy(identity.number, self._items, self._rejects)
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
        self.enlarged += report.enlarged if packed else 0
        self.unused_boxes += report.unused_boxes
        if report.wide_colours is not None and packed:
            self.wide_colours[report.wide_colours] += 1
        if report.followed or report.lost:
            self._add_tracks(report)
        line: dict[str, Any] = {"item": report.name, "state": "packed" if packed else "rejected"}
        line |= {"samples": report.samples, "frames": report.frames}
        if report.faces is not None:
            line["faces"] = report.faces
        if report.progressive:
            line["progressive"] = report.progressive
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
    """The lines about one item in the dataset's reports.

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
        """The number of the generation that the item belongs to."""
        return int(self.item.get("generation", 0))

    def counts(self) -> dict[str, int]:
        """Return the item's contribution to the counts."""
        if self.state == "rejected":
            return {"items": 1, "rejected_items": 1}
        frames = damaged = 0
        for line in map(json.loads, self.rejects):
            frames += len(line.get("frames", ()))
            damaged += line["kind"] == "damage"
        more = {"progressive_jpegs": self.item.get("progressive", 0), "samples": self.item["samples"]}
        return {"items": 1, "packed_items": 1, "frames_without_sample": frames, "damaged_items": damaged, **more}


class BaseReports:
    """Reports of the dataset before an update. Lines of unchanged items are copied to the new reports.

    Parameters
    ----------
    gone : (items,) bool, optional
        True for each item to drop. Its line in ``items.jsonl`` stays, with the state ``"gone"``, so that the numbers of
        items and lines still agree.

    Attributes
    ----------
    left : dict of int to Counter
        Counts of the items that have left each generation.

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
        """Copy the lines of all items before number `stop`, and return the lines of item `stop`. None copies all lines."""
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
        if next(self._rejects, None) is not None:  # reading to the end also closes the file
            raise DatasetError(expected=f"the lines of all items in {REJECTS_NAME}", found="more")
        return None

    def leave(self, item: BaseItem) -> None:
        """Record that an item no longer belongs to its generation."""
        self.left.setdefault(item.generation, Counter()).update(item.counts())

    def _take_rejects(self, item: Mapping[str, Any]) -> list[bytes]:
        """Return the lines in ``rejects.jsonl`` about the item whose line was just read."""
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
