"""List the items of a source for a recipe, check them, and attach further files that the recipe names."""

import os
import shlex
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.builds.planning.classes import settle_classes
from packer.builds.planning.plan import item_digest
from packer.jobs.progress import ProgressListener, Silent, Stage
from packer.recipe import Recipe, field_name
from packer.recipe.checks import SAMPLING
from packer.sources.base import FileChecker, Listing, Source, counting
from packer.sources.folders.frames import Frames
from packer.sources.item import ALSO, BOXES_FROM, PACKED_ROW, Item, ItemFile, item_list
from packer.sources.packed import PackedSource
from packer.steps.chain import STEPS
from packer.steps.encode import SOUND_FIELDS
from packer.steps.faces.boxes import Boxes, open_boxes
from packer.steps.faces.frame import DETECT_FIELDS
from packer.vision.media import describe_media, media_named, medium_of
from packer.workspace.disk_list import LazyMap
from shardspec.errors import MissingDependencyError, UsageError
from shardspec.fields import OF_VIDEOS, video_name
from shardspec.layout import Layout
from shardspec.registry import check_installed
from shardspec.schema import NO_CLASS, describe_similar_classes
from shardspec.wording import LENGTH, LONG, counted, cut, did_you_mean, list_some, program, quote_some, shorten

_LEAST = 1000
"""Progress is shown only if there are at least this many items."""

_ASKED = 1000
"""Items whose further files are asked for together, if they are on a web server."""

_NO_IMAGE = (str, int, float, type(None))
"""Types of values that cannot be images."""

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

_NEED_IMAGE = ("detect", "faces", "resize")
"""Built-in steps that do not read files, and so need a step before them that does."""


@contextmanager
def counted_stage(listener: ProgressListener, name: str, total: int | None = None) -> Iterator[None]:
    """Show a stage with the number of items that have been listed, or planned, inside the block."""
    with Stage(listener, name, total, "items", least=_LEAST) as stage, counting(stage.advance):
        yield


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
    label_from = recipe.label_from
    if recipe.numbers_classes and label_from == "auto" and isinstance(source, PackedSource):
        label_from = "label"  # renumber the stored labels
    if recipe.sample != "frame" and isinstance(source, PackedSource):
        raise UsageError(
            option="sample",
            expected="frame for a packed dataset, whose samples are packed one by one",
            found=recipe.sample,
            hint=f"{program()} convert {source.root} OUT --sample {recipe.sample}",
        )
    if recipe.sample == "track" and all(step.use in STEPS and step.use != "faces" for step in recipe.chain):
        raise UsageError(
            "only the step 'faces' finds tracks", option="sample", hint="take --sample item for videos without faces"
        )
    with counted_stage(listener or Silent(), "listing"):
        listing = source.list_items(label_from, recipe.path_column)
    if listing.stored is None:
        return _checked(source, listing, recipe)
    with listing.stored.showing_urls():
        return listing.stored.locate(_checked(source, listing, recipe))


def _checked(source: Source, listing: Listing, recipe: Recipe) -> Listing:
    if not listing.items:
        sought = f" (looked for {listing.sought})" if listing.sought else ""
        raise UsageError("; ".join((f"expected items to pack, found none{sought}", *listing.notes)))
    _check_places(listing, recipe)
    listing = _of_media(listing, recipe)
    frames = [] if recipe.frame_folders is None else [_describe_frames(listing.items[: recipe.limit])]
    listing = replace(listing, notes=(*listing.notes, *frames, *_describe_unread(listing, recipe)))
    listing = replace(listing, notes=(*listing.notes, *_describe_unlabelled(listing, recipe)))
    listing = settle_classes(listing, recipe)
    similar = describe_similar_classes(listing.classes.get("label", ()))
    listing = replace(listing, notes=(*listing.notes, *similar, *_describe_repeats(listing, recipe)))
    _check_reading(listing.items, recipe)
    _check_sampling(listing.items, recipe)
    _check_library(listing.items[: recipe.limit], recipe)
    for option, column in ((BOXES_FROM, recipe.boxes_from), (ALSO, recipe.also)):
        if column is not None:
            listing = _attach(listing, option, column, recipe.frame_folders)
    _check_also(listing.items, recipe)
    _check_further(listing, recipe)
    _check_encode_field(source, listing.items[: recipe.limit], recipe)
    if _finds_boxes(recipe):
        _check_detect(listing.items)
    _check_made(listing.items, recipe)
    if recipe.boxes is not None:
        boxes = open_boxes(recipe.boxes, recipe.boxes_scale)
        aligned = "--align" if recipe.align else "" if recipe.align_as is None else f"--align-as {recipe.align_as}"
        if not boxes.has_points and (aligned or recipe.landmarks != "5"):
            what = aligned or f"--landmarks {recipe.landmarks}"
            raise UsageError(place=recipe.boxes, expected=f"landmarks with the boxes, which {what} needs", found="none")
        notes = boxes.check([boxes_name(item) for item in listing.items if item.reject is None])
        listing = replace(listing, notes=(*listing.notes, *notes, *_describe_floors(boxes, recipe)))
    return listing


