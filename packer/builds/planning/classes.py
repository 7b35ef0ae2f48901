"""Settle the classes of a build's labels: number labels by a given list, or take the names from a column."""

import json
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packer.recipe import Recipe
from packer.sources.base import Listing
from packer.sources.files import is_packed
from packer.sources.item import Item
from packer.workspace.disk_list import LazyMap
from shardspec.errors import UsageError, system_reason
from shardspec.layout import Layout
from shardspec.schema import NO_CLASS, class_name, describe_spellings, describe_wrong_classes
from shardspec.wording import counted, did_you_mean, found_instead, list_some, quote_some, shorten

_LIST_BYTES = 64 * 10**6
"""Largest file with a list of classes, in bytes."""

_DIGITS = 10
"""A class number must have fewer digits than this."""


def settle_classes(listing: Listing, recipe: Recipe) -> Listing:
    """Number the labels by the recipe's list of classes, and take class names from the recipe's column `label_names`.

    Raises
    ------
    UsageError
        If there are no labels, if a label is not in the list, or if the column does not have exactly one name for every
        label.
    """
    listing = _unite_spellings(listing)
    classes = list(recipe.classes) or (None if recipe.classes_from is None else read_classes(recipe.classes_from))
    if classes is None and recipe.label_names is None:
        return listing
    items = listing.items[: recipe.limit]
    if not any("label" in item.columns for item in items):
        option = "classes" if recipe.classes else "label_names" if classes is None else "classes_from"
        raise UsageError(
            option=option,
            expected="labels to number",
            found="none",
            hint="choose their origin with `label_from`",
        )
    names: Mapping[int, str] | None = None
    if "label" in listing.classes:
        names = dict(enumerate(listing.classes["label"]))
    if recipe.label_names is not None:
        if names is not None:
            raise UsageError(
                option="label_names", expected="labels that are numbers", found="names", hint="leave the option out"
            )
        names = _names_of_column(listing, items, recipe.label_names)
    if classes is None:
        assert names is not None
        return replace(listing, classes={**listing.classes, "label": _without_gaps(names)})
    return replace(listing, items=_renumber(items, names, classes), classes={**listing.classes, "label": classes})


def _unite_spellings(listing: Listing) -> Listing:
    """Normalise the class names to NFC. Classes with the same normalised name become one class."""
    classes = {field: list(map(class_name, names)) for field, names in listing.classes.items()}
    twice = [field for field, names in classes.items() if len(set(names)) < len(names)]
    for field in twice:
        if field != "label" or not any("label" in item.columns for item in listing.items):
            classes[field] = listing.classes[field]  # only labels are renumbered
            continue
        names = classes[field]
        classes[field] = list(dict.fromkeys(names))
        items = _renumber(listing.items, dict(enumerate(names)), classes[field])
        notes = (*listing.notes, *describe_spellings(listing.classes[field]))
        listing = replace(listing, items=items, notes=notes)
    return replace(listing, classes=classes)


def read_classes(path: str) -> list[str]:
    """Read class names from a packed dataset, a text file with one name per line, or a JSON file.

    Parameters
    ----------
    path : str
        The folder of a packed dataset, or a file. A JSON file (``.json``) holds a list of names, or an object that maps
        names to numbers or numbers to names.

    Raises
    ------
    UsageError
        If the classes cannot be read, or are invalid.
    DatasetError
        If the packed dataset cannot be read.
    """
    place = Path(path)
    if place.is_dir():
        if not is_packed(place):
            raise UsageError(
                option="classes_from", expected="a packed dataset or a file", found="another folder", hint=path
            )
        schema = Layout(place).load().schema
        found = schema["label"].classes if "label" in schema else None
        if found is None:
            raise UsageError(
                option="classes_from",
                expected="a dataset whose labels have names",
                found=f"no names in {path}",
                hint="use a file with the names",
            )
        return _checked(list(found), path)
    try:
        if not stat.S_ISREG(place.stat().st_mode):  # a pipe or a device may never end
            raise UsageError(
                option="classes_from", expected="a packed dataset or a file", found=f"something else at {path}"
            )
        if place.stat().st_size > _LIST_BYTES:
            raise UsageError(
                option="classes_from", expected="a list of names", found=f"a file of more than {_LIST_BYTES} bytes"
            )
        text = place.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(
            option="classes_from", expected="a packed dataset or a file", found=path, hint=system_reason(error)
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(option="classes_from", expected="text in UTF-8", found=f"other bytes in {path}") from error
    if place.suffix.lower() != ".json":
        return _checked([line.strip() for line in text.rstrip().split("\n")], path)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"expected JSON in {path}, {found_instead(error)}", option="classes_from") from error
    return _checked(document if isinstance(document, list) else _in_order(document, path), path)


