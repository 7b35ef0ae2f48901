"""Selection of rows by a condition on small fields: a callable, or an expression such as ``"label == 'fake'"``.

The readers and the pages of the pack stage use the same rule, so an expression means the same in both.

Missing values follow the rule of SQL. A comparison with a missing value is unknown, and so is its negation. A condition
selects the rows for which it is known to hold.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from shardspec.columns import IntArray, mark_missing, missing_in
from shardspec.errors import UsageError
from shardspec.schema import class_name
from shardspec.wording import did_you_mean, list_some, shorten

Condition = str | Callable[..., npt.ArrayLike]

Column = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


class SmallFields(Protocol):
    """Samples whose small fields can be compared: a dataset of `readers`, or one that `packer` browses."""

    @property
    def small_fields(self) -> tuple[str, ...]:
        """Fields with a number or a text per sample."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of ``label``."""
        ...

    def __len__(self) -> int: ...

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """Return one field of all samples, with missing values marked (`shardspec.columns.mark_missing`)."""
        ...


_LONGEST = 10_000
_DEEPEST = 50

_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def rows_where(dataset: SmallFields, condition: Condition, fields: Sequence[str] | None = None) -> IntArray:
    """Return the rows for which a condition holds, ascending (`readers.dataset.parts.WithParts.where`)."""
    if isinstance(condition, str):
        if fields is not None:
            raise UsageError(
                option="fields", expected="none with an expression, which names its fields itself", found="some"
            )
        return np.flatnonzero(_Expression(dataset, condition).rows())
    if not callable(condition) or fields is None:
        raise UsageError(
            option="where",
            expected=(
                "an expression such as \"label == 'fake' and score > 0.9\", or a callable and the fields that it gets"
            ),
            found=f"{shorten(condition)}{' without fields' if callable(condition) else ''}",
        )
    chosen = np.ma.filled(condition(*(comparable(dataset.column(name)) for name in fields)), False)
    if chosen.shape != (len(dataset),) or chosen.dtype != bool:
        raise UsageError(
            option="predicate",
            expected=f"booleans of shape ({len(dataset)},)",
            found=f"{chosen.dtype} of shape {chosen.shape}",
        )
    return np.flatnonzero(chosen)


def comparable(column: npt.NDArray[Any] | list[Any]) -> npt.NDArray[Any] | list[Any]:
    """Return a column that can be compared value by value: texts as an array; other columns unchanged."""
    if isinstance(column, np.ndarray) or not all(value is None or isinstance(value, str) for value in column):
        return column
    texts = [value or "" for value in column]
    try:
        found: Column = np.array(texts, np.dtypes.StringDType())
    except UnicodeEncodeError:  # file names that are not UTF-8
        found = np.array([*texts, None], object)[:-1]
    marked: Column = mark_missing(found, ~missing_in(column))
    return marked


class _Truth(NamedTuple):
    """Truth of a condition for each row: it holds, it fails, or neither if that depends on a missing value."""

    holds: Mask
    fails: Mask

    @classmethod
    def of(cls, holds: Mask, known: Mask) -> "_Truth":
        return cls(holds & known, ~holds & known)

    @classmethod
    def all(cls, parts: Sequence["_Truth"]) -> "_Truth":
        return cls(
            np.logical_and.reduce([part.holds for part in parts]), np.logical_or.reduce([part.fails for part in parts])
        )

    def negated(self) -> "_Truth":
        return _Truth(self.fails, self.holds)


