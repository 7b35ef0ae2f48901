"""What became of every item: ``rejects.jsonl``, ``items.jsonl`` and the counts."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from packer.sources.item import ItemReport
from shardspec.entries import Counts


class ReportWriter:
    """Writes both reports item by item and counts. Use as a context manager.

    ``items.jsonl`` has one line per item: ``item``, ``state`` (packed or rejected), ``samples``, ``frames`` looked at,
    ``faces`` found where a detector ran, and the samples that came as ``progressive`` JPEGs where there are any.
    ``rejects.jsonl`` has one line per reject (``kind`` item), per reason for which frames of a packed item gave no sample
    (``kind`` frames) and per video whose rest could not be read (``kind`` damage).

    Attributes
    ----------
    marked : int
        Samples whose picture has restart markers (`packer.sources.item.ItemReport`).
    """

    def __init__(self, rejects: Path, items: Path) -> None:
        self._rejects = rejects.open("wb")
        self._items = items.open("wb")
        self._counts = dict.fromkeys(Counts.__dataclass_fields__, 0)
        self.marked = 0

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
        """What was added up."""
        return Counts(**{**self._counts, "ignored_files": ignored})

    def _add(self, report: ItemReport) -> None:
        packed = report.samples > 0
        self._counts["items"] += 1
        self._counts["packed_items" if packed else "rejected_items"] += 1
        self._counts["samples"] += report.samples
        self._counts["progressive_jpegs"] += report.progressive
        self.marked += report.marked
        item: dict[str, Any] = {"item": report.name, "state": "packed" if packed else "rejected"}
        item |= {"samples": report.samples, "frames": report.frames}
        if report.faces is not None:
            item["faces"] = report.faces
        if report.progressive:
            item["progressive"] = report.progressive
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


def _write(file: IO[bytes], document: dict[str, Any]) -> None:
    """One line of JSON in UTF-8; a name that is no UTF-8 keeps its odd bytes as JSON escapes."""
    file.write(json.dumps(document, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
