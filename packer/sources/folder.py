"""A folder of pictures and videos, nested."""

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packer.recipe import Recipe, field_name
from packer.sources.base import Listing, Roots, describe_path, refuse_path_column
from packer.sources.finding import FoundFiles
from packer.sources.item import Item
from packer.sources.patterns import Globs, PathPattern, describe_unmatched
from packer.sources.rows import describe_replaced, read_columns
from packer.sources.sidecars import RENAMED, read_sidecars
from packer.sources.values import column_types, parse_cells
from shardspec.errors import UsageError
from shardspec.fields import RESERVED
from shardspec.splits import SPLIT_NAMES
from shardspec.wording import LONG, counted, list_some, shorten

_COLUMNS_MAX = 1000
"""The most columns of all sidecars together: beyond it, what stands for their names are values."""

_SPLIT_AND_LABEL = "--fields-from-path '{split}/{label}/**'"


class FolderSource:
    """Every picture and video below a folder, by suffix, in the order of their paths' bytes.

    Hidden files, hidden folders and files with other suffixes are ignored and counted. Links to folders are not
    followed: one that leads out of the folder is a reject, and others are ignored, since their files are listed where
    they lie.

    Parameters
    ----------
    root : Path
    recipe : Recipe, optional
        `include` and `exclude` choose among the files. `fields_from_path` and `sidecars` give the items columns, whose
        types `text`, `int` and `float` fix. Links into the folders of `root` are followed, to each folder once.

    Raises
    ------
    UsageError
        If the options do not fit together.
    """

    def __init__(self, root: Path, recipe: Recipe | None = None) -> None:
        recipe = recipe or Recipe()
        self.root = root.resolve()
        self._links_to = tuple(Path(folder).resolve() for folder in recipe.root)
        for folder in self._links_to:
            if not folder.is_dir():
                raise UsageError(
                    f"root: expected a folder, found {'a file' if folder.exists() else 'none'} at {folder}"
                )
        self._roots = (self.root, *self._links_to)
        self._include, self._exclude = recipe.include, recipe.exclude
        self._pattern = None if recipe.fields_from_path is None else PathPattern(recipe.fields_from_path)
        self._sidecars = recipe.sidecars
        self._types = column_types(recipe)
        if self._types and not self._has_columns:
            raise UsageError(
                f"{next(iter(self._types.values()))}: applies only to columns, found a folder, which has them only "
                "with --fields-from-path or --sidecars"
            )

    @property
    def _has_columns(self) -> bool:
        return self._pattern is not None or self._sidecars

    def list_items(self, label_from: str, path_column: str) -> Listing:
        """The items, labelled by the first folder of their paths if `label_from` is ``"folder"``, or by a column."""
        if label_from not in ("auto", "none", "folder") and not self._has_columns:
            raise UsageError(
                f"label_from: expected 'folder' or 'none' for a folder, found {shorten(label_from)}: "
                "its files get other fields with --fields-from-path or --sidecars"
            )
        refuse_path_column(path_column, "a folder")
        include, exclude = Globs(self._include), Globs(self._exclude)
        files = FoundFiles(self.root, self._links_to, include, exclude, self._sidecars)
        items = [describe_path(i, name, self.root / name, self._roots, {}) for i, name in enumerate(files.names)]
        notes: list[str] = []
        listing = self._with_columns(items, files, label_from, notes) if items and self._has_columns else Listing(items)
        if label_from == "folder":
            listing = _with_folder_labels(listing)
        notes += _describe_labels(listing, label_from, files.folders)
        for option, globs in (("include", include), ("exclude", exclude)):
            if globs.unmatched:
                notes.append(describe_unmatched(option, globs.unmatched))
        if files.ignored.count:
            notes.append(files.ignored.describe())
        return replace(listing, ignored=files.ignored.count, notes=notes)

    def _with_columns(self, items: Sequence[Item], files: FoundFiles, label_from: str, notes: list[str]) -> Listing:
        """The items with columns from their paths and sidecars. An item whose path or sidecar is wrong is a reject."""
        found = list(items)
        rows: dict[int, dict[str, Any]] = {item.index: {} for item in items if item.reject is None}
        names: dict[str, None] = {}
        if self._pattern is not None:
            names |= dict.fromkeys(self._pattern.names)
            self._read_paths(self._pattern, found, rows, notes)
        if self._sidecars:
            names |= self._read_sidecars(files, found, rows, notes)
        places = list(rows)
        wanted = "none" if label_from == "folder" else label_from
        columns = read_columns(
            list(rows.values()), list(names), wanted, self._types, lambda row: shorten(found[places[row]].name, LONG)
        )
        if label_from == "folder":
            notes += [describe_replaced(name, label_from) for name in names if field_name(name) == "label"]
        notes += columns.notes
        for row, index in enumerate(places):
            values = {name: values[row] for name, values in columns.values.items()}
            found[index] = replace(found[index], columns=values, reject=columns.rejects[row])
        roots = Roots((self.root,))
        return Listing(found, classes=columns.classes, roots=roots, fields=columns.fields, arrays=columns.arrays)

    def _read_paths(
        self, pattern: PathPattern, items: list[Item], rows: dict[int, dict[str, Any]], notes: list[str]
    ) -> None:
        """Add the placeholders of each path to its row; items whose paths do not match become rejects without a row."""
        expected = f"like {shorten(pattern.text, LONG)}"
        wrong = []
        for index in list(rows):
            name = items[index].name
            values = pattern.match(name)
            if values is not None:
                rows[index] |= {column: _as_utf8(value) for column, value in values.items()}
            else:
                wrong.append(name)
                items[index] = replace(items[index], reject=f"expected a path {expected} (--fields-from-path)")
                del rows[index]
        if wrong and not rows:
            raise UsageError(
                f"fields_from_path: expected paths {expected}, found none among "
                f"{counted(len(wrong), 'path')} below the source, such as {shorten(wrong[0], LONG)}"
            )
        if wrong:
            notes.append(
                f"{len(wrong)} of {counted(len(items), 'path')} rejected: not {expected}, such as "
                f"{list_some(list(map(shorten, wrong[:3])))} (--exclude leaves files out)"
            )
        for column in pattern.names:
            if column not in self._types:
                parsed = parse_cells([row[column] for row in rows.values()])
                for row, value in zip(rows.values(), parsed, strict=True):
                    row[column] = value

    def _read_sidecars(
        self, files: FoundFiles, items: list[Item], rows: dict[int, dict[str, Any]], notes: list[str]
    ) -> dict[str, None]:
        """Add what is in each item's sidecars to its row; items with a wrong one become rejects without a row.

        Returns
        -------
        dict
            With the names of the columns.
        """
        names: dict[str, None] = {}
        without, wrong = [], []
        for index in list(rows):
            item = items[index]
            paths = files.sidecars_of(item.name)
            if not paths:
                without.append(shorten(item.name))
            try:
                columns, read = read_sidecars(paths, self.root, self._roots)
            except ValueError as error:
                wrong.append(shorten(item.name))
                items[index] = replace(item, reject=str(error))
                del rows[index]
                continue
            rows[index] |= columns
            names |= dict.fromkeys(columns)
            items[index] = replace(item, files=read)
            if len(names) > _COLUMNS_MAX:
                raise UsageError(
                    f"sidecars: expected the same few names in all .json files, found more than {_COLUMNS_MAX:,}: "
                    "put what differs into values"
                )
        if without and len(without) == len(rows) and not wrong:
            raise UsageError(
                f"sidecars: expected .txt or .json files beside the items, such as {shorten(_beside(items[0].name))}, "
                "found none"
            )
        self._refuse_doubles(names)
        if without:
            notes.append(f"no sidecar beside {len(without)} of {counted(len(items), 'item')}: {list_some(without, 3)}")
        if wrong:
            notes.append(f"{counted(len(wrong), 'item')} rejected for a wrong sidecar: {list_some(wrong, 3)}")
        for name in names:
            if (field := name.removeprefix(RENAMED)) in RESERVED:
                notes.append(
                    f"{field!r} of the sidecars is packed as {name!r}: a build writes a field {field!r} itself"
                )
        return names

    def _refuse_doubles(self, names: Collection[str]) -> None:
        """Check that no column of a sidecar has the name of a placeholder."""
        placeholders = {} if self._pattern is None else {field_name(name): name for name in self._pattern.names}
        for name in names:
            if field_name(name) in placeholders:
                placeholder = placeholders[field_name(name)]
                raise UsageError(
                    f"fields_from_path: expected other names than in the sidecars, found {{{placeholder}}} and "
                    f"{shorten(name)}: rename the placeholder"
                )


