"""Compare a source with a packed dataset: items that are new, changed or gone, and rejected items to retry."""

import json
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.builds.planning.plan import DIGEST_BYTES, BuildPlan, item_digest
from packer.builds.reports import GONE, ItemIdentity, checked_lines
from packer.builds.update.checks import (
    check_added_fields,
    check_built,
    check_columns,
    check_terms,
    number_classes,
    with_valid,
)
from packer.recipe import Recipe
from packer.recipe.options import BuildOptions
from packer.sources.base import Listing
from packer.sources.item import Item, item_list
from packer.workspace.disk_list import sorted_records
from packer.workspace.hashing import match
from shardspec.columns import IntArray
from shardspec.errors import DatasetError, UsageError
from shardspec.layout import ITEMS_NAME, REJECTS_NAME, Layout
from shardspec.manifest import Manifest, sha256_json
from shardspec.wording import counted, program, shorten

DIGEST_DIGITS = 2 * DIGEST_BYTES
"""Length of an item's digest in ``items.jsonl``."""

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
        self._digests = bytearray()
        self._names = array("q")

    @classmethod
    def read(cls, layout: Layout, base: Manifest) -> "DatasetItems":
        """Read ``items.jsonl``."""
        known = cls()
        for raw in checked_lines(layout, base, ITEMS_NAME):
            line = json.loads(raw)
            if not isinstance(line, dict) or "source_digest" not in line:
                raise UsageError(
                    place=layout.root,
                    expected=f"a dataset whose {ITEMS_NAME} says by what each item is known again",
                    found="one of an earlier version",
                    hint="pack it once more with --overwrite",
                )
            known._digests += bytes.fromhex(line["source_digest"])
            known._names.append(hash(str(line["item"])))
            known.states.append(_STATES.index(line["state"]))
            known.samples.append(int(line["samples"]))
        if len(known._digests) != DIGEST_BYTES * len(known):
            raise DatasetError(
                place=layout.root, expected=f"a source_digest of {DIGEST_DIGITS} digits in {ITEMS_NAME}", found="others"
            )
        return known

    def __len__(self) -> int:
        return len(self.states)

    def find(self, items: Iterable[Item]) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """The number of each item of a source, -1 for new ones; and whether it has changed.

        An item is found by its digest first, then, among the items that are left, by its name; and, where several fit,
        among those that are not gone first.
        """
        digests, names = bytearray(), array("q")
        for item in items:
            digests += bytes.fromhex(item_digest(item)[:DIGEST_DIGITS])
            names.append(hash(item.name))
        order = np.argsort(np.frombuffer(self.states, np.uint8) == WAS_GONE, kind="stable")
        numbers = _match(np.frombuffer(self._digests, np.int64), order, np.frombuffer(digests, np.int64))
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
            place=layout.root,
            expected=f"as many rejects in {REJECTS_NAME} as in {ITEMS_NAME}, {rejected.sum()}",
            found=len(fits),
        )
    retry = np.zeros(len(known), np.bool_)
    retry[np.flatnonzero(rejected)] = fits
    return retry


@dataclass(frozen=True)
class Growth:
    """How the items of a source compare with those of a dataset.

    Attributes
    ----------
    new : int
        Items that the dataset lacks.
    kept : int
        Items that it has, packed or rejected, and that are as they were.
    changed : int
        Items that have changed since: size, time or columns.
    repaired : int
        Those of the changed items that are rejected; an update leaves them alone, and a retry tries them.
    gone : int
        Items of the dataset that the source lacks.
    retried : int
        Rejected items that are tried again; they count in none of the others.
    mended : int
        Retried items that are packed now.
    replaced : int
        Those of the changed items that are packed again, in place of their old samples; none by default.
    dropped : int
        Those of the gone items whose samples are dropped; none by default.
    removed : int
        The old samples of both.
    """

    new: int
    kept: int
    changed: int
    repaired: int
    gone: int
    retried: int
    mended: int = 0
    replaced: int = 0
    dropped: int = 0
    removed: int = 0

    def describe(self) -> str:
        """The numbers in words."""
        retried = f", {self.retried} tried again" if self.retried else ""
        changed = " since they were packed (their samples stay as they are)" if self.changed > self.repaired else ""
        changed += f" ({self.repaired} of them rejected: --retry-rejects tries them again)" if self.repaired else ""
        changed = " (replaced)" if self.replaced else changed
        gone = " (dropped)" if self.dropped else " (their samples stay)" if self.gone else ""
        text = f"{self.new} new{retried}, {self.kept} kept, {self.changed} changed{changed}, {self.gone} gone{gone}"
        return f"{text}; {counted(self.removed, 'sample')} removed" if self.removed else text

    def to_json(self) -> dict[str, int]:
        """The numbers as JSON."""
        return dict(vars(self))

    def count_removed(self) -> dict[str, int]:
        """How many items were replaced or dropped, with how many samples, for the history; nothing if none were."""
        found = {"replaced": self.replaced, "gone": self.dropped, "removed": self.removed}
        return found if self.replaced or self.dropped else {}


