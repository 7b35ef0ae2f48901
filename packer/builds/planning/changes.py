"""Describe how a plan differs from another plan, or from a dataset."""

from array import array
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.builds.planning.plan import DIGEST_BYTES, HEIF_LIBRARY, BuildPlan, digest_item
from packer.jobs.plan import describe_changes, join_changes
from packer.sources.item import Item
from packer.workspace.disk_list import Reiterable
from shardspec.entries import Generation
from shardspec.manifest import Manifest
from shardspec.wording import shorten

ItemDigests = Iterable[tuple[str, bytes]]
"""The name of each item and the first bytes of its digest. Iterated over more than once."""


def describe_mismatch(old: BuildPlan, new: BuildPlan, old_lines: Iterable[str], new_lines: Iterable[str]) -> str:
    """Describe the differences between two plans: options, versions, items.

    Parameters
    ----------
    old_lines, new_lines : iterable of str
        Lines of the plans' items files. Iterated over more than once.
    """
    found = describe_changes("option", old.recipe, new.recipe) + describe_changes("runtime", old.runtime, new.runtime)
    found += describe_changes("classes of", old.classes, new.classes)
    found += describe_changes("array type of", old.arrays, new.arrays)
    found += describe_changes("declared", _flat(old.declared), _flat(new.declared))
    if old.items_digest != new.items_digest:
        found += _describe_items(_digests_of(old_lines), _digests_of(new_lines))
    if old.gone != new.gone:
        found.append("the items that are dropped")
    return join_changes(found) or "the order of the items"


def describe_changed_terms(last: Generation, new: BuildPlan) -> list[str]:
    """Describe how the recipe and versions of a generation differ from those of a plan that is to add to it.

    Two differences are allowed: the contents of ``boxes``, which grow with the items, and the library for HEIC images,
    which is listed only if there are such images.
    """
    before, now = (
        {name: value for name, value in runtime.items() if name not in ("boxes", HEIF_LIBRARY)}
        for runtime in (last.runtime, new.runtime)
    )
    return describe_changes("option", last.recipe, new.manifest_recipe) + describe_changes("runtime", before, now)


def describe_taken_over(
    old: BuildPlan, new: BuildPlan, old_lines: Iterable[str], new_lines: Iterable[str]
) -> str | None:
    """Describe how the items of two plans differ. Return None if the new plan cannot use the results of the old one."""
    if old.terms != new.terms or new.declared:  # a function may set the keys of its samples
        return None
    changes = describe_mismatch(old, new, old_lines, new_lines)
    what = "the source has" if old.gone == new.gone else "the source or --gone has"
    return f"{what} changed since the build was started ({changes}): the results of all other items are kept"


def describe_made(made: Manifest, before: ItemDigests | None, new: BuildPlan, new_lines: Iterable[str]) -> str:
    """Describe the differences between a finished dataset and a plan, to the extent that the dataset records them.

    Parameters
    ----------
    before : iterable of (str, bytes) or None
        The dataset's items, without dropped ones; None if the dataset does not list its items.
    new_lines : iterable of str
        Lines of the new plan's items file. Iterated over more than once.
    """
    job = made.wall_clock.get("job")
    if isinstance(job, Mapping) and job.get("kind") != "convert":
        return f"it is a {job.get('kind')}, and this is a {new.kind}"
    last = made.newest
    found = describe_changes("option", last.recipe, new.manifest_recipe)
    found += describe_changes("runtime", last.runtime, new.runtime)
    named = {field.name: list(field.classes) for field in made.schema if field.classes is not None}
    classes = {**new.classes, **({"label": new.declared["classes"]} if new.declared.get("classes") else {})}
    planned = [
        name for name in named if name in classes
    ]  # the classes of a function's samples may be known only after it has run
    found += describe_changes(
        "classes of", {name: named[name] for name in planned}, {name: classes[name] for name in planned}
    )
    if before is not None:
        found += _describe_items(before, _digests_of(new_lines))
    if not found and isinstance(made.wall_clock.get("history"), list):
        return "it has been updated since it was first packed"
    return join_changes(found) or "the order of the items"


def _flat(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return a declaration as a flat dict with one entry per field."""
    fields = declared.get("fields") or {}
    return {**{f"field {name}": kind for name, kind in fields.items()}, "classes": declared.get("classes")}


def _digests_of(lines: Iterable[str]) -> ItemDigests:
    items = Reiterable(lambda: map(Item.from_line, lines))
    return Reiterable(lambda: ((item.name, digest_item(item, item.columns)[:DIGEST_BYTES]) for item in items))


def _describe_items(before: ItemDigests, after: ItemDigests) -> list[str]:
    """Describe the items that are gone, new or changed. Keep only two numbers per item in memory."""
    (names_before, digests_before), (names_after, digests_after) = _numbers_of(before), _numbers_of(after)
    common, at_before, at_after = np.intersect1d(names_before[::-1], names_after[::-1], return_indices=True)
    differ = (
        digests_before[::-1][at_before] != digests_after[::-1][at_after]
    )  # if a name occurs several times, compare its last item
    found = []
    for verb, items, names, places in (
        ("gone", before, names_before, np.flatnonzero(~np.isin(names_before, names_after))),
        ("new", after, names_after, np.flatnonzero(~np.isin(names_after, names_before))),
        (
            "changed (its size, time or columns)",
            before,
            names_before,
            np.flatnonzero(np.isin(names_before, common[differ])),
        ),
    ):
        if len(places):
            first, _ = next(islice(items, int(places[0]), None))
            count = len(np.unique(names[places]))
            more = f" and {count - 1} more" if count > 1 else ""
            found.append(f"source: {shorten(first)}{more} {verb}")
    return found


def _numbers_of(items: ItemDigests) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return hashes of the names, and the digests, of items as numbers."""
    names, digests = array("q"), bytearray()
    for name, digest in items:
        names.append(hash(name))
        digests += digest
    return np.frombuffer(names, np.int64), np.frombuffer(digests, np.int64)
