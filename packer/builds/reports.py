"""What became of every item: ``rejects.jsonl``, ``items.jsonl`` and the counts."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, repeat
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packer.sources.item import AlikeReports, ItemReport
from packer.workspace.lines import line_encoder
from packer.workspace.paths import attempt_beside
from shardspec.entries import Counts
from shardspec.errors import DatasetError
from shardspec.layout import ITEMS_NAME, REJECTS_NAME, Layout
from shardspec.manifest import Manifest

GONE = "gone"
"""State of an item that was dropped, since the source has it no more."""


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
        The number of the generation that packs it, or rejects it for the first time.
    """

    facts: str
    number: int
    generation: int = 0


class Earlier(NamedTuple):
    """What a dataset's reports say of an item.

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
        """What it counts for."""
        if self.state == "rejected":
            return {"items": 1, "rejected_items": 1}
        frames = damaged = 0
        for line in map(json.loads, self.rejects):
            frames += len(line.get("frames", ()))
            damaged += line["kind"] == "damage"
        more = {"progressive_jpegs": self.item.get("progressive", 0), "samples": self.item["samples"]}
        return {"items": 1, "packed_items": 1, "frames_without_sample": frames, "damaged_items": damaged, **more}


class EarlierReports:
    """The reports of a dataset that items are added to. Their lines are copied, in order, around those of new reports.

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
        self._items = _Lines(checked_lines(layout, manifest, ITEMS_NAME))
        self._rejects = _Lines(checked_lines(layout, manifest, REJECTS_NAME))
        self._counted = _are_remarks_counted(layout, manifest)
        self._number = 0
        self._gone = gone
        self.left: dict[int, Counter[str]] = {}

    def copy(self, stop: int | None, items: IO[bytes], rejects: IO[bytes]) -> Earlier | None:
        """Copy the lines of the items before number `stop`, and return what its own say; copy all for None."""
        while self._items.following is not None:
            raw, line = self._items.take()
            earlier = Earlier(line, self._take_rejects(line))
            number, self._number = self._number, self._number + 1
            if number == stop:
                return earlier
            if self._gone is not None and self._gone[number] and earlier.state != GONE:
                self.leave(earlier)
                gone = {"item": line["item"], "state": GONE, "samples": 0, "frames": 0, "facts": line["facts"]}
                items.write(encode_line(gone))
            else:
                items.write(raw)
                rejects.writelines(earlier.rejects)
        return None

    def leave(self, earlier: Earlier) -> None:
        """Note that an item no longer counts in its generation."""
        self.left.setdefault(earlier.generation, Counter()).update(earlier.counts())

    def _take_rejects(self, item: Mapping[str, Any]) -> list[bytes]:
        """The lines in ``rejects.jsonl`` about the item whose line was just taken."""
        if item["state"] == "rejected":
            return [self._rejects.take()[0]]
        # Where items do not count them, they are told apart by the names of neighbouring items.
        following = self._items.following
        alone = not self._counted and (following is None or following[1]["item"] != item["item"])
        count = item.get("remarks", math.inf if alone and item["state"] != GONE else 0)
        taken: list[bytes] = []
        while len(taken) < count and (found := self._rejects.following) is not None:
            if found[1]["kind"] == "item" or found[1]["item"] != item["item"]:
                break
            taken.append(self._rejects.take()[0])
        return taken


class _Lines:
    """The lines of a report, each as it is and parsed.

    Attributes
    ----------
    following : tuple or None
        The line that is taken next; None at the end.
    """

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = ((raw, json.loads(raw)) for raw in lines)
        self.following: tuple[bytes, dict[str, Any]] | None = next(self._lines, None)

    def take(self) -> tuple[bytes, dict[str, Any]]:
        """The next line."""
        if self.following is None:
            raise DatasetError(f"expected a line in {REJECTS_NAME} for every rejected item, found fewer")
        taken, self.following = self.following, next(self._lines, None)
        return taken


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


