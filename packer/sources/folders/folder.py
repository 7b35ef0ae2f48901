"""The source for a folder of images and videos, or of sound files, including nested folders."""

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice, tee
from pathlib import Path
from typing import Any

from packer.recipe import Recipe, field_name
from packer.recipe.checks import column_types
from packer.sources.base import AllowedFolders, FileChecker, Listing, refuse_path_column
from packer.sources.files import LOCAL, LocalFiles
from packer.sources.folders.frames import FramesError, frame_numbers
from packer.sources.folders.patterns import Globs, PathPattern, describe_unmatched
from packer.sources.folders.sidecars import RENAMED, read_sidecars
from packer.sources.folders.walk import FoundFile, FoundFiles
from packer.sources.item import Item, item_list
from packer.sources.row_fields import describe_replaced, read_item_columns
from packer.sources.tables.base import is_table
from packer.vision.media import IMAGE, Medium, describe_files, describe_sought, media_named, medium_of
from packer.workspace.disk_list import LazyMap, text_list
from shardspec.errors import UsageError
from shardspec.fields import RESERVED
from shardspec.schema import class_name
from shardspec.splits.assignment import SPLIT_NAMES
from shardspec.wording import LONG, counted, list_some, shorten

_COLUMNS_MAX = 1000
"""Most columns of all sidecars together. With more, the names in the sidecars are probably values."""

_SHOWN = 3
"""Number of item names to list in a note."""

_LOOKED, _FOLDERS_LOOKED = 10_000, 20
"""Number of names and of folders to examine for frames. This takes milliseconds."""

_FRAMES_MIN = 5
_NUMBERED_SHARE = 0.9

_SPLIT_AND_LABEL = "--fields-from-path '{split}/{label}/**'"


class FolderSource:
    """All files of the recipe's media below a folder, by suffix, in the byte order of their paths.

    Hidden files, hidden folders and files with other suffixes are ignored and counted. Links to folders are not
    followed. A link that leads out of the folder is a reject; other links are ignored, since their targets are listed.

    Parameters
    ----------
    recipe : Recipe, optional
        `include` and `exclude` choose files. `fields_from_path` and `sidecars` add columns to the items, and `text`,
        `int` and `float` set the types of these columns. Links into the folders of `root` are followed, but each folder
        is listed only once. With `frame_folders`, a folder with images is a single item, a video.

    Raises
    ------
    UsageError
        If the options contradict each other.
    """

    def __init__(self, root: Path, recipe: Recipe | None = None, files: LocalFiles = LOCAL) -> None:
        recipe = recipe or Recipe()
        self.root = root.resolve()
        self._given, self._files = root, files
        self._links_to = tuple(Path(folder).resolve() for folder in recipe.root)
        for folder in self._links_to:
            if not folder.is_dir():
                raise UsageError(
                    option="root", expected="a folder", found=f"{'a file' if folder.exists() else 'none'} at {folder}"
                )
        self._roots = (self.root, *self._links_to)
        self._include, self._exclude = recipe.include, recipe.exclude
        self._pattern = None if recipe.fields_from_path is None else PathPattern(recipe.fields_from_path)
        self._sidecars = recipe.sidecars
        self._frame_rate = recipe.frame_folders
        self._media = media_named(recipe.media)
        self._finds_boxes = any(step.use == "detect" for step in recipe.chain)  # boxes need no labels
        self._types = column_types(recipe)
        if self._types and not self._has_columns:
            raise UsageError(
                "applies only to columns, found a folder, which has columns only with `fields_from_path` or `sidecars`",
                option=next(iter(self._types.values())),
            )

    @property
    def _has_columns(self) -> bool:
        return self._pattern is not None or self._sidecars

    def list_items(self, label_from: str, path_column: str) -> Listing:
        """List the items. They are labelled by their first folder if `label_from` is ``"folder"``, or by a column."""
        if label_from not in ("auto", "none", "folder") and is_table(Path(label_from)):
            raise UsageError(
                option="label_from",
                expected="'folder' or 'none' for a folder",
                found=f"the table {shorten(label_from)}",
                hint="pack the table, with the folder of its files as `root`",
            )
        if label_from not in ("auto", "none", "folder") and not self._has_columns:
            raise UsageError(
                option="label_from",
                expected="'folder' or 'none' for a folder",
                found=shorten(label_from),
                hint="its files get other fields with `fields_from_path` or `sidecars`",
            )
        refuse_path_column(path_column, "a folder")
        include, exclude = Globs(self._include), Globs(self._exclude)
        files = FoundFiles(
            self.root,
            self._links_to,
            include,
            exclude,
            keeps_sidecars=self._sidecars,
            joins_frames=self._frame_rate is not None,
            media=self._media,
            files=self._files,
        )
        examiner = FileChecker(AllowedFolders(self._roots, self._files), self._frame_rate)
        notes: list[str] = []
        if self._has_columns:
            listing = self._with_columns(files, examiner, label_from, notes)
        else:
            found = item_list()
            listing = Listing(found.extend(self._examined(files, examiner)))
        if label_from == "folder":
            listing = _with_folder_labels(listing, files.folders_of_items)
        if not (self._finds_boxes and label_from == "auto"):
            folders = files.folders - files.videos
            notes += _describe_labels(listing, label_from, folders, files.folders_of_items, self._media)
        for option, globs in (("include", include), ("exclude", exclude)):
            if globs.unmatched:
                notes.append(describe_unmatched(option, globs.unmatched))
        if self._frame_rate is None:
            notes += _describe_numbered((item.name for item in listing.items), 2 if label_from == "folder" else 1)
        if files.ignored.count:
            notes.append(files.ignored.describe())
        what = describe_sought(self._media)
        sought = f"{what}, in {self._given} and below"
        return replace(listing, ignored=files.ignored.count, notes=notes, sought=sought)

    def _examined(self, files: Iterable[FoundFile], examiner: FileChecker) -> Iterator[Item]:
        if self._frame_rate is None:
            yield from examiner.files(file.name for file in files)
            return
        for index, file in enumerate(files):
            if file.frames:
                yield examiner.frames(index, file.name, file.frames)
            else:
                yield examiner.file(index, file.name)

    def _with_columns(
        self, files: Iterable[FoundFile], examiner: FileChecker, label_from: str, notes: list[str]
    ) -> Listing:
        """List the items with columns from paths and sidecars. An item with an invalid path or sidecar is a reject."""
        read = _Read(self._pattern, self._sidecars, self.root, self._roots, self._files)
        with_sidecars, named = tee(files)
        pairs = zip(with_sidecars, self._examined(named, examiner), strict=True)
        raw = item_list().extend(read.item(plain, file.sidecars) for file, plain in pairs)
        if not raw:
            return Listing(raw)
        notes += read.describe(raw)

        placeholders = () if self._pattern is None else self._pattern.names
        wanted = "none" if label_from == "folder" else label_from
        columns, items = read_item_columns(
            raw,
            lambda item: item.columns,
            wanted,
            self._types,
            cells=lambda name: name in placeholders and name not in self._types,
        )
        if label_from == "folder":
            names = [*placeholders, *(name for name in read.names if name not in placeholders)]
            notes += [describe_replaced(name, label_from) for name in names if field_name(name) == "label"]
        notes += columns.notes
        found = item_list().extend(items)
        roots = AllowedFolders((self.root,), self._files)
        return Listing(found, classes=columns.classes, roots=roots, fields=columns.fields, arrays=columns.arrays)


