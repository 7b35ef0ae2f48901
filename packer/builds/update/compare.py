"""Compare a source with a packed dataset: find new, changed and missing items, and rejected items to retry."""

import json
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.assembly.records import (
    GONE,
    PACKED,
    REJECTED,
    REMOVED,
    ItemIdentity,
    checked_lines,
    made_alike,
    name_digest,
)
from packer.builds.planning.plan import DIGEST_BYTES, BuildPlan, item_digest
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
from shardspec.entries import Generation
from shardspec.errors import DatasetError, UsageError
from shardspec.layout import ITEMS_NAME, REJECTS_NAME, Layout, place_of
from shardspec.manifest import Manifest, sha256_json
from shardspec.wording import counted, program, shorten

DIGEST_DIGITS = 2 * DIGEST_BYTES
"""Number of hexadecimal digits of an item's digest in ``items.jsonl``."""

GROWN = ("update", "retry")
"""Kinds of generations that an update or retry adds. Items have their numbers."""

_STATES = (PACKED, REJECTED, GONE, REMOVED)
WAS_PACKED, WAS_REJECTED, WAS_GONE, WAS_REMOVED = range(4)
"""Positions of the states in `_STATES`."""


class DatasetItems:
    """Compact table of a dataset's items, by item number.

    Attributes
    ----------
    states : bytearray
        Position of each item's state in `_STATES`.
    samples : array of int
        Number of samples of each item.
    reduced : set of int
        Items that have lost a part of their samples to `packer.remove`.
    """

    def __init__(self) -> None:
        self.states = bytearray()
        self.samples = array("q")
        self.reduced = set[int]()
        self._digests = bytearray()
        self._names = array("q")

    @classmethod
    def read(cls, layout: Layout, base: Manifest) -> "DatasetItems":
        """Read ``items.jsonl``."""
        known = cls()
        for raw in checked_lines(layout, base, ITEMS_NAME):
            line = json.loads(raw)
            known._digests += bytes.fromhex(line["source_digest"])
            known._names.append(_number(line.get("name_digest") or name_digest(str(line["item"]))))
            known.states.append(_STATES.index(line["state"]))
            known.samples.append(int(line["samples"]))
            if line.get("removed"):
                known.reduced.add(len(known) - 1)
        if len(known._digests) != DIGEST_BYTES * len(known):
            raise DatasetError(
                place=place_of(layout.root),
                expected=f"a source_digest of {DIGEST_DIGITS} digits in {ITEMS_NAME}",
                found="others",
            )
        return known

    def __len__(self) -> int:
        return len(self.states)

    def find(self, items: Iterable[Item]) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """Find the items of a source in the dataset.

        Items are matched by digest first, and the remaining ones by name. If several items of the dataset match, those
        that are not gone or removed take precedence.

        Returns
        -------
        numbers : (n,) int64
            The number of each item in the dataset, or -1 for a new item.
        changed : (n,) bool
            Whether each item has changed.
        """
        digests, names = bytearray(), array("q")
        for item in items:
            digests += bytes.fromhex(item_digest(item)[:DIGEST_DIGITS])
            names.append(_number(name_digest(item.name)))
        ranks = np.array([0, 0, 2, 1], np.uint8)  # in the order of `_STATES`
        order = np.argsort(ranks[np.frombuffer(self.states, np.uint8)], kind="stable")
        numbers = _match(np.frombuffer(self._digests, np.int64), order, np.frombuffer(digests, np.int64))
        new = np.flatnonzero(numbers < 0)
        order = order[self.find_left(numbers, gone=True)[order]]
        numbers[new] = _match(np.frombuffer(self._names, np.int64), order, np.frombuffer(names, np.int64)[new])
        changed = np.zeros(len(numbers), np.bool_)
        changed[new] = numbers[new] >= 0
        return numbers, changed

    def find_left(self, numbers: IntArray, *, gone: bool = False) -> npt.NDArray[np.bool_]:
        """Return a mask of the items that are not in `numbers`. Gone and removed items are included only if `gone`."""
        left = np.ones(len(self), np.bool_)
        left[numbers[numbers >= 0]] = False
        return left if gone else left & (np.frombuffer(self.states, np.uint8) < WAS_GONE)

    @property
    def left_out(self) -> int:
        """Number of gone and removed items."""
        return int(np.count_nonzero(np.frombuffer(self.states, np.uint8) >= WAS_GONE))


def _number(digest: str) -> int:
    return int.from_bytes(bytes.fromhex(digest), "big", signed=True)


