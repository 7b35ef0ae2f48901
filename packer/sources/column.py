"""One column of many rows, whose values settle its type."""

import json
import math
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from packer.recipe import field_name
from packer.sources.tables.chunks import Chunk
from packer.sources.values import (
    BLANKS,
    NumbersAmongTexts,
    array_type,
    convert,
    is_decimal,
    is_no_number,
    keep_cells,
    missing_list,
    parse_cells,
    spells_number,
)
from shardspec.errors import UsageError
from shardspec.frames.plain import plain_values
from shardspec.schema import NO_CLASS
from shardspec.wording import LENGTH, cut, shorten

_KINDS = (bool, int, float, str, list, tuple, dict, bytes, np.ndarray)
_SIMPLE = frozenset((bool, int, float, str))
_INT64 = np.iinfo(np.int64)
_INFINITE = float("inf")
_TOO_LARGE = 10**308
_NAMES_MAX = 100_000
"""Of labels that are numbers so far, the most that are kept as the names of classes, which they may become."""
_SENTINELS: Mapping[type, Any] = {bool: False, int: 0, float: 0.0, str: "", list: [], tuple: (), dict: {}, bytes: b""}

Where = Callable[[int], str]
"""Maps a row's index to the row's name in messages."""


def stripped(value: Any) -> Any:
    """A text without the spaces around it; any other value as it is."""
    return value.strip() if isinstance(value, str) else value


