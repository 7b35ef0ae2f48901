"""Unite what datasets record: reports about every item, ``items.jsonl`` and ``rejects.jsonl``, and generations."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packer.workspace.durable import encode_line
from packer.workspace.paths import temporary_path
from shardspec.entries import Counts, Generation, total
from shardspec.errors import DatasetError, Problems
from shardspec.layout import ITEMS_NAME, REJECTS_NAME, Layout
from shardspec.manifest import Manifest, sha256_json

PACKED, REJECTED, GONE, REMOVED = "packed", "rejected", "gone", "removed"
"""States of an item. An update dropped an item that is gone, because the source no longer contains it. `packer.remove` has
removed the samples of a removed item; two digests stand for its name and its contents."""

_NAME_DIGITS = 16


class ItemIdentity(NamedTuple):
    """Identity of an item, by which later builds recognise it, and its generation.

    Attributes
    ----------
    source_digest : str
        The first digits of the digest of everything that the source says about the item.
    number : int
        The item's number in the dataset, which is also the number of its line in ``items.jsonl``, from 0.
    generation : int
        The number of the generation that packs the item, or rejects it for the first time.
    """

    source_digest: str
    number: int
    generation: int = 0


class ReportedItem(NamedTuple):
    """The lines about one item in the reports of a dataset.

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
        """``"packed"``, ``"rejected"``, ``"gone"`` or ``"removed"``."""
        return str(self.item["state"])

    @property
    def generation(self) -> int:
        """The number of the generation that packed the item, or that first rejected it."""
        return int(self.item.get("generation", 0))

    def of_generation(self, number: int) -> "ReportedItem":
        """Return the item as one of another generation."""
        item = {name: value for name, value in self.item.items() if name != "generation"}
        return self._replace(item={**item, "generation": number} if number else item)

    def removed(self) -> "ReportedItem":
        """Return the item without its samples and its name."""
        digests = {
            "source_digest": self.item.get("source_digest", ""),
            "name_digest": name_digest(str(self.item["item"])),
        }
        return ReportedItem({"item": "", "state": REMOVED, "samples": 0, "frames": 0, **digests}, [])

    def counts(self) -> dict[str, int]:
        """Return the item's contribution to the counts of its generation."""
        if self.state != PACKED:
            return {"items": 1, "rejected_items": 1} if self.state == REJECTED else {}
        frames = damaged = 0
        for line in map(json.loads, self.rejects):
            frames += len(line.get("frames", ()))
            damaged += line["kind"] == "damage"
        more = {"progressive_jpegs": self.item.get("progressive", 0), "samples": self.item["samples"]}
        return {"items": 1, "packed_items": 1, "frames_without_sample": frames, "damaged_items": damaged, **more}


