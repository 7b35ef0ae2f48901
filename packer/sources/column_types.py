"""One column of a source's rows. A first pass settles its type, and a second pass converts its values.

The user may request a type: text, numbers or intervals; or that a column is dropped (`TYPES`).
"""

import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from packer.recipe import field_name
from packer.sources.tables.chunks import Chunk
from shardspec.errors import UsageError
from shardspec.fields import is_further_image
from shardspec.schema import NO_CLASS, class_name, is_utf8
from shardspec.typing.cells import BLANKS, CellTyper, is_missing, is_missing_word, keep_cells, spells_number
from shardspec.typing.columns import ColumnTyper, Where
from shardspec.typing.dates import plain_values
from shardspec.typing.field_types import FieldType, is_image, settle_empty
from shardspec.wording import LENGTH, counted, cut, shorten

ArrayType = tuple[Any, ...]
"""Type of the arrays made from lists: the dtype, and the sizes of all axes except the first."""

_write_json = json.JSONEncoder(allow_nan=False).encode
_SIMPLE = frozenset((bool, int, float, str, type(None)))
_NAMES_MAX = 100_000
"""Most distinct labels to keep as possible class names while all labels look like numbers."""


class SourceColumn:
    """A column of rows.

    Parameters
    ----------
    wanted : str or None
        Requested type: text, int, float or intervals.
    is_cells : bool
        Whether the values are strings from the cells of a table.
    missing : bool
        Whether the column is missing in earlier rows.
    is_label : bool
        Whether to collect its distinct values.
    where : callable
        Returns the name of a row in messages.

    Attributes
    ----------
    type : FieldType or None
        The settled type; None if all values are missing, and for a column ``image``.
    has_images : bool
        Whether its name and type are those of a further image.
    """

    def __init__(
        self, name: str, wanted: str | None, is_cells: bool, missing: bool, is_label: bool, where: Where
    ) -> None:
        self.name = name
        self.field = field_name(name)
        self.type: FieldType | None = None
        self.has_images = False
        self._place = f"column {shorten(name)}"
        self._is_cells = is_cells
        self._wanted = wanted
        self._missing_before = missing
        self._where = where
        self._is_label = is_label
        self._names: set[str] | None = set()
        self._words = 0
        self._first_word = 0, ""
        self._cells = CellTyper() if is_cells and wanted is None and self.field != "image" else None
        self._values = ColumnTyper()
        self._error: UsageError | None = None
        self._stand_in: Any = None

    @property
    def missing(self) -> bool:
        """True if any value is missing, once the type is settled."""
        return self.field != "image" and (self._missing_before or (self._cells or self._values).missing)

    @property
    def python_type(self) -> type | None:
        """Return the Python type of all values; None if all are missing."""
        return self._cells.kind if self._cells is not None else self._values.python_type

    def read(self, chunk: Chunk) -> Sequence[Any]:
        """Return the values in some rows. A word that represents a missing value, or a blank label, becomes None or "".

        With the requested type text, words are kept.
        """
        missing = "" if self._is_cells else None
        values = chunk.column(self.name, missing)
        if not self._is_cells:
            values = plain_values(values)
        keeps = self._wanted == "text"
        if not self._is_label and (keeps or self._is_cells):  # `_plain` finds the missing cells
            return values
        is_lost = _is_blank if keeps else is_missing if self._is_label else is_missing_word
        return [missing if isinstance(value, str) and is_lost(value) else value for value in values]

    def scan(self, chunk: Chunk) -> None:
        values = self.read(chunk)
        self._count_words(chunk)
        if self._cells is not None:
            self._cells.scan(values, chunk.first)
        elif self._error is None:
            try:
                values = self._plain(values, chunk.first)
                self._check(values, chunk.first)
            except UsageError as error:  # raised later by `settle`, since the column may be left out
                self._error = error
                return
            if self.field != "image":
                self._values.scan(values, chunk.first)
        if self._is_label and self._names is not None:  # integer labels may turn out to be names
            self._names.update(value.strip() for value in values if type(value) is str and value)
            if self._cells is not None and self._cells.kind is not str and len(self._names) > _NAMES_MAX:
                self._names = None

    def _count_words(self, chunk: Chunk) -> None:
        """Count the words that represent a missing value."""
        if self._wanted is not None:
            return
        given = enumerate(chunk.column(self.name), chunk.first)
        words = [(row, value) for row, value in given if type(value) is str and is_missing_word(value)]
        if words and not self._words:
            self._first_word = words[0]
        self._words += len(words)

    def _check(self, values: Sequence[Any], first: int) -> None:
        if self.field != "image" and _SIMPLE.issuperset(map(type, values)):
            return
        for row, value in enumerate(values, first):
            if self.field == "image" and value is not None and not isinstance(value, np.ndarray):
                raise UsageError(
                    place=f"{self._place}, {self._where(row)}",
                    expected="an image as an array (of Python rows)",
                    found=shorten(value),
                    hint=(
                        "if the column holds the paths, use path_column (--path-column "
                        f"{cut(str(self.name), LENGTH)}); else rename it, since a build writes a field of "
                        "that name itself"
                    ),
                )
            if isinstance(value, list | tuple | dict):
                self._check_json(value, row)
            if is_further_image(self.field) and isinstance(value, np.ndarray):
                self.has_images |= is_image(value)

    def _check_json(self, value: Any, row: int) -> None:
        try:
            _write_json(value)
        except ValueError as error:
            raise UsageError(
                place=f"{self._place}, {self._where(row)}", expected="finite numbers", found=shorten(value)
            ) from error
        except TypeError as error:
            raise UsageError(
                place=f"{self._place}, {self._where(row)}",
                expected=f"values that can be written as JSON, {error}",
                hint="leave the column out of the source",
            ) from error

    def settle(self, chunks: Callable[[], Iterable[Chunk]]) -> None:
        """Settle the type, after the last row.

        Raises
        ------
        UsageError
            If the values have several types, or one is invalid.
        """
        if self._error is not None:
            raise self._error
        remedy = f": make it a column of texts (--text {cut(str(self.name), LENGTH)})"
        if self._cells is not None:
            self._cells.limits.check(self._cells.kind, self._place, self._where, remedy=remedy, finite=True)
        else:
            found = self._values.settle(self._place, self._where, remedy=remedy, finite=True)
            self.type = None if found is None else settle_empty(found)
        if self.missing:
            self._stand_in = self._make_stand_in()
        if self._names is None and self.python_type is str:
            self._names = {value.strip() for chunk in chunks() for value in self.read(chunk) if value}

    def _make_stand_in(self) -> Any:
        """Return the sentinel for missing values: zeros if all lists have the same length, else zero or an empty value."""
        kind = self.python_type or (list if self._wanted == "intervals" else str)
        if issubclass(kind, np.ndarray):
            row = 0 if self._missing_before else self._values.first_missing or 0
            raise UsageError(
                place=f"{self._place}, {self._where(row)}",
                expected=f"a value in every row, since a {kind.__name__} cannot be missing",
                found="none",
            )
        lengths = self._values.lengths
        if self.list_type is None or len(lengths) > 1:
            return kind()
        dtype, *tail = self.list_type
        return np.zeros((*lengths, *tail), dtype).tolist()

    @property
    def list_type(self) -> ArrayType | None:
        """Return the array type of a column of lists of numbers; None for any other column."""
        if self.type is None or self.type.kind != "array" or not self.type.listed:
            return None
        return (self.type.dtype, *self.type.shape[1:])

    def of(self, chunk: Chunk) -> tuple[Sequence[Any], Sequence[bool] | None]:
        """Return the values in some rows, and a mask of the known ones (None if the whole column has no missing values)."""
        values = self._plain(self.read(chunk), chunk.first)
        if self.python_type is float and self._cells is None:
            values = [value if value is None else float(value) for value in values]
        if not self.missing:
            return values, None
        valid = [value is not None and value == value for value in values]
        return [value if ok else self._stand_in for value, ok in zip(values, valid, strict=True)], valid

    def _plain(self, values: Sequence[Any], first: int) -> Sequence[Any]:
        """Return the values as plain Python objects. Missing ones are None or NaN."""
        if self._cells is not None:
            return self._cells.parse(values)
        values = keep_cells(values) if self._is_cells else values
        return values if self._wanted is None else convert(values, self._wanted, self.name, self._where, first)

    def number_labels(self) -> list[str] | None:
        """Return the texts of a column of labels in sorted order, as class names; None if there are none.

        Raises
        ------
        UsageError
            If the labels are neither strings nor integers, or are not valid class names.
        """
        kind = self.python_type
        place = f"label column {shorten(self.field)}"
        if kind is None or issubclass(kind, int):
            return None
        if kind is not str:
            remedy = f": --int {shlex.quote(self.name)} if all are whole, such as 1.0" if kind is float else ""
            raise UsageError(place=place, expected="class names or integers", found=f"{kind.__name__}{remedy}")
        classes = sorted(self._names or (), key=lambda text: (class_name(text), text))
        for text in classes:
            if not is_utf8(text):
                raise UsageError(place=place, expected="names that can be encoded as UTF-8", found=shorten(text))
        return classes or None

    def notes(self) -> list[str]:
        """Return notes for the user about the settled column, one line each."""
        found = (self._describe_texts() or self._describe_words(), self._describe_labels())
        return [note for note in found if note is not None]

    def _describe_words(self) -> str | None:
        """Describe the words in a column of texts that represent missing values, and how to keep them."""
        if not self._words or self.python_type not in (str, None):
            return None
        (row, word), option = self._first_word, shlex.quote(cut(self.name, LENGTH))
        rejects = " (rows without a label are rejects)" if self._is_label else ""
        return (
            f"{self._place} counts {counted(self._words, 'word')} as missing, such as {shorten(word)} "
            f"({self._where(row)}){rejects}: --text {option} keeps them as text"
        )

    def _describe_labels(self) -> str | None:
        """Describe labels below the smallest valid one, if there are any."""
        limits = (self._cells or self._values).limits
        if not self._is_label or self.python_type is not int or "class" not in limits.beyond:
            return None
        row, label = limits.beyond["class"]
        return (
            f"{self._place} has labels below {NO_CLASS} (no class), such as {int(label)} ({self._where(row)}), "
            "which classification losses refuse: number classes from 0 on; if the values are not classes, rename the "
            "column and do not use it for --label-from"
        )

    def _describe_texts(self) -> str | None:
        """Describe the cells that turned a column of numbers into text, and how to fix them."""
        if self._cells is None:
            return None
        kind, option = "class names" if self._is_label else "text", shlex.quote(cut(self.name, LENGTH))
        found = self._cells.describe_numbers(f"{self._place} is {kind}", self._where)
        if found is None or self._cells.first_text is None:
            return None
        if spells_number(self._cells.first_text[1]):
            return f"{found}: --{'int' if self._is_label else 'float'} {option} makes it a number"
        rejects = " (rows without a label are rejects)" if self._is_label else ""
        return f"{found}: correct or empty such cells to get numbers{rejects}, or keep the texts with --text {option}"