def _in_order(document: Any, path: str) -> list[Any]:
    """Return the names of a JSON object in the order of their numbers."""
    if isinstance(document, dict):
        pairs = list(document.items())
        if all(type(number) is int for _, number in pairs):
            pairs = [(number, name) for name, number in pairs]
        elif all(name.isdecimal() and name.isascii() and len(name) < _DIGITS for name, _ in pairs):
            pairs = [(int(number), name) for number, name in pairs]
        else:
            pairs = [(-1, None)]
        if sorted(number for number, _ in pairs) == list(range(len(pairs))):
            return [name for _, name in sorted(pairs, key=lambda pair: pair[0])]
    raise UsageError(
        option="classes_from",
        expected="a list of names, or an object that maps names to the numbers from 0 or the numbers to names",
        found=f"other JSON in {path}",
    )


def _checked(names: list[Any], path: str) -> list[str]:
    """Check that names are valid class names, and return them in NFC."""
    wrong = describe_wrong_classes(names)
    if wrong is not None:
        raise UsageError(f"{wrong} in {path}", option="classes_from")
    return list(map(class_name, names))


def _names_of_column(listing: Listing, items: Sequence[Item], column: str) -> dict[int, str]:
    """Return the name of each label according to a column."""
    field = listing.fields.get(column)
    if field is None or field == "label":
        known = [name for name in listing.fields if listing.fields[name] != "label"]
        found = (
            f"one of {quote_some(known)}, found {shorten(column)}{did_you_mean(column, known)}"
            if known
            else "found none"
        )
        raise UsageError(f"expected a column other than the label, {found}", option="label_names")
    names: dict[int, str] = {}
    numbers: dict[str, int] = {}
    for item in items:
        if item.reject is not None:  # a rejected item may have no columns
            continue
        number, name = item.columns["label"], item.columns[field]
        if number == NO_CLASS or not item.columns.get(f"{field}_valid", True):
            continue
        if not isinstance(name, str) or not name.strip():
            raise UsageError(option="label_names", expected=f"names in column {shorten(column)}", found=shorten(name))
        name = class_name(name.strip())
        if names.setdefault(number, name) != name:
            raise UsageError(
                option="label_names",
                expected="one name for each label",
                found=f"{shorten(names[number])} and {shorten(name)} for {number}",
            )
        if numbers.setdefault(name, number) != number:
            raise UsageError(
                option="label_names",
                expected="one label for each name",
                found=f"{numbers[name]} and {number} for {shorten(name)}",
                hint="take a column whose names differ",
            )
    unnamed = sorted({item.columns["label"] for item in items if item.reject is None} - {NO_CLASS, *names})
    if unnamed:
        raise UsageError(option="label_names", expected="a name for every label", found=f"none for {unnamed[0]}")
    return names


def _without_gaps(names: Mapping[int, str]) -> list[str]:
    """Return the names in the order of their numbers, which must be 0, 1, 2 and so on."""
    for expected, number in enumerate(sorted(names)):
        if number != expected:
            raise UsageError(
                f"label_names: expected labels 0, 1, 2 and so on, found {number} after {expected - 1}: "
                "list the names of all numbers with `classes_from`"
                if expected
                else f"label_names: expected labels from 0 on, found {number} as the smallest"
            )
    return [names[number] for number in sorted(names)]


def _renumber(items: Sequence[Item], names: Mapping[int, str] | None, classes: Sequence[str]) -> Sequence[Item]:
    """Number the labels of items by a list of classes. The label -1 (no class) stays.

    If `names` is None, the labels must be numbers of the list already.
    """
    numbers = {name: number for number, name in enumerate(classes)}

    def find(old: Any) -> tuple[Any, int | None]:
        """Return the name and the new number of a label."""
        if old == NO_CLASS:
            return None, NO_CLASS
        if names is None:
            return old, old if type(old) is int and 0 <= old < len(classes) else None
        name = names.get(old, old) if isinstance(old, int) else None
        return name, numbers.get(name) if isinstance(name, str) else None

    def renumber(item: Item) -> Item:
        _, new = find(item.columns.get("label"))
        return item._replace(columns={**item.columns, "label": new})

    unknown: Counter[Any] = Counter()
    for item in items:
        name, new = find(item.columns.get("label"))
        if new is None and item.reject is None:
            unknown[name] += 1
    if unknown:
        expected = list_some([repr(name) for name in classes])
        if names is None:
            expected = f"numbers from 0 to {len(classes) - 1}"
        found = list_some(
            [f"{shorten(name)} ({counted(count, 'item')})" for name, count in sorted(unknown.items(), key=str)]
        )
        (first, *others) = unknown
        like = did_you_mean(first, classes) if isinstance(first, str) and not others else ""
        raise UsageError(
            option="classes",
            expected=f"labels in {expected}",
            found=f"{found}{like}",
            hint="add them to the list, or leave these items out of the source",
        )
    return LazyMap(items, renumber)
