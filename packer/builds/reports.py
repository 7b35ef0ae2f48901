"""What became of every item: ``rejects.jsonl``, ``items.jsonl`` and the counts."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import IO, Any, NamedTuple

from packer.sources.item import ItemReport
from shardspec.entries import Counts
from shardspec.errors import DatasetError
from shardspec.layout import ITEMS_NAME, REJECTS_NAME, Layout
from shardspec.manifest import Manifest


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


class Known(NamedTuple):
    """By what an item is known again, and where it belongs.

    Attributes
    ----------
    facts : str
        The first digits of the SHA-256 of what the source says of it (`packer.builds.plan.item_facts`).
    number : int
        The item's number in the dataset, which is that of its line in ``items.jsonl``, from 0.
    generation : int
        The number of the generation that packs or rejects it.
    rejected_by : int or None
        The number of the generation that had rejected it, if it is tried again.
    """

    facts: str
    number: int
    generation: int = 0
    rejected_by: int | None = None


class EarlierReports:
    """The reports of a dataset that items are added to. Their lines are copied, in order, around those of new reports.

    Parameters
    ----------
    layout : Layout
    manifest : Manifest

    Raises
    ------
    DatasetError
        If a report is missing or does not match the manifest.
    """

    def __init__(self, layout: Layout, manifest: Manifest) -> None:
        self._items = enumerate(checked_lines(layout, manifest, ITEMS_NAME))
        self._rejects = checked_lines(layout, manifest, REJECTS_NAME)

    def copy(self, stop: int | None, items: IO[bytes], rejects: IO[bytes]) -> None:
        """Copy the lines of the items before number `stop`, and skip its own; copy all that are left for None."""
        for number, line in self._items:
            rejected = json.loads(line)["state"] == "rejected"
            if rejected:
                self._copy_rejects(rejects, keep=number != stop)
            if number == stop:
                return
            items.write(line)
        if stop is None:
            rejects.writelines(self._rejects)

    def _copy_rejects(self, rejects: IO[bytes], *, keep: bool) -> None:
        """Copy the lines up to that of the next rejected item, and that one if `keep`."""
        for line in self._rejects:
            last = json.loads(line)["kind"] == "item"
            if keep or not last:
                rejects.write(line)
            if last:
                return


def checked_lines(layout: Layout, manifest: Manifest, name: str) -> Iterator[bytes]:
    """The lines of a dataset's report, once its digest was compared.

    Raises
    ------
    DatasetError
        If the report is missing or does not match the manifest.
    """
    entry = manifest.find_file(name)
    if entry is None:
        raise DatasetError(f"{layout.root}: expected a report {name}, found none")
    layout.check_digest(entry)
    return _lines_of(layout.file(entry))


def _lines_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


class ReportWriter:
    """Writes both reports item by item, and counts. Use as a context manager.

    ``items.jsonl`` has one line per item: ``item``, ``state`` (packed or rejected), ``samples``, ``frames`` looked at,
    ``faces`` found if a detector ran, and, if there are any, the samples that came as ``progressive`` JPEGs and the
    ``refilled`` frames; ``facts``, by which an update knows the item again, and its ``generation`` unless that is 0.
    ``rejects.jsonl`` has one line per reject (``kind`` item), per reason why frames of a packed item yielded no sample
    (``kind`` frames), and per video whose rest could not be read (``kind`` damage).

    Parameters
    ----------
    rejects, items : Path
    earlier : EarlierReports, optional
        The reports of the dataset that the items are added to.

    Attributes
    ----------
    mended : Counter
        Items that are packed now, by the generation that had rejected them.
    marked : int
        Samples whose picture has restart markers (`packer.sources.item.ItemReport`).
    refilled : int
        Sampled frames in whose place a nearby frame gave the samples.
    broken_tracks : BrokenTracks
        Over the items that are not rejected.
    unused_boxes : int
        Boxes given for frames that were not sampled, over the items that are not rejected.
    """

    def __init__(self, rejects: Path, items: Path, earlier: EarlierReports | None = None) -> None:
        self._earlier = earlier
        self._rejects = rejects.open("wb")
        self._items = items.open("wb")
        self._counts = dict.fromkeys(Counts.__dataclass_fields__, 0)
        self.mended: Counter[int] = Counter()
        self.marked = 0
        self.refilled = 0
        self.broken_tracks = BrokenTracks()
        self.unused_boxes = 0

    def __enter__(self) -> "ReportWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._earlier is not None:
            self._earlier.copy(None, self._items, self._rejects)
        self._rejects.close()
        self._items.close()

    def add(self, reports: Iterable[ItemReport], known: Iterable[Known | None] = repeat(None)) -> None:
        """Write the reports of some items, in order, each with what it is known by."""
        for report, by in zip(reports, known, strict=False):
            self._add(report, by)

    def counts(self, ignored: int) -> Counts:
        """The counts of what was added, without items that are rejected once more."""
        return Counts(**{**self._counts, "ignored_files": ignored})

    def _add(self, report: ItemReport, known: Known | None) -> None:
        packed = report.samples > 0 or report.empty
        again = known is not None and known.rejected_by is not None
        if packed or not again:
            self._counts["items"] += 1
            self._counts["packed_items" if packed else "rejected_items"] += 1
        if known is not None and self._earlier is not None:
            self._earlier.copy(known.number, self._items, self._rejects)
        if packed and known is not None and known.rejected_by is not None:
            self.mended[known.rejected_by] += 1
        self._counts["samples"] += report.samples
        self._counts["progressive_jpegs"] += report.progressive
        self.marked += report.marked
        self.refilled += report.refilled
        self.unused_boxes += report.unused_boxes
        self._add_tracks(report)
        item: dict[str, Any] = {"item": report.name, "state": "packed" if packed else "rejected"}
        item |= {"samples": report.samples, "frames": report.frames}
        if report.faces is not None:
            item["faces"] = report.faces
        if report.progressive:
            item["progressive"] = report.progressive
        if report.refilled:
            item["refilled"] = report.refilled
        if known is not None:
            item["facts"] = known.facts
            generation = known.generation if packed or known.rejected_by is None else known.rejected_by
            item |= {"generation": generation} if generation else {}
        _write(self._items, item)
        if not packed:
            _write(self._rejects, {"kind": "item", "item": report.name, "step": report.step, "reason": report.reason})
            return
        for reason, frames in report.skipped.items():
            self._counts["frames_without_sample"] += len(frames)
            _write(self._rejects, {"kind": "frames", "item": report.name, "reason": reason, "frames": frames})
        if report.damage is not None:
            self._counts["damaged_items"] += 1
            _write(self._rejects, {"kind": "damage", "item": report.name, "reason": report.damage})

    def _add_tracks(self, report: ItemReport) -> None:
        found = self.broken_tracks
        if report.followed:
            found = replace(found, of=found.of + 1)
        if 3 * report.lost > report.followed and 2 * report.samples <= report.face_frames:
            frames, samples = found.frames + report.face_frames, found.samples + report.samples
            found = replace(found, videos=found.videos + 1, frames=frames, samples=samples)
        self.broken_tracks = found


def _write(file: IO[bytes], document: dict[str, Any]) -> None:
    """Write one line of JSON in UTF-8; a name that is invalid UTF-8 keeps its odd bytes as JSON escapes."""
    file.write(_ENCODE(document).encode("utf-8", "backslashreplace") + b"\n")


_ENCODE = json.JSONEncoder(ensure_ascii=False).encode