_INTEGER = re.compile(r"[+-]?[0-9]+(\.0*)?\Z")
_DURATION = re.compile(r"(-?)PT([0-9]+(\.[0-9]+)?)S\Z")
"""Format in which `shardspec.typing.dates` writes durations."""
_EXACT = 2**53
"""Up to this limit, 64-bit floats represent all whole numbers exactly."""


def convert(values: Sequence[Any], kind: str, column: str, where: Callable[[int], str], first: int = 0) -> list[Any]:
    """Convert the values of a column, from row `first` on, to a type of `TYPES`.

    Missing values (None and NaN) become None. Unless the type is text, so do texts that represent a missing value.

    Raises
    ------
    UsageError
        If a value cannot be converted to that type.
    """
    one, expected = _CONVERTERS[kind]
    found = []
    for row, value in enumerate(values, first):
        missing = value is None or (isinstance(value, float) and math.isnan(value))
        missing |= kind != "text" and isinstance(value, str) and is_missing(value)
        try:
            found.append(None if missing else one(value))
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise UsageError(
                place=f"column {shorten(column)}, {where(row)}",
                expected=f"{expected} (--{kind} {cut(column, LENGTH)})",
                found=shorten(value),
            ) from None
    return found


def _is_blank(text: str) -> bool:
    return not text.strip()


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, allow_nan=False)


