"""The columns of many rows, each of one type: settled in one pass over the rows, and made in the next."""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from packer.recipe import field_name
from packer.sources.values import ArrayType, array_type, convert, is_decimal, keep_cells, missing_list, parse_cells
from shardspec.errors import UsageError
from shardspec.fields import RESERVED, is_further_picture
from shardspec.wording import LENGTH, cut, did_you_mean, is_utf8, list_some, shorten

CHUNK_ROWS = 2048

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


class Chunk(NamedTuple):
    """Some rows, one after another, as columns.

    Attributes
    ----------
    first : int
        The number of the first row.
    rows : int
    columns : dict of str to list
        A column that is not here has no value in these rows.
    """

    first: int
    rows: int
    columns: Mapping[str, Sequence[Any]]

    def column(self, name: str, missing: Any = None) -> Sequence[Any]:
        """The values of a column; `missing` in every row if it has none here."""
        return self.columns[name] if name in self.columns else [missing] * self.rows


def chunks_of(rows: Iterable[Mapping[str, Any]]) -> Iterator[Chunk]:
    """Rows as columns, some at a time."""
    first, waiting = 0, iter(rows)
    while some := list(islice(waiting, CHUNK_ROWS)):
        names = dict.fromkeys(name for row in some for name in row)
        yield Chunk(first, len(some), {name: [row.get(name) for row in some] for name in names})
        first += len(some)


class Columns:
    """The columns of some rows, each of one type.

    Attributes
    ----------
    fields : dict of str to str
        The field that each column becomes, by column.
    classes : dict of str to list of str
        The names of the classes, where the labels are names.
    notes : tuple of str
        What the user should know, a line each.
    """

    def __init__(self, columns: Sequence["_Column"], label: str | None, where: Where) -> None:
        self.fields: dict[str, str] = {column.name: column.field for column in columns}
        self.classes: dict[str, list[str]] = {}
        self.notes: tuple[str, ...] = ()
        self._columns = columns
        self._label = label
        self._numbers: Mapping[str, int] | None = None
        self._where = where

    def of(self, chunk: Chunk) -> tuple[dict[str, Sequence[Any]], Sequence[str | None]]:
        """The values of each field in some rows, and for each row why it is rejected."""
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
            out["label"] = [int(value) if ok else 0 for value, ok in zip(values, oks, strict=True)]
        else:
            try:
                out["label"] = [numbers[_stripped(value)] if ok else 0 for value, ok in zip(values, oks, strict=True)]
            except KeyError as error:  # not 0: that is another class
                raise UsageError(
                    f"label column {shorten(self._label)}: expected rows that are the same every time, "
                    f"found {shorten(error.args[0])}, which was not there when the classes were numbered"
                ) from error
        if valid is None:
            return out, [None] * chunk.rows
        reason = f"expected a label in column {shorten(self._label)}, found none"
        rejects = [None if ok else f"{self._where(chunk.first + row)}: {reason}" for row, ok in enumerate(oks)]
        return out, rejects

    def rows(self, chunks: Iterable[Chunk]) -> Iterator[tuple[dict[str, Any], str | None]]:
        """The values of each row by field, and why the row is rejected."""
        for chunk in chunks:
            values, rejects = self.of(chunk)
            for row, reject in enumerate(rejects):
                yield {name: of_field[row] for name, of_field in values.items()}, reject

    @property
    def further(self) -> tuple[str, ...]:
        """Fields with pictures, other than ``image``."""
        return tuple(c.field for c in self._columns if is_further_picture(c.field) and _has_pictures(c.all_values))

    @property
    def arrays(self) -> dict[str, ArrayType]:
        """The array type of each field of lists of numbers."""
        found = {column.field: array_type(column.all_values) for column in self._columns if column.field != self._label}
        return {field: kind for field, kind in found.items() if kind is not None}

    def number_classes(self) -> None:
        """Number the labels: texts in sorted order, without spaces around them; integers stay as they are.

        Raises
        ------
        UsageError
            If they are neither.
        """
        column = next((column for column in self._columns if column.field == self._label), None)
        if column is None:
            return
        known = column.known_labels()
        if all(isinstance(value, bool | int) for value in known):
            return
        name = shorten(self._label)
        if not all(isinstance(value, str) for value in known):
            raise UsageError(
                f"label column {name}: expected class names or integers, found {type(next(iter(known))).__name__}"
            )
        classes = sorted(set(known))
        for text in classes:
            if not is_utf8(text):
                raise UsageError(
                    f"label column {name}: expected names that can be encoded as UTF-8, found {shorten(text)}"
                )
        self._numbers = {text: number for number, text in enumerate(classes)}
        self.classes["label"] = classes


