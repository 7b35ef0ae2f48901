"""What a source has that a packed dataset lacks: items that are new, and rejected ones to be tried again."""

import json
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from packer.builds.parts import SchemaSettler
from packer.builds.plan import BuildPlan, describe_changed_terms, item_facts
from packer.builds.reports import GONE, Known, checked_lines
from packer.recipe import Recipe
from packer.recipe.options import BuildOptions
from packer.sources.base import Listing
from packer.sources.item import PACKED_ROW, Item
from packer.sources.values import with_arrays
from packer.steps.chain import STEPS
from packer.steps.encode import Encoder, image_codec
from shardspec.entries import BUILD_KINDS
from shardspec.errors import DatasetError, UsageError
from shardspec.fields import RESERVED
from shardspec.layout import ITEMS_NAME, REJECTS_NAME, Layout
from shardspec.manifest import Manifest, sha256_json
from shardspec.schema import Schema
from shardspec.wording import counted, list_some, shorten

_VALID = "_valid"
FACTS_DIGITS = 16
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
    gone : frozenset of int
        The numbers of the items that are dropped.
    superseded : dict of int to int
        By the number of each item whose samples are superseded, how many these are.
    """

    layout: Layout
    base: Manifest
    listing: Listing
    growth: Growth
    runtime: Mapping[str, Any]
    gone: frozenset[int] = frozenset()
    superseded: Mapping[int, int] = field(default_factory=dict)

    @property
    def has_work(self) -> bool:
        """Whether the dataset is to change."""
        return bool(self.listing.items or self.gone)

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
    again: list[Item] = []
    new: list[Item] = []
    replaced: list[int] = []
    returned = differ = repaired = 0
    for item, number, has_changed in zip(listing.items, numbers, changed, strict=True):
        state = None if number is None else known.states[number]
        tried = number in retry or (state == "rejected" and has_changed and options.changed == "replace")
        if number is not None and tried:
            retry.add(number)
            again.append(replace(item, number=number))
        elif number is None and options.update:
            new.append(replace(item, number=len(known) + len(new)))
        elif state == GONE and options.update:
            returned += 1
            again.append(replace(item, number=number))
        elif number is not None and state == "packed" and has_changed and options.changed == "replace":
            replaced.append(number)
            again.append(replace(item, number=number))
        differ += has_changed and not tried and state != GONE
        repaired += has_changed and not tried and state == "rejected"
    again.sort(key=lambda item: item.number or 0)
    found = [replace(item, index=index) for index, item in enumerate([*again, *new])]
    ignored = max(0, listing.ignored - sum(g.counts.ignored_files for g in base.generations))
    left = known.find_left()
    gone = frozenset(left if options.gone == "drop" else ())
    superseded = {number: known.samples[number] for number in (*replaced, *gone) if known.states[number] == "packed"}
    tried_again = len(again) - returned - len(replaced)
    kept = len(known) - known.states.count(GONE) - len(left) - differ - tried_again
    if gone and not kept + differ + tried_again:
        raise UsageError(
            f"{layout.root}: expected a source with items of the dataset, found none of its {len(left)}, all of which "
            "--gone drop would drop: give the source that it was packed from, or pack this one with --overwrite"
        )
    if found:
        _check_added_fields(layout, base)
    growth = Growth(
        len(new) + returned,
        kept,
        differ,
        repaired,
        len(left),
        tried_again,
        replaced=len(replaced),
        dropped=len(gone),
        superseded=sum(superseded.values()),
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
    items = [replace(item, columns={**item.columns, **added}) for item in listing.items]
    return replace(listing, items=items)


def _check_columns(layout: Layout, schema: Schema, listing: Listing, recipe: Recipe) -> None:
    """Check that the source's columns are the dataset's, before anything is packed.

    What steps of the user make of columns is known only when it is made.
    """
    item = next((item for item in listing.items if item.reject is None), None)
    if item is None or any(step.use not in STEPS for step in recipe.chain):
        return
    settler = SchemaSettler(image_codec(recipe), listing.classes, {})
    columns = {name: value for name, value in with_arrays(item.columns, listing.arrays).items() if name != "image"}
    values = Encoder(recipe).encode(columns)
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
    for name in (one.name for one in schema if one.classes is not None and one.name not in classes):
        if any(name in item.columns for item in items):
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
        numbers = [united.index(one) for one in found]
        items = [_renumbered(item, name, numbers) for item in items]
        classes[name] = united
    return replace(listing, items=items, classes=classes)


def _renumbered(item: Item, name: str, numbers: Sequence[int]) -> Item:
    value = item.columns.get(name)
    # The 0 of a rejected item may stand for a missing label.
    if value is None or (item.reject is not None and value == 0):
        return item
    return replace(item, columns={**item.columns, name: numbers[value]})


class _Known:
    """The items of a dataset, by their numbers, until each is found in the source.

    Attributes
    ----------
    states : list of str
        ``"packed"``, ``"rejected"`` or ``"gone"``.
    samples : list of int
    rejected : list of int
        Numbers of the items that are rejected.
    """

    def __init__(self) -> None:
        self.states: list[str] = []
        self.samples: list[int] = []
        self.rejected: list[int] = []
        self._names: list[str] = []
        self._found: list[bool] = []
        self._by_facts: dict[str, list[int]] = {}

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
            if line["state"] == "rejected":
                known.rejected.append(len(known))
            known._by_facts.setdefault(str(line["facts"]), []).append(len(known))
            known._names.append(str(line["item"]))
            known._found.append(False)
            known.states.append(sys.intern(line["state"]))
            known.samples.append(int(line["samples"]))
        for numbers in known._by_facts.values():
            numbers.sort(key=known._is_gone)
        return known

    def __len__(self) -> int:
        return len(self._names)

    def find(self, items: Sequence[Item]) -> tuple[list[int | None], list[bool]]:
        """The number of each item of a source, None for new ones; and whether it has changed.

        An item is found by its facts first, then, among the items that are left, by its name; and, where several fit,
        among those that are not gone first.
        """
        numbers = [self._take(item) for item in items]
        left: dict[str, deque[int]] = {}
        for number in sorted(range(len(self)), key=self._is_gone):
            if not self._found[number]:
                left.setdefault(self._names[number], deque()).append(number)
        changed = [False] * len(items)
        for place, item in enumerate(items):
            if numbers[place] is None and left.get(item.name):
                numbers[place], changed[place] = left[item.name].popleft(), True
                self._found[numbers[place] or 0] = True
        return numbers, changed

    def find_left(self) -> list[int]:
        """The numbers of the items that were not found, without those that are known to be gone."""
        return [n for n, found in enumerate(self._found) if not found and self.states[n] != GONE]

    def _is_gone(self, number: int) -> bool:
        return self.states[number] == GONE

    def _take(self, item: Item) -> int | None:
        numbers = self._by_facts.get(item_facts(item)[:FACTS_DIGITS])
        if not numbers:
            return None
        number = numbers.pop(0)
        self._found[number] = True
        return number


def _to_retry(layout: Layout, base: Manifest, known: _Known, wanted: bool | str) -> set[int]:
    """The numbers of the rejected items that are to be tried again."""
    if wanted is False:
        return set()
    if wanted is True:
        return set(known.rejected)
    lines = map(json.loads, checked_lines(layout, base, REJECTS_NAME))
    reasons = [f"{line['step']}: {line['reason']}" for line in lines if line["kind"] == "item"]
    if len(reasons) != len(known.rejected):
        raise DatasetError(
            f"{layout.root}: expected as many rejects in {REJECTS_NAME} as in {ITEMS_NAME}, {len(known.rejected)}, "
            f"found {len(reasons)}"
        )
    sought = wanted.casefold()
    return {number for number, reason in zip(known.rejected, reasons, strict=True) if sought in reason.casefold()}
