"""Turn the columns of rows into fields. A first pass over the rows settles their types, and a second makes the values."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from packer.recipe import field_name
from packer.recipe.checks import DROP
from packer.sources.column_types import ArrayType, SourceColumn
from packer.sources.item import Item
from packer.sources.tables.chunks import Chunk, chunks_of
from shardspec.errors import UsageError
from shardspec.fields import RESERVED
from shardspec.typing.columns import Where
from shardspec.wording import LONG, did_you_mean, quote_some, shorten


class SourceColumns:
    """The columns of some rows, each of one type.

    Attributes
    ----------
    fields : dict of str to str
        The field's name for each column.
    classes : dict of str to list of str
        Class names by field, if the labels are names.
    notes : tuple of str
        Notes for the user, one line each.
    """

    def __init__(self, columns: Sequence[SourceColumn], label: str | None, where: Where) -> None:
        self.fields: dict[str, str] = {column.name: column.field for column in columns}
        self.classes: dict[str, list[str]] = {}
        self.notes: tuple[str, ...] = ()
        self._columns = columns
        self._label = label
        self._numbers: Mapping[str, int] | None = None
        self._where = where

    def _read(self, chunk: Chunk) -> tuple[dict[str, Sequence[Any]], Sequence[str | None]]:
        """Return the values of each field in some rows, and for each row the reason of its rejection or None."""
        out: dict[str, Sequence[Any]] = {}
        label: tuple[Sequence[Any], Sequence[bool] | None] | None = None
        for column in self._columns:
            values, valid = column.of(chunk)
            if column.field == self._label:
                label = values, valid
                continue
            out[column.field] = values
            if valid is not None:
                out[f"{column.field}_valid"] = valid
        if label is None:
            return out, [None] * chunk.rows
        values, valid = label
        oks = [True] * chunk.rows if valid is None else valid
        numbers = self._numbers
        if numbers is None:
            out["label"] = [int(value) if ok else None for value, ok in zip(values, oks, strict=True)]
        else:
            try:
                out["label"] = [
                    numbers[str(value).strip()] if ok else None for value, ok in zip(values, oks, strict=True)
                ]
            except KeyError as error:  # a label that appeared only in the second pass
                raise UsageError(
                    place=f"label column {shorten(self._label)}",
                    expected="the same rows in every pass",
                    found=f"{shorten(error.args[0])}, which was missing when the classes were numbered",
                ) from error
        if valid is None:
            return out, [None] * chunk.rows
        reason = f"expected a label in column {shorten(self._label)}, found none"
        rejects = [None if ok else f"{self._where(chunk.first + row)}: {reason}" for row, ok in enumerate(oks)]
        return out, rejects

    def rows(self, chunks: Iterable[Chunk]) -> Iterator[tuple[dict[str, Any], str | None]]:
        """Yield the values of each row by field, and the reason if the row is rejected."""
        for chunk in chunks:
            values, rejects = self._read(chunk)
            yield from zip(Chunk(chunk.first, chunk.rows, values).to_rows(), rejects, strict=True)

    @property
    def further(self) -> tuple[str, ...]:
        """Return the fields with images, other than ``image``."""
        return tuple(column.field for column in self._columns if column.has_images)

    @property
    def arrays(self) -> dict[str, ArrayType]:
        """Return the array type of each field of lists of numbers."""
        return {
            column.field: column.list_type
            for column in self._columns
            if column.list_type is not None and column.field != self._label
        }

    def number_classes(self) -> None:
        """Number text labels in sorted order, without surrounding spaces. Keep integers.

        Raises
        ------
        UsageError
            If the labels are neither texts nor integers.
        """
        column = next((column for column in self._columns if column.field == self._label), None)
        classes = None if column is None else column.number_labels()
        if classes is not None:
            self._numbers = {text: number for number, text in enumerate(classes)}
            self.classes["label"] = classes


def with_arrays(columns: Mapping[str, Any], arrays: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return an item's columns, with the lists in the columns of `arrays` converted to arrays."""
    return {name: _as_array(value, *arrays[name]) if name in arrays else value for name, value in columns.items()}


def _as_array(value: Any, dtype: str, *tail: int) -> Any:
    return np.array(value, dtype).reshape(-1, *tail)