class _Read:
    """Reads the columns of items from their paths and sidecars.

    Parameters
    ----------
    sidecars : bool
        Whether sidecars are read.
    roots : sequence of Path
        See `FolderSource`.

    Attributes
    ----------
    names : dict of str to None
        The names of the columns from sidecars.
    """

    def __init__(
        self, pattern: PathPattern | None, sidecars: bool, root: Path, roots: Sequence[Path], files: LocalFiles
    ) -> None:
        self.names: dict[str, None] = {}
        self._pattern = pattern
        self._sidecars = sidecars
        self._root, self._roots, self._files = root, roots, files
        self._matched = self._unlike = self._with_sidecars = 0
        self._without = text_list()

    def item(self, item: Item, paths: Sequence[str]) -> Item:
        """Return an item with the columns from its path and sidecars, before any conversion."""
        row: dict[str, Any] = {}
        if item.reject is None and self._pattern is not None:
            values = self._pattern.match(item.name)
            if values is None:
                self._unlike += 1
                return item._replace(
                    reject=f"expected a path like {shorten(self._pattern.text, LONG)} (--fields-from-path)"
                )
            self._matched += 1
            row |= {column: _as_utf8(value) for column, value in values.items()}
        if item.reject is not None or not self._sidecars:
            return item._replace(columns=row)
        if paths:
            self._with_sidecars += 1
        else:
            self._without.append(shorten(item.name))
        try:
            columns, read = read_sidecars(paths, self._root, self._roots, self._files)
        except ValueError as error:
            return item._replace(reject=str(error))
        self.names |= dict.fromkeys(columns)
        if len(self.names) > _COLUMNS_MAX:
            raise UsageError(
                option="sidecars",
                expected="the same few names in all .json files",
                found=f"more than {_COLUMNS_MAX:,}",
                hint="use fixed names, and store data in the values",
            )
        return item._replace(columns=row | columns, files=read)

    def describe(self, items: Sequence[Item]) -> list[str]:
        """Describe the items without sidecars, and columns of other names than in the sidecars.

        Raises
        ------
        UsageError
            If no path is like the pattern, no item has a sidecar, or a name in a sidecar is also a placeholder.
        """
        example = shorten(items[0].name, LONG)
        if self._pattern is not None and self._unlike and not self._matched:
            raise UsageError(
                option="fields_from_path",
                expected=f"paths like {shorten(self._pattern.text, LONG)}",
                found=f"none among {counted(len(items), 'path')} below the source, such as {example}",
            )
        if self._without and not self._with_sidecars:
            raise UsageError(
                option="sidecars",
                expected=f".txt or .json files next to the items, such as {shorten(_beside(items[0].name))}",
                found="none",
            )
        self._refuse_doubles()
        notes = []
        if self._without:
            without = f"{len(self._without)} of {counted(len(items), 'item')}"
            notes.append(f"no sidecar next to {without}: {list_some(self._without, _SHOWN)}")
        for name in self.names:
            if (field := name.removeprefix(RENAMED)) in RESERVED:
                notes.append(
                    f"{field!r} of the sidecars is packed as {name!r}: a build writes a field {field!r} itself"
                )
        return notes

    def _refuse_doubles(self) -> None:
        placeholders = {} if self._pattern is None else {field_name(name): name for name in self._pattern.names}
        for name in self.names:
            if field_name(name) in placeholders:
                placeholder = placeholders[field_name(name)]
                raise UsageError(
                    option="fields_from_path",
                    expected="other names than in the sidecars",
                    found=f"{{{placeholder}}} and {shorten(name)}",
                    hint="rename the placeholder",
                )


