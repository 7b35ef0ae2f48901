"""What a source has that a packed dataset lacks: items that are new, and rejected ones to be tried again."""

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.builds.parts.schema import SchemaSettler
from packer.builds.plan import FACTS_BYTES, BuildPlan, describe_changed_terms, item_facts
from packer.builds.reports import GONE, Known, checked_lines
from packer.recipe import Recipe
from packer.recipe.options import BuildOptions
from packer.sources.base import Listing
from packer.sources.item import PACKED_ROW, Item, spool_items
from packer.sources.values import with_arrays
from packer.steps.chain import STEPS
from packer.steps.encode import Encoder, codecs_by_field, image_codec
from packer.workspace.matching import match
from packer.workspace.spool import Mapped, sorted_records
from shardspec.columns import IntArray
from shardspec.entries import BUILD_KINDS
from shardspec.errors import DatasetError, UsageError
from shardspec.fields import RESERVED
from shardspec.layout import ITEMS_NAME, REJECTS_NAME, Layout
from shardspec.manifest import Manifest, sha256_json
from shardspec.schema import Schema
from shardspec.wording import counted, list_some, shorten

_VALID = "_valid"
FACTS_DIGITS = 2 * FACTS_BYTES
"""Characters of an item's facts in ``items.jsonl``."""


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
        Those of the changed items that are packed anew, so that their old samples are superseded; none by default.
    dropped : int
        Those of the gone items whose samples are dropped; none by default.
    superseded : int
        The samples of both.
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
    superseded: int = 0

    def describe(self) -> str:
        """The numbers in words."""
        retried = f", {self.retried} tried again" if self.retried else ""
        changed = " since they were packed (their samples stay as they are)" if self.changed > self.repaired else ""
        changed += f" ({self.repaired} of them rejected: --retry-rejects tries them again)" if self.repaired else ""
        changed = " (replaced)" if self.replaced else changed
        gone = " (dropped)" if self.dropped else " (their samples stay)" if self.gone else ""
        text = f"{self.new} new{retried}, {self.kept} kept, {self.changed} changed{changed}, {self.gone} gone{gone}"
        return f"{text}; {counted(self.superseded, 'sample')} superseded" if self.superseded else text

    def to_json(self) -> dict[str, int]:
        """The numbers as JSON."""
        return dict(vars(self))

    def count_superseded(self) -> dict[str, int]:
        """How many items and samples of the dataset are superseded, for its history; nothing if none are."""
        found = {"replaced": self.replaced, "gone": self.dropped, "superseded": self.superseded}
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
    gone : (items,) bool
        Which of the dataset's items, by their numbers, are dropped.
    superseded : (items,) int64
        How many samples of each of the dataset's items are superseded.
    """

    layout: Layout
    base: Manifest
    listing: Listing
    growth: Growth
    runtime: Mapping[str, Any]
    gone: npt.NDArray[np.bool_]
    superseded: IntArray

    @property
    def has_work(self) -> bool:
        """Whether the dataset is to change."""
        return bool(len(self.listing.items) or self.gone.any())

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
        """Whether what is added joins the dataset's last generation, so that many additions make no long manifest."""
        last = self.base.generations[-1]
        # The contents of ``boxes`` may differ.
        return last.kind == self.kind and sha256_json(last.runtime) == sha256_json(self.runtime)

    def known(self, item: Item) -> Known:
        """By what an item of `listing` is known again."""
        assert item.number is not None
        number = item.number
        generation = len(self.base.generations) - int(self.joins)
        return Known(item_facts(item)[:FACTS_DIGITS], number, generation)


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
    _check_built(layout, base, items)
    _check_terms(layout, base, recipe, runtime)
    schema = base.shard_schema
    listing = _with_valid(schema, replace(listing, items=items))
    listing = _number_classes(layout, schema, listing, options.new_classes)
    _check_columns(layout, schema, listing, recipe)
    known = _Known.read(layout, base)
    retry = _to_retry(layout, base, known, options.retry_rejects)
    numbers, changed = known.find(listing.items)
    again, new = spool_items(), spool_items()
    replaced = np.zeros(len(known), np.bool_)
    returned = differ = repaired = tried_again = 0
    for item, number, has_changed in zip(listing.items, numbers, changed, strict=True):
        if number < 0:
            if options.update:
                new.append(replace(item, number=len(known) + len(new)))
            continue
        state = known.states[number]
        replaces = has_changed and options.changed == "replace"
        tried = bool(retry[number]) or (state == _REJECTED and replaces)
        if tried:
            tried_again += 1
        elif state == _GONE and options.update:
            returned += 1
        elif state == _PACKED and replaces:
            replaced[number] = True
        if tried or (state == _GONE and options.update) or replaced[number]:
            again.append(replace(item, number=int(number)))
        differ += bool(has_changed) and not tried and state != _GONE
        repaired += bool(has_changed) and not tried and state == _REJECTED
    found = spool_items()
    for item in chain(sorted_records(again, lambda item: item.number, spool_items), new):
        found.append(replace(item, index=len(found)))
    ignored = max(0, listing.ignored - sum(g.counts.ignored_files for g in base.generations))
    states = np.frombuffer(known.states, np.uint8)
    left = known.find_left(numbers)
    gone = left if options.gone == "drop" else np.zeros(len(known), np.bool_)
    superseded = np.where((replaced | gone) & (states == _PACKED), np.frombuffer(known.samples, np.int64), 0)
    lost, dropped = int(left.sum()), int(gone.sum())
    kept = len(known) - int((states == _GONE).sum()) - lost - differ - tried_again
    if dropped and not kept + differ + tried_again:
        raise UsageError(
            f"{layout.root}: expected a source with items of the dataset, found none of its {lost}, all of which "
            "--gone drop would drop: give the source that it was packed from, or pack this one with --overwrite"
        )
    if found:
        _check_added_fields(layout, base)
    growth = Growth(
        len(new) + returned,
        kept,
        differ,
        repaired,
        lost,
        tried_again,
        replaced=int(replaced.sum()),
        dropped=dropped,
        superseded=int(superseded.sum()),
    )
    return Comparison(layout, base, replace(listing, items=found, ignored=ignored), growth, runtime, gone, superseded)