def _of_media(listing: Listing, recipe: Recipe) -> Listing:
    """Reject the rows of a table whose files are of a medium that the recipe does not take, such as a sound."""
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


def _describe_floors(boxes: Boxes, recipe: Recipe) -> list[str]:
    """Warn about options that are lower than those with which the boxes were packed."""
    return [
        f"{PurePath(str(recipe.boxes)).name}: packed with {name} {least:g}, so faces below {least:g} have no box "
        f"(this build has {name} {getattr(recipe, name):g})"
        for name, least in boxes.floors.items()
        if getattr(recipe, name) < least
    ]


def _finds_boxes(recipe: Recipe) -> bool:
    """Return whether the result is boxes, which need no labels."""
    return any(step.use == "detect" for step in recipe.chain)


def _check_detect(items: Sequence[Item]) -> None:
    """Check that ``detect`` gets images or videos."""
    if any(PACKED_ROW in item.columns for item in items):
        raise UsageError(option="detect", expected="images and videos", found="a packed dataset")


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


def _describe_unlabelled(listing: Listing, recipe: Recipe) -> list[str]:
    """Suggest columns of a table without labels that look like labels, by their name or because values repeat."""
    is_table = listing.roots is not None and recipe.fields_from_path is None and not recipe.sidecars
    if not is_table or recipe.label_from != "auto" or "label" in listing.fields.values() or _finds_boxes(recipe):
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


def boxes_name(item: Item) -> str:
    """Return the name under which an item's boxes are looked up: that of its ``boxes_from`` file or its own name."""
    return item.files[BOXES_FROM].name if BOXES_FROM in item.files else item.name


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
            found.append(_with_file(item, option, column, path, examiner) if path.strip() else item)
    return replace(listing, items=found, notes=(*listing.notes, *examiner.notes()))


def _with_member(item: Item, option: str, file: ItemFile | None) -> Item:
    if file is None:
        return item
    if file.medium is not item.medium:
        wanted, found = item.medium.noun, file.medium.noun
        reason = f"{option}: expected {wanted} like {item.name!r}, found {found}, {shorten(file.name, LONG)}"
        return item._replace(reject=item.reject or reason)
    return item._replace(files={**item.files, option: file})


def _with_file(item: Item, option: str, column: str, path: str, examiner: FileChecker) -> Item:
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


def _check_reading(items: Sequence[Item], recipe: Recipe) -> None:
    """Check that the first step reads the files. Only ``decode`` and custom steps do."""
    first = recipe.chain[0].use
    if first in _NEED_IMAGE and all(_is_unread(item) for item in items):
        raise UsageError(
            option="steps",
            expected="decode or a custom step first, to read the files",
            found=f"{first!r}",
            hint=f"--steps decode,{first}",
        )


def _is_unread(item: Item) -> bool:
    """Return whether an item has no image yet."""
    return PACKED_ROW not in item.columns and item.columns.get("image") is None


