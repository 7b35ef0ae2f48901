"""What a packed dataset holds, by its manifest alone, and what several datasets have in common."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packer.assembly.groups import read_groups
from packer.jobs.progress import ProgressListener, Stage, listener_of
from packer.jobs.result import Result
from packer.packed.plan import BUILT_KEY, several_paths
from shardspec.columns import IntArray
from shardspec.entries import total
from shardspec.errors import UsageError
from shardspec.layout import Layout
from shardspec.manifest import Manifest
from shardspec.schema import Schema
from shardspec.splits import NO_GROUP, count_pairs
from shardspec.wording import counted, list_some, shorten

_VALUES = 20
"""Values that a description lists."""


class GenerationNote(NamedTuple):
    """What was packed at one time.

    Attributes
    ----------
    kind : str
        ``"build"``, ``"write"``, ``"update"``, ``"retry"``, ``"convert"``, ``"merge"`` or ``"split"``.
    finished : str or None
        When, in UTC; None where nothing says so.
    version : str or None
        The version of this project that made it.
    items, rejected, samples : int
        Of these items alone. An item that was tried again counts if it then worked.
    replaced, gone : int
        Items of earlier times that were packed anew then, or dropped.
    superseded : int
        The samples that these had.
    """

    kind: str
    finished: str | None
    version: str | None
    items: int
    rejected: int
    samples: int
    replaced: int = 0
    gone: int = 0
    superseded: int = 0

    @classmethod
    def of(cls, note: Mapping[str, Any]) -> "GenerationNote":
        """Read a note of the wall clock, which nothing has checked."""
        texts = [note.get(name) for name in ("kind", "finished", "version")]
        kind, finished, version = (text if isinstance(text, str) else None for text in texts)
        numbers = [note.get(name) for name in ("items", "rejected", "samples", "replaced", "gone", "superseded")]
        counts = (number if isinstance(number, int) else 0 for number in numbers)
        return cls(kind or "not known", finished, version, *counts)

    def describe(self) -> str:
        """The note in a line."""
        gone = f", {self.replaced} replaced, {self.gone} gone ({counted(self.superseded, 'sample')} superseded)"
        return (
            f"{self.finished or 'time not known'}, {self.kind} by version {self.version or 'not known'}: "
            f"{counted(self.items, 'item')} ({self.rejected} rejected), {counted(self.samples, 'sample')}"
            f"{gone if self.replaced or self.gone else ''}"
        )


@dataclass(frozen=True, repr=False)
class InspectReport(Result):
    """What a dataset's manifest says.

    Attributes
    ----------
    path : Path
        The dataset's folder.
    manifest : Manifest
    """

    path: Path
    manifest: Manifest

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON.

        Returns
        -------
        dict
            ``path``, ``format``, ``samples``, ``items``, ``packed_items``, ``rejected_items`` and the other counts
            summed over the generations, ``fields``, ``shards``, ``columns``, ``superseded_samples``, ``bytes``,
            ``digest``, ``fingerprints``, ``history``, and ``recipe``, ``runtime`` and ``wall_clock`` of the last generation.
        """
        manifest = self.manifest
        return {
            "path": str(self.path),
            "format": manifest.format,
            **total(manifest.generations).to_json(),
            "fields": manifest.schema.to_json()["fields"],
            "shards": [
                {"name": shard.name, "samples": shard.samples, "bytes": shard.bytes, "block_rows": shard.block_rows}
                for shard in manifest.shards
            ],
            "columns": [
                {"field": column.field, "name": column.name, "bytes": column.bytes} for column in manifest.columns
            ],
            "superseded_samples": manifest.superseded_samples,
            "bytes": manifest.stored_bytes,
            "digest": manifest.digest,
            "fingerprints": [generation.fingerprint for generation in manifest.generations],
            "history": [note._asdict() for note in self.history],
            "recipe": dict(manifest.generations[-1].recipe),
            "runtime": dict(manifest.generations[-1].runtime),
            "wall_clock": dict(manifest.wall_clock),
        }

    @property
    def history(self) -> tuple[GenerationNote, ...]:
        """What was packed when, in order: the first build, and every addition, as it was then."""
        generations, clock = self.manifest.generations, self.manifest.wall_clock
        noted = clock.get("history")
        if isinstance(noted, list):
            return tuple(GenerationNote.of(note) for note in noted if isinstance(note, dict))
        # A convert, a merge and a split do not say when their inputs were packed.
        alone = len(generations) == 1 and "job" not in clock
        return tuple(
            GenerationNote.of(
                {
                    "kind": generation.kind,
                    "finished": clock.get("finished") if alone else None,
                    "version": generation.runtime.get("facepack"),
                    "items": generation.counts.items,
                    "rejected": generation.counts.rejected_items,
                    "samples": generation.counts.samples,
                }
            )
            for generation in generations
        )

    def describe_history(self) -> str:
        """The history for people: when, what, by which version."""
        lines = [
            f"{self.path}: {counted(self.manifest.samples, 'sample')}, packed in {counted(len(self.history), 'step')}:"
        ]
        lines += [f"  {note.describe()}" for note in self.history]
        return "\n".join(lines)

    def _describe_superseded(self) -> list[str]:
        rows = self.manifest.superseded_samples
        line = f"superseded: {counted(rows, 'sample')}, still in the shards until 'packer compact' removes them"
        return [line] if rows else []

    def describe(self) -> str:
        """The facts for people."""
        manifest, facts = self.manifest, self.to_json()
        lines = [
            f"{self.path}: {counted(facts['samples'], 'sample')}, {manifest.format}, "
            f"{counted(len(manifest.shards), 'shard')}, {facts['bytes'] / 1e6:.1f} MB",
            f"items: {facts['items']} = {facts['packed_items']} packed + {facts['rejected_items']} rejected; "
            f"{counted(facts['frames_without_sample'], 'frame')} without a sample, "
            f"{counted(facts['damaged_items'], 'damaged video')}, "
            f"{facts['ignored_files']} ignored, "
            f"{counted(facts['progressive_jpegs'], 'progressive JPEG')} found",
            *self._describe_superseded(),
            f"digest: {facts['digest']}",
            "fields:",
        ]
        for field in manifest.schema:
            shape = " x ".join("?" if axis is None else str(axis) for axis in field.shape) or "one value"
            extra = f", {counted(len(field.classes), 'class')}: {list_some(field.classes)}" if field.classes else ""
            extra += f", layout {field.layout}" if field.layout else ""
            extra += ", column" if field.name not in manifest.shard_schema else ""
            lines.append(f"  {field.name}: {field.kind} {field.dtype} {shape}, {field.codec.name}{extra}")
        return "\n".join(lines)