def _are_remarks_counted(layout: Layout, manifest: Manifest) -> bool:
    """Whether the packed items count all lines about them, so that one that counts none has none."""
    items, rejects = (manifest.find_file(name) for name in (ITEMS_NAME, REJECTS_NAME))
    assert items is not None
    assert rejects is not None
    # A quotation mark within a text is escaped, so what is looked for can only be a key.
    counted = sum(json.loads(raw).get("remarks", 0) for raw in _lines_of(layout.file(items)) if b'"remarks":' in raw)
    return bool(counted == sum(json.loads(raw)["kind"] != "item" for raw in _lines_of(layout.file(rejects))))


def _lines_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


class ReportWriter:
    """Writes both reports item by item, and counts. Use as a context manager.

    ``items.jsonl`` has one line per item: ``item``, ``state`` (packed, rejected or gone), ``samples``, ``frames``
    looked at, ``faces`` found if a detector ran, and, if there are any, the samples that came as ``progressive`` JPEGs,
    the ``refilled`` frames, and the ``remarks`` (lines in ``rejects.jsonl``) about a packed item; ``facts``, by which
    an update knows the item again, and its ``generation`` unless that is 0.
    ``rejects.jsonl`` has one line per reject (``kind`` item), per reason why frames of a packed item yielded no sample
    (``kind`` frames), and per video whose rest could not be read (``kind`` damage).

    Parameters
    ----------
    rejects, items : Path
    earlier : EarlierReports, optional
        The reports of the dataset that the items are added to.

    Attributes
    ----------
    left : dict of int to Counter
        By generation of the dataset that is added to, what no longer counts in it.
    mended : int
        Items that were rejected and are packed now.
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
        return {} if self._earlier is None else self._earlier.left

    def add(self, reports: Iterable[AlikeReports], known: Iterable[Known | None] = repeat(None)) -> None:
        """Write the reports of some items, in order, each with what it is known by."""
        known = iter(known)
        for names, report in reports:
            if self._earlier is None:
                self._add(names, report, [*islice(known, len(names))])
                continue
            for name, by in zip(names, known, strict=False):
                earlier = None if by is None else self._earlier.copy(by.number, self._items, self._rejects)
                self._add([name], report, [by], earlier)

    def finish(self) -> None:
        """Write what follows the last report, and give the files their names."""
        if self._earlier is not None:
            self._earlier.copy(None, self._items, self._rejects)
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
        self, names: Sequence[str], report: ItemReport, known: Sequence[Known | None], earlier: Earlier | None = None
    ) -> None:
        """Write the reports of items that follow one another, and of which the same became.

        Parameters
        ----------
        names : sequence of str
        report : ItemReport
        known : sequence of Known or None
        earlier : Earlier, optional
            What the dataset says that is added to, of one item.
        """
        items, packed = len(names), report.samples > 0 or report.empty
        again = earlier is not None and earlier.state == "rejected"
        if self._earlier is not None and earlier is not None and (earlier.state == "packed" or (again and packed)):
            self._earlier.leave(earlier)
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
            for name in names:
                self._reject(kind="item", item=name, step=report.step, reason=report.reason)
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
    known: Iterable[Known | None],
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
    known : iterable of Known or None
    generation : int or None
        That of an item which stays in it.
    """
    plain = _ENCODE(found)[1:-1]
    counted = f', "remarks": {remarks}' if remarks else ""
    ends = []
    for by in known:
        if by is None:
            ends.append("")
            continue
        number = by.generation if generation is None else generation
        ends.append(f'{counted}, "facts": "{by.facts}"' + (f', "generation": {number}' if number else ""))
    lines = [f'{{"item": {_ENCODE(name)}, {plain}{end}}}\n' for name, end in zip(names, ends, strict=True)]
    return _to_bytes("".join(lines))


def encode_line(document: Mapping[str, Any]) -> bytes:
    """A line of a report: JSON in UTF-8; a name that is invalid UTF-8 keeps its odd bytes as JSON escapes."""
    return _to_bytes(_ENCODE(document) + "\n")


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


_ENCODE = line_encoder(ensure_ascii=False)
