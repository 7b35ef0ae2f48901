"""The plan: recipe and items become tasks and a fingerprint. A pure function; nothing here touches a worker."""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import PurePath
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from packer.jobs.plan import Task, Tasks, describe_changes, join_changes
from packer.recipe import Recipe
from packer.sources.base import Listing, count_listed
from packer.sources.item import Item
from packer.sources.rows import digest_value
from packer.steps.plain import keeps_pictures
from packer.workspace.lines import line_encoder
from packer.workspace.machines import MADE_ON
from packer.workspace.spool import Again, Spool
from shardspec.entries import Generation
from shardspec.manifest import Manifest, sha256_json
from shardspec.wording import shorten

TASK_ITEMS = 32
"""The most items in a task of a small build."""

_MOST_TASK_ITEMS = 512
_TASKS, _TASKS_OF_KEPT = 256, 64
"""In a large one, a task has that share of the items: a file and two messages for a few items would be much work. Of
pictures whose bytes are kept, it has more: a small one takes less time than its share of those."""

TASK_BYTES = 16 * 10**6
"""The most bytes in a task, unless it is one item, or items that are read in one pass over an archive."""

_COUNTED = 500
VIDEO_WEIGHT = 8
"""Weight of a video's bytes: each stands for far more pixels than a byte of a picture."""


@dataclass(frozen=True)
class BuildPlan:
    """What a build will do.

    Attributes
    ----------
    recipe : dict
        The resolved recipe, as JSON.
    runtime : dict
        Versions of the libraries, and the detector's runtime.
    items : int
    items_digest : str
        SHA-256 over the items: names, sizes, modification times, columns.
    ignored : int
    classes : dict of str to list of str
    tasks : sequence of Task
    arrays : dict of str to list
        For columns whose lists of numbers become arrays: the dtype, and the sizes after the first axis.
    declared : dict
        What is said of the samples that a function makes (`packer.recipe.fields.Declaration`); empty if steps make
        them.
    base : str
        Digest of the dataset that the items are added to; empty for a build of its own.
    gone : str
        Digest of the numbers of its items that are dropped; empty for none.
    """

    recipe: Mapping[str, Any]
    runtime: Mapping[str, Any]
    items: int
    items_digest: str
    ignored: int
    classes: Mapping[str, list[str]]
    tasks: Sequence[Task]
    arrays: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    declared: Mapping[str, Any] = field(default_factory=dict)
    base: str = ""
    gone: str = ""

    kind: ClassVar[str] = "build"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides the bytes."""
        decides = {"recipe": self.manifest_recipe, "runtime": dict(self.runtime), "items": self.items_digest}
        more: dict[str, Any] = {"arrays": dict(self.arrays)} if self.arrays else {}
        more |= {"declared": dict(self.declared)} if self.declared else {}
        more |= {"base": self.base} if self.base else {}
        more |= {"gone": self.gone} if self.gone else {}
        return sha256_json({**decides, "classes": dict(self.classes), **more})

    @property
    def is_whole(self) -> bool:
        """Whether it says all that cutting shards needs: not if it adds to a dataset, or packs a function's samples."""
        return not self.base and not self.declared

    @property
    def terms(self) -> str:
        """SHA-256 of what decides, beside the item itself, what becomes of an item."""
        return sha256_json([self.manifest_recipe, dict(self.runtime), dict(self.arrays), dict(self.declared)])

    @property
    def manifest_recipe(self) -> dict[str, Any]:
        """The recipe as the manifest records it: files by their names only; their digests are in `runtime`."""
        paths = [spec.name for spec in fields(Recipe) if spec.metadata.get("path") and self.recipe.get(spec.name)]
        return {**self.recipe, **{name: _names_alone(self.recipe[name]) for name in paths}}

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON."""
        return {"kind": self.kind, **vars(self), "tasks": Tasks(self.tasks).to_json(), "fingerprint": self.fingerprint}

    def made(self, manifest: Manifest) -> bool:
        """Whether a dataset is what this plan makes. A converted dataset keeps the fingerprint, but not the recipe."""
        last = manifest.generations[-1]
        return last.fingerprint == self.fingerprint and sha256_json(last.recipe) == sha256_json(self.manifest_recipe)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "BuildPlan":
        """Read what `to_json` made."""
        values = {key: value for key, value in document.items() if key not in ("kind", "fingerprint", MADE_ON)}
        return cls(**{**values, "tasks": Tasks.from_json(document["tasks"])})


def _names_alone(paths: Any) -> Any:
    return PurePath(paths).name if isinstance(paths, str) else [PurePath(path).name for path in paths]


FACTS_BYTES = 8
"""First bytes of an item's facts, by which a dataset knows it again."""