def inspect(dataset: str | os.PathLike[str]) -> InspectReport:
    """What a packed dataset holds, by its manifest alone.

    Parameters
    ----------
    dataset : path
        A packed dataset.

    Returns
    -------
    InspectReport

    Raises
    ------
    DatasetError
        If there is no manifest that can be read.
    """
    path = Path(dataset)
    return InspectReport(path, Layout(path).load())


class Leak(NamedTuple):
    """A group that occurs in several datasets.

    Attributes
    ----------
    group : str
    samples : dict of str to int
        Samples of the group in each dataset that has any, by the path of the dataset as given.
    """

    group: str
    samples: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """The leak as JSON."""
        return {"group": self.group, "samples": self.samples}


@dataclass(frozen=True, repr=False)
class Leaks(Result):
    """What a comparison of datasets found.

    Attributes
    ----------
    by : str
        The field whose values were compared.
    datasets : tuple of str
        The paths of the datasets as given.
    found : tuple of Leak
        The groups in several datasets, by name.
    without : int
        Samples without a value, which were not compared.
    """

    by: str
    datasets: tuple[str, ...]
    found: tuple[Leak, ...]
    without: int

    def to_json(self) -> dict[str, Any]:
        """The leaks as JSON."""
        found = [leak.to_json() for leak in self.found]
        return {"by": self.by, "datasets": list(self.datasets), "leaks": found, "samples_without_value": self.without}

    def describe(self) -> str:
        """The leaks for people."""
        together = ", ".join(self.datasets)
        rest = f" ({counted(self.without, 'sample')} without a value not compared)" if self.without else ""
        if not self.found:
            return f"{together}: no {self.by} occurs in more than one{rest}"
        lines = [
            f"  {leak.group!r}: "
            + ", ".join(f"{counted(size, 'sample')} in {path}" for path, size in leak.samples.items())
            for leak in self.found
        ]
        many = counted(len(self.found), "value")
        return "\n".join([f"{together}: LEAK: {many} of {self.by} in more than one{rest}:", *lines])


class ValueCount(NamedTuple):
    """What a dataset has of one value of a field.

    Attributes
    ----------
    value : str or None
        None for samples without a value.
    samples : int
    items : int or None
        Items, such as videos, that have such samples; None if neither keys nor sources say which.
    classes : dict of str to int
        Samples of each class of ``label``, by its name or number; empty if there is no ``label``.
    """

    value: str | None
    samples: int
    items: int | None
    classes: dict[str, int]


