"""List the items of a source for a recipe, number their labels by the classes, and check that the recipe suits them."""

import os
import shlex
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import PurePath

import numpy as np
import numpy.typing as npt

from packer.builds.planning.checks import check_items, check_source, finds_boxes
from packer.builds.planning.classes import settle_classes
from packer.builds.planning.plan import item_digest
from packer.jobs.progress import ProgressListener, Silent, counted_stage
from packer.recipe import Recipe, field_name
from packer.sources.base import FileChecker, Listing, Source
from packer.sources.folders.frames import Frames
from packer.sources.item import ALSO, BOXES_FROM, Item, ItemFile, item_list
from packer.sources.packed import PackedSource
from packer.vision.media import describe_media, media_named, medium_of
from packer.workspace.disk_list import LazyMap
from shardspec.errors import UsageError
from shardspec.schema import NO_CLASS, describe_similar_classes
from shardspec.wording import LENGTH, LONG, counted, cut, list_some, quote_some, shorten

_ASKED = 1000
"""Items whose further files are asked for together, if they are on a web server."""

_NO_LABEL = -(2**63)
"""Stands for the label of an item without one."""

_LABEL_WORDS = {
    *("category", "class", "classes", "cls", "diagnosis", "dx", "emotion", "expression"),
    *("fake", "gt", "label", "labels", "real", "target", "truth", "y"),
}
"""Words in names of columns that are probably labels."""

_LOOKED_AT = 10_000
"""Rows in which columns that look like labels are searched for."""

_SHOWN_VALUES = 4
"""Number of a column's values to list in a note."""


def list_items(source: Source, recipe: Recipe, listener: ProgressListener | None = None) -> Listing:
    """List the items of a source for a recipe, and check that the recipe suits them.

    The files in the columns ``boxes_from`` and ``also`` become `Item.files`. An empty cell adds no file. An item is
    rejected if its further file is missing or outside the source, or if one of the two is a video and the other an
    image.

    Raises
    ------
    UsageError
        If there are no items, or if the options of the recipe do not suit them: the first step reads no files; frames
        are to be chosen from packed samples; resizing is not defined for their further images; a label is not among the
        listed classes; a column is missing or holds no paths; no sample can have a field of ``encode_field``; or no
        item has boxes in the file ``boxes``.
    MissingDependencyError
        If the library to decode the items is not installed.
    """
    check_source(source, recipe)
    with counted_stage(listener or Silent(), "listing"):
        listing = source.list_items(_label_from(source, recipe), recipe.path_column)
    with nullcontext() if listing.stored is None else listing.stored.showing_urls():
        listing = settle_classes(_of_media(listing, recipe), recipe)
        listing = _with_files(replace(listing, notes=(*listing.notes, *_describe(listing, recipe))), recipe)
        listing = replace(listing, notes=(*listing.notes, *check_items(source, listing, recipe)))
        return listing if listing.stored is None else listing.stored.locate(listing)


def _label_from(source: Source, recipe: Recipe) -> str:
    """Return where the labels come from. Of a packed dataset, the stored labels are numbered by a list of classes."""
    stored = isinstance(source, PackedSource) and recipe.numbers_classes and recipe.label_from == "auto"
    return "label" if stored else recipe.label_from


def _of_media(listing: Listing, recipe: Recipe) -> Listing:
    """Reject the rows of a table whose files are of a medium that the recipe does not take, such as a sound.

    Raises
    ------
    UsageError
        If there are no items, or if paths of a table lead outside its roots.
    """
    if not listing.items:
        sought = f" (looked for {listing.sought})" if listing.sought else ""
        raise UsageError("; ".join((f"expected items to pack, found none{sought}", *listing.notes)))
    _check_places(listing, recipe)
    taken = media_named(recipe.media)

    def is_other(item: Item) -> bool:
        named = isinstance(item.member, Frames) or medium_of(item.name) is not None
        return named and item.path is not None and item.medium not in taken

    def check(item: Item) -> Item:
        if item.reject is not None or not is_other(item):
            return item
        found = item.medium
        return item._replace(reject=f"expected {describe_media(taken)}, found {found.noun}: {found.advice}")

    # Other sources list only the media that the recipe takes.
    if listing.roots is None or not any(map(is_other, listing.items)):
        return listing
    return replace(listing, items=LazyMap(listing.items, check))