def item_facts(item: Item) -> str:
    """SHA-256 of all that the source says of an item: by its facts an item is known again."""
    return _digest_facts(item, _digest_columns(item)).hex()


def _digest_facts(item: Item, columns: Mapping[str, Any]) -> bytes:
    facts: list[Any] = [item.name, item.bytes, item.mtime_ns, columns, item.reject]
    facts.append(_facts_of_files(item) if item.files else [])
    facts += _facts_of_member(item)
    # In ASCII: a name may be invalid UTF-8.
    return hashlib.sha256(_SORTED(facts).encode("ascii")).digest()


_SORTED = line_encoder(sort_keys=True)


class ItemLines(Spool[str]):
    """The items as lines of the plan's items file.

    Attributes
    ----------
    facts : bytearray
        The first bytes of each item's facts, `FACTS_BYTES` each.
    """

    def __init__(self) -> None:
        super().__init__(str, str)
        self.facts = bytearray()


def make_plan(
    recipe: Recipe,
    runtime: Mapping[str, Any],
    listing: Listing,
    declared: Mapping[str, Any] | None = None,
    base: str = "",
    gone: str = "",
    observe: Callable[[Item], None] | None = None,
) -> tuple[BuildPlan, ItemLines]:
    """Cut the items into tasks and take the fingerprint, in one pass over the items.

    Parameters
    ----------
    recipe : Recipe
    runtime : mapping
    listing : Listing
    base, gone : str
        See `BuildPlan`.
    observe : callable, optional
        Called with every item.

    Returns
    -------
    plan : BuildPlan
    lines : ItemLines
    """
    items: Sequence[Item] = listing.items[: recipe.limit]
    lines, digest = ItemLines(), hashlib.sha256()
    cut = _Cut(len(items), _TASKS_OF_KEPT if keeps_pictures(recipe) else _TASKS)
    for item in items:
        columns = _digest_columns(item)
        known = _digest_facts(item, columns)
        digest.update(known)
        if item.number is not None:
            digest.update(item.number.to_bytes(8, "little"))
        lines.facts += known[:FACTS_BYTES]
        line = (item if columns is item.columns else item.with_columns(columns)).to_line()
        lines.append(line)
        cut.add(item, len(line))
        if observe is not None:
            observe(item)
        if not len(lines) % _COUNTED:
            count_listed(_COUNTED)
    count_listed(len(lines) % _COUNTED)
    plan = BuildPlan(
        recipe=recipe.to_json(),
        runtime=dict(runtime),
        items=len(items),
        items_digest=digest.hexdigest(),
        ignored=listing.ignored,
        classes=dict(listing.classes),
        tasks=cut.end(),
        arrays={name: list(kind) for name, kind in listing.arrays.items()},
        declared=declared or {},
        base=base,
        gone=gone,
    )
    return plan, lines