@dataclass(frozen=True, repr=False)
class ValueCounts(Result):
    """The values of a field, counted.

    Attributes
    ----------
    path : Path
        The dataset's folder, as given.
    by : str
        The field.
    found : tuple of ValueCount
        The values with most samples first, values of as many samples in the order of their first sample.
    """

    path: Path
    by: str
    found: tuple[ValueCount, ...]

    def to_json(self) -> dict[str, Any]:
        """All counts as JSON."""
        return {"path": str(self.path), "by": self.by, "values": [count._asdict() for count in self.found]}

    def describe(self) -> str:
        """The counts for people; of many values, the first."""
        samples = sum(count.samples for count in self.found)
        lines = [f"{self.path}: {counted(samples, 'sample')}, {counted(len(self.found), 'value')} of {self.by}"]
        for count in self.found[:_VALUES]:
            value = "no value" if count.value is None else shorten(count.value)
            items = "" if count.items is None else f", {counted(count.items, 'item')}"
            classes = list_some([f"{many} {name}" for name, many in count.classes.items()])
            lines.append(f"  {value}: {counted(count.samples, 'sample')}{items}" + (f", {classes}" if classes else ""))
        left = len(self.found) - _VALUES
        return "\n".join([*lines, *([f"  and {left} more (--json has all)"] if left > 0 else [])])


def count_values(dataset: str | os.PathLike[str], *, by: str) -> ValueCounts:
    """Count the samples, items and classes of a packed dataset by the values of a field. No picture is read.

    Parameters
    ----------
    dataset : path
        A packed dataset.
    by : str
        A field of text or of one value per sample: ``"source"``, ``"label"``, or a column of a table.

    Returns
    -------
    ValueCounts

    Raises
    ------
    UsageError
        If there is no such field.
    DatasetError
        If the dataset cannot be read.
    """
    path = Path(dataset)
    schema = Layout(path).load().schema
    groups = read_groups(path, by)
    # After the values, a group of the samples without one.
    of_row = np.where(groups.of_row == NO_GROUP, len(groups.names), groups.of_row)
    names = [*groups.names, None]
    samples = np.bincount(of_row, minlength=len(names)).tolist()
    items = _count_items(path, schema, of_row, len(names))
    classes: list[dict[str, int]] = [{} for _ in names]
    if "label" in schema and schema["label"].is_scalar:
        labels = read_groups(path, "label")
        found_pairs = count_pairs(of_row, labels.of_row)
        for value, label, count in zip(*(numbers.tolist() for numbers in found_pairs), strict=True):
            classes[value]["no value" if label == NO_GROUP else labels.names[label]] = count
    found = [
        ValueCount(name, samples[at], None if items is None else items[at], dict(sorted(classes[at].items())))
        for at, name in enumerate(names)
        if samples[at]
    ]
    return ValueCounts(path, by, tuple(sorted(found, key=lambda count: -count.samples)))


def _count_items(path: Path, schema: Schema, of_row: IntArray, values: int) -> list[int] | None:
    """The items of each value: by their numbers in keys, else by ``source``; None if a dataset has neither."""
    items: IntArray | None = None
    if "key" in schema:
        numbers: dict[bytes, int] = {}
        found = [BUILT_KEY.match(key.encode(errors="replace")) for key in read_groups(path, "key").names]
        built = [match[1] for match in found if match is not None]
        if len(built) == len(found):  # and not keys of the user's own
            items = np.array([numbers.setdefault(item, len(numbers)) for item in built], np.int64)
    if (items is None or len(items) != len(of_row)) and "source" in schema:
        items = read_groups(path, "source").of_row
    if items is None or len(items) != len(of_row):
        return None
    values_of_items, _, _ = count_pairs(of_row, items)
    counts: list[int] = np.bincount(values_of_items, minlength=values).tolist()
    return counts


def find_leaks(
    datasets: Sequence[str | os.PathLike[str]], *, by: str, progress: bool | ProgressListener = True
) -> Leaks:
    """Find the groups that occur in more than one of several datasets. Groups are compared by their value, as text.

    Parameters
    ----------
    datasets : sequence of path
        Two packed datasets or more.
    by : str
        The field that says which samples belong together: ``"source"``, or a column such as a person's name.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    Leaks

    Raises
    ------
    UsageError
        If there are fewer than two datasets, if one is given twice, or if one lacks the field.
    DatasetError
        If a dataset cannot be read.
    """
    paths = several_paths(datasets, f"to compare by {by!r}")
    places: dict[Path, Path] = {}
    for path in paths:
        if path.resolve() in places:
            raise UsageError(
                f"expected different datasets to compare, found one twice: {places[path.resolve()]}, {path}"
            )
        places[path.resolve()] = path
    found: dict[str, dict[str, int]] = {}
    without = 0
    with Stage(listener_of(progress), "comparing", len(paths), "datasets") as stage:
        for path in paths:
            groups = read_groups(path, by)
            without += groups.without
            for name, size in zip(groups.names, groups.sizes().tolist(), strict=True):
                found.setdefault(name, {})[str(path)] = size
            stage.advance()
    leaks = tuple(Leak(name, samples) for name, samples in sorted(found.items()) if len(samples) > 1)
    return Leaks(by, tuple(map(str, paths)), leaks, without)
