"""The items that the samples of a part came from."""

from collections.abc import Container, Mapping
from typing import Any

import numpy as np

from packer.assembly.groups import read_groups
from packer.packed.plan import Input
from packer.packed.reports import read_report
from packer.workspace.matching import TextSet
from shardspec.columns import IntArray
from shardspec.entries import Counts
from shardspec.layout import ITEMS_NAME, REJECTS_NAME
from shardspec.splits.groups import NO_GROUP, Groups


class Items:
    """The items of the source's reports, by the names that the rows have for them."""

    def __init__(self, one: Input) -> None:
        self._one = one
        self._listed = next(iter(read_report(one, ITEMS_NAME)), None) is not None
        self._groups: Groups | None = None
        # If the dataset was built from a packed one, each sample was an item, named by its key.
        for name in ("source", "key"):
            if name in one.manifest.schema:
                groups = read_groups(one.path, name)
                if not self._listed or self._lists(TextSet(groups.names)):
                    self._groups = groups
                    break

    def _lists(self, names: Container[str]) -> bool:
        """Return whether the reports have an item of one of the names."""
        return any(str(line.get("item")) in names for _, line in read_report(self._one, ITEMS_NAME))

    def of_rows(self, rows: IntArray) -> TextSet:
        """Names of the items that some rows came from."""
        if self._groups is None:
            return TextSet(())
        numbers = np.unique(self._groups.of_row[rows])
        names = self._groups.names
        return TextSet(names[number] for number in numbers[numbers != NO_GROUP].tolist())

    def counts(self, names: TextSet, samples: int) -> Counts:
        """Return the counts of items that all gave samples."""
        packed, frames, damaged, progressive = (0 if self._listed else len(names) or samples), 0, 0, 0
        for _, line in read_report(self._one, ITEMS_NAME):
            if keeps(names, line):
                packed += 1
                progressive += line.get("progressive", 0)
        for _, line in read_report(self._one, REJECTS_NAME):
            if keeps(names, line):
                frames += len(line.get("frames", ()))
                damaged += line.get("kind") == "damage"
        return Counts(packed, packed, 0, 0, samples, frames, damaged, progressive)


def keeps(names: Container[str], line: Mapping[str, Any]) -> bool:
    """Return whether a report's line is about an item that has samples in a split."""
    return str(line.get("item")) in names and line.get("kind") != "item" and line.get("state", "packed") == "packed"