def _beside(name: str) -> str:
    """A sidecar's name for an item's."""
    return f"{os.path.splitext(name)[0]}.txt"  # noqa: PTH122 -- a name, whatever characters it has


def _as_utf8(text: str) -> str:
    """A text that a manifest can hold, which is UTF-8: bytes that are not are escaped."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def _first_level(name: str) -> str:
    first, separator, _ = name.partition("/")
    return first if separator else ""


def _with_folder_labels(listing: Listing) -> Listing:
    """The items labelled by their first folder; one directly in the source is a reject."""
    folders = sorted({_first_level(item.name) for item in listing.items} - {""}, key=os.fsencode)
    numbers = {name: number for number, name in enumerate(folders)}
    reason = "expected a folder to name the label (--label-from folder), found a file directly in the source"
    items = [
        replace(item, columns={**item.columns, "label": numbers[first]})
        if (first := _first_level(item.name))
        else replace(item, reject=item.reject or reason)
        for item in listing.items
    ]
    return replace(listing, items=items, classes={"label": list(map(_as_utf8, folders))})


def _describe_labels(listing: Listing, label_from: str, folders: Collection[str]) -> list[str]:
    """In words, what may be wrong with the labels of a folder.

    Parameters
    ----------
    folders : collection of str
        The folders in the source, with and without items.
    """
    classes = {_first_level(item.name) for item in listing.items} - {""}
    shown = list_some(sorted(map(shorten, classes)))
    splits = bool(classes) and {name.lower() for name in classes} <= SPLIT_NAMES
    if label_from == "folder":
        empty = sorted(map(shorten, set(folders) - classes))
        found = [f"no class for {list_some(empty)}: no picture or video to pack in it"] if empty else []
        if splits:
            found.append(f"the classes are {shown}, which look like splits: {_SPLIT_AND_LABEL} gives both as fields")
        return found
    if label_from != "auto" or "label" in listing.fields.values() or len(classes) < 2:
        return []
    if splits:
        return [f"no labels: {_SPLIT_AND_LABEL} takes them from the folders in {shown}"]
    return [
        f"no labels: --label-from folder makes {len(classes)} classes of the folders {shown}; "
        "--label-from none if none are wanted"
    ]
