"""Check that the items of a source fit the dataset that they are added to."""

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from packer.assembly.schemas import FieldRules
from packer.builds.planning.changes import describe_changed_terms
from packer.builds.planning.checks import made_fields
from packer.builds.planning.plan import BuildPlan
from packer.recipe import Recipe
from packer.recipe.options import BuildOptions
from packer.sources.base import Listing
from packer.sources.item import PACKED_ROW, Item
from packer.sources.row_fields import with_arrays
from packer.steps.chain import STEPS
from packer.steps.encode import Encoder, declared_fields, image_codec
from packer.workspace.disk_list import LazyMap
from packer.workspace.machines import describe_others
from shardspec.entries import BUILD_KINDS, REMOVE
from shardspec.errors import UsageError
from shardspec.fields import RESERVED, field_name
from shardspec.layout import Layout, place_of
from shardspec.manifest import Manifest
from shardspec.schema import NO_CLASS, Schema, class_name
from shardspec.stores import names_store
from shardspec.wording import list_some, one_line, program, shorten

FROM_PACKED = "from_packed"
"""Key in the manifest's ``wall_clock``, true if the dataset was built from a packed dataset."""

FROM_INPUTS = "from_inputs"
"""Key in the manifest's ``wall_clock``, true if the items were inputs of a function."""

VERDICTS = ("min_score", "min_face")
"""Options that a retry may change, since they affect only whether an item is rejected, and not its samples."""

_VALID = "_valid"
_ADDED = f"not in the shards, since '{program()} add' added it"


def check_built(layout: Layout, base: Manifest, items: Sequence[Item]) -> None:
    """Check that a build made the dataset from files, tables or rows, and that the new items are none of its samples."""
    kinds = sorted({generation.kind for generation in base.generations} - {*BUILD_KINDS, REMOVE})
    job = base.wall_clock.get("job")
    kind = kinds[0] if kinds else job.get("kind") if isinstance(job, Mapping) else None
    if kind is not None:
        raise UsageError(
            place=place_of(layout.root),
            expected=f"a dataset made by '{program()} build', since items can be added only to such a dataset",
            found=f"a {kind}",
            hint=(
                "add to the datasets that it was made from, or build the new items into another folder and merge the "
                "two"
            ),
        )
    if any(PACKED_ROW in item.columns for item in items):
        raise UsageError(
            option="update",
            expected="a folder, a table or rows as the source",
            found="a packed dataset",
            hint="choose another output folder",
        )
    if base.wall_clock.get(FROM_PACKED):  # the original files would count as new
        raise UsageError(
            place=place_of(layout.root),
            expected="a dataset that was built from files, tables or rows",
            found="one that was built from a packed dataset",
            hint="add to the original dataset, and build this one again from it with --overwrite",
        )


def check_added_fields(layout: Layout, base: Manifest) -> None:
    """Check that values may be missing in all fields that were added after packing. Computed ones are dropped later."""
    column_fields = {column.field for column in base.columns if not column.computed}
    marked = {f"{name}{_VALID}" for name in column_fields} & column_fields
    every = sorted(name for name in column_fields - marked if f"{name}{_VALID}" not in marked)
    if every:
        drop = f"'{program()} drop-field {place_of(layout.root)} {' '.join(every)}'"
        raise UsageError(
            place=place_of(layout.root),
            expected="added fields in which values may be missing, since new samples have none",
            found=f"fields without missing values ({list_some(every)})",
            hint=f"add them again with '{program()} add --replace --allow-missing', or remove them with {drop}",
        )


