"""The items of a packed dataset, by which those of a source are known again."""

import json
from array import array
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from packer.builds.growing.earlier import GONE, checked_lines
from packer.builds.planning.facts import FACTS_BYTES, item_facts
from packer.sources.item import Item
from packer.workspace.matching import match
from shardspec.columns import IntArray
from shardspec.errors import DatasetError, UsageError
from shardspec.layout import ITEMS_NAME, REJECTS_NAME, Layout
from shardspec.manifest import Manifest

FACTS_DIGITS = 2 * FACTS_BYTES
"""Characters of an item's facts in ``items.jsonl``."""

_STATES = ("packed", "rejected", GONE)
WAS_PACKED, WAS_REJECTED, WAS_GONE = range(3)
"""The places of the states."""


class DatasetItems:
    """The items of a dataset, by their numbers: in memory is no object for each.

    Attributes
    ----------
    states : bytearray
        The place of each item's state in `_STATES`.
    samples : array of int
    """

    def __init__(self) -> None:
        self.states = bytearray()
        self.samples = array("q")
        self._facts = bytearray()
        self._names = array("q")

    @classmethod
    def read(cls, layout: Layout, base: Manifest) -> "DatasetItems":
        """Read ``items.jsonl``."""
        known = cls()
        for raw in checked_lines(layout, base, ITEMS_NAME):
            line = json.loads(raw)
            if not isinstance(line, dict) or "facts" not in line:
                raise UsageError(
                    f"{layout.root}: expected a dataset whose {ITEMS_NAME} says by what each item is known again, "
                    "found one of an earlier version: pack it once more with --overwrite"
                )
            known._facts += bytes.fromhex(line["facts"])
            known._names.append(hash(str(line["item"])))
            known.states.append(_STATES.index(line["state"]))
            known.samples.append(int(line["samples"]))
        if len(known._facts) != FACTS_BYTES * len(known):
            raise DatasetError(f"{layout.root}: expected facts of {FACTS_DIGITS} digits in {ITEMS_NAME}, found others")
        return known

    def __len__(self) -> int:
        return len(self.states)

    def find(self, items: Iterable[Item]) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """The number of each item of a source, -1 for new ones; and whether it has changed.

        An item is found by its facts first, then, among the items that are left, by its name; and, where several fit,
        among those that are not gone first.
        """
        facts, names = bytearray(), array("q")
        for item in items:
            facts += bytes.fromhex(item_facts(item)[:FACTS_DIGITS])
            names.append(hash(item.name))
        order = np.argsort(np.frombuffer(self.states, np.uint8) == WAS_GONE, kind="stable")
        numbers = _match(np.frombuffer(self._facts, np.int64), order, np.frombuffer(facts, np.int64))
        new = np.flatnonzero(numbers < 0)
        order = order[self.find_left(numbers, gone=True)[order]]
        numbers[new] = _match(np.frombuffer(self._names, np.int64), order, np.frombuffer(names, np.int64)[new])
        changed = np.zeros(len(numbers), np.bool_)
        changed[new] = numbers[new] >= 0
        return numbers, changed

    def find_left(self, numbers: IntArray, *, gone: bool = False) -> npt.NDArray[np.bool_]:
        """Return which items are none of some numbers.

        Without those that are known to be gone, unless these count, too.
        """
        left = np.ones(len(self), np.bool_)
        left[numbers[numbers >= 0]] = False
        return left if gone else left & (np.frombuffer(self.states, np.uint8) != WAS_GONE)


def _match(known: IntArray, order: IntArray, sought: IntArray) -> IntArray:
    """For each number that is sought, where among the known ones it is, the first of equal ones in an order; or -1."""
    found = match(known[order], sought)
    return np.where(found < 0, -1, order[found]) if len(order) else found


def find_to_retry(layout: Layout, base: Manifest, known: DatasetItems, wanted: bool | str) -> npt.NDArray[np.bool_]:
    """Return which items, by their numbers, were rejected and are to be tried again."""
    rejected = np.frombuffer(known.states, np.uint8) == WAS_REJECTED
    if not isinstance(wanted, str):
        return rejected if wanted else np.zeros_like(rejected)
    lines = map(json.loads, checked_lines(layout, base, REJECTS_NAME))
    sought = wanted.casefold()
    fits = [sought in f"{line['step']}: {line['reason']}".casefold() for line in lines if line["kind"] == "item"]
    if len(fits) != rejected.sum():
        raise DatasetError(
            f"{layout.root}: expected as many rejects in {REJECTS_NAME} as in {ITEMS_NAME}, {rejected.sum()}, "
            f"found {len(fits)}"
        )
    retry = np.zeros(len(known), np.bool_)
    retry[np.flatnonzero(rejected)] = fits
    return retry