def _match(known: IntArray, order: IntArray, wanted: IntArray) -> IntArray:
    """Return the position of each wanted number among the known ones, or -1. Equal ones are matched in `order`."""
    found = match(known[order], wanted)
    return np.where(found < 0, -1, order[found]) if len(order) else found


def find_to_retry(layout: Layout, base: Manifest, known: DatasetItems, wanted: bool | str) -> npt.NDArray[np.bool_]:
    """Return a mask of the rejected items to try again.

    Parameters
    ----------
    wanted : bool or str
        Whether to retry all rejected items, or a text that the step or reason of a reject must contain.
    """
    rejected = np.frombuffer(known.states, np.uint8) == WAS_REJECTED
    if not isinstance(wanted, str):
        return rejected if wanted else np.zeros_like(rejected)
    lines = map(json.loads, checked_lines(layout, base, REJECTS_NAME))
    text = wanted.casefold()
    fits = [text in f"{line['step']}: {line['reason']}".casefold() for line in lines if line["kind"] == "item"]
    if len(fits) != rejected.sum():
        raise DatasetError(
            place=place_of(layout.root),
            expected=f"the same number of rejects in {REJECTS_NAME} as in {ITEMS_NAME}, {rejected.sum()}",
            found=len(fits),
        )
    retry = np.zeros(len(known), np.bool_)
    retry[np.flatnonzero(rejected)] = fits
    return retry


@dataclass(frozen=True)
class UpdateCounts:
    """How the items of a source compare with those of a dataset.

    Attributes
    ----------
    new : int
        Items that are not in the dataset.
    kept : int
        Items that are in the dataset, packed or rejected, and have not changed.
    changed : int
        Items whose size, time or columns have changed.
    repaired : int
        Changed items that are rejected. An update ignores them; a retry tries them again.
    gone : int
        Items of the dataset that the source no longer contains.
    retried : int
        Rejected items that are tried again. The other numbers do not include them.
    mended : int
        Retried items that are packed now.
    replaced : int
        Changed items that are packed again and replace their old samples; 0 by default.
    dropped : int
        Gone items whose samples are removed; 0 by default.
    removed : int
        Number of old samples of replaced and dropped items.
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
        """Return the numbers as text for the user."""
        retried = f", {self.retried} tried again" if self.retried else ""
        changed = " since they were packed (their samples stay as they are)" if self.changed > self.repaired else ""
        changed += f" ({self.repaired} of them rejected: --retry-rejects tries them again)" if self.repaired else ""
        changed = " (replaced)" if self.replaced else changed
        gone = " (dropped)" if self.dropped else " (their samples stay)" if self.gone else ""
        text = f"{self.new} new{retried}, {self.kept} kept, {self.changed} changed{changed}, {self.gone} gone{gone}"
        return f"{text}; {counted(self.removed, 'sample')} removed" if self.removed else text

    def to_json(self) -> dict[str, int]:
        """Return the numbers as JSON."""
        return dict(vars(self))

    def count_removed(self) -> dict[str, int]:
        """Return the numbers of replaced and dropped items and of their samples for the history; empty if none were."""
        found = {"replaced": self.replaced, "gone": self.dropped, "removed": self.removed}
        return found if self.replaced or self.dropped else {}


@dataclass(frozen=True)
class UpdatePlan:
    """Result of comparing a source with a dataset: the items to pack, and the items to remove.

    Attributes
    ----------
    listing : Listing
        The items to pack: first items of the dataset, by number, then new items with the next numbers.
    runtime : mapping
        Versions of the libraries.
    recipe : mapping
        The recipe for the record of the added generation. For a retry it includes the time limit of an item, if that is
        not the default.
    gone : (items,) bool
        Mask of the dataset's items to drop.
    removed : (items,) int64
        Number of samples to remove of each item of the dataset.
    notes : tuple of str
        Further notes for the user, one line each.
    """

    layout: Layout
    base: Manifest
    listing: Listing
    growth: UpdateCounts
    runtime: Mapping[str, Any]
    recipe: Mapping[str, Any]
    gone: npt.NDArray[np.bool_]
    removed: IntArray
    notes: tuple[str, ...] = ()

    @property
    def has_work(self) -> bool:
        """True if the update changes the dataset."""
        return bool(len(self.listing.items) or self.gone.any())

    @property
    def rewrites(self) -> bool:
        """True if samples are removed. The remaining samples are then copied into new shards."""
        return bool(self.removed.any())

    @property
    def copied_bytes(self) -> int:
        """Size of the dataset's shards if the update copies samples from them, otherwise 0."""
        return sum(shard.bytes for shard in self.base.shards) if self.rewrites else 0

    @property
    def gone_digest(self) -> str:
        """SHA-256 of the numbers of the items to drop; empty if there are none."""
        return sha256_json(np.flatnonzero(self.gone).tolist()) if self.gone.any() else ""

    @property
    def kind(self) -> str:
        """The kind of the added generation."""
        return "update" if self.growth.new or self.growth.replaced else "retry"

    @property
    def joins(self) -> bool:
        """True if the added items join the dataset's last generation, which keeps the manifest short."""
        last = self.base.generations[-1]
        # The contents of ``boxes`` may differ, and the options of a retry.
        added = Generation(self.kind, "", self.recipe, self.runtime, last.counts, ())
        return last.kind in GROWN and made_alike(last, added)

    def identify(self, item: Item) -> ItemIdentity:
        """Return the identity of an item of `listing`."""
        assert item.number is not None
        generation = len(self.base.generations) - int(self.joins)
        return ItemIdentity(item_digest(item)[:DIGEST_DIGITS], item.number, generation)


