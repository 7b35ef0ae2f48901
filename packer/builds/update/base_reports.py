"""The reports of the dataset that an update starts from."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packer.workspace.json_lines import encode_line
from shardspec.errors import DatasetError
from shardspec.layout import ITEMS_NAME, REJECTS_NAME, Layout
from shardspec.manifest import Manifest

GONE = "gone"
"""State of an item that was dropped, since the source has it no more."""


class ItemIdentity(NamedTuple):
    """By what an item is known again, and where it belongs.

    Attributes
    ----------
    facts : str
        The first digits of the SHA-256 of what the source says of it (`packer.builds.planning.item_digests.item_digest`).
    number : int
        The item's number in the dataset, which is that of its line in ``items.jsonl``, from 0.
    generation : int
        The number of the generation that packs it, or rejects it for the first time.
    """

    facts: str
    number: int
    generation: int = 0


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
        """Numbers that the item adds to the counts."""
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
    """The lines of a dataset's report, once its digest was compared.

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