class ReportWriter:
    """Writes both reports item by item, and counts the items.

    ``items.jsonl`` has one line per item: ``item``, ``state`` (packed, rejected, gone or removed), ``samples``, the number of
    ``frames`` examined, the number of ``faces`` found if a detector ran, the ``source_digest``, by which an update
    recognises the item, and the ``generation`` unless that is 0. If they are not zero, the line also has the numbers of
    samples from ``progressive`` JPEGs and of ``remarks`` about a packed item, which are lines
    in ``rejects.jsonl``.

    ``rejects.jsonl`` has one line per reject (``kind`` item), per reason why frames of a packed item yielded no sample
    (``kind`` frames), and per video that could not be read to its end (``kind`` damage).

    Parameters
    ----------
    folder : Path
        The folder of both files.
    base : iterator of ReportedItem, optional
        In an update, the items of the dataset, in order.
    gone : (items,) bool, optional
        True for each item of the dataset to drop. Its line in ``items.jsonl`` stays, with the state ``"gone"``, so that
        the numbers of items and lines still agree.

    Attributes
    ----------
    left : dict of int to Counter
        Counts of the items that have left each generation of the dataset.
    mended : int
        Items that were rejected before and are packed now.
    """

    def __init__(
        self,
        folder: Path,
        base: Iterator[ReportedItem] | None = None,
        gone: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        self._base = iter(()) if base is None else base
        self._next, self._gone = 0, gone
        # Not readable until complete.
        self._names = {temporary_path(folder / name): folder / name for name in (REJECTS_NAME, ITEMS_NAME)}
        self._rejects, self._items = (path.open("xb") for path in self._names)
        self._counts = dict.fromkeys(Counts.__dataclass_fields__, 0)
        self.left: dict[int, Counter[str]] = {}
        self.mended = 0

    def add(self, item: ReportedItem) -> None:
        """Write an item of a new dataset."""
        self.write(item)
        for name, count in item.counts().items():
            self._counts[name] += count

    def put(self, item: ReportedItem, number: int) -> None:
        """Write an item of an update, in place of that of the dataset if there is one with this number.

        The numbers ascend. An item that is rejected again stays in its generation.
        """
        earlier = self._copy(number)
        packed = item.state == PACKED
        again = earlier is not None and earlier.state == REJECTED
        if earlier is not None and (earlier.state == PACKED or (again and packed)):
            self._leave(earlier)
        self.mended += again and packed
        if earlier is not None and again and not packed:
            self.write(item.of_generation(earlier.generation))
        else:
            self.add(item)

    def finish(self) -> None:
        """Copy the remaining items of the dataset, and publish the files."""
        self._copy(None)
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
        """Return the counts of the written items that are new. Items that were rejected again do not count."""
        return Counts(**{**self._counts, "ignored_files": ignored})

    def write(self, item: ReportedItem) -> None:
        """Write an item without counting it."""
        self._items.write(encode_line(item.item))
        self._rejects.writelines(item.rejects)

    def _copy(self, stop: int | None) -> ReportedItem | None:
        """Copy the dataset's items before number `stop`, and return item `stop` if there is one. None copies all."""
        for item in self._base:
            number, self._next = self._next, self._next + 1
            if number == stop:
                return item
            if self._gone is not None and self._gone[number] and item.state != GONE:
                self._leave(item)
                name, digest = item.item["item"], item.item["source_digest"]
                gone = {"item": name, "state": GONE, "samples": 0, "frames": 0, "source_digest": digest}
                self.write(ReportedItem(gone, []))
            else:
                self.write(item)
        return None

    def _leave(self, item: ReportedItem) -> None:
        """Record that an item no longer belongs to its generation."""
        self.left.setdefault(item.generation, Counter()).update(item.counts())


def reported_items(layout: Layout, manifest: Manifest) -> Iterator[ReportedItem]:
    """Yield the items of a dataset's reports, after comparing the digests of the reports with the manifest.

    Raises
    ------
    DatasetError
        If a report is missing or does not match the manifest.
    """
    items, rejects = (checked_lines(layout, manifest, name) for name in (ITEMS_NAME, REJECTS_NAME))
    return _pair(items, rejects)


def _pair(items: Iterator[bytes], rejects: Iterator[bytes]) -> Iterator[ReportedItem]:
    for item in map(json.loads, items):
        count = 1 if item["state"] == REJECTED else item.get("remarks", 0)
        taken = list(islice(rejects, count))
        if len(taken) < count:
            raise DatasetError(expected=f"the lines of all items in {REJECTS_NAME}", found="fewer")
        yield ReportedItem(item, taken)
    if next(rejects, None) is not None:  # reading to the end also closes the file
        raise DatasetError(expected=f"the lines of all items in {REJECTS_NAME}", found="more")


def name_digest(name: str) -> str:
    """Return the first digits of the SHA-256 of an item's name, by which an update recognises a removed item."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_NAME_DIGITS]


def join_reports(
    folder: Path,
    inputs: Sequence[tuple[Layout, Manifest]],
    keep: Callable[[Mapping[str, Any]], bool] | None = None,
) -> None:
    """Write the reports of several datasets into a folder, one dataset after another.

    Parameters
    ----------
    keep : callable, optional
        Chooses the lines of both reports; by default all.
    """
    mixed = keep is not None or len(inputs) > 1
    for name in (ITEMS_NAME, REJECTS_NAME):
        found = [(layout, manifest) for layout, manifest in inputs if manifest.find_file(name)]
        if found:
            with (folder / name).open("wb") as file:
                for layout, manifest in found:
                    lines = (raw for raw in checked_lines(layout, manifest, name) if not keep or keep(json.loads(raw)))
                    file.writelines(map(_without_generation, lines) if mixed else lines)


def _without_generation(raw: bytes) -> bytes:
    """Drop the number of the generation, which differs in the other dataset."""
    if b"generation" not in raw and b"\\u" not in raw:  # most lines have none, and parsing is slow
        return raw
    document = json.loads(raw)
    return encode_line(ReportedItem(document, []).of_generation(0).item) if "generation" in document else raw


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


class NewGeneration(NamedTuple):
    """A generation of the merged dataset without its new shards, and its rows in these shards.

    Attributes
    ----------
    generation : Generation
        In an update, it may have shards of the dataset.
    rows : int
        Number of its rows in new shards. No shard has rows of two generations.
    shard_bytes : int or None
        Most encoded bytes in a shard. Only a single larger row may exceed this. None chooses the size.
    """

    generation: Generation
    rows: int
    shard_bytes: int | None

    @classmethod
    def from_json(cls, generation: Any, rows: int, shard_bytes: int | None) -> "NewGeneration":
        """Read a generation that a plan of shards has saved. Its counts do not agree with its shards yet."""
        found = Generation.from_json(generation, Problems())
        assert found is not None
        return cls(found, rows, shard_bytes)


def join_neighbours(made: Iterable[NewGeneration], kinds: Sequence[str]) -> Iterator[NewGeneration]:
    """Yield generations, with neighbours of one kind joined that the same recipe and libraries made.

    Parameters
    ----------
    kinds : sequence of str
        The kinds of generations to join.
    """
    for _, group in groupby(made, key=lambda one: _how(one.generation, kinds)):
        first, *rest = joined = list(group)
        if not rest:
            yield first
            continue
        generations = [one.generation for one in joined]
        prints = list(dict.fromkeys(one.fingerprint for one in generations))
        whole = replace(
            generations[0],
            fingerprint=prints[0] if len(prints) == 1 else sha256_json(prints),
            counts=total(generations),
            shards=tuple(chain.from_iterable(one.shards for one in generations)),
        )
        yield NewGeneration(whole, sum(one.rows for one in joined), first.shard_bytes)


def made_alike(one: Generation, other: Generation) -> bool:
    """Return whether the same recipe and libraries made two generations of one kind."""
    return _how(one, [one.kind]) == _how(other, [one.kind])


def _how(generation: Generation, kinds: Sequence[str]) -> object:
    if generation.kind not in kinds:
        return object()  # equals no other
    return generation.kind, sha256_json([generation.recipe, generation.runtime])