def compare(
    layout: Layout,
    base: Manifest | None,
    listing: Listing,
    recipe: Recipe,
    runtime: Mapping[str, Any],
    options: BuildOptions,
) -> UpdatePlan | None:
    """Compare the items of a source with those of the dataset in a folder, for an update or a retry.

    Parameters
    ----------
    base : Manifest or None
        The dataset; None if the folder holds none yet.

    Returns
    -------
    UpdatePlan or None
        None if it is an update, and the folder holds no dataset yet.

    Raises
    ------
    UsageError
        If there are no rejects to retry because the folder holds no dataset, if the dataset was not packed from this kind
        of source with this recipe and these versions, or if there are new classes and `new_classes` is off.
    DatasetError
        If the dataset's reports do not match its manifest.
    """
    if base is not None:
        return _compare(layout, base, listing, recipe, runtime, options)
    if options.update:
        return None
    raise UsageError(
        place=place_of(layout.root),
        expected="a packed dataset whose rejects can be tried again",
        found=layout.describe_build() if layout.build.is_dir() else "none",
    )


def _compare(
    layout: Layout,
    base: Manifest,
    listing: Listing,
    recipe: Recipe,
    runtime: Mapping[str, Any],
    options: BuildOptions,
) -> UpdatePlan:
    """Compare the items. An item is recognised by its name, size, time and columns."""
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
    returned = differ = repaired = tried_again = removed_before = 0
    for item, number, has_changed in zip(listing.items, numbers, changed, strict=True):
        if number < 0:
            if options.update:
                new.append(item._replace(number=len(known) + len(new)))
            continue
        state = known.states[number]
        replaces = has_changed and options.changed == "replace"
        if state == WAS_REMOVED or (replaces and int(number) in known.reduced):
            removed_before += 1
            replaces = False
        tried = bool(retry[number]) or (state == WAS_REJECTED and replaces)
        if tried:
            tried_again += 1
        elif state == WAS_GONE and options.update:
            returned += 1
        elif state == WAS_PACKED and replaces:
            replaced[number] = True
        if tried or (state == WAS_GONE and options.update) or replaced[number]:
            again.append(item._replace(number=int(number)))
        differ += bool(has_changed) and not tried and state < WAS_GONE
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
    kept = len(known) - known.left_out - lost - differ - tried_again
    if dropped and not kept + differ + tried_again:
        raise UsageError(
            place=place_of(layout.root),
            expected="a source with items of the dataset",
            found=f"none of its {lost}, so that --gone drop would drop all of them",
            hint="use the source that the dataset was packed from, or replace the dataset with --overwrite",
        )
    if found:
        check_added_fields(layout, base)
    growth = UpdateCounts(
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
    if removed_before:
        left_out = counted(removed_before, "item")
        notes += (f"update: {left_out} not packed, because 'packer remove' took samples of them out for good",)
    listing = replace(listing, items=found, ignored=ignored)
    noted = BuildPlan(recipe.to_json(), dict(runtime), 0, "", 0, {}, ()).manifest_recipe
    if not options.update and options.item_timeout != BuildOptions.item_timeout:
        noted["item_timeout"] = options.item_timeout
    return UpdatePlan(layout, base, listing, growth, runtime, noted, gone, removed, notes)
