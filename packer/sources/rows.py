"""The sources for rows with paths: a list of Python dicts or any other sequence of mappings, and a table file."""

import hashlib
import json
import shlex
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from packer.recipe import field_name
from packer.recipe.checks import DROP
from packer.sources.base import AllowedFolders, FileChecker, Listing
from packer.sources.item import Item, item_list
from packer.sources.row_fields import read_columns
from packer.sources.tables.base import Table, open_table
from packer.sources.tables.chunks import Chunk, chunks_of, describe_row
from packer.vision.media import medium_of
from shardspec.errors import UsageError
from shardspec.schema import NO_CLASS
from shardspec.typing.columns import Where
from shardspec.wording import LONG, list_some, quote_some, shorten

_PATH_MAX = 4096
"""Longest path in characters. A longer text is a mistake, such as the content of a file."""

_FIRST_PATHS = 100
"""Number of paths after which a table none of whose files exists is refused."""

_SUFFIXES = (".jpg", ".jpeg", ".png", ".mp4", ".webp", ".JPG", ".JPEG", ".avi", ".mov", ".mkv", ".tif", ".bmp")
"""Suffixes to try for a path without one."""

_PATH_WORDS = {"file", "filename", "filepath", "image", "img", "path", "paths", "video"}
"""Words in names of columns that probably hold paths."""