def _beside(name: str) -> str:
    return f"{os.path.splitext(name)[0]}.txt"  # noqa: PTH122 -- a name, whatever characters it has


def _as_utf8(text: str) -> str:
    """Escape bytes that are not UTF-8, since a manifest is UTF-8."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def _first_level(name: str) -> str:
    first, separator, _ = name.partition("/")
    return first if separator else ""


def _with_folder_labels(listing: Listing, classes: Collection[str]) -> Listing:
    """Label the items by their first folder, which is one of `classes`. An item outside these folders is a reject."""
    folders = sorted(classes, key=lambda name: (os.fsencode(class_name(name)), os.fsencode(name)))
    numbers = {name: number for number, name in enumerate(folders)}
    reason = "expected a folder to name the label (--label-from folder), found it directly in the source"

    def label(item: Item) -> Item:
        first = _first_level(item.name)
        if first:
            return item._replace(columns={**item.columns, "label": numbers[first]})
        return item._replace(reject=item.reject or reason)

    return replace(listing, items=LazyMap(listing.items, label), classes={"label": list(map(_as_utf8, folders))})


def _describe_labels(
    listing: Listing, label_from: str, folders: Collection[str], classes: set[str], media: Collection[Medium]
) -> list[str]:
    """Describe possible mistakes in the labels of a folder.

    Parameters
    ----------
    folders : collection of str
        All folders directly in the source.
    classes : set of str
        Those of `folders` that contain items.
    """
    shown = list_some(sorted(map(shorten, classes)))
    splits = bool(classes) and {name.lower() for name in classes} <= SPLIT_NAMES
    if label_from == "folder":
        empty = sorted(map(shorten, set(folders) - classes))
        found = [f"ignored folders without {describe_files(media)}: {list_some(empty)}"] if empty else []
        if splits:
            found.append(f"the classes {shown} look like splits: {_SPLIT_AND_LABEL} packs split and label as fields")
        return found
    if label_from != "auto" or "label" in listing.fields.values() or len(classes) < 2:
        return []
    if splits:
        return [f"no labels: {_SPLIT_AND_LABEL} takes them from the folders in {shown}"]
    return [
        f"no labels: --label-from folder makes {len(set(map(class_name, classes)))} classes from the folders {shown}; "
        "--label-from none hides this note"
    ]


def _describe_numbered(names: Iterable[str], depth: int) -> list[str]:
    """Return a note if folders that are packed image by image seem to hold the frames of videos.

    The note is made if, in nearly all of several folders, the names of the images differ only in numbers that count
    from 0 or 1 without a gap.

    Parameters
    ----------
    names : iterable of str
        Names of items, sorted; only the first ones are examined.
    depth : int
        Minimum number of folders above the images.
    """
    looked = list(islice(names, _LOOKED))
    groups = [(folder, list(found)) for folder, found in groupby(looked, lambda name: name.rpartition("/")[0])]
    if len(looked) == _LOOKED:
        groups.pop()  # the last group may be incomplete
    deep = (group for group in groups if group[0] and group[0].count("/") + 1 >= depth)
    found = {folder: [name[len(folder) + 1 :] for name in names if medium_of(name) is IMAGE] for folder, names in deep}
    folders = [folder for folder, images in found.items() if images][:_FOLDERS_LOOKED]
    numbered = [folder for folder in folders if _counts_on(found[folder])]
    if len(numbered) < max(2, _NUMBERED_SHARE * len(folders)):
        return []
    example = f"{numbered[0]}/{found[numbered[0]][0]}"
    return [
        f"folders of numbered images, such as {shorten(example, LONG)}, are packed image by image: if each holds the "
        "frames of a video, --frame-folders FPS keeps them together"
    ]


def _counts_on(images: Sequence[str]) -> bool:
    """Return whether the numbers in the names count from 0 or 1 without a gap."""
    if len(images) < _FRAMES_MIN:
        return False
    try:
        numbers = sorted(frame_numbers(sorted(images)))
    except FramesError:
        return False
    return numbers[0] in (0, 1) and numbers[-1] - numbers[0] == len(numbers) - 1