def _check_places(listing: Listing, recipe: Recipe) -> None:
    """Refuse a table with paths outside its roots. The message counts all of these paths."""
    items = len(listing.items[: recipe.limit])
    outside = bisect_left(listing.outside, items)
    if outside and listing.roots is not None:
        folders = list_some([str(folder) for folder in listing.roots.folders])
        raise UsageError(
            expected=f"files inside {folders}",
            found=(f"{outside} of {counted(items, 'path')} outside, such as {listing.outside_example}"),
            hint="name the folder of the files with --root DIR, which may be a URL (repeat it for several folders)",
        )


def _with_files(listing: Listing, recipe: Recipe) -> Listing:
    """Attach the further files that the recipe names."""
    for option, column in ((BOXES_FROM, recipe.boxes_from), (ALSO, recipe.also)):
        if column is not None:
            listing = _attach(listing, option, column, recipe.frame_folders)
    return listing


def _attach(listing: Listing, option: str, column: str, frame_rate: float | None) -> Listing:
    """Attach to each item the file that a column names, or a further image of its archive."""
    if (name := field_name(column)) in listing.members:
        further = listing.further_files
        items = LazyMap(listing.items, lambda item: _with_member(item, option, further[item.index].get(name)))
        return replace(listing, items=items)
    field = listing.fields.get(column)
    lacks = field is not None and any(field not in item.columns for item in listing.items if item.reject is None)
    if listing.roots is None or field is None or lacks:
        names = [*listing.members] or [*listing.fields]
        known = f"found {quote_some(names)}" if names else "found a source without columns"
        raise UsageError(f"expected the column {column!r} of paths, {known}", option=option)
    examiner, found = FileChecker(listing.roots, frame_rate), item_list()
    remaining = iter(listing.items)
    while some := list(islice(remaining, _ASKED)):
        examiner.ask(item.columns.get(field) for item in some)
        for item in some:
            path = item.columns.get(field, "")
            if not isinstance(path, str):
                raise UsageError(option=option, expected=f"paths in column {column!r}", found=shorten(path))
            found.append(_with_path(item, option, column, path, examiner) if path.strip() else item)
    return replace(listing, items=found, notes=(*listing.notes, *examiner.notes()))


def _with_member(item: Item, option: str, file: ItemFile | None) -> Item:
    if file is None:
        return item
    if file.medium is not item.medium:
        wanted, found = item.medium.noun, file.medium.noun
        reason = f"{option}: expected {wanted} like {item.name!r}, found {found}, {shorten(file.name, LONG)}"
        return item._replace(reject=item.reject or reason)
    return item._replace(files={**item.files, option: file})


def _with_path(item: Item, option: str, column: str, path: str, examiner: FileChecker) -> Item:
    other = examiner.describe(0, path, {})
    name, location = other.name, str(other.path)
    same_path = item.path is not None and os.path.normpath(item.path) == os.path.normpath(location)
    if option == BOXES_FROM and same_path and item.member == other.member:
        return item
    reason = other.reject
    if reason is None and other.medium is not item.medium:
        found = other.medium.noun
        if not isinstance(other.member, Frames) and medium_of(name) is None:
            found = f"a file {PurePath(name).suffix or 'without suffix'}"
        reason = f"expected {item.medium.noun} like {shorten(item.name, LONG)}, found {found}"
    if reason is not None:
        return item._replace(reject=item.reject or f"column {column!r}, {shorten(path, LONG)}: {reason}")
    file = ItemFile(name, location, other.bytes, other.mtime_ns, other.member)
    return item._replace(files={**item.files, option: file})


def _describe(listing: Listing, recipe: Recipe) -> list[str]:
    """Return the notes about the items of a source, one line each."""
    frames = [] if recipe.frame_folders is None else [_describe_frames(listing.items[: recipe.limit])]
    similar = describe_similar_classes(listing.classes.get("label", ()))
    labels = [*_describe_unlabelled(listing, recipe), *similar]
    return [*frames, *_describe_unread(listing, recipe), *labels, *_describe_repeats(listing, recipe)]


