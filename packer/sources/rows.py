"""Rows: a list of Python dicts, or anything with a length that contains dicts; tables use this module too."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packer.recipe import field_name
from packer.sources.base import Listing, Roots
from packer.sources.item import Item
from packer.sources.values import ArrayType, array_type, convert, missing_list
from shardspec.errors import UsageError
from shardspec.fields import RESERVED, is_further_picture
from shardspec.wording import LENGTH, LONG, cut, did_you_mean, is_utf8, list_some, shorten

_KINDS = (bool, int, float, str, list, tuple, dict, bytes, np.ndarray)
_PATH_MAX = 4096
"""Characters of a path; a longer text is a file's content or another mistake."""

_INT64 = np.iinfo(np.int64)
_SENTINELS: Mapping[type, Any] = {bool: False, int: 0, float: 0.0, str: "", list: [], tuple: (), dict: {}, bytes: b""}

Where = Callable[[int], str]
"""Maps a row's index to the row's name in messages."""


def where_in(lines: Sequence[int]) -> Where:
    """Name rows by the line of their file in which they begin, or without lines by their number, counted from 0."""
    return lambda row: f"line {lines[row]}" if lines else f"row {row} (counted from 0)"


class Columns(NamedTuple):
    """The columns of some rows, each of one type.

    Attributes
    ----------
    values : dict of str to list
        The values of each field, a list with one value for each row.
    fields : dict of str to str
        The field that each column becomes, by column.
    classes : dict of str to list of str
        The names of the classes, where the labels are names.
    rejects : list of str or None
        For each row, why it is rejected.
    notes : tuple of str
        What the user should know, a line each.
    """

    values: dict[str, list[Any]]
    fields: dict[str, str]
    classes: dict[str, list[str]]
    rejects: list[str | None]
    notes: tuple[str, ...]

    @property
    def further(self) -> tuple[str, ...]:
        """Fields with pictures, other than ``image``."""
        return tuple(name for name, values in self.values.items() if is_further_picture(name) and _has_pictures(values))

    @property
    def arrays(self) -> dict[str, ArrayType]:
        """The array type of each field of lists of numbers."""
        return {name: found for name, values in self.values.items() if (found := array_type(values)) is not None}


def read_columns(
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    label_from: str,
    types: Mapping[str, str],
    where: Where,
) -> Columns:
    """Make columns of rows: each gets one type and a name as a field, and one of them may become the label.

    Parameters
    ----------
    rows : sequence of mapping
    names : sequence of str
        The columns to take.
    label_from : str
        See `Source`. If it names a column other than ``label``, that one takes the place of a column ``label``.
    types : dict of str to str
        Columns that become text, int or float, whatever their values look like.
    where : callable
        Names a row in messages.

    Raises
    ------
    UsageError
        If a column has a name that is no field's, has values of several types, or is not there.
    """
    fields = {name: field_name(name) for name in names}
    _check_names(fields)
    label = _label_field(label_from, fields)
    notes = []
    if label != "label":
        replaced = next((name for name, field in fields.items() if field == "label"), None)
        fields = {name: field for name, field in fields.items() if field != "label"}
        if replaced is not None and label is not None:
            notes.append(describe_replaced(replaced, label_from))
    _check_types(types, fields)
    columns: dict[str, list[Any]] = {}
    for name, field in fields.items():
        if field == "image":
            columns[field] = [row.get(name) for row in rows]
            _check_images(name, columns[field], where)
        else:
            values = [row.get(name) for row in rows]
            if name in types:
                values = convert(values, types[name], name, where)
            columns.update(_typed(name, field, values, where))
    classes = {}
    rejects: list[str | None] = [None] * len(rows)
    if label is not None:
        values = columns.pop(label)
        valid = columns.pop(f"{label}_valid", [True] * len(rows))
        columns["label"], names_of = _class_numbers(label, values, valid)
        if names_of is not None:
            classes["label"] = names_of
        rejects = [
            None if ok else f"{where(row)}: expected a label in column {shorten(label)}, found none"
            for row, ok in enumerate(valid)
        ]
    return Columns(columns, fields, classes, rejects, tuple(notes))


def describe_replaced(column: str, label_from: str) -> str:
    """In words, that a column ``label`` is not packed."""
    return (
        f"the column {shorten(column)} is not packed, since --label-from {label_from} takes its place: "
        "rename it to keep it"
    )


def _label_field(label_from: str, fields: Mapping[str, str]) -> str | None:
    """The field that holds the label, by its name before it becomes ``label``."""
    if label_from == "none":
        return None
    if label_from == "auto":
        return "label" if "label" in fields.values() else None
    if label_from not in fields:
        like = next((name for name, field in fields.items() if field == field_name(label_from)), None)
        hint = did_you_mean(label_from, fields) if like is None else f"; did you mean {shorten(like)}?"
        raise UsageError(
            f"label_from: expected a column, one of {list_some(list(fields)) or 'none'}, "
            f"found {shorten(label_from)}{hint}"
        )
    return fields[label_from]