@dataclass(frozen=True)
class Comparison:
    """The items to pack, and the dataset that they are added to.

    Attributes
    ----------
    layout : Layout
    base : Manifest
    listing : Listing
        Items that the dataset knows, by their numbers; then new items, whose numbers follow those of the dataset.
    growth : Growth
    runtime : mapping
        Versions, as those of the dataset.
    recipe : mapping
        As the generation that is added records it: with the time limit of an item, if a retry has another than usual.
    gone : (items,) bool
        Which of the dataset's items, by their numbers, are dropped.
    removed : (items,) int64
        How many samples of each of the dataset's items are removed, since it is replaced or dropped.
    notes : tuple of str
        What else is to be known, a line each.
    """

    layout: Layout
    base: Manifest
    listing: Listing
    growth: Growth
    runtime: Mapping[str, Any]
    recipe: Mapping[str, Any]
    gone: npt.NDArray[np.bool_]
    removed: IntArray
    notes: tuple[str, ...] = ()

    @property
    def has_work(self) -> bool:
        """True if the dataset is to change."""
        return bool(len(self.listing.items) or self.gone.any())

    @property
    def rewrites(self) -> bool:
        """True if samples are removed, so that the others are copied into new shards; otherwise the old ones stay."""
        return bool(self.removed.any())

    @property
    def copied_bytes(self) -> int:
        """Bytes of the dataset's shards if the update copies from them, otherwise 0."""
        return sum(shard.bytes for shard in self.base.shards) if self.rewrites else 0

    @property
    def gone_digest(self) -> str:
        """SHA-256 of the numbers of the items that are dropped; empty if none are."""
        return sha256_json(np.flatnonzero(self.gone).tolist()) if self.gone.any() else ""

    @property
    def kind(self) -> str:
        """The kind of the generation that is added."""
        return "update" if self.growth.new or self.growth.replaced else "retry"

    @property
    def joins(self) -> bool:
        """True if what is added joins the dataset's last generation, so that many additions make no long manifest."""
        last = self.base.generations[-1]
        # The contents of ``boxes`` may differ, and the options of a retry.
        same = sha256_json([last.runtime, last.recipe]) == sha256_json([self.runtime, self.recipe])
        return last.kind == self.kind and same

    def identify(self, item: Item) -> ItemIdentity:
        """The identity of an item of `listing`."""
        assert item.number is not None
        number = item.number
        generation = len(self.base.generations) - int(self.joins)
        return ItemIdentity(item_digest(item)[:DIGEST_DIGITS], number, generation)


def compare(
    layout: Layout,
    base: Manifest,
    listing: Listing,
    recipe: Recipe,
    runtime: Mapping[str, Any],
    options: BuildOptions,
) -> Comparison:
    """Compare the items of a source with those of a packed dataset.

    An item is known again by its name, size, time and columns.

    Raises
    ------
    UsageError
        If the dataset was not packed from such a source by this recipe and these versions, or if there are new classes
        and they are not wanted.
    DatasetError
        If the dataset's reports do not match its manifest.
    """
    items = listing.items[: recipe.limit]
    check_built(layout, base, items)
    check_terms(layout, base, recipe, runtime, options)
    schema = base.shard_schema
    listing = with_valid(schema, replace(listing, items=items))
    listing = number_classes(layout, schema, listing, options.new_classes)
    check_columns(layout, base, listing, recipe)
    known = DatasetItems.read(layout, base)
    retry = find_to_retry(layout, base, known, options.retry_rejects)
    numbers, changed = known.find(listing.items)
    again, new = item_list(), item_list()
    replaced = np.zeros(len(known), np.bool_)
    returned = differ = repaired = tried_again = 0
    for item, number, has_changed in zip(listing.items, numbers, changed, strict=True):
        if number < 0:
            if options.update:
                new.append(item._replace(number=len(known) + len(new)))
            continue
        state = known.states[number]
        replaces = has_changed and options.changed == "replace"
        tried = bool(retry[number]) or (state == WAS_REJECTED and replaces)
        if tried:
            tried_again += 1
        elif state == WAS_GONE and options.update:
            returned += 1
        elif state == WAS_PACKED and replaces:
            replaced[number] = True
        if tried or (state == WAS_GONE and options.update) or replaced[number]:
            again.append(item._replace(number=int(number)))
        differ += bool(has_changed) and not tried and state != WAS_GONE
        repaired += bool(has_changed) and not tried and state == WAS_REJECTED
    found = item_list()
    for item in chain(sorted_records(again, lambda item: item.number, item_list), new):
        found.append(item._replace(index=len(found)))
    ignored = max(0, listing.ignored - sum(g.counts.ignored_files for g in base.generations))
    states = np.frombuffer(known.states, np.uint8)
    left = known.find_left(numbers)
    gone = left if options.gone == "drop" else np.zeros(len(known), np.bool_)
    removed = np.where((replaced | gone) & (states == WAS_PACKED), np.frombuffer(known.samples, np.int64), 0)
    lost, dropped = int(left.sum()), int(gone.sum())
    kept = len(known) - int((states == WAS_GONE).sum()) - lost - differ - tried_again
    if dropped and not kept + differ + tried_again:
        raise UsageError(
            place=layout.root,
            expected="a source with items of the dataset",
            found=f"none of its {lost}, all of which --gone drop would drop",
            hint="give the source that it was packed from, or pack this one with --overwrite",
        )
    if found:
        check_added_fields(layout, base)
    growth = Growth(
        len(new) + returned,
        kept,
        differ,
        repaired,
        lost,
        tried_again,
        replaced=int(replaced.sum()),
        dropped=dropped,
        removed=int(removed.sum()),
    )
    notes: tuple[str, ...] = ()
    wanted = options.retry_rejects
    if isinstance(wanted, str) and not retry.any() and WAS_REJECTED in known.states:
        notes = (f"--retry-rejects: no reject has {shorten(wanted)} in its step or reason (see '{program()} rejects')",)
    listing = replace(listing, items=found, ignored=ignored)
    noted = BuildPlan(recipe.to_json(), dict(runtime), 0, "", 0, {}, ()).manifest_recipe
    if not options.update and options.item_timeout != BuildOptions.item_timeout:
        noted["item_timeout"] = options.item_timeout
    return Comparison(layout, base, listing, growth, runtime, noted, gone, removed, notes)
