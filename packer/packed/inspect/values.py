"""Count the values of a field of a packed dataset."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packer.assembly.groups import read_groups
from packer.jobs.result import Result
from packer.packed.plan import BUILT_KEY
from packer.sources.stores.packed import partial_folder
from shardspec.columns import IntArray
from shardspec.layout import Layout, place_of
from shardspec.schema import Schema
from shardspec.splits.groups import NO_GROUP, count_pairs
from shardspec.wording import counted, list_some, shorten

_VALUES = 20
"""Most values in a description."""


class ValueCount(NamedTuple):
    """Samples that have one value of a field.

    Attributes
    ----------
    value : str or None
        None for samples without a value.
    samples : int
    items : int or None
        Items, such as videos, with such samples; None if neither keys nor sources identify items.
    classes : dict of str to int
        Samples of each class of ``label``, by its name or number; empty if there is no ``label``.
    """

    value: str | None
    samples: int
    items: int | None
    classes: dict[str, int]


@dataclass(frozen=True, repr=False)
class ValueCounts(Result):
    """Counts of the values of a field.

    Attributes
    ----------
    path : Path or str
        The dataset's folder as given, or its URL.
    by : str
        The field.
    found : tuple of ValueCount
        The most frequent values first; equally frequent values in the order of their first sample.
    """

    path: Path | str
    by: str
    found: tuple[ValueCount, ...]

    def to_json(self) -> dict[str, Any]:
        """Return all counts as JSON."""
        return {"path": str(self.path), "by": self.by, "values": [count._asdict() for count in self.found]}

    def describe(self) -> str:
        """Describe the counts, or the first ones if there are many."""
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
    """Count the samples, items and classes of a packed dataset by the values of a field. No image is read.

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
    path = partial_folder(dataset)
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
    return ValueCounts(place_of(path), by, tuple(sorted(found, key=lambda count: -count.samples)))


def _count_items(path: Path, schema: Schema, of_row: IntArray, values: int) -> list[int] | None:
    """Count the items of each value by the numbers in keys, or else by ``source``."""
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