def read_columns(
    chunks: Callable[[], Iterable[Chunk]],
    label_from: str,
    types: Mapping[str, str],
    where: Where,
    *,
    cells: Callable[[str], bool] = lambda _: False,
    leave: str | None = None,
) -> Columns:
    """Settle the columns of rows: each gets one type and a name as a field, and one of them may become the label.

    The rows are read once, and once more for each column of lists, of objects, or with an error: the values of such a
    column are kept in memory.

    Parameters
    ----------
    chunks : callable
        Begins to read the rows, the same every time.
    label_from : str
        See `Source`. If it names a column other than ``label``, that one takes the place of a column ``label``.
    types : dict of str to str
        Columns that become text, int or float, whatever their values look like.
    where : callable
        Names a row in messages.
    cells : callable
        Whether the values of a column are the texts of cells, which may stand for numbers; an empty one is missing.
    leave : str, optional
        A column that is not taken.

    Raises
    ------
    UsageError
        If a column has a name that is no field's, has values of several types, or is not there.
    """
    found: dict[str, _Column] = {}
    for chunk in chunks():
        for name in chunk.columns:
            if name not in found and name != leave:
                found[name] = _Column(name, types.get(name), cells(name), chunk.first > 0, _is_label(name, label_from))
        for name, column in found.items():
            column.scan(chunk.column(name, "" if column.is_cells else None))
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
    _check_types(types, {name: column.field for name, column in found.items()})
    for column in found.values():
        column.settle(chunks, where)
    columns = Columns(list(found.values()), label, where)
    columns.notes = tuple(notes)
    columns.number_classes()
    return columns


def _is_label(name: str, label_from: str) -> bool:
    """Whether a column becomes the label, if it can."""
    return name == label_from if label_from not in ("auto", "none") else field_name(name) == "label"


def _stripped(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


class _Column:
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
        self._kinds: set[type[Any]] = set()
        self._beyond = self._infinite = False
        self._odd = self.field == "image"
        self._values: Sequence[Any] | None = None
        self._valid: Sequence[bool] | None = None

    @property
    def all_values(self) -> Sequence[Any]:
        """All values of a column that is not simple; of a simple one, none."""
        return self._values or ()

    def known_labels(self) -> Collection[Any]:
        """The texts without spaces around them; of other values at least one."""
        if self._values is None:
            return self._names or () if self._kinds <= {str} else [kind() for kind in self._kinds]
        oks = self._valid or [True] * len(self._values)
        return [_stripped(value) for value, ok in zip(self._values, oks, strict=True) if ok]

    def scan(self, values: Sequence[Any]) -> None:
        """Take in the values of the next rows."""
        if self._odd:
            return
        if self.is_cells and self._wanted is None:
            self._scan_cells(values)
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
            self._look_at_integers([value for value in values if type(value) is int])
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
            self._odd |= self._infinite if self._cells is float else self._beyond and self._cells is int
        else:
            mixed = len(self._kinds) > 1 and self._kinds != {int, float}
            self._odd |= mixed or self._beyond or self._infinite
        if not self._odd:
            self._kinds = {float} if float in self._kinds else self._kinds
            return
        missing = "" if self.is_cells else None
        values: list[Any] = [value for chunk in chunks() for value in chunk.column(self.name, missing)]
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

    def of(self, chunk: Chunk) -> tuple[Sequence[Any], Sequence[bool] | None]:
        """The values in some rows, and which of them are known if any is missing anywhere."""
        if self._values is not None:
            rows = slice(chunk.first, chunk.first + chunk.rows)
            return self._values[rows], None if self._valid is None else self._valid[rows]
        values = self._plain(chunk.column(self.name, "" if self.is_cells else None))
        if self._kinds == {float}:
            values = [value if value is None else float(value) for value in values]
        if not self._missing:
            return values, None
        kind = next(iter(self._kinds), str)
        stand_in = _SENTINELS[kind]
        valid = [value is not None and value == value for value in values]
        return [value if ok else stand_in for value, ok in zip(values, valid, strict=True)], valid

    def _scan_cells(self, cells: Sequence[str]) -> None:
        """Take in cells: all are integers, or else all numbers, or else they are texts."""
        known = list(filter(None, cells))
        self._missing |= len(known) < len(cells)
        if known and self._cells is int:
            numbers = _all_integers(known)
            if numbers is None:
                self._cells = float
            else:
                self._look_at_integers(numbers)
        if known and self._cells is float:
            floats = _all_decimals(known)
            if floats is None:
                self._cells = str
            else:
                self._infinite |= _INFINITE in floats or -_INFINITE in floats
        if known:
            self._kinds = {self._cells}
        if self._names is not None and known:
            self._names.update(cell.strip() for cell in known)  # what are integers now may turn out to be texts
            if self._cells is not str and len(self._names) > _NAMES_MAX:
                self._names = None
            self._odd |= self._cells is str and self._is_label and self._names is None

    def _look_at_integers(self, numbers: Sequence[int]) -> None:
        least, most = min(numbers), max(numbers)
        self._beyond |= least < _INT64.min or most > _INT64.max
        self._infinite |= max(-least, most) > _TOO_LARGE

    def _plain(self, values: Sequence[Any]) -> Sequence[Any]:
        """Values of Python's own types; a missing one is None or NaN."""
        if self.is_cells:
            if self._wanted is None and self._cells is not str:
                return [self._cells(cell) if cell else None for cell in values]
            values = [cell or None for cell in values]
        if any(issubclass(kind, np.generic) for kind in set(map(type, values))):
            values = [value.item() if isinstance(value, np.generic) else value for value in values]
        return values if self._wanted is None else convert(values, self._wanted, self.name, str)


def _all_integers(cells: Sequence[str]) -> list[int] | None:
    """Texts as integers, if all are integers in their usual spelling."""
    try:
        numbers = list(map(int, cells))
        return numbers if list(map(str, numbers)) == cells else None
    except ValueError:
        return None


def _all_decimals(cells: Sequence[str]) -> list[float] | None:
    """Texts as floats, if all are numbers in their usual spelling."""
    try:
        return list(map(float, cells)) if all(map(is_decimal, cells)) else None
    except ValueError:
        return None


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


def _has_pictures(values: Sequence[Any]) -> bool:
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