class RowsSource:
    """Rows with a path, or with an ``image`` array of their own.

    Every column except the path becomes a field. A column with missing values (None, NaN, an absent key) is stored with
    a sentinel (0, 0.0, false, "", an empty list or object) and a field ``<column>_valid``. Mixed integers and floats
    become floats; other mixtures are an error. Lists of numbers become arrays if they differ at most in their lengths;
    a missing one becomes zeros, or false, if all have the same length. Other lists become JSON.

    Parameters
    ----------
    rows : sequence of mapping
    root : Path or Roots
        The folders to which relative paths are relative; files outside them are rejects.
    lines : sequence of int
        The line of the file in which each row begins; empty if the rows come from no file with lines.
    types : dict of str to str
        Columns that become text, int or float, whatever their values look like.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        root: Path | Roots,
        lines: Sequence[int] = (),
        types: Mapping[str, str] | None = None,
    ) -> None:
        self.rows = rows
        self.roots = root if isinstance(root, Roots) else Roots.of(root)
        self._where = where_in(lines)
        self._types = types or {}

    def list_items(self, label_from: str, path_column: str) -> Listing:
        """The items, in the order of the rows."""
        rows = [self.rows[i] for i in range(len(self.rows))]
        _check_rows(self.rows, rows)
        names = dict.fromkeys(key for row in rows for key in row if key != path_column)
        columns = read_columns(rows, list(names), label_from, self._types, self._where)
        items = [
            replace(item, reject=item.reject or reason)
            for item, reason in zip(self._items(rows, path_column, columns.values), columns.rejects, strict=True)
        ]
        return Listing(
            items,
            classes=columns.classes,
            roots=self.roots,
            fields=columns.fields,
            further=columns.further,
            arrays=columns.arrays,
            outside=self._outside(rows, path_column, items),
            notes=columns.notes,
        )

    def _outside(self, rows: list[Mapping[str, Any]], path_column: str, items: Sequence[Item]) -> dict[int, str]:
        """The rows whose paths lie outside the roots, by index, and the name of each row."""
        return {
            item.index: f"{self._where(item.index)}: {shorten(str(row[path_column]), LONG)}"
            for item, row in zip(items, rows, strict=True)
            if item.reject is not None and item.path is not None and self.roots.leads_out(row[path_column])
        }

    def _items(self, rows: list[Mapping[str, Any]], path_column: str, columns: dict[str, list[Any]]) -> list[Item]:
        items = []
        for index, row in enumerate(rows):
            values = {name: values[index] for name, values in columns.items()}
            path = row.get(path_column)
            if isinstance(path, str | Path) and 0 < len(str(path)) <= _PATH_MAX:
                items.append(self.roots.describe(index, path, values))
            elif values.get("image") is not None:
                items.append(Item(index, f"row-{index:08d}", None, columns=values))
            else:
                found = "none" if path is None else shorten(path)
                reason = f"{self._where(index)}: expected a path in column {path_column!r}, found {found}"
                items.append(Item(index, f"row-{index:08d}", None, columns=values, reject=reason))
        return items


def digest_value(value: Any) -> Any:
    """A column's value as JSON for the plan's fingerprint: arrays and bytes are represented by their SHA-256."""
    if isinstance(value, np.ndarray):
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return {"dtype": value.dtype.str, "shape": list(value.shape), "sha256": content}
    if isinstance(value, bytes):
        return {"sha256": hashlib.sha256(value).hexdigest()}
    json.dumps(value)
    return value


def _check_rows(given: Sequence[Any], rows: Sequence[Any]) -> None:
    """Refuse rows that are not mappings: in a list of paths, a likely mistake, characters would pass for columns."""
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            kind = type(row).__name__
            found = f"{kind} in row {number} (counted from 0)" if number else f"a {type(given).__name__} of {kind}"
            raise UsageError(
                f"source: expected rows (mappings of column to value), found {found}: give the folder, "
                "or rows with a path"
            )


def _check_names(fields: Mapping[str, str]) -> None:
    taken: dict[str, str] = {}
    for column, field in fields.items():
        letters = [letter for letter in str(column) if letter.isalpha()]
        if letters and not any(letter.isascii() for letter in letters):
            # All such columns would have one name, under which a merge would mix their values.
            raise UsageError(
                f"column {shorten(column)}: expected a name with letters a to z, found only others: rename it"
            )
        if field in taken:
            raise UsageError(
                f"columns {shorten(taken[field])} and {shorten(column)} would both become field {shorten(field)}: "
                "rename one"
            )
        if field in RESERVED - {"image"}:
            raise UsageError(
                f"column {shorten(column)} would become field {shorten(field)}, which the pack stage writes itself: rename it"
            )
        taken[field] = column


def _check_types(types: Mapping[str, str], fields: Mapping[str, str]) -> None:
    for column, kind in types.items():
        if column not in fields:
            like = did_you_mean(column, fields)
            found = list_some(list(fields)) or "none"
            raise UsageError(
                f"{kind}: expected a column beside the paths, one of {found}, found {shorten(column)}{like}"
            )


def _check_images(column: str, values: list[Any], where: Where) -> None:
    """Check that a column ``image`` holds the pictures themselves."""
    for row, value in enumerate(values):
        if value is not None and not isinstance(value, np.ndarray):
            raise UsageError(
                f"column {shorten(column)}, {where(row)}: expected a picture as an array (of Python rows), found "
                f"{shorten(value)}: if the column holds the paths, name it in path_column (--path-column {cut(str(column), LENGTH)}); "
                "else rename it, since the pack stage writes a field of that name"
            )


def _has_pictures(values: list[Any]) -> bool:
    """Whether a column of arrays holds any that would be stored and resized as a picture."""
    return any(isinstance(v, np.ndarray) and v.dtype == np.uint8 and v.ndim == 3 and v.shape[2] == 3 for v in values)


def _typed(column: str, field: str, values: list[Any], where: Where) -> dict[str, list[Any]]:
    """One column's values converted to one type, and a validity field where any value is missing."""
    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    valid = [value is not None and not (isinstance(value, float) and math.isnan(value)) for value in values]
    rows_of: dict[type, int] = {}  # the first row of each kind
    for row, (value, ok) in enumerate(zip(values, valid, strict=True)):
        if ok:
            rows_of.setdefault(type(value), row)
    kinds = set(rows_of)
    _check_kinds(column, rows_of, values, where)
    if kinds == {int, float}:
        try:
            values = [float(value) if ok else value for value, ok in zip(values, valid, strict=True)]
        except OverflowError as error:
            raise UsageError(
                f"column {shorten(column)}: expected finite numbers, found an integer too large for a float"
            ) from error
        kinds = {float}
    if len(kinds) > 1:
        found = ", ".join(f"{kind.__name__} in {where(row)}" for kind, row in rows_of.items())
        raise UsageError(f"column {shorten(column)}: expected values of one type, found {found}")
    if all(valid):
        return {field: values}
    kind = kinds.pop() if kinds else str
    if kind not in _SENTINELS:
        raise UsageError(
            f"column {shorten(column)}, {where(valid.index(False))}: expected a value in every row, since nothing can stand "
            f"for a missing {kind.__name__}, found none"
        )
    known = [value for value, ok in zip(values, valid, strict=True) if ok]
    lists = array_type(known)
    stand_in = _SENTINELS[kind] if lists is None else missing_list(known, lists[0])
    return {
        field: [v if ok else stand_in for v, ok in zip(values, valid, strict=True)],
        f"{field}_valid": valid,
    }


