"""The plan: recipe and items become tasks and a fingerprint. A pure function; nothing here touches a worker."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import PurePath
from typing import Any, ClassVar

from packer.jobs.plan import Task, describe_changes, join_changes
from packer.recipe import Recipe
from packer.sources.base import Listing
from packer.sources.item import Item
from packer.sources.rows import digest_value
from shardspec.entries import Generation
from shardspec.manifest import Manifest, sha256_json
from shardspec.wording import shorten

TASK_ITEMS = 32
TASK_BYTES = 16 * 10**6
"""The most bytes in a task, unless it is one item, or items that are read in one pass over an archive; so the cut into
tasks depends on the source alone."""

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
    tasks : tuple of Task
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
    tasks: tuple[Task, ...]
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
        tasks = [list(task) for task in self.tasks]
        return {"kind": self.kind, **vars(self), "tasks": tasks, "fingerprint": self.fingerprint}

    def made(self, manifest: Manifest) -> bool:
        """Whether a dataset is what this plan makes. A converted dataset keeps the fingerprint, but not the recipe."""
        last = manifest.generations[-1]
        return last.fingerprint == self.fingerprint and sha256_json(last.recipe) == sha256_json(self.manifest_recipe)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "BuildPlan":
        """Read what `to_json` made."""
        values = {key: value for key, value in document.items() if key not in ("kind", "fingerprint")}
        return cls(**{**values, "tasks": tuple(Task(*task) for task in document["tasks"])})


def _names_alone(paths: Any) -> Any:
    return PurePath(paths).name if isinstance(paths, str) else [PurePath(path).name for path in paths]


def item_facts(item: Item) -> str:
    """SHA-256 of all that the source says of an item: by its facts an item is known again."""
    facts = [item.name, item.bytes, item.mtime_ns, _digest_columns(item), item.reject, _facts_of_files(item)]
    facts += _facts_of_member(item)
    # In ASCII: a name may be invalid UTF-8.
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode("ascii")).hexdigest()


def make_plan(
    recipe: Recipe,
    runtime: Mapping[str, Any],
    listing: Listing,
    declared: Mapping[str, Any] | None = None,
    base: str = "",
    gone: str = "",
) -> tuple[BuildPlan, list[str]]:
    """Cut the items into tasks and take the fingerprint.

    Parameters
    ----------
    recipe : Recipe
    runtime : mapping
    listing : Listing
    base, gone : str
        See `BuildPlan`.

    Returns
    -------
    plan : BuildPlan
    lines : list of str
        The items as lines of the plan's items file.
    """
    items: Sequence[Item] = listing.items[: recipe.limit]
    lines, digest = [], hashlib.sha256()
    for item in items:
        digest.update(bytes.fromhex(item_facts(item)))
        if item.number is not None:
            digest.update(item.number.to_bytes(8, "little"))
        lines.append(_storable(item).to_line())
    plan = BuildPlan(
        recipe=recipe.to_json(),
        runtime=dict(runtime),
        items=len(items),
        items_digest=digest.hexdigest(),
        ignored=listing.ignored,
        classes=dict(listing.classes),
        tasks=_cut(items, lines),
        arrays={name: list(kind) for name, kind in listing.arrays.items()},
        declared=declared or {},
        base=base,
        gone=gone,
    )
    return plan, lines


def _cut(items: Sequence[Item], lines: Sequence[str]) -> tuple[Task, ...]:
    tasks: list[Task] = []
    start, start_offset, offset, size = 0, 0, 0, 0
    for position, (item, line) in enumerate(zip(items, lines, strict=True)):
        read = item.bytes + sum(file.bytes for file in item.files.values())
        weight = read * (VIDEO_WEIGHT if item.is_video else 1)
        full = position - start >= TASK_ITEMS or size + weight > TASK_BYTES
        if position > start and full and not _in_one_pass(items[position - 1], item):
            tasks.append(Task(start, position, start_offset))
            start, start_offset, size = position, offset, 0
        size += weight
        offset += len(line)
    if items:
        tasks.append(Task(start, len(items), start_offset))
    return tuple(tasks)


def _in_one_pass(one: Item, other: Item) -> bool:
    """Whether two items are read in the same pass over an archive: in two tasks, they would be read in two passes."""
    if one.member is None or other.member is None or other.member.run is None:
        return False
    return (one.path, one.member.run) == (other.path, other.member.run)


def _digest_columns(item: Item) -> dict[str, Any]:
    return {name: digest_value(value) for name, value in item.columns.items()}


def _facts_of_files(item: Item) -> list[Any]:
    return sorted(
        [option, file.name, file.bytes, file.mtime_ns, *([] if file.member is None else [file.member])]
        for option, file in item.files.items()
    )


def _facts_of_member(item: Item) -> list[Any]:
    return [] if item.member is None else [item.member, dict(item.arrays)]


def is_storable(item: Item) -> bool:
    """Whether all of an item's columns are JSON values, so that a worker process can read them from the plan."""
    return not live_columns(item)


