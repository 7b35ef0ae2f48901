"""The plan of a dataset that consists of some rows of another."""

import hashlib
from collections.abc import Container, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from packer.assembly.groups import read_groups
from packer.assembly.plan import ShardRun
from packer.packed.plan import Input, RepackPlan, join_generations, plan_copy
from packer.workspace.hashing import TextSet
from shardspec.columns import IntArray
from shardspec.entries import Counts
from shardspec.layout import ITEMS_NAME, REJECTS_NAME
from shardspec.splits.groups import NO_GROUP, Groups


def plan_part(kind: str, one: Input, options: Mapping[str, Any], rows: IntArray, items: "ItemsOfRows") -> RepackPlan:
    """Plan a dataset of some rows of another, ascending. It has one generation, and the reports of the rows' items."""
    digest = hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()
    plan = plan_copy(kind, [one], {**options, "rows": digest})
    names = items.of_rows(rows)
    generation = replace(join_generations(plan), counts=items.counts(names, len(rows)))
    pieces = (ShardRun(len(rows), plan.pieces[0].shard_bytes),)
    return replace(plan, rows=rows, pieces=pieces, generations=(generation,), keep=partial(_keeps, names))


class ItemsOfRows:
    """The items of a dataset's reports, by the names that its rows have for them.

    Parameters
    ----------
    rows : int array, optional
        The rows whose items are wanted, ascending; by default all. Only their shards are read.
    """

    def __init__(self, one: Input, rows: IntArray | None = None) -> None:
        self._one = one
        self._listed = next(iter(one.report(ITEMS_NAME)), None) is not None
        self._groups: Groups | None = None
        # If the dataset was built from a packed one, each sample was an item, named by its key.
        for name in ("source", "key"):
            if name in one.manifest.schema:
                groups = read_groups(one.path, name, rows)
                if not self._listed or self._lists(TextSet(groups.names)):
                    self._groups = groups
                    break

    def _lists(self, names: Container[str]) -> bool:
        return any(str(line.get("item")) in names for line in self._one.report(ITEMS_NAME))

    def of_rows(self, rows: IntArray) -> TextSet:
        """Return the names of the items of some rows."""
        if self._groups is None:
            return TextSet(())
        numbers = np.unique(self._groups.of_row[rows])
        names = self._groups.names
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