def describe_outdated(place: Path | str, base: Manifest, updated: Manifest) -> list[str]:
    """Return a line for the user about computed columns that an update dropped, with the commands that compute them."""
    now = {column.field for column in updated.columns}
    dropped = [column for column in base.columns if column.computed and column.field not in now]
    if not dropped:
        return []
    functions, searches = list[str](), list[list[str]]()
    for column in dropped:
        function, options = str(column.computed["function"]), column.computed["options"]
        if function == "duplicates":
            given = {"column": column.field, **options}
            others = [_place_of(other, place) for other in given.pop("datasets", [])]
            words = [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
            searches.append(["duplicates", str(place), *others, *words])
        else:
            functions.append(function + "".join(f",{name}={value}" for name, value in options.items()))
    computing = [["compute", str(place), *dict.fromkeys(functions)]] if functions else []
    commands = "; ".join(f"{program()} {shlex.join(words)}" for words in [*computing, *searches])
    names = list_some([column.field for column in dropped])
    return [f"dropped {names}, which were computed without the new samples; to compute them again: {commands}"]


def _place_of(other: str, place: Path | str) -> str:
    """Return the place of a dataset that is recorded relative to another one's folder, if neither has a URL."""
    return other if names_store(other) or isinstance(place, str) else str((place / other).resolve())


def check_terms(
    layout: Layout, base: Manifest, recipe: Recipe, runtime: Mapping[str, Any], options: BuildOptions
) -> None:
    """Check that the dataset was packed with this recipe and these versions.

    Only a retry may change the options in `VERDICTS`. An update ignores the options of earlier retries.
    """
    given = recipe.to_json()
    last = next((one for one in reversed(base.generations) if one.kind not in ("retry", REMOVE)), base.newest)
    if not options.update:
        given |= {name: last.recipe[name] for name in VERDICTS if name in last.recipe}
    plan = BuildPlan(given, dict(runtime), 0, "", 0, {}, ())
    found = describe_changed_terms(last, plan)
    if found:
        versions = describe_others(last.runtime, runtime)
        install = f"install {versions}, and " if versions else ""
        raise UsageError(
            place=place_of(layout.root),
            expected="the recipe and versions that the dataset was packed with",
            found=f"others ({one_line('; '.join(found))})",
            hint=f"{install}use the same options, or choose another output folder",
        )


def with_valid(schema: Schema, listing: Listing) -> Listing:
    """Add ``<column>_valid`` to the items if the dataset has this field and no value is missing in the source."""
    first = next((item for item in listing.items if item.reject is None), None)  # rejects may have no columns
    columns = {} if first is None else first.columns
    marked = {
        one.name.removesuffix(_VALID): one.name
        for one in schema
        if one.name.removesuffix(_VALID) in columns and one.name.endswith(_VALID) and one.name not in columns
    }
    if not marked:
        return listing
    return replace(listing, items=LazyMap(listing.items, partial(_with_marks, marked=marked)))


def _with_marks(item: Item, marked: Mapping[str, str]) -> Item:
    """Add to an item a true validity field for each of its columns in `marked`."""
    added = {mark: True for name, mark in marked.items() if name in item.columns}
    return item._replace(columns={**item.columns, **added}) if added else item


def check_columns(layout: Layout, base: Manifest, listing: Listing, recipe: Recipe) -> None:
    """Check, before anything is packed, that the source and the dataset have the same columns.

    With custom steps nothing is checked, since the fields that they return are known only after they ran.
    """
    item = next((item for item in listing.items if item.reject is None), None)
    if item is None or any(step.use not in STEPS for step in recipe.chain):
        return
    rules = FieldRules(image_codec(recipe), listing.classes, declared_fields(recipe))
    columns = {name: value for name, value in with_arrays(item.columns, listing.arrays).items() if name != "image"}
    intervals = set(map(field_name, recipe.intervals))
    columns = {name: value for name, value in columns.items() if name not in intervals}
    if recipe.sample == "frame":
        columns |= dict.fromkeys(intervals, False)
    values = Encoder(recipe).encode(columns, whole=False)
    schema, column_fields = base.shard_schema, {column.field for column in base.columns}
    # An unknown validity field means that values are missing that were not missing before.
    unknown = [name for name in values if name not in schema]
    lacking = [name for name in unknown if name.endswith(_VALID) and name.removesuffix(_VALID) in schema]
    new = [name for name in unknown if name not in lacking]
    differing = [
        name for name, value in values.items() if name in schema and not rules.fits_field(value.spec, schema[name])
    ]
    made = RESERVED | made_fields(recipe).keys() | {recipe.also_field, f"{recipe.also_field}{_VALID}"}
    made |= {name for name in schema.names if name.endswith(_VALID)} | intervals
    missing = [name for name in schema.names if name not in values and name not in made]
    wrong = [f"{name!r} is {_ADDED if name in column_fields else 'new'}" for name in new]
    wrong += [f"{name.removesuffix(_VALID)!r} has missing values for the first time" for name in lacking]
    wrong += [f"{name!r} has another type" for name in differing]
    wrong += [f"{name!r} is missing" for name in missing]
    if wrong:
        raise UsageError(
            place=place_of(layout.root),
            expected="the same columns as in the shards of the dataset",
            found=f"others ({list_some(wrong)})",
            hint=(
                f"{'; '.join(_suggest(new, differing, missing or lacking))}; or build from scratch, without "
                "--update, into another folder or with --overwrite"
            ),
        )


def _suggest(new: Collection[str], differing: Collection[str], lacking: Collection[str]) -> Iterator[str]:
    """Yield suggestions for columns that are new, that have another type, or that lack some or all values."""
    if new:
        yield f"leave new columns out of the source, and add them to the packed samples with '{program()} add'"
    if differing:
        yield "set the type of a column with --text, --int or --float"
    if lacking:
        yield "use a source that has all values of these columns"


def number_classes(layout: Layout, schema: Schema, listing: Listing, wanted: bool) -> Listing:
    """Renumber the labels of a listing by the classes of the dataset. New classes get the next numbers."""
    items, classes = listing.items, dict(listing.classes)
    numbers_of: dict[str, list[int]] = {}
    for name in (one.name for one in schema if one.classes is not None and one.name not in classes):
        if any(name in item.columns for item in listing.items):
            raise UsageError(
                place=place_of(layout.root), expected=f"class names in {name!r}, as in the dataset", found="numbers"
            )
    for name, found in listing.classes.items():
        known = schema[name].classes if name in schema else None
        if known is None:
            if not found:
                continue
            raise UsageError(
                place=place_of(layout.root),
                expected=f"a dataset with class names in {name!r}, as in the source",
                found="none",
            )
        names = list(map(class_name, known))
        new = [one for one in found if one not in names]
        if new and not wanted:
            raise UsageError(
                place=place_of(layout.root),
                expected=f"the classes of the dataset in {name!r} ({list_some(known)})",
                found=f"also {list_some(list(map(shorten, new)))}",
                hint="append them with --new-classes; the numbers of the other classes stay the same",
            )
        numbers_of[name] = [[*names, *new].index(one) for one in found]
        classes[name] = [*known, *new]
    if not numbers_of:
        return listing
    return replace(listing, items=LazyMap(items, partial(_renumbered, numbers_of=numbers_of)), classes=classes)


def _renumbered(item: Item, numbers_of: Mapping[str, Sequence[int]]) -> Item:
    columns = dict(item.columns)
    for name, numbers in numbers_of.items():
        value = columns.get(name)
        # In a rejected item, 0 may be the sentinel of a missing label.
        if value is not None and value != NO_CLASS and (item.reject is None or value != 0):
            columns[name] = numbers[value]
    return item._replace(columns=columns)
