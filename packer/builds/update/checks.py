"""Checks that the items of a source fit the dataset that they are added to."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from packer.builds.parts.summary import SchemaSettler
from packer.builds.planning.changes import describe_changed_terms
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
from shardspec.entries import BUILD_KINDS
from shardspec.errors import UsageError
from shardspec.fields import RESERVED, field_name
from shardspec.layout import Layout
from shardspec.manifest import Manifest
from shardspec.schema import NO_CLASS, Schema, class_name
from shardspec.wording import list_some, one_line, program, shorten

FROM_PACKED = "from_packed"
"""Key of the manifest's ``wall_clock`` that is true if the items were samples of a packed dataset."""

FROM_INPUTS = "from_inputs"
"""The key that is true if they were inputs of a function."""

VERDICTS = ("min_score", "min_face")
"""Options that a retry may change: they decide whether an item is rejected, and not what a sample looks like."""

_VALID = "_valid"
_ADDED = f"in no shard, since '{program()} add' has added it"


def check_built(layout: Layout, base: Manifest, items: Sequence[Item]) -> None:
    """Check that the dataset is one that a build has made, from items of its own kind."""
    kinds = sorted({generation.kind for generation in base.generations} - set(BUILD_KINDS))
    job = base.wall_clock.get("job")
    kind = kinds[0] if kinds else job.get("kind") if isinstance(job, Mapping) else None
    if kind is not None:
        raise UsageError(
            place=layout.root,
            expected=f"a dataset as '{program()} build' made it, to add items to",
            found=f"a {kind}",
            hint=(
                "add to the datasets that it was made from, or build the new items into a folder of their own and merge"
            ),
        )
    if any(PACKED_ROW in item.columns for item in items):
        raise UsageError(
            option="update",
            expected="a folder, a table or rows as the source",
            found="a packed dataset",
            hint="build into a folder of its own",
        )
    if base.wall_clock.get(FROM_PACKED):  # files would be new beside the samples that were made of them before
        raise UsageError(
            place=layout.root,
            expected="a dataset that was built from files, tables or rows, to add items to",
            found="one that was built from a packed dataset",
            hint="add to that one, and build this one anew from it with --overwrite",
        )


def check_added_fields(layout: Layout, base: Manifest) -> None:
    """Check that new samples can be without a value of the dataset's added fields."""
    beside = {column.field for column in base.columns}
    marked = {f"{name}{_VALID}" for name in beside} & beside
    every = sorted(name for name in beside - marked if f"{name}{_VALID}" not in marked)
    if every:
        raise UsageError(
            place=layout.root,
            expected="added fields that new samples may lack",
            found=f"others ({list_some(every)})",
            hint=(
                f"add them again with '{program()} add --replace --allow-missing', or remove them with '{program()} "
                "drop-field'"
            ),
        )


def check_terms(
    layout: Layout, base: Manifest, recipe: Recipe, runtime: Mapping[str, Any], options: BuildOptions
) -> None:
    """Check that the dataset was packed by this recipe and these versions.

    A retry alone may have other values of `VERDICTS`. So may an earlier one, whose recipe new items do not follow.
    """
    given = recipe.to_json()
    last = next((one for one in reversed(base.generations) if one.kind != "retry"), base.generations[-1])
    if not options.update:
        given |= {name: last.recipe[name] for name in VERDICTS if name in last.recipe}
    plan = BuildPlan(given, dict(runtime), 0, "", 0, {}, ())
    found = describe_changed_terms(last, plan)
    if found:
        versions = describe_others(last.runtime, runtime)
        install = f"install {versions}, and " if versions else ""
        raise UsageError(
            place=layout.root,
            expected="the recipe and versions that the dataset was packed with",
            found=f"others ({one_line('; '.join(found))})",
            hint=f"{install}give the same, or pack into another folder",
        )


def with_valid(schema: Schema, listing: Listing) -> Listing:
    """The listing with ``<column>_valid`` where the dataset has it, and no value is missing in the source."""
    first = next((item for item in listing.items if item.reject is None), None)  # a rejected one may have no columns
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
    """An item whose columns, each with the name of what marks it, have their values."""
    added = {mark: True for name, mark in marked.items() if name in item.columns}
    return item._replace(columns={**item.columns, **added}) if added else item