def _as_integer(value: Any) -> int:
    if isinstance(value, str):
        if _INTEGER.match(value.strip(BLANKS)):
            return int(value.partition(".")[0])
        value = _as_float(value)  # 2.0000000e+00
        if abs(value) > _EXACT:
            raise ValueError(value)
    if not isinstance(value, int | float) or value != int(value):
        raise ValueError(value)
    return int(value)


def _as_float(value: Any) -> float:
    if isinstance(value, str) and (duration := _DURATION.match(value)):
        value = duration[1] + duration[2]
    if isinstance(value, str) and not spells_number(value):
        raise ValueError(value)
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def parse_intervals(value: Any) -> list[list[float]]:
    """Read a list of ``[start, end]``, or its JSON, in the given order. Raise `ValueError` for any other value."""
    found = np.asarray(json.loads(value) if isinstance(value, str) else value)
    if found.shape == (0,):
        return []
    if found.dtype.kind not in "iuf" or found.shape[1:] != (2,) or not np.isfinite(found).all():
        raise ValueError(value)
    if (found[:, 0] > found[:, 1]).any():
        raise ValueError(value)
    return [list(map(float, pair)) for pair in found]


_CONVERTERS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "text": (_as_text, "text"),
    "int": (_as_integer, "int"),
    "float": (_as_float, "float"),
    "intervals": (parse_intervals, "[[start, end], …] in seconds, start <= end"),
}
"""Converter of each type, and the name of the type in messages."""