def _check_built(layout: Layout, base: Manifest, items: Sequence[Item]) -> None:
    """Check that the dataset is one that a build has made, from items of its own kind."""
    kinds = sorted({generation.kind for generation in base.generations} - set(BUILD_KINDS))
    job = base.wall_clock.get("job")
    kind = kinds[0] if kinds else job.get("kind") if isinstance(job, Mapping) else None
    if kind is not None:
        raise UsageError(
            f"{layout.root}: expected a dataset as 'packer build' made it, to add items to, found a {kind}: "
            "add to the datasets that it was made from, or build the new items into a folder of their own and merge"
        )
    if any(PACKED_ROW in item.columns for item in items):
        raise UsageError(
            "update: expected a folder, a table or rows as the source, found a packed dataset: "
            "build into a folder of its own"
        )


def _check_added_fields(layout: Layout, base: Manifest) -> None:
    """Check that new samples can be without a value of the dataset's added fields."""
    beside = {column.field for column in base.columns}
    marked = {f"{name}{_VALID}" for name in beside} & beside
    every = sorted(name for name in beside - marked if f"{name}{_VALID}" not in marked)
    if every:
        raise UsageError(
            f"{layout.root}: expected added fields that new samples may lack, found others ({list_some(every)}): "
            "add them again with 'packer add --replace --allow-missing', or remove them with 'packer drop-field'"
        )


def _check_terms(layout: Layout, base: Manifest, recipe: Recipe, runtime: Mapping[str, Any]) -> None:
    plan = BuildPlan(recipe.to_json(), dict(runtime), 0, "", 0, {}, ())
    found = describe_changed_terms(base.generations[-1], plan)
    if found:
        raise UsageError(
            f"{layout.root}: expected the recipe and versions that the dataset was packed with, found others "
            f"({'; '.join(found)}): give the same, or pack into another folder"
        )


def _with_valid(schema: Schema, listing: Listing) -> Listing:
    """The listing with ``<column>_valid`` where the dataset has it, and no value is missing in the source."""
    columns = listing.items[0].columns if listing.items else {}
    added = {
        one.name: True
        for one in schema
        if one.name.removesuffix(_VALID) in columns and one.name.endswith(_VALID) and one.name not in columns
    }
    if not added:
        return listing
    items = listing.items
    return replace(listing, items=Mapped(items, lambda item: replace(item, columns={**item.columns, **added})))