def _check_kinds(column: str, rows_of: Mapping[type, int], values: list[Any], where: Where) -> None:
    """Check that a plan can hold all values of a column; `rows_of` has the first row of each kind."""
    for kind, row in rows_of.items():
        if not issubclass(kind, _KINDS):
            raise UsageError(
                f"column {shorten(column)}, {where(row)}: expected numbers, texts, lists, objects, bytes or arrays, "
                f"found {kind.__name__}"
            )
    for row, value in enumerate(values):
        if type(value) is int and float not in rows_of and not _INT64.min <= value <= _INT64.max:
            raise UsageError(
                f"column {shorten(column)}, {where(row)}: expected signed 64-bit integers, found {shorten(value)}: "
                f"make it a column of texts (--text {cut(str(column), LENGTH)})"
            )
        if isinstance(value, float | list | tuple | dict) and value == value:  # NaN alone is a missing value
            try:
                json.dumps(value, allow_nan=False)
            except ValueError as error:
                raise UsageError(
                    f"column {shorten(column)}, {where(row)}: expected finite numbers, found {shorten(value)}"
                ) from error
            except TypeError as error:
                raise UsageError(
                    f"column {shorten(column)}, {where(row)}: expected values that can be written as JSON, {error}: "
                    "leave the column out of the source"
                ) from error


def _class_numbers(column: str, values: list[Any], valid: list[bool]) -> tuple[list[int], list[str] | None]:
    """Labels as integers: texts are numbered in sorted order, without spaces around them; integers stay as they are."""
    values = [value.strip() if isinstance(value, str) else value for value in values]
    known = [value for value, ok in zip(values, valid, strict=True) if ok]
    if all(isinstance(value, bool | int) for value in known):
        return [int(value) if ok else 0 for value, ok in zip(values, valid, strict=True)], None
    if not all(isinstance(value, str) for value in known):
        raise UsageError(
            f"label column {shorten(column)}: expected class names or integers, found {type(known[0]).__name__}"
        )
    classes = sorted(set(known))
    for name in classes:
        if not is_utf8(name):
            raise UsageError(
                f"label column {shorten(column)}: expected names that can be encoded as UTF-8, found {shorten(name)}"
            )
    numbers = {name: number for number, name in enumerate(classes)}
    return [numbers.get(value, 0) for value in values], classes
