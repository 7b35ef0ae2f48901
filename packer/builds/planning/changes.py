"""Describe how a plan differs from another plan, or from a dataset."""

from array import array
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.builds.planning.item_digests import DIGEST_BYTES, digest_item
from packer.builds.planning.plan import HEIF_LIBRARY, BuildPlan
from packer.jobs.plan import describe_changes, join_changes
from packer.sources.item import Item
from packer.workspace.spool import Again
from shardspec.entries import Generation
from shardspec.manifest import Manifest
from shardspec.wording import shorten


def describe_mismatch(old: BuildPlan, new: BuildPlan, old_lines: Iterable[str], new_lines: Iterable[str]) -> str:
    """Describe what differs between two plans: options, versions, items. The lines are read more than once."""
    found = describe_changes("option", old.recipe, new.recipe) + describe_changes("runtime", old.runtime, new.runtime)
    found += describe_changes("classes of", old.classes, new.classes)
    found += describe_changes("array type of", old.arrays, new.arrays)
    found += describe_changes("declared", _flat(old.declared), _flat(new.declared))
    if old.items_digest != new.items_digest:
        found += _describe_other_items(old_lines, new_lines)
    if old.gone != new.gone:  # digests of the items' numbers: what was dropped, and why, cannot be said
        found.append("the items that are dropped")
    return join_changes(found) or "the order of the items"


def _describe_other_items(old_lines: Iterable[str], new_lines: Iterable[str]) -> list[str]:
    """Describe the items that are gone, new or changed. In memory are a few numbers for each, and no names."""
    (before, digests_before), (after, digests_after) = _numbers_of(old_lines), _numbers_of(new_lines)
    common, at_before, at_after = np.intersect1d(before[::-1], after[::-1], return_indices=True)  # the last of a name
    differ = digests_before[::-1][at_before] != digests_after[::-1][at_after]
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
    """Return numbers for the names and for the digests of the items in some lines."""
    names, digests = array("q"), bytearray()
    for item in map(Item.from_line, lines):
        names.append(hash(item.name))
        digests += digest_item(item, item.columns)[:DIGEST_BYTES]
    return np.frombuffer(names, np.int64), np.frombuffer(digests, np.int64)


def describe_changed_terms(last: Generation, new: BuildPlan) -> list[str]:
    """Describe how the recipe and versions of a generation differ from those of a plan that is to add to it.

    The contents of ``boxes`` may differ: they grow with the items. The library of HEIC images is named with such items
    only.
    """
    before, now = (
        {name: value for name, value in runtime.items() if name not in ("boxes", HEIF_LIBRARY)}
        for runtime in (last.runtime, new.runtime)
    )
    return describe_changes("option", last.recipe, new.manifest_recipe) + describe_changes("runtime", before, now)


def describe_taken_over(
    old: BuildPlan, new: BuildPlan, old_lines: Iterable[str], new_lines: Iterable[str]
) -> str | None:
    """Describe how the items of two plans differ; None if one cannot use what the other has finished."""
    if old.terms != new.terms or new.declared:  # a function may give keys of its own
        return None
    changes = describe_mismatch(old, new, old_lines, new_lines)
    what = "the source has" if old.gone == new.gone else "the source or --gone has"
    return f"{what} changed since the build was begun ({changes}): what is finished of other items is kept"


def _flat(declared: Mapping[str, Any]) -> dict[str, Any]:
    """A declaration with its fields side by side."""
    fields = declared.get("fields") or {}
    return {**{f"field {name}": kind for name, kind in fields.items()}, "classes": declared.get("classes")}


def describe_made(made: Manifest, before: Iterable[str] | None, new: BuildPlan, new_lines: Iterable[str]) -> str:
    """Describe what differs between a finished dataset and a plan, as far as the dataset shows it.

    Parameters
    ----------
    before : iterable of str or None
        The names in the dataset's ``items.jsonl``, without those of items that an update has dropped; None if it has
        none. They are read more than once, as the lines are.
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
    if not found and isinstance(made.wall_clock.get("history"), list):
        return "it has been updated since it was first packed"
    # The manifest knows only the digest of sizes and times.
    return join_changes(found) or "items of the source have changed in size, time or columns, or their order has"


def _describe_missing(names: Iterable[str], others: Iterable[str], verb: str) -> list[str]:
    """Describe the names that are not among others."""
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