class _Cut:
    """Cuts items, of which the number is known, into tasks as they come; a large number into about so many."""

    def __init__(self, items: int, tasks: int) -> None:
        self._most = min(_MOST_TASK_ITEMS, max(TASK_ITEMS, items // tasks))
        self._tasks = Tasks()
        self._start = self._start_offset = self._offset = self._size = self._items = 0
        self._last: Item | None = None

    def add(self, item: Item, line_bytes: int) -> None:
        """Take in an item, and the size of its line in the items file."""
        read = item.bytes
        if item.files:
            read += sum(file.bytes for file in item.files.values())
        weight = read * (VIDEO_WEIGHT if item.is_video else 1)
        full = self._items - self._start >= self._most or self._size + weight > TASK_BYTES
        if full and self._last is not None and self._items > self._start and not _in_one_pass(self._last, item):
            self._tasks.append((self._start, self._items, self._start_offset))
            self._start, self._start_offset, self._size = self._items, self._offset, 0
        self._size += weight
        self._offset += line_bytes
        self._items += 1
        self._last = item

    def end(self) -> Tasks:
        """The tasks, after the last item."""
        if self._items:
            self._tasks.append((self._start, self._items, self._start_offset))
        return self._tasks


def _in_one_pass(one: Item, other: Item) -> bool:
    """Whether two items are read in the same pass over an archive: in two tasks, they would be read in two passes."""
    if one.member is None or other.member is None or other.member.run is None:
        return False
    return (one.path, one.member.run) == (other.path, other.member.run)


def _digest_columns(item: Item) -> Mapping[str, Any]:
    """The columns with digests in the place of arrays and bytes."""
    columns = item.columns
    if not columns or all(type(value) in _PLAIN for value in columns.values()):
        return columns
    digested = {name: digest_value(value) for name, value in columns.items()}
    return columns if all(digested[name] is value for name, value in columns.items()) else digested


_PLAIN = frozenset((str, int, float, bool, type(None)))


def _facts_of_files(item: Item) -> list[Any]:
    return sorted(
        [option, file.name, file.bytes, file.mtime_ns, *([] if file.member is None else [file.member])]
        for option, file in item.files.items()
    )


def _facts_of_member(item: Item) -> list[Any]:
    return [] if item.member is None else [item.member, dict(item.arrays)]


def facts_of(lines: Iterable[str]) -> bytearray:
    """The first bytes of the facts of each item in some lines, as `ItemLines` has them."""
    facts = bytearray()
    for item in map(Item.from_line, lines):
        facts += _digest_facts(item, item.columns)[:FACTS_BYTES]
    return facts


def is_storable(item: Item) -> bool:
    """Whether all of an item's columns are JSON values, so that a worker process can read them from the plan."""
    return _digest_columns(item) is item.columns


def live_columns(item: Item) -> list[str]:
    """The columns of an item that a plan cannot hold: arrays and bytes."""
    return [name for name, value in item.columns.items() if digest_value(value) is not value]


def describe_mismatch(old: BuildPlan, new: BuildPlan, old_lines: Iterable[str], new_lines: Iterable[str]) -> str:
    """In words, what differs between two plans: options, versions, items. The lines are read more than once."""
    found = describe_changes("option", old.recipe, new.recipe) + describe_changes("runtime", old.runtime, new.runtime)
    found += describe_changes("classes of", old.classes, new.classes)
    found += describe_changes("array type of", old.arrays, new.arrays)
    found += describe_changes("declared", _flat(old.declared), _flat(new.declared))
    if old.items_digest != new.items_digest:
        found += _describe_other_items(old_lines, new_lines)
    return join_changes(found) or "the order of the items"


def _describe_other_items(old_lines: Iterable[str], new_lines: Iterable[str]) -> list[str]:
    """In words, the items that are gone, new or changed. In memory are a few numbers for each, and no names."""
    (before, facts_before), (after, facts_after) = _numbers_of(old_lines), _numbers_of(new_lines)
    common, at_before, at_after = np.intersect1d(before[::-1], after[::-1], return_indices=True)  # the last of a name
    differ = facts_before[::-1][at_before] != facts_after[::-1][at_after]
    changed = np.flatnonzero(np.isin(before, common[differ]))
    found = []
    for verb, names, lines, places in (
        ("gone", before, old_lines, np.flatnonzero(~np.isin(before, after))),
        ("new", after, new_lines, np.flatnonzero(~np.isin(after, before))),
        ("changed (its size, time or columns)", before, old_lines, changed),
    ):
        if len(places):
            first = Item.from_line(next(islice(lines, int(places[0]), None))).name
            found.append(_describe_items(first, len(np.unique(names[places])), verb))
    return found


def _numbers_of(lines: Iterable[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Numbers for the names, and for the facts, of the items in some lines."""
    names, facts = array("q"), bytearray()
    for item in map(Item.from_line, lines):
        names.append(hash(item.name))
        facts += _digest_facts(item, item.columns)[:FACTS_BYTES]
    return np.frombuffer(names, np.int64), np.frombuffer(facts, np.int64)


def describe_changed_terms(last: Generation, new: BuildPlan) -> list[str]:
    """In words, how the recipe and versions of a generation differ from those of a plan that is to add to it.

    The contents of ``boxes`` may differ: they grow with the items.
    """
    before, now = ({k: v for k, v in runtime.items() if k != "boxes"} for runtime in (last.runtime, new.runtime))
    return describe_changes("option", last.recipe, new.manifest_recipe) + describe_changes("runtime", before, now)


def describe_taken_over(
    old: BuildPlan, new: BuildPlan, old_lines: Iterable[str], new_lines: Iterable[str]
) -> str | None:
    """In words, how the items of two plans differ; None if one cannot use what the other has finished."""
    if old.terms != new.terms or new.declared:  # a function may give keys of its own
        return None
    changes = describe_mismatch(old, new, old_lines, new_lines)
    return f"the source has changed since the build was begun ({changes}): what is finished of other items is kept"


def _flat(declared: Mapping[str, Any]) -> dict[str, Any]:
    """A declaration with its fields side by side."""
    fields = declared.get("fields") or {}
    return {**{f"field {name}": kind for name, kind in fields.items()}, "classes": declared.get("classes")}


def describe_made(made: Manifest, before: Iterable[str] | None, new: BuildPlan, new_lines: Iterable[str]) -> str:
    """In words, what differs between a finished dataset and a plan, as far as the dataset shows it.

    Parameters
    ----------
    before : iterable of str or None
        The names in the dataset's ``items.jsonl``; None if it has none. They are read more than once, as the lines are.
    new_lines : iterable of str
        Lines of the new plan's items file.
    """
    job = made.wall_clock.get("job")
    if isinstance(job, Mapping) and job.get("kind") != "convert":
        return f"it is a {job.get('kind')}, and this a {new.kind}"
    last = made.generations[-1]
    found = describe_changes("option", last.recipe, new.manifest_recipe)
    found += describe_changes("runtime", last.runtime, new.runtime)
    named = {field.name: list(field.classes) for field in made.schema if field.classes is not None}
    classes = {**new.classes, **({"label": new.declared["classes"]} if new.declared.get("classes") else {})}
    planned = [name for name in named if name in classes]  # a function's classes may be known only once it has run
    found += describe_changes(
        "classes of", {name: named[name] for name in planned}, {name: classes[name] for name in planned}
    )
    if before is not None:
        after = Again(lambda: (Item.from_line(line).name for line in new_lines))
        found += _describe_missing(before, after, "gone") + _describe_missing(after, before, "new")
    # The manifest knows only the digest of sizes and times.
    return join_changes(found) or "items of the source have changed in size, time or columns, or their order has"


def _describe_missing(names: Iterable[str], others: Iterable[str], verb: str) -> list[str]:
    """In words, the names that are not among others."""
    numbers = np.fromiter(map(hash, names), np.int64)
    known = np.unique(np.fromiter(map(hash, others), np.int64))
    missing = ~np.isin(numbers, known)
    if not missing.any():
        return []
    first = min(name for name, is_missing in zip(names, missing, strict=True) if is_missing)
    return [_describe_items(first, len(np.unique(numbers[missing])), verb)]


def _describe_items(first: str, count: int, verb: str) -> str:
    more = f" and {count - 1} more" if count > 1 else ""
    return f"source: {shorten(first)}{more} {verb}"