class _Expression:
    """An expression on a dataset's fields, evaluated from its syntax tree. No part of it is executed as code."""

    def __init__(self, dataset: SmallFields, text: str) -> None:
        self._dataset = dataset
        self._text = text
        self._columns: dict[str, Column] = {}
        if len(text) > _LONGEST:
            raise UsageError(
                option="where",
                expected=f"an expression of at most {_LONGEST} characters",
                found=len(text),
            )
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            raise UsageError(
                option="where",
                expected="an expression such as \"label == 'fake' and score > 0.9\"",
                found=shorten(text),
                hint="for equality write ==" if "=" in re.sub("[=!<>]=", "", text) else None,
            ) from error

    def rows(self) -> Mask:
        """Return whether each row meets the condition: bool, (N,)."""
        return self._truth(self._tree, 0).holds

    def _truth(self, node: ast.expr, depth: int) -> _Truth:
        if depth > _DEEPEST:
            raise UsageError(option="where", expected=f"at most {_DEEPEST} conditions in one another", found="more")
        if isinstance(node, ast.BoolOp):
            parts = [self._truth(part, depth + 1) for part in node.values]
            return _Truth.all(parts) if isinstance(node.op, ast.And) else _any(parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self._truth(node.operand, depth + 1).negated()
        if isinstance(node, ast.Compare):
            operands = list(pairwise([node.left, *node.comparators]))
            pairs = zip(node.ops, operands, strict=True)
            return _Truth.all([self._compare(op, left, right) for op, (left, right) in pairs])
        if isinstance(node, ast.Name):
            column = self._column(node.id)
            if column.dtype == bool:
                return _Truth.of(np.ma.getdata(column), ~missing_in(column))
            raise self._wrong(node, f"compare {node.id!r} with something, since it is not true or false by itself")
        raise self._wrong(node, "it takes comparisons, and, or, not, in, names of fields and constants")

    def _compare(self, op: ast.cmpop, left: ast.expr, right: ast.expr) -> _Truth:
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(right, ast.Tuple | ast.List | ast.Set) or not isinstance(left, ast.Name):
                raise self._wrong(right, "write a field, in, and a list: source in ['a.mp4', 'b.mp4']")
            none = _Truth.of(np.zeros(len(self._dataset), np.bool_), ~missing_in(self._column(left.id)))
            found = _any([none, *(self._compare(ast.Eq(), left, value) for value in right.elts)])
            return found if isinstance(op, ast.In) else found.negated()
        compare = _COMPARISONS.get(type(op))
        if compare is None:
            if not isinstance(left, ast.Name) or not isinstance(right, ast.Name) or right.id != "missing":
                raise self._wrong(left, "write == or !=, and not is, except in 'FIELD is missing' or 'is not missing'")
            missing = missing_in(self._column(left.id))
            return _Truth(missing, ~missing) if isinstance(op, ast.Is) else _Truth(~missing, missing)
        values = [self._value(node) for node in (left, right)]
        names = [node.id for node in (left, right) if isinstance(node, ast.Name)]
        if not names:
            raise self._wrong(left, "one side of a comparison is a field")
        of_label = "label" in names and bool(self._dataset.classes)
        for place, value in enumerate(values):
            if of_label and isinstance(value, str):
                if not isinstance(op, ast.Eq | ast.NotEq):
                    raise self._wrong(left, "names of classes are compared by ==, != and in")
                values[place] = self._class(value)
        if len({self._is_text(value) for value in values}) > 1:
            is_text = self._is_text(self._column(names[0]))
            kind = (
                "text, which is not compared with numbers" if is_text else "numbers, which are not compared with text"
            )
            raise self._wrong(right, f"{names[0]!r} has {kind}")
        known = ~np.logical_or.reduce([missing_in(self._column(name)) for name in names])
        return _Truth.of(np.asarray(compare(*values), np.bool_), known)

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return np.ma.getdata(self._column(node.id))
        sign = 1
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            node, sign = node.operand, -1
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str):
            if sign == 1:
                return node.value
            if not isinstance(node.value, str):
                return -node.value
        raise self._wrong(node, "a comparison is one of fields, numbers and texts in quotes")

    def _column(self, name: str) -> Column:
        if name not in self._columns:
            known = self._dataset.small_fields
            if name not in known:
                like = did_you_mean(name, known)
                quoted = f": write {name!r} in quotes" if name in self._dataset.classes else ""
                raise UsageError(
                    option="where",
                    expected=f"a field of numbers or text, of {list_some(known)}",
                    found=f"{shorten(name)}{quoted or like}",
                )
            column = comparable(self._dataset.column(name))
            if not isinstance(column, np.ndarray) or column.ndim != 1:
                raise UsageError(
                    option="where",
                    expected="a field of numbers or text",
                    found=f"{shorten(name)}, which has other values",
                )
            self._columns[name] = column
        return self._columns[name]

    def _class(self, name: str) -> int:
        classes = [class_name(known) for known in self._dataset.classes]
        if class_name(name) not in classes:
            raise UsageError(
                option="where",
                expected=f"one of the classes {list_some(list(map(repr, classes)))}",
                found=f"{shorten(name)}{did_you_mean(name, classes)}",
            )
        return classes.index(class_name(name))

    def _is_text(self, value: Any) -> bool:
        return isinstance(value, str) if not isinstance(value, np.ndarray) else value.dtype.kind in "TUO"

    def _wrong(self, node: ast.expr, remedy: str) -> UsageError:
        part = ast.get_source_segment(self._text.strip(), node) or self._text
        return UsageError(option="where", expected="an expression of comparisons", found=shorten(part), hint=remedy)


def _any(parts: Sequence[_Truth]) -> _Truth:
    return _Truth.all([part.negated() for part in parts]).negated()