class RowsSource:
    """Rows with a path or an ``image`` array.

    Every column except the path becomes a field. A column with missing values (None, NaN, an absent key) is stored with
    a sentinel (0, 0.0, false, "", an empty list or object) and a field ``<column>_valid``. Mixed integers and floats
    become floats; other mixtures are an error. Lists of numbers become arrays if they differ only in their lengths. If
    all have the same length, a missing list becomes zeros or false. Other lists become JSON.

    Parameters
    ----------
    root : Path or AllowedFolders
        The folders to which relative paths are relative; files outside them are rejects.
    types : dict of str to str
        Columns that become text, int or float regardless of their values.
    frame_rate : float, optional
        Frame rate of folders of frames; without it, a path to a folder is a reject.
    suffix : str, optional
        Appended to each path.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        root: Path | AllowedFolders,
        types: Mapping[str, str] | None = None,
        frame_rate: float | None = None,
        suffix: str | None = None,
    ) -> None:
        self.rows = rows
        self._suffix = suffix or ""
        self.roots = root if isinstance(root, AllowedFolders) else AllowedFolders.of(root)
        self._types = types or {}
        self._frame_rate = frame_rate

    def list_items(self, label_from: str, path_column: str) -> Listing:
        """List the items, in the order of the rows."""
        return self._list(lambda: chunks_of(_checked(self.rows)), label_from, path_column, describe_row)

    def _list(
        self,
        chunks: Callable[[], Iterable[Chunk]],
        label_from: str,
        path_column: str,
        where: Where,
        is_text: bool = False,
    ) -> Listing:
        """List the items of rows. See `read_columns` for the parameters."""
        columns = read_columns(chunks, label_from, self._types, where, cells=lambda _: is_text, leave=path_column)
        items, outside, example = item_list(), array("q"), ""
        examiner = FileChecker(self.roots, self._frame_rate)
        for chunk in chunks():
            paths = self._with_suffix(chunk.column(path_column))
            examiner.ask(paths)
            rows = columns.rows([chunk])
            for index, (path, (fields, reject)) in enumerate(zip(paths, rows, strict=True), chunk.first):
                path = None if isinstance(path, str) and not path.strip() else path
                if isinstance(path, str | Path) and len(str(path)) <= _PATH_MAX:
                    item = examiner.describe(index, str(path), fields, reject)  # a fault of the path comes first
                else:
                    if fields.get("image") is None:
                        found = "none" if path is None else shorten(path)
                        reject = f"{where(index)}: expected a path in column {path_column!r}, found {found}"
                    item = Item(index, f"row-{index:08d}", None, columns=fields, reject=reject)
                if item.reject is not None and item.path is not None and self.roots.leads_out(str(path).strip()):
                    outside.append(index)
                    example = example or f"{where(index)}: {shorten(str(path), LONG)}"
                items.append(item)
                if len(items) == _FIRST_PATHS and not outside:
                    self._check_first(items)
        return Listing(
            items,
            classes=columns.classes,
            roots=self.roots,
            fields=columns.fields,
            further=columns.further,
            arrays=columns.arrays,
            outside=outside,
            outside_example=example,
            notes=(*columns.notes, *examiner.notes()),
        )

    def _with_suffix(self, paths: Sequence[Any]) -> Sequence[Any]:
        """Return the paths with the suffix appended. A number may be the name of a file."""
        if not self._suffix:
            return paths
        return [
            f"{str(path).strip()}{self._suffix}" if isinstance(path, str | int | Path) and str(path).strip() else path
            for path in paths
        ]

    def _check_first(self, items: Sequence[Item]) -> None:
        """Refuse a table if none of its first files exists, since then its folder is probably another one."""
        if not all(
            item.reject is not None and item.path is not None and not self.roots.files.lexists(item.path)
            for item in items
        ):
            return
        first = items[0]
        remedy = "name the folder of the files with --root DIR"
        if not PurePath(first.name).suffix:
            suffix = next((one for one in _SUFFIXES if self.roots.files.lexists(f"{first.path}{one}")), None)
            example = suffix or ".jpg, if that is their suffix"
            remedy = f"append the suffix with --path-suffix {example}" + (f", or {remedy}" if suffix is None else "")
        folders = list_some([str(folder) for folder in self.roots.folders])
        raise UsageError(
            expected=f"files in {folders}",
            found=f"none of the first {len(items)}, such as {shorten(first.name, LONG)}",
            hint=remedy,
        )


class TableSource(RowsSource):
    """The rows of a table file.

    Parameters
    ----------
    roots : AllowedFolders, optional
        The folders to which the paths are relative; by default the table's folder.
    types : dict of str to str
        Columns that become text, int or float regardless of their values.
    frame_rate : float, optional
        Frame rate of folders of frames; without it, a path to a folder is a reject.
    unquoted : bool
        Whether quotation marks in a CSV or TSV file are plain characters.
    suffix : str, optional
        Appended to each path.
    """

    def __init__(
        self,
        path: Path,
        roots: AllowedFolders | None = None,
        types: Mapping[str, str] | None = None,
        frame_rate: float | None = None,
        unquoted: bool = False,
        suffix: str | None = None,
    ) -> None:
        super().__init__((), roots or AllowedFolders.of(path.parent), types, frame_rate, suffix)
        self.path = path
        self._unquoted = unquoted

    def list_items(self, label_from: str, path_column: str) -> Listing:
        """List the items, in the order of the rows. The file is read at least twice."""
        table = open_table(self.path, self._unquoted)
        unread = {name for name, kind in self._types.items() if kind == DROP and name != path_column}

        def chunks() -> Iterator[Chunk]:
            rows = 0
            for chunk in table.chunks(unread=unread):
                rows += chunk.rows
                yield chunk
            self._check(rows, table, path_column)

        listing = self._list(chunks, label_from, path_column, table.where, table.is_text)
        listing = replace(listing, notes=(*listing.notes, *table.notes.values()))
        return _with_class_labels(listing, table.classes, label_from)

    def _check(self, rows: int, table: Table, path_column: str) -> None:
        names = list(table.names)
        if not rows:
            raise UsageError(place=self.path, expected="a row for each image or video", found="no rows")
        if path_column not in names:
            file = next((name for name in names if medium_of(name) is not None), None)
            if file is not None:  # a hint to use --path-column would lose this row
                raise UsageError(
                    place=self.path,
                    expected="the names of the columns in the first line",
                    found=f"a row with the file {shorten(file)}",
                    hint="put a line such as path,label before it",
                )
            cased = {name.strip().lower(): name for name in names}
            close = get_close_matches(path_column.lower(), cased, n=1)
            named = [name for name in names if not _PATH_WORDS.isdisjoint(field_name(name).split("_"))]
            like = next(iter([*(cased[name] for name in close), *named]), None)
            option = "--path-column" if like is None else f"--path-column {shlex.quote(like)}"
            raise UsageError(
                place=self.path,
                expected=f"a column {shorten(path_column)} of paths",
                found=quote_some(names) or "none",
                hint="; ".join((f"name it with {option}", *table.notes.values())),
            )


def _with_class_labels(listing: Listing, named: Mapping[str, Sequence[str]], label_from: str) -> Listing:
    """Add the class names that the table's metadata has for the numbers in the label's column."""
    columns = [name for name, field in listing.fields.items() if field == "label"]
    column = next(iter(columns), None) if label_from == "auto" else label_from
    names = None if column is None or label_from == "none" else named.get(column)
    if names is None or "label" in listing.classes:
        return listing
    labels = {item.columns.get("label") for item in listing.items if item.reject is None}
    if not labels or not all(type(label) is int and NO_CLASS <= label < len(names) for label in labels):
        return listing
    return replace(listing, classes={**listing.classes, "label": list(names)})


def digest_value(value: Any) -> Any:
    """Return a column's value as JSON for the plan's fingerprint; arrays and bytes are represented by their SHA-256."""
    if isinstance(value, np.ndarray):
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return {"dtype": value.dtype.str, "shape": list(value.shape), "sha256": content}
    if isinstance(value, bytes):
        return {"sha256": hashlib.sha256(value).hexdigest()}
    json.dumps(value)
    return value


def _checked(rows: Sequence[Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows, and refuse rows that are not mappings, such as a list of paths."""
    for number in range(len(rows)):
        row = rows[number]
        if not isinstance(row, Mapping):
            kind = type(row).__name__
            found = f"{kind} in row {number} (counted from 0)" if number else f"a {type(rows).__name__} of {kind}"
            raise UsageError(
                option="source",
                expected="rows (mappings of column to value)",
                found=found,
                hint="pass the folder, or rows with a path",
            )
        yield row