def _check_sampling(items: Sequence[Item], recipe: Recipe) -> None:
    """Refuse to choose frames of a packed dataset, since its samples are single frames already."""
    if all(PACKED_ROW in item.columns for item in items):
        for name in (*SAMPLING, "audio"):
            if getattr(recipe, name) != getattr(Recipe, name):
                raise UsageError(
                    "applies only to videos, found a packed dataset, whose samples are all used", option=name
                )


def made_fields(recipe: Recipe) -> dict[str, str]:
    """Return the fields that not every build writes, each with the option or step that adds it."""
    made = {} if recipe.audio is None else {"audio": "audio", "audio_valid": "audio"}
    steps = [step.use for step in recipe.chain]
    if "faces" in steps and recipe.fill is not None:
        made["interpolated"] = "fill"
    if "detect" in steps:
        made |= dict.fromkeys(DETECT_FIELDS, "detect")
    if recipe.sample != "frame":
        made |= dict.fromkeys(OF_VIDEOS, "sample")
    if recipe.reads_sound:
        made = dict.fromkeys(SOUND_FIELDS, "preset")
    return made


def _check_made(items: Sequence[Item], recipe: Recipe) -> None:
    """Refuse columns with the names of fields that the build writes itself."""
    made = made_fields(recipe)
    for item in items if made else ():
        for name, option in made.items():
            if name in item.columns:
                raise UsageError(
                    option=option,
                    expected=f"a source without a column {name!r}, which the build writes itself",
                    found="one",
                    hint="leave it out with `drop`, or rename it",
                )


def _check_library(items: Sequence[Item], recipe: Recipe) -> None:
    """Check, before a plan is written, that the libraries to decode the items are installed."""
    steps = [step.use for step in recipe.chain]
    if "decode" not in steps and not recipe.reads_sound:
        return
    for medium in media_named(recipe.media):
        try:
            check_installed(medium.libraries, what=medium.noun, extra="faces-light" if "faces" in steps else "pack")
        except MissingDependencyError:
            if any(i.medium is medium and i.reject is None and not isinstance(i.member, Frames) for i in items):
                raise


def _check_further(listing: Listing, recipe: Recipe) -> None:
    """Refuse to resize packed masks, which may be label maps, unless the user has chosen how to."""
    resizes = recipe.resizes and any(s.use == "resize" for s in recipe.chain)
    if resizes and listing.further and recipe.also_resample is None:
        raise UsageError(
            option="also_resample",
            expected=f"area or nearest, for resizing {', '.join(map(repr, listing.further))} of the source",
            found="neither",
            hint="choose nearest for label maps, whose values must not be mixed",
        )


def _check_also(items: Sequence[Item], recipe: Recipe) -> None:
    """Check that no column has the name of a field of the second image."""
    field = recipe.also_field
    columns: Mapping[str, Any] = next((item.columns for item in items if item.reject is None), {})
    for name in () if field is None else (field, f"{field}_valid"):
        if name in columns:
            raise UsageError(
                f"a column of the source already becomes field {name!r}", option="also", hint="rename the column"
            )


def _check_encode_field(source: Source, items: Sequence[Item], recipe: Recipe) -> None:
    """Refuse to encode fields that no sample has, unless custom steps may add them."""
    wanted = recipe.field_codecs.keys()
    if not wanted or any(step.use not in STEPS for step in recipe.chain):
        return
    name_of = str if recipe.sample == "frame" else video_name
    kind = name_of("image")
    known = set() if recipe.also_field is None else {name_of(recipe.also_field)}
    if isinstance(source, PackedSource):
        known |= {field.name for field in Layout(source.root).load().schema if field.is_image}
    for item in items if recipe.sample == "frame" else ():
        if known >= wanted:
            return
        known |= item.arrays.keys()
        known |= {name for name, value in item.columns.items() if not isinstance(value, _NO_IMAGE)}
    missing = sorted(wanted - known)
    if missing:
        others = sorted(known - {"image", PACKED_ROW})
        raise UsageError(
            option="encode_field",
            expected=f"a field with {kind}s other than {kind} ({list_some(others) or 'there is none'})",
            found=f"{shorten(missing[0])}{did_you_mean(missing[0], others)}",
        )