def read_columns(
    chunks: Callable[[], Iterable[Chunk]],
    label_from: str,
    types: Mapping[str, str],
    where: Where,
    *,
    cells: Callable[[str], bool] = lambda _: False,
    leave: str | None = None,
) -> SourceColumns:
    """Settle the type and field name of each column of some rows, and choose the label.

    The rows are read once, or twice if a label with many numbers turns out to contain texts.

    Parameters
    ----------
    chunks : callable
        Returns an iterator over the rows, the same rows every time.
    label_from : str
        See `Source`. If it names a column other than ``label``, this column replaces a column ``label``.
    types : dict of str to str
        Columns that become text, int, float or intervals regardless of their values, or are dropped.
    where : callable
        Returns the name of a row in messages.
    cells : callable
        Returns whether a column's values are strings from cells, which may represent numbers. Empty cells are missing.
    leave : str, optional
        A column to skip.

    Raises
    ------
    UsageError
        If a column has a name that cannot become a field, has values of several types, or does not exist.
    """
    found: dict[str, SourceColumn] = {}
    dropped: dict[str, str] = {}
    for chunk in chunks():
        for name in chunk.columns:
            if types.get(name) == DROP and name != leave:
                dropped[name] = DROP
            elif name not in found and name != leave:
                is_label, late = _is_label(name, label_from), chunk.first > 0
                found[name] = SourceColumn(name, types.get(name), cells(name), late, is_label, where)
        for column in found.values():
            column.scan(chunk)
    fields = {name: column.field for name, column in found.items()}
    _check_names(fields)
    label = _label_field(label_from, fields)
    notes = []
    if label != "label":
        replaced = next((name for name, field in fields.items() if field == "label"), None)
        if replaced is not None:
            del found[replaced]
            if label is not None:
                notes.append(describe_replaced(replaced, label_from))
    _check_types(types, {name: column.field for name, column in found.items()} | dropped)
    for column in found.values():
        column.settle(chunks)
        notes += column.notes()
    _check_marks([column for column in found.values() if column.field != label])
    columns = SourceColumns(list(found.values()), label, where)
    columns.notes = tuple(notes)
    columns.number_classes()
    return columns


def read_item_columns(
    items: Sequence[Item],
    row: Callable[[Item], Mapping[str, Any]],
    label_from: str,
    types: Mapping[str, str],
    cells: Callable[[str], bool] = lambda _: False,
) -> tuple[SourceColumns, Iterator[Item]]:
    """Settle the columns of the items that are not rejects, and yield all items with their values by field.

    Parameters
    ----------
    row : callable
        Returns the unconverted columns of an item.
    label_from, types, cells
        As for `read_columns`.
    """
    good = array("q", (place for place, item in enumerate(items) if item.reject is None))

    def chunks() -> Iterator[Chunk]:
        return chunks_of(row(item) for item in items if item.reject is None)

    columns = read_columns(chunks, label_from, types, lambda at: shorten(items[good[at]].name, LONG), cells=cells)

    def converted() -> Iterator[Item]:
        rows = columns.rows(chunks())
        for item in items:
            if item.reject is None:
                values, reject = next(rows)
                item = item._replace(columns=values, reject=reject)
            yield item

    return columns, converted()


def _is_label(name: str, label_from: str) -> bool:
    """Return whether a column is to become the label."""
    return name == label_from if label_from not in ("auto", "none") else field_name(name) == "label"


def describe_replaced(column: str, label_from: str) -> str:
    """Describe that a column ``label`` is not packed."""
    return (
        f"the column {shorten(column)} is not packed, since --label-from {label_from} replaces it: "
        "rename the column to keep it"
    )


def _label_field(label_from: str, fields: Mapping[str, str]) -> str | None:
    """Return the field that holds the label, by its name before it becomes ``label``."""
    if label_from == "none":
        return None
    if label_from == "auto":
        return "label" if "label" in fields.values() else None
    if label_from not in fields:
        like = next((name for name, field in fields.items() if field == field_name(label_from)), None)
        hint = did_you_mean(label_from, fields) if like is None else f"; did you mean {shorten(like)}?"
        raise UsageError(
            option="label_from",
            expected=f"a column, one of {quote_some(fields) or 'none'}",
            found=f"{shorten(label_from)}{hint}",
        )
    return fields[label_from]


def _check_names(fields: Mapping[str, str]) -> None:
    taken: dict[str, str] = {}
    for column, field in fields.items():
        letters = [letter for letter in str(column) if letter.isalpha()]
        if letters and not any(letter.isascii() for letter in letters):
            # All such columns would get the same field name, so a merge would mix their values.
            raise UsageError(
                place=f"column {shorten(column)}",
                expected="a name with letters a to z",
                found="only others",
                hint="rename it",
            )
        if field in taken:
            raise UsageError(
                f"columns {shorten(taken[field])} and {shorten(column)} would both become field {shorten(field)}",
                hint="rename one",
            )
        if field in RESERVED - {"image"}:
            raise UsageError(
                (
                    f"column {shorten(column)} would become field {shorten(field)}, a name that is reserved for "
                    "fields that packer writes"
                ),
                hint="rename it",
            )
        taken[field] = column


def _check_marks(columns: Sequence[SourceColumn]) -> None:
    """Refuse a column whose name is taken by the validity field of another column."""
    names = {column.field: column.name for column in columns}
    for column in columns:
        mark = f"{column.field}_valid"
        if column.missing and mark in names:
            raise UsageError(
                f"the field {mark!r} marks the missing values of column {shorten(column.name)}",
                place=f"column {shorten(names[mark])}",
                hint="rename or remove one of the two columns",
            )


def _check_types(types: Mapping[str, str], fields: Mapping[str, str]) -> None:
    for column, kind in types.items():
        if column not in fields:
            like = did_you_mean(column, fields)
            found = quote_some(fields) or "none"
            raise UsageError(
                option=kind, expected=f"a column other than the paths, one of {found}", found=f"{shorten(column)}{like}"
            )
