"""The plan of a dataset that consists of some rows of another."""

import hashlib
from collections.abc import Container, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from packer.assembly.groups import read_groups
from packer.packed.plan import PackedInput, RepackPlan, mix_generations, plan_copy
from packer.workspace.hashing import TextSet
from shardspec.columns import IntArray
from shardspec.entries import Counts
from shardspec.layout import ITEMS_NAME, REJECTS_NAME
from shardspec.splits.groups import NO_GROUP, Groups


def plan_part(
    kind: str, one: PackedInput, options: Mapping[str, Any], rows: IntArray, items: "ItemsOfRows"
) -> RepackPlan:
    """Plan a dataset of some rows of another, ascending. It has one generation, and the reports of the rows' items."""
    digest = hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()
    plan = plan_copy(kind, [one], {**options, "rows": digest})
    names = items.of_rows(rows)
    mixed = mix_generations(plan)
    generation = replace(mixed.generation, counts=items.counts(names, len(rows)))
    made = mixed._replace(generation=generation, rows=len(rows))
    return replace(plan, rows=rows, generations=(made,), keep=partial(_keeps, names))


class ItemsOfRows:
    """The items of a dataset's reports, by the names that its rows have for them.

    Parameters
    ----------
    rows : int array, optional
        The rows whose items are wanted, ascending; by default all. Only their shards are read.

    Attributes
    ----------
    groups : Groups or None
        The rows by the name of their item; None if the reports list no items by such a name.
    keys : bool
        Whether the items are named by keys, because each was a sample of another dataset.
    """

    def __init__(self, one: PackedInput, rows: IntArray | None = None) -> None:
        self._one = one
        self._listed = next(iter(one.report(ITEMS_NAME)), None) is not None
        self.groups: Groups | None = None
        self.keys = False
        # If the dataset was built from a packed one, each sample was an item, named by its key.
        for name in ("source", "key"):
            if name in one.manifest.schema:
                groups = read_groups(one.path, name, rows)
                if not self._listed or self._lists(TextSet(groups.names)):
                    self.groups, self.keys = groups, name == "key" and self._listed
                    break

    def _lists(self, names: Container[str]) -> bool:
        return any(str(line.get("item")) in names for line in self._one.report(ITEMS_NAME))

    def of_rows(self, rows: IntArray) -> TextSet:
        """Return the names of the items of some rows."""
        if self.groups is None:
            return TextSet(())
        numbers = np.unique(self.groups.of_row[rows])
        names = self.groups.names
        return TextSet(names[number] for number in numbers[numbers != NO_GROUP].tolist())

    def counts(self, names: TextSet, samples: int) -> Counts:
        """Return the counts of items that all gave samples."""
        packed, frames, damaged, progressive = (0 if self._listed else len(names) or samples), 0, 0, 0
        for line in self._one.report(ITEMS_NAME):
            if _keeps(names, line):
                packed += 1
                progressive += line.get("progressive", 0)
        for line in self._one.report(REJECTS_NAME):
            if _keeps(names, line):
                frames += len(line.get("frames", ()))
                damaged += line.get("kind") == "damage"
        return Counts(packed, packed, 0, 0, samples, frames, damaged, progressive)


def _keeps(names: Container[str], line: Mapping[str, Any]) -> bool:
    """Return whether a report's line is about an item that has samples in a split."""
    return str(line.get("item")) in names and line.get("kind") != "item" and line.get("state", "packed") == "packed"
