"""Reports about every item: ``rejects.jsonl``, ``items.jsonl`` and the counts."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, repeat
from pathlib import Path
from typing import Any

from packer.builds.update.base_reports import BaseItem, BaseReports, ItemIdentity
from packer.steps.report import AlikeReports, ItemReport
from packer.workspace.json_lines import encode_json, encode_line, to_utf8
from packer.workspace.paths import attempt_beside
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
        By generation of the dataset that is added to, what no longer counts in it.
    mended : int
        Items that were rejected and are packed now.
    marked : int
        Samples whose image has restart markers (`packer.steps.report.ItemReport`).
    refilled : int
        Sampled frames in whose place a nearby frame gave the samples.
    broken_tracks : BrokenTracks
        Over the items that are not rejected.
    unused_boxes : int
        Boxes given for frames that were not sampled, over the items that are not rejected.
    """

    def __init__(self, rejects: Path, items: Path, base: BaseReports | None = None) -> None:
        self._base = base
        # Until they are whole, nobody is to read them.
        self._names = {attempt_beside(path): path for path in (rejects, items)}
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
        reports: Iterable[AlikeReports],
        known: Iterable[ItemIdentity | None] = repeat(None),
        row_of: Callable[[int], Mapping[str, Any]] = lambda _: {},
    ) -> None:
        """Write the reports of some items, in order, each with what it is known by.

        Parameters
        ----------
        row_of : callable
            Returns the columns of an item by its place among these, for a rejected item.
        """
        known, place = iter(known), 0
        for names, report in reports:
            if self._base is None:
                self._add(names, report, [*islice(known, len(names))], row_of, place)
                place += len(names)
                continue
            for name, by in zip(names, known, strict=False):
                earlier = None if by is None else self._base.copy(by.number, self._items, self._rejects)
                self._add([name], report, [by], row_of, place, earlier)
                place += 1

    def finish(self) -> None:
        """Write what follows the last report, and give the files their names."""
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
        """The counts of what was added, without items that are rejected once more."""
        return Counts(**{**self._counts, "ignored_files": ignored})

    def _add(
        self,
        names: Sequence[str],
        report: ItemReport,
        known: Sequence[ItemIdentity | None],
        row_of: Callable[[int], Mapping[str, Any]],
        place: int,
        earlier: BaseItem | None = None,
    ) -> None:
        """Write the reports of items that follow one another, and of which the same became.

        Parameters
        ----------
        names : sequence of str
        report : ItemReport
        known : sequence of ItemIdentity or None
        row_of : callable
        place : int
            Of the first (see `add`).
        earlier : BaseItem, optional
            What the dataset says that is added to, of one item.
        """
        items, packed = len(names), report.samples > 0 or report.empty
        again = earlier is not None and earlier.state == "rejected"
        if self._base is not None and earlier is not None and (earlier.state == "packed" or (again and packed)):
            self._base.leave(earlier)
        self.mended += again and packed
        if packed or not again:
            self._counts["items"] += items
            self._counts["packed_items" if packed else "rejected_items"] += items
        self._counts["samples"] += items * report.samples
        self._counts["progressive_jpegs"] += items * report.progressive
        self.marked += items * report.marked
        self.refilled += items * report.refilled
        self.unused_boxes += items * report.unused_boxes
        if report.followed or report.lost:
            self._add_tracks(report, items)
        state = "packed" if packed else "rejected"
        found: dict[str, Any] = {"state": state, "samples": report.samples, "frames": report.frames}
        if report.faces is not None:
            found["faces"] = report.faces
        if report.progressive:
            found["progressive"] = report.progressive
        if report.refilled:
            found["refilled"] = report.refilled
        remarks = len(report.skipped) + (report.damage is not None) if packed else 0
        generation = earlier.generation if earlier is not None and again and not packed else None
        self._items.write(_encode_items(names, found, remarks, known, generation))
        if not packed:
            for at, name in enumerate(names, place):
                row = row_of(at)
                more = {"columns": row} if row else {}
                self._reject(kind="item", item=name, step=report.step, reason=report.reason, **more)
            return
        if remarks:
            for name in names:
                self._remark(name, report)

    def _remark(self, name: str, report: ItemReport) -> None:
        """Write what is to be said of an item that is packed."""
        for reason, frames in report.skipped.items():
            self._counts["frames_without_sample"] += len(frames)
            self._reject(kind="frames", item=name, reason=reason, frames=frames)
        if report.damage is not None:
            self._counts["damaged_items"] += 1
            self._reject(kind="damage", item=name, reason=report.damage)

    def _reject(self, **line: Any) -> None:
        self._rejects.write(encode_line(line))

    def _add_tracks(self, report: ItemReport, videos: int) -> None:
        found = self.broken_tracks
        if report.followed:
            found = replace(found, of=found.of + videos)
        if 3 * report.lost > report.followed and 2 * report.samples <= report.face_frames:
            frames, samples = found.frames + videos * report.face_frames, found.samples + videos * report.samples
            found = replace(found, videos=found.videos + videos, frames=frames, samples=samples)
        self.broken_tracks = found


def _encode_items(
    names: Iterable[str],
    found: Mapping[str, Any],
    remarks: int,
    known: Iterable[ItemIdentity | None],
    generation: int | None,
) -> bytes:
    """The lines of items in ``items.jsonl``. What they have in common is encoded once.

    Parameters
    ----------
    names : iterable of str
    found : mapping
        What is said of each.
    remarks : int
        Said of those that are known.
    known : iterable of ItemIdentity or None
    generation : int or None
        That of an item which stays in it.
    """
    plain = encode_json(found)[1:-1]
    counted = f', "remarks": {remarks}' if remarks else ""
    ends = []
    for by in known:
        if by is None:
            ends.append("")
            continue
        number = by.generation if generation is None else generation
        ends.append(f'{counted}, "source_digest": "{by.facts}"' + (f', "generation": {number}' if number else ""))
    lines = [f'{{"item": {encode_json(name)}, {plain}{end}}}\n' for name, end in zip(names, ends, strict=True)]
    return to_utf8("".join(lines))
