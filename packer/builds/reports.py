"""What became of every item: ``rejects.jsonl``, ``items.jsonl`` and the counts."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from packer.sources.item import ItemReport
from shardspec.entries import Counts


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

    ``items.jsonl`` has one line per item: ``item``, ``state`` (packed or rejected), ``samples``, ``frames`` looked at,
    ``faces`` found if a detector ran, and, if there are any, the samples that came as ``progressive`` JPEGs and the
    ``refilled`` frames.
    ``rejects.jsonl`` has one line per reject (``kind`` item), per reason why frames of a packed item yielded no sample
    (``kind`` frames), and per video whose rest could not be read (``kind`` damage).

    Attributes
    ----------
    marked : int
        Samples whose picture has restart markers (`packer.sources.item.ItemReport`).
    refilled : int
        Sampled frames in whose place a nearby frame gave the samples.
    broken_tracks : BrokenTracks
        Over the items that are not rejected.
    unused_boxes : int
        Boxes given for frames that were not sampled, over the items that are not rejected.
    """

    def __init__(self, rejects: Path, items: Path) -> None:
        self._rejects = rejects.open("wb")
        self._items = items.open("wb")
        self._counts = dict.fromkeys(Counts.__dataclass_fields__, 0)
        self.marked = 0
        self.refilled = 0
        self.broken_tracks = BrokenTracks()
        self.unused_boxes = 0

    def __enter__(self) -> "ReportWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._rejects.close()
        self._items.close()

    def add(self, reports: Iterable[ItemReport]) -> None:
        """Write the reports of some items, in order."""
        for report in reports:
            self._add(report)

    def counts(self, ignored: int) -> Counts:
        """The counts of what was added."""
        return Counts(**{**self._counts, "ignored_files": ignored})

    def _add(self, report: ItemReport) -> None:
        packed = report.samples > 0 or report.empty
        self._counts["items"] += 1
        self._counts["packed_items" if packed else "rejected_items"] += 1
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
    file.write(json.dumps(document, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