def live_columns(item: Item) -> list[str]:
    """The columns of an item that a plan cannot hold: arrays and bytes."""
    return [name for name, value in item.columns.items() if digest_value(value) is not value]


def _storable(item: Item) -> Item:
    """The item with its arrays replaced by digests."""
    return replace(item, columns=_digest_columns(item))


def describe_mismatch(old: BuildPlan, new: BuildPlan, old_lines: Sequence[str], new_lines: Sequence[str]) -> str:
    """In words, what differs between two plans: options, versions, items."""
    found = describe_changes("option", old.recipe, new.recipe) + describe_changes("runtime", old.runtime, new.runtime)
    found += describe_changes("classes of", old.classes, new.classes)
    found += describe_changes("array type of", old.arrays, new.arrays)
    found += describe_changes("declared", _flat(old.declared), _flat(new.declared))
    if old.items_digest != new.items_digest:
        before = {item.name: item for item in map(Item.from_line, old_lines)}
        after = {item.name: item for item in map(Item.from_line, new_lines)}
        for verb, names in (
            ("gone", [name for name in before if name not in after]),
            ("new", [name for name in after if name not in before]),
            (
                "changed (its size, time or columns)",
                [name for name in before if name in after and _differs(before[name], after[name])],
            ),
        ):
            found += _describe_items(names, verb)
    return join_changes(found) or "the order of the items"


def describe_changed_terms(last: Generation, new: BuildPlan) -> list[str]:
    """In words, how the recipe and versions of a generation differ from those of a plan that is to add to it.

    The contents of ``boxes`` may differ: they grow with the items.
    """
    before, now = ({k: v for k, v in runtime.items() if k != "boxes"} for runtime in (last.runtime, new.runtime))
    return describe_changes("option", last.recipe, new.manifest_recipe) + describe_changes("runtime", before, now)


def describe_taken_over(
    old: BuildPlan, new: BuildPlan, old_lines: Sequence[str], new_lines: Sequence[str]
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


def describe_made(made: Manifest, before: Sequence[str] | None, new: BuildPlan, new_lines: Sequence[str]) -> str:
    """In words, what differs between a finished dataset and a plan, as far as the dataset shows it.

    Parameters
    ----------
    before : sequence of str or None
        The names in the dataset's ``items.jsonl``; None if it has none.
    new_lines : sequence of str
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
        after = [Item.from_line(line).name for line in new_lines]
        found += _describe_items(sorted(set(before) - set(after)), "gone")
        found += _describe_items(sorted(set(after) - set(before)), "new")
    # The manifest knows only the digest of sizes and times.
    return join_changes(found) or "items of the source have changed in size, time or columns, or their order has"


def _describe_items(names: Sequence[str], verb: str) -> list[str]:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return [f"source: {shorten(names[0])}{more} {verb}"] if names else []


def _differs(a: Item, b: Item) -> bool:
    facts = [(i.bytes, i.mtime_ns, dict(i.columns), i.reject, _facts_of_files(i), _facts_of_member(i)) for i in (a, b)]
    return facts[0] != facts[1]