class Column:
    """A column of rows.

    Parameters
    ----------
    name : str
    wanted : str or None
        What its values are to become: text, int or float.
    is_cells : bool
        Whether its values are the texts of cells.
    missing : bool
        Whether there were rows without it before the first with it.
    is_label : bool
        Whether its distinct values are to be known.
    """

    def __init__(self, name: str, wanted: str | None, is_cells: bool, missing: bool, is_label: bool) -> None:
        self.name = name
        self.field = field_name(name)
        self.is_cells = is_cells
        self._wanted = wanted
        self._missing = missing
        self._is_label = is_label
        self._names: set[str] | None = set() if is_label else None
        self._cells: type[Any] = int
        self._counted = NumbersAmongTexts()
        self._no_label: tuple[int, int] | None = None
        self._kinds: set[type[Any]] = set()
        self._nans = self._beyond = self._infinite = False
        self._odd = self.field == "image"
        self._values: Sequence[Any] | None = None
        self._valid: Sequence[bool] | None = None

    @property
    def all_values(self) -> Sequence[Any]:
        """All values of a column that is not simple; of a simple one, none."""
        return self._values or ()

    @property
    def lacks_values(self) -> bool:
        """True if any value is missing, once the type is settled."""
        return self._missing if self._values is None else self._valid is not None

    def known_labels(self) -> Collection[Any]:
        """The texts without spaces around them; of other values at least one."""
        if self._values is None:
            return self._names or () if self._kinds <= {str} else [kind() for kind in self._kinds]
        oks = self._valid or [True] * len(self._values)
        return [stripped(value) for value, ok in zip(self._values, oks, strict=True) if ok]

    def read(self, chunk: Chunk) -> Sequence[Any]:
        """Its values in some rows; a label of blanks alone is missing, as an empty one is."""
        missing = "" if self.is_cells else None
        values = chunk.column(self.name, missing)
        if not self.is_cells:
            values = plain_values(values)
        if not self._is_label:
            return values
        return [missing if isinstance(value, str) and not value.strip() else value for value in values]

    def scan(self, values: Sequence[Any], first: int) -> None:
        """Take in the values of the next rows, from that row on."""
        if self._odd:
            return
        if self.is_cells and self._wanted is None:
            self._scan_cells(values, first)
            return
        try:
            values = self._plain(values)
        except UsageError:  # `settle` raises it again, with the number of the row
            self._odd = True
            return
        kinds = set(map(type, values))
        if type(None) in kinds:
            self._missing = True
            kinds.remove(type(None))
        if float in kinds:
            floats = [value for value in values if type(value) is float]
            known = [value for value in floats if value == value]
            self._missing |= len(known) < len(floats)
            self._infinite |= _INFINITE in known or -_INFINITE in known
            if not known:
                kinds.remove(float)
        if int in kinds:
            self._look_at_integers([value for value in values if type(value) is int], values, first)
        self._odd |= not kinds <= _SIMPLE
        self._kinds |= kinds
        if self._names is not None and not self._odd and str in kinds:
            self._names.update(value.strip() for value in values if type(value) is str)

    def settle(self, chunks: Callable[[], Iterable[Chunk]], where: Where) -> None:
        """Settle the type, after the last row; values that are not simple are read again, all of them.

        Raises
        ------
        UsageError
            If the values have several types, or one is invalid.
        """
        if self.is_cells and self._wanted is None:
            if self._nans and not self._kinds:
                self._cells, self._kinds = str, {str}
            self._missing |= self._nans and self._cells is not str
            self._odd |= self._infinite if self._cells is float else self._beyond and self._cells is int
        else:
            mixed = len(self._kinds) > 1 and self._kinds != {int, float}
            self._odd |= mixed or self._beyond or self._infinite
        if not self._odd:
            self._kinds = {float} if float in self._kinds else self._kinds
            return
        values: list[Any] = [value for chunk in chunks() for value in self.read(chunk)]
        if self.is_cells:
            values = parse_cells(values) if self._wanted is None else keep_cells(values)
        if self.field == "image":
            _check_images(self.name, values, where)
            self._values = values
            return
        if self._wanted is not None:
            values = convert(values, self._wanted, self.name, where)
        typed = _typed(self.name, self.field, values, where)
        self._values, self._valid = typed[self.field], typed.get(f"{self.field}_valid")

    def notes(self, where: Where) -> list[str]:
        """Return notes for the user about the settled column, one line each."""
        return [note for note in (self._describe_texts(where), self._describe_labels(where)) if note is not None]

    def _describe_labels(self, where: Where) -> str | None:
        """Describe that labels are integers that no class has, if any is."""
        if self._no_label is None or self._kinds != {int}:
            return None
        row, label = self._no_label
        return (
            f"column {shorten(self.name)} has labels below {NO_CLASS} (no class), such as {label} ({where(row)}), "
            "which losses of classes refuse: number classes from 0 on; if these are no classes, call the column "
            "otherwise than label, and do not name it with --label-from"
        )

    def _describe_texts(self, where: Where) -> str | None:
        """Describe that a few cells made texts of a column of numbers, if they did, and what helps."""
        if self._cells is not str or self._odd:
            return None
        name, option = shorten(self.name), shlex.quote(cut(self.name, LENGTH))
        kind = "names of classes" if self._is_label else "text"
        found = self._counted.describe(f"column {name} is {kind}", where)
        if found is None or self._counted.first is None:
            return None
        if spells_number(self._counted.first[1]):
            return f"{found}: --{'int' if self._is_label else 'float'} {option} takes it as a number"
        rejects = " (rows without a label are rejects)" if self._is_label else ""
        return f"{found}: correct or empty such cells to make it numbers{rejects}, or keep it so with --text {option}"

    def of(self, chunk: Chunk) -> tuple[Sequence[Any], Sequence[bool] | None]:
        """The values in some rows, and which of them are known if any is missing anywhere."""
        if self._values is not None:
            rows = slice(chunk.first, chunk.first + chunk.rows)
            return self._values[rows], None if self._valid is None else self._valid[rows]
        values = self._plain(self.read(chunk))
        if self._kinds == {float}:
            values = [value if value is None else float(value) for value in values]
        if not self._missing:
            return values, None
        kind = next(iter(self._kinds), str)
        stand_in = _SENTINELS[kind]
        valid = [value is not None and value == value for value in values]
        return [value if ok else stand_in for value, ok in zip(values, valid, strict=True)], valid

    def _scan_cells(self, cells: Sequence[str], first: int) -> None:
        """Take in cells: all are integers, or else all numbers, or else they are texts.

        Among numbers, NaN and blanks are missing.
        """
        known = list(filter(None, cells))
        self._missing |= len(known) < len(cells)
        numbers = known
        if self._cells is not str and any(map(is_no_number, known)):
            numbers = [cell for cell in known if not is_no_number(cell)]
            self._nans = True
        if numbers and self._cells is int:
            integers = _all_integers(numbers)
            if integers is None:
                self._cells = float
            else:
                self._look_at_integers(integers, cells, first)
        if numbers and self._cells is float:
            floats = _all_decimals(numbers)
            if floats is None:
                self._cells = str
            else:
                self._infinite |= _INFINITE in floats or -_INFINITE in floats
        if numbers:
            self._kinds = {self._cells}
        if self._cells is str:
            self._counted.scan(cells, first)
        else:
            self._counted.add_numbers(len(numbers))
        if self._names is not None and known:
            self._names.update(cell.strip() for cell in known)  # what are integers now may turn out to be texts
            if self._cells is not str and len(self._names) > _NAMES_MAX:
                self._names = None
            self._odd |= self._cells is str and self._is_label and self._names is None

    def _look_at_integers(self, numbers: Sequence[int], values: Sequence[Any], first: int) -> None:
        """Take in the integers among the values of some rows."""
        least, most = min(numbers), max(numbers)
        if self._is_label and least < NO_CLASS and self._no_label is None:
            found = next(number for number in numbers if number < NO_CLASS)
            rows = (row for row, value in enumerate(values, first) if str(value).strip(BLANKS) == str(found))
            self._no_label = next(rows), found
        self._beyond |= least < _INT64.min or most > _INT64.max
        self._infinite |= max(-least, most) > _TOO_LARGE

    def _plain(self, values: Sequence[Any]) -> Sequence[Any]:
        """Values of Python's own types; a missing one is None or NaN."""
        if self.is_cells:
            if self._wanted is None and self._cells is not str:
                return [
                    self._cells(cell) if cell and not (self._nans and is_no_number(cell)) else None for cell in values
                ]
            values = [cell or None for cell in values]
        return values if self._wanted is None else convert(values, self._wanted, self.name, str)


def _all_integers(cells: Sequence[str]) -> list[int] | None:
    """Texts as integers, if all are integers in their usual spelling."""
    try:
        numbers = list(map(int, cells))
        spelt = list(map(str, numbers))
        return numbers if spelt == cells or spelt == [cell.strip(BLANKS) for cell in cells] else None
    except ValueError:
        return None


def _all_decimals(cells: Sequence[str]) -> list[float] | None:
    """Texts as floats, if all are numbers in their usual spelling."""
    try:
        return list(map(float, cells)) if all(map(is_decimal, cells)) else None
    except ValueError:
        return None


def _check_images(column: str, values: list[Any], where: Where) -> None:
    """Check that a column ``image`` holds the pictures themselves."""
    for row, value in enumerate(values):
        if value is not None and not isinstance(value, np.ndarray):
            raise UsageError(
                f"column {shorten(column)}, {where(row)}: expected a picture as an array (of Python rows), found "
                f"{shorten(value)}: if the column holds the paths, name it in path_column (--path-column {cut(str(column), LENGTH)}); "
                "else rename it, since the pack stage writes a field of that name"
            )


def _typed(column: str, field: str, values: list[Any], where: Where) -> dict[str, list[Any]]:
    """One column's values converted to one type, and a validity field where any value is missing."""
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