def _check_columns(layout: Layout, schema: Schema, listing: Listing, recipe: Recipe) -> None:
    """Check that the source's columns are the dataset's, before anything is packed.

    What steps of the user make of columns is known only when it is made.
    """
    item = next((item for item in listing.items if item.reject is None), None)
    if item is None or any(step.use not in STEPS for step in recipe.chain):
        return
    settler = SchemaSettler(image_codec(recipe), listing.classes, {}, codecs_by_field(recipe))
    columns = {name: value for name, value in with_arrays(item.columns, listing.arrays).items() if name != "image"}
    values = Encoder(recipe).encode(columns, whole=False)
    wrong = [f"{name!r} is new" for name in values if name not in schema]
    wrong += [
        f"{name!r} is of another type"
        for name, value in values.items()
        if name in schema and not settler.fits_field(value.spec, schema[name])
    ]
    made = RESERVED | {recipe.also_field, f"{recipe.also_field}{_VALID}"}
    made |= {name for name in schema.names if name.endswith(_VALID)}
    wrong += [f"{name!r} is missing" for name in schema.names if name not in values and name not in made]
    if wrong:
        raise UsageError(
            f"{layout.root}: expected the columns that the dataset has, found others ({list_some(wrong)}): "
            "give a table with the same columns (--text, --int and --float set the type of one), "
            "or pack into another folder"
        )


def _number_classes(layout: Layout, schema: Schema, listing: Listing, wanted: bool) -> Listing:
    """The listing with the class numbers of the dataset; new classes follow them."""
    items, classes = listing.items, dict(listing.classes)
    numbers_of: dict[str, list[int]] = {}
    for name in (one.name for one in schema if one.classes is not None and one.name not in classes):
        if any(name in item.columns for item in listing.items):
            raise UsageError(f"{layout.root}: expected names of classes in {name!r}, as in the dataset, found numbers")
    for name, found in listing.classes.items():
        known = schema[name].classes if name in schema else None
        if known is None:
            if not found:
                continue
            raise UsageError(
                f"{layout.root}: expected a dataset with names of classes in {name!r}, as the source has, found none"
            )
        new = [one for one in found if one not in known]
        if new and not wanted:
            raise UsageError(
                f"{layout.root}: expected the classes of the dataset in {name!r} ({list_some(known)}), found also "
                f"{list_some(list(map(shorten, new)))}: add --new-classes to append them; numbers of classes stay"
            )
        united = [*known, *new]
        numbers_of[name] = [united.index(one) for one in found]
        classes[name] = united
    if not numbers_of:
        return listing
    return replace(listing, items=Mapped(items, partial(_renumbered, numbers_of=numbers_of)), classes=classes)


def _renumbered(item: Item, numbers_of: Mapping[str, Sequence[int]]) -> Item:
    columns = dict(item.columns)
    for name, numbers in numbers_of.items():
        value = columns.get(name)
        # The 0 of a rejected item may stand for a missing label.
        if value is not None and (item.reject is None or value != 0):
            columns[name] = numbers[value]
    return replace(item, columns=columns)


_STATES = ("packed", "rejected", GONE)
_PACKED, _REJECTED, _GONE = range(3)


class _Known:
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
    def read(cls, layout: Layout, base: Manifest) -> "_Known":
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
        order = np.argsort(np.frombuffer(self.states, np.uint8) == _GONE, kind="stable")
        numbers = _match(np.frombuffer(self._facts, np.int64), order, np.frombuffer(facts, np.int64))
        new = np.flatnonzero(numbers < 0)
        order = order[self.find_left(numbers, gone=True)[order]]
        numbers[new] = _match(np.frombuffer(self._names, np.int64), order, np.frombuffer(names, np.int64)[new])
        changed = np.zeros(len(numbers), np.bool_)
        changed[new] = numbers[new] >= 0
        return numbers, changed

    def find_left(self, numbers: IntArray, *, gone: bool = False) -> npt.NDArray[np.bool_]:
        """Which items are none of some numbers; without those that are known to be gone, unless these count, too."""
        left = np.ones(len(self), np.bool_)
        left[numbers[numbers >= 0]] = False
        return left if gone else left & (np.frombuffer(self.states, np.uint8) != _GONE)


def _match(known: IntArray, order: IntArray, sought: IntArray) -> IntArray:
    """For each number that is sought, where among the known ones it is, the first of equal ones in an order; or -1."""
    found = match(known[order], sought)
    return np.where(found < 0, -1, order[found]) if len(order) else found


def _to_retry(layout: Layout, base: Manifest, known: _Known, wanted: bool | str) -> npt.NDArray[np.bool_]:
    """Which items, by their numbers, were rejected and are to be tried again."""
    rejected = np.frombuffer(known.states, np.uint8) == _REJECTED
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
