"""Infer the type of a column of texts that may be numbers, as in a CSV file, in one pass."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress, filterfalse
from typing import Any

import numpy as np
import numpy.typing as npt

from shardspec.typing.columns import NumberLimits, Where
from shardspec.wording import counted, shorten

BLANKS = " \t"
"""Characters that are ignored around a number in a cell, and around the name of a column."""

_NUMBER = r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,2})?"
_PLAIN = re.compile(rf"{_NUMBER}\Z")
_PLAIN_AMONG_BLANKS = re.compile(rf"[{BLANKS}]*{_NUMBER}[{BLANKS}]*\Z")
_ANY = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\Z")
MISSING_WORDS = frozenset(
    (
        *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"),
        *("N/A", "NA", "NAN", "NULL", "NaN", "None", "n/a", "nan", "null"),
    )
)
"""Words that represent a missing value: those of ``pandas.read_csv``, and ``NAN``."""

_TEXTS = 10_000
"""After this many texts, numbers are no longer counted if the column has hardly any."""


class CellTyper:
    """Infers whether the cells of a column are integers, floats or texts. Cells are scanned in chunks.

    Only numbers in their usual spelling count: 007, 1_0 and +1 are texts. A cell that is blank or a word of
    `MISSING_WORDS` is a missing value.

    Attributes
    ----------
    missing : bool
        Whether a value is missing.
    first_text : tuple of int and str, or None
        Row and content of the first cell that is not a number, recorded only while the cell may be a mistake.
    """

    def __init__(self) -> None:
        self.limits = NumberLimits()
        self.first_text: tuple[int, str] | None = None
        self._kind: type[Any] = int
        self.missing = False
        self._has_values = self._has_words = False
        self._numbers = self._texts = 0
        self._counts = True

    @property
    def kind(self) -> type[Any]:
        """Return the Python type of the cells so far: int, float or str."""
        return self._kind if self._has_values else str

    def scan(self, cells: Sequence[str], first: int = 0) -> None:
        """Scan the next cells; the first one is in row `first`."""
        known = list(filter(None, cells))
        numbers = None if self._kind is str else _PARSERS[self._kind](known)
        if numbers is None:
            given, known = known, [cell for cell in known if not is_missing(cell)]
            self._has_words |= len(known) < len(given)
        self.missing |= len(known) < len(cells)
        while numbers is None and self._kind is not str:
            numbers = _PARSERS[self._kind](known)
            if numbers is None:
                self._kind = float if self._kind is int else str
        self._has_values |= bool(known)
        if numbers:
            self.limits.scan(numbers, known, cells, first)
        if self._kind is str:
            self._count(cells, first)
        else:
            self._numbers += len(known)

    def parse(self, cells: Iterable[str]) -> list[Any]:
        """Return the cells as values of `kind`, with None for missing values."""
        kind = self.kind
        if not self._has_words:
            return [kind(cell) if cell else None for cell in cells]
        return [None if is_missing(cell) else kind(cell) for cell in cells]

    def to_arrays(self, cells: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]] | None:
        """Return the cells as 64-bit numbers, with a mask that is false for missing values.

        Return None if the cells are not numbers, or an integer does not fit.
        """
        if self.kind is str or (self.kind is int and "int64" in self.limits.beyond):
            return None
        dtype: Any = np.int64 if self.kind is int else np.float64
        if not self.missing:
            return np.fromiter(map(self.kind, cells), dtype, len(cells)), np.ones(len(cells), np.bool_)
        has_number = (lambda cell: not is_missing(cell)) if self._has_words else bool
        valid = np.fromiter(map(has_number, cells), np.bool_, len(cells))
        values = np.zeros(len(cells), dtype)
        values[valid] = np.fromiter(map(self.kind, compress(cells, valid)), dtype)
        return values, valid

    def _count(self, cells: Sequence[str], first: int) -> None:
        """Count the numbers among texts.

        Counting stops at a number with leading zeros, which is a name. It also stops if hardly any cell is a number, so
        that columns of texts cost next to nothing.
        """
        if not self._counts:
            return
        strange = list(filterfalse(_PLAIN.match, cells))
        others = [cell for cell in strange if not is_missing(cell) and not _PLAIN_AMONG_BLANKS.match(cell)]
        self._numbers += len(cells) - len(others) - sum(map(is_missing, strange))
        self._texts += len(others)
        if others and self.first_text is None:
            self.first_text = first + cells.index(others[0]), others[0]
        self._counts = not any(cell.strip(BLANKS).isdecimal() for cell in others)
        self._counts &= self._texts < _TEXTS or self._numbers >= _TEXTS / 10

    def describe_numbers(self, what: str, where: Where) -> str | None:
        """Describe how many cells of a column of texts are numbers, and name one that is not.

        Return None if fewer than half of the cells are numbers.

        Parameters
        ----------
        what : str
            Describes the column.
        where : callable
            Returns the name of a row for messages.
        """
        if self.kind is not str or self.first_text is None or not self._counts or self._numbers < self._texts:
            return None
        row, cell = self.first_text
        found = f"{self._numbers} of {counted(self._numbers + self._texts, 'cell')}"
        return f"{what}: {found} are numbers, but not {shorten(cell)} ({where(row)})"


def keep_cells(cells: Iterable[str]) -> list[Any]:
    """Return the cells as texts, with None for empty cells."""
    return [cell or None for cell in cells]


def is_missing(cell: str) -> bool:
    """Return whether a cell is a missing value: blank, or a word that represents one."""
    bare = cell.strip()
    return not bare or bare in MISSING_WORDS


def is_missing_word(text: str) -> bool:
    """Return whether a text is a word that represents a missing value, with or without blanks around it."""
    return text.strip() in MISSING_WORDS


def spells_number(cell: str) -> bool:
    """Return whether a cell is a finite number in any spelling that ``--float`` accepts."""
    return _ANY.match(cell.strip(BLANKS)) is not None


def _parse_integers(cells: Sequence[str]) -> list[int] | None:
    """Parse the cells if all are integers in their usual spelling."""
    try:
        numbers = list(map(int, cells))
    except ValueError:
        return None
    spelt = list(map(str, numbers))
    return numbers if spelt == cells or spelt == [cell.strip(BLANKS) for cell in cells] else None


def _parse_floats(cells: Sequence[str]) -> list[float] | None:
    """Parse the cells if all are numbers in their usual spelling."""
    return list(map(float, cells)) if all(map(_PLAIN_AMONG_BLANKS.match, cells)) else None


_PARSERS: Mapping[type, Callable[[Sequence[str]], Sequence[Any] | None]] = {int: _parse_integers, float: _parse_floats}
