"""Check that the options of a recipe suit the items of a source, before anything is packed."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from packer.recipe import Recipe
from packer.recipe.checks import SAMPLING
from packer.sources.base import Listing, Source
from packer.sources.folders.frames import Frames
from packer.sources.item import BOXES_FROM, PACKED_ROW, Item
from packer.sources.packed import PackedSource
from packer.steps.chain import STEPS
from packer.steps.encode import SOUND_FIELDS
from packer.steps.faces.boxes import Boxes, open_boxes
from packer.steps.faces.frame import DETECT_FIELDS
from packer.vision.media import media_named
from shardspec.errors import MissingDependencyError, UsageError
from shardspec.fields import OF_VIDEOS, video_name
from shardspec.layout import Layout
from shardspec.registry import check_installed
from shardspec.wording import did_you_mean, list_some, program, shorten

_NO_IMAGE = (str, int, float, type(None))
"""Types of values that cannot be images."""

_NEED_IMAGE = ("detect", "faces", "resize")
"""Built-in steps that do not read files, and so need a step before them that does."""


def check_source(source: Source, recipe: Recipe) -> None:
    """Check that the recipe makes its kind of samples from this kind of source, before the items are listed.

    Raises
    ------
    UsageError
        If it does not.
    """
    if recipe.sample != "frame" and isinstance(source, PackedSource):
        raise UsageError(
            option="sample",
            expected="frame for a packed dataset, whose samples are packed one by one",
            found=recipe.sample,
            hint=f"{program()} convert {source.root} OUT --sample {recipe.sample}",
        )
    built_in = all(step.use in STEPS for step in recipe.chain)
    if built_in and isinstance(source, PackedSource) and Layout(source.root).load().schema.holds_tracks:
        raise UsageError(
            place=source.root,
            expected="samples that are images, or a custom step that takes videos",
            found="samples of several frames",
            hint=f"{program()} convert {source.root} OUT --sample frame",
        )
    if recipe.sample == "track" and all(step.use in STEPS and step.use != "faces" for step in recipe.chain):
        raise UsageError(
            "only the step 'faces' finds tracks", option="sample", hint="take --sample item for videos without faces"
        )


def check_items(source: Source, listing: Listing, recipe: Recipe) -> list[str]:
    """Check the items of a source, with their classes and files, and return notes about their boxes.

    Raises
    ------
    UsageError, MissingDependencyError
        See `packer.builds.planning.listing.list_items`.
    """
    items = listing.items
    _check_reading(items, recipe)
    _check_sampling(items, recipe)
    _check_library(items[: recipe.limit], recipe)
    _check_also(items, recipe)
    _check_further(listing, recipe)
    _check_encode_field(source, items[: recipe.limit], recipe)
    if finds_boxes(recipe):
        _check_detect(items)
    _check_made(items, recipe)
    return [] if recipe.boxes is None else _check_boxes(items, recipe.boxes, recipe)


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


def _check_also(items: Sequence[Item], recipe: Recipe) -> None:
    """Check that no column has the name of a field of the second image."""
    field = recipe.also_field
    columns: Mapping[str, Any] = next((item.columns for item in items if item.reject is None), {})
    for name in () if field is None else (field, f"{field}_valid"):
        if name in columns:
            raise UsageError(
                f"a column of the source already becomes field {name!r}", option="also", hint="rename the column"
            )


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


def finds_boxes(recipe: Recipe) -> bool:
    """Return whether the result is boxes, which need no labels."""
    return any(step.use == "detect" for step in recipe.chain)


def _check_detect(items: Sequence[Item]) -> None:
    """Check that ``detect`` gets images or videos."""
    if any(PACKED_ROW in item.columns for item in items):
        raise UsageError(option="detect", expected="images and videos", found="a packed dataset")


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


def _check_boxes(items: Sequence[Item], path: str, recipe: Recipe) -> list[str]:
    """Check that some items have boxes, with the landmarks that the recipe needs."""
    boxes = open_boxes(path, recipe.boxes_scale)
    aligned = "--align" if recipe.align else "" if recipe.align_as is None else f"--align-as {recipe.align_as}"
    if not boxes.has_points and (aligned or recipe.landmarks != "5"):
        what = aligned or f"--landmarks {recipe.landmarks}"
        raise UsageError(place=path, expected=f"landmarks with the boxes, which {what} needs", found="none")
    return [*boxes.check([boxes_name(item) for item in items if item.reject is None]), *_describe_floors(boxes, recipe)]


def boxes_name(item: Item) -> str:
    """Return the name under which an item's boxes are looked up: that of its ``boxes_from`` file or its own name."""
    return item.files[BOXES_FROM].name if BOXES_FROM in item.files else item.name


def _describe_floors(boxes: Boxes, recipe: Recipe) -> list[str]:
    """Warn about options that are lower than those with which the boxes were packed."""
    return [
        f"{PurePath(str(recipe.boxes)).name}: packed with {name} {least:g}, so faces below {least:g} have no box "
        f"(this build has {name} {getattr(recipe, name):g})"
        for name, least in boxes.floors.items()
        if getattr(recipe, name) < least
    ]