def check_columns(layout: Layout, base: Manifest, listing: Listing, recipe: Recipe) -> None:
    """Check that the source's columns are the dataset's, before anything is packed.

    What steps of the user make of columns is known only when it is made.
    """
    item = next((item for item in listing.items if item.reject is None), None)
    if item is None or any(step.use not in STEPS for step in recipe.chain):
        return
    settler = SchemaSettler(image_codec(recipe), listing.classes, {}, declared_fields(recipe))
    columns = {name: value for name, value in with_arrays(item.columns, listing.arrays).items() if name != "image"}
    columns |= {field_name(column): False for column in recipe.intervals}
    values = Encoder(recipe).encode(columns, whole=False)
    schema, beside = base.shard_schema, {column.field for column in base.columns}
    # A field that marks missing values is no column of the source: what is new there is that values are missing.
    unknown = [name for name in values if name not in schema]
    lacking = [name for name in unknown if name.endswith(_VALID) and name.removesuffix(_VALID) in schema]
    new = [name for name in unknown if name not in lacking]
    differing = [
        name for name, value in values.items() if name in schema and not settler.fits_field(value.spec, schema[name])
    ]
    made = RESERVED | {recipe.also_field, f"{recipe.also_field}{_VALID}"}
    made |= {name for name in schema.names if name.endswith(_VALID) or (name == "audio" and recipe.audio is not None)}
    missing = [name for name in schema.names if name not in values and name not in made]
    wrong = [f"{name!r} is {_ADDED if name in beside else 'new'}" for name in new]
    wrong += [f"{name.removesuffix(_VALID)!r} lacks values, as it did not before" for name in lacking]
    wrong += [f"{name!r} is of another type" for name in differing]
    wrong += [f"{name!r} is missing" for name in missing]
    if wrong:
        raise UsageError(
            place=layout.root,
            expected="the columns that the dataset has in its shards",
            found=f"others ({list_some(wrong)})",
            hint=(
                f"{'; '.join(_ways_out(new, differing, missing or lacking))}; or build anew, without "
                "--update, into another folder or with --overwrite"
            ),
        )


def _ways_out(new: Collection[str], differing: Collection[str], lacking: Collection[str]) -> Iterator[str]:
    """Yield suggestions for columns that are new, that have another type, or that lack some or all values."""
    if new:
        yield f"leave new columns out of the source, and add them to the packed samples with '{program()} add'"
    if differing:
        yield "--text, --int and --float set the type of a column"
    if lacking:
        yield "give a source with all values of the same columns"


def number_classes(layout: Layout, schema: Schema, listing: Listing, wanted: bool) -> Listing:
    """The listing with the class numbers of the dataset; new classes follow them."""
    items, classes = listing.items, dict(listing.classes)
    numbers_of: dict[str, list[int]] = {}
    for name in (one.name for one in schema if one.classes is not None and one.name not in classes):
        if any(name in item.columns for item in listing.items):
            raise UsageError(
                place=layout.root, expected=f"names of classes in {name!r}, as in the dataset", found="numbers"
            )
    for name, found in listing.classes.items():
        known = schema[name].classes if name in schema else None
        if known is None:
            if not found:
                continue
            raise UsageError(
                place=layout.root,
                expected=f"a dataset with names of classes in {name!r}, as the source has",
                found="none",
            )
        names = list(map(class_name, known))
        new = [one for one in found if one not in names]
        if new and not wanted:
            raise UsageError(
                place=layout.root,
                expected=f"the classes of the dataset in {name!r} ({list_some(known)})",
                found=f"also {list_some(list(map(shorten, new)))}",
                hint="add --new-classes to append them; numbers of classes stay",
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
        # The 0 of a rejected item may stand for a missing label.
        if value is not None and value != NO_CLASS and (item.reject is None or value != 0):
            columns[name] = numbers[value]
    return item._replace(columns=columns)