def _describe_frames(items: Sequence[Item]) -> str:
    """Describe how many folders are videos."""
    images = [len(item.member.names) for item in items if isinstance(item.member, Frames)]
    if not images:
        return "no folder holds frames: --frame-folders had no effect"
    return f"taken as videos: {counted(len(images), 'folder')} with {counted(sum(images), 'image')}"


def _describe_unread(listing: Listing, recipe: Recipe) -> list[str]:
    """Describe the further images in archives that the recipe does not use."""
    read = {field_name(column) for column in (recipe.also, recipe.boxes_from) if column is not None}
    left = {field: count for field, count in listing.members.items() if field not in read}
    if not left:
        return []
    fields = list_some([f"{field} ({count})" for field, count in left.items()])
    return [f"further images in the archives are ignored: {fields}; --also FIELD packs one of them"]


def _describe_unlabelled(listing: Listing, recipe: Recipe) -> list[str]:
    """Suggest columns of a table without labels that look like labels, by their name or because values repeat."""
    is_table = listing.roots is not None and recipe.fields_from_path is None and not recipe.sidecars
    if not is_table or recipe.label_from != "auto" or "label" in listing.fields.values() or finds_boxes(recipe):
        return []
    named: dict[str, str] = {}
    repeated: dict[str, str] = {}
    others: list[str] = []
    some = [item.columns for item in islice(listing.items, _LOOKED_AT) if item.reject is None]
    for column, field in listing.fields.items():
        values = Counter(columns[field] for columns in some if isinstance(columns.get(field), str | int))
        shown = f"{shorten(column)} ({list_some([str(value) for value, _ in values.most_common()], _SHOWN_VALUES)})"
        if values and not _LABEL_WORDS.isdisjoint(field.split("_")):
            named[column] = shown
        elif 1 < len(values) <= len(some) / 2:
            repeated[column] = shown
        elif values:
            others.append(shorten(column))
    alike, remedy = named | repeated, "--label-from none to hide this note"
    if alike:
        option = f"--label-from {shlex.quote(cut(next(iter(alike)), LENGTH))}"
        found = f", but these look like labels: {list_some([*alike.values()])}; use {option}, or {remedy}"
    elif others:
        found = f" (found {list_some(others)}): use --label-from COLUMN to choose one of them, or {remedy}"
    else:
        return []
    return [f"no labels: no column is named 'label'{found}"]


def _describe_repeats(listing: Listing, recipe: Recipe) -> list[str]:
    """Describe the rows of a table that occur several times, and files with different labels. Each row is packed.

    Four numbers per row are kept in memory.
    """
    if listing.roots is None:
        return []
    items, (rows, places, contents, labels) = listing.items[: recipe.limit], (array("q") for _ in range(4))
    for row, item in enumerate(items):
        if item.path is not None and item.reject is None:
            rows.append(row)
            places.append(hash((item.path, item.member)))
            contents.append(_hash_columns(item))
            label = item.columns.get("label")
            labels.append(label if isinstance(label, int) else _NO_LABEL)
    at, what, of = (np.frombuffer(numbers, np.int64) for numbers in (places, contents, labels))
    notes = []
    order = np.lexsort((what, at))  # stable, so that the first of equal rows stays first
    again = order[1:][~_changes(at[order]) & ~_changes(what[order])]
    if len(again):
        example = shorten(items[rows[int(again.min())]].name, LONG)
        notes.append(f"{counted(len(again), 'row')} equal to an earlier row, such as {example}: each row is packed")
    order = np.lexsort((of, at))
    differs = ~_changes(at[order]) & _changes(of[order])
    files = np.unique(at[order][1:][differs])
    if len(files):
        first = int(np.flatnonzero(np.isin(at, files))[0])
        classes = listing.classes.get("label")
        found = np.unique(of[at == at[first]]).tolist()
        shown = [str(label) if classes is None or label == NO_CLASS else classes[label] for label in found]
        notes.append(
            f"{counted(len(files), 'file')} with different labels in several rows, such as "
            f"{shorten(items[rows[first]].name, LONG)} ({list_some(shown)}): each row is packed"
        )
    return notes


def _changes(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return for each number but the first whether it differs from the one before."""
    return np.asarray(numbers[1:] != numbers[:-1])


def _hash_columns(item: Item) -> int:
    try:
        return hash(tuple(item.columns.values()))
    except TypeError:  # lists and objects
        return hash(item_digest(item))
