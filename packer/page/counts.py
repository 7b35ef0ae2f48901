"""How the values of a small field are spread: bars, each with the condition that selects its samples."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.page.dataset import ShownDataset
from shardspec.schema import Field

_BARS = 30
"""About as many bars of a histogram."""
_LISTED = 25
"""Texts, classes or numbers that are counted one by one."""
_FEW_NUMBERS = 12
"""Different integers that are counted one by one, rather than in a histogram."""

Rows = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Bar:
    """Some values of a field.

    Attributes
    ----------
    label : str
    where : str
        The condition of its samples (`readers.conditions`).
    count : int
        Samples of the whole dataset.
    selected : int
        Those of them that are selected.
    test : dict
        The same condition for the script of a report: ``is`` a value, or ``from`` and ``to`` with ``last``.
    """

    label: str
    where: str
    count: int
    selected: int
    test: Mapping[str, Any]


@dataclass(frozen=True)
class Spread:
    """The values of a field.

    Attributes
    ----------
    name : str
    kind : {"list", "histogram", "none"}
        Values one by one, the most frequent first; ranges of numbers, ascending; or too many texts to count.
    bars : tuple of Bar
    note : str
        What the bars leave out.
    """

    name: str
    kind: str
    bars: tuple[Bar, ...]
    note: str = ""

    @property
    def most(self) -> int:
        """Samples of the longest bar."""
        return max((bar.count for bar in self.bars), default=0) or 1


def spread(dataset: ShownDataset, name: str, rows: Rows | None = None) -> Spread:
    """How a field's values are spread.

    Parameters
    ----------
    dataset : ShownDataset
    name : str
        One of its small fields.
    rows : int32 array, optional
        The selected rows; all by default.
    """
    field = dataset.field(name)
    if field.kind == "text":
        return _of_texts(dataset, name, rows)
    values = dataset.column(name)
    valid = f"{name}_valid"
    known = np.asarray(dataset.column(valid)) if valid in dataset.small_fields else None
    if field.dtype == "|b1":
        return _of_numbers(field, values.astype(np.int8), rows, known, ("False", "True"))
    if field.classes is not None or _few(field, values):
        return _of_numbers(field, values, rows, known, field.classes)
    return _histogram(field, values, rows, known)


def _few(field: Field, values: npt.NDArray[Any]) -> bool:
    """Whether a field has few different integers."""
    if field.dtype[1] not in "iu" or not len(values):
        return False
    return int(values.max()) - int(values.min()) < _FEW_NUMBERS


def _of_texts(dataset: ShownDataset, name: str, rows: Rows | None) -> Spread:
    texts = dataset.texts(name)
    if texts is None:
        return Spread(name, "none", (), "too many different values to count; filter by an expression")
    counts = np.bincount(texts.codes, minlength=len(texts.names))
    chosen = counts if rows is None else np.bincount(texts.codes[rows], minlength=len(texts.names))
    by = chosen if rows is not None else counts
    order = np.argsort(-by, kind="stable")[:_LISTED].tolist()
    bars = tuple(
        Bar(text, f"{name} == {text!r}", int(counts[at]), int(chosen[at]), {"is": text})
        for at, text in ((at, texts.names[at]) for at in order)
    )
    return Spread(name, "list", bars, _left_out(len(texts.names)))


def _of_numbers(
    field: Field,
    values: npt.NDArray[Any],
    rows: Rows | None,
    known: npt.NDArray[np.bool_] | None,
    names: tuple[str, ...] | None,
) -> Spread:
    """Integers one by one: classes in their order, other numbers ascending."""
    found, counts = np.unique(values if known is None else values[known], return_counts=True)
    if rows is None:
        chosen = dict(zip(found.tolist(), counts.tolist(), strict=True))
    else:
        some = values[rows] if known is None else values[rows][known[rows]]
        chosen = dict(zip(*(part.tolist() for part in np.unique(some, return_counts=True)), strict=True))
    bars = []
    for value, count in list(zip(found.tolist(), counts.tolist(), strict=True))[:_LISTED]:
        named = names is not None and 0 <= value < len(names)
        label = names[value] if names is not None and named else str(value)
        where = _is_value(field, value, label, named)
        bars.append(Bar(label, where, count, chosen.get(value, 0), {"is": value}))
    note = _left_out(len(found))
    if known is not None and not known.all():
        note = "; ".join(filter(None, [note, f"{int((~known).sum())} samples without a value"]))
    return Spread(field.name, "list", tuple(bars), note)


def _is_value(field: Field, value: int, label: str, named: bool) -> str:
    if field.dtype == "|b1":
        return field.name if value else f"not {field.name}"
    return f"{field.name} == {label!r}" if named and field.name == "label" else f"{field.name} == {value}"


def _histogram(
    field: Field, values: npt.NDArray[Any], rows: Rows | None, known: npt.NDArray[np.bool_] | None
) -> Spread:
    finite = np.isfinite(values) if values.dtype.kind == "f" else np.ones(len(values), np.bool_)
    fit = finite if known is None else finite & known
    name, left = field.name, len(values) - int(fit.sum())
    note = f"{left} samples without a value" if left else ""
    if left == len(values):
        return Spread(name, "histogram", (), note)
    some = values if not left else values[fit]
    edges = _round_edges(some.min(), some.max(), values.dtype)
    counts = _count(some, edges)
    chosen = counts if rows is None else _count(values[rows] if not left else values[rows][fit[rows]], edges)
    texts = [str(edge) for edge in edges]  # of the field's own dtype: the shortest that means the same number
    beside = f" and {name}_valid" if known is not None and not known.all() else ""
    bars = [
        Bar(
            f"{low} to {high}",
            f"{name} >= {low} and {name} {'<=' if at == len(edges) - 2 else '<'} {high}{beside}",
            int(counts[at]),
            int(chosen[at]),
            {"from": float(low), "to": float(high), "last": at == len(edges) - 2},
        )
        for at, (low, high) in enumerate(pairwise(texts))
    ]
    return Spread(name, "histogram", tuple(bars), note)


def _round_edges(low: Any, high: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Ascending edges of about `_BARS` equal bars, mostly round numbers, that hold all values from `low` to `high`."""
    if dtype.kind in "iu":
        most: Any = np.iinfo(dtype)
        found: list[Any] = [min(max(edge, int(most.min)), int(most.max)) for edge in _whole(int(low), int(high))]
    else:
        most = np.finfo(dtype)
        found = np.clip(list(_fractions(float(low), float(high))), float(most.min), float(most.max)).tolist()
    edges = np.unique(np.array(found, dtype))
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], high)  # which rounding to the dtype may have passed
    return edges if len(edges) > 1 else np.array([low, high], dtype)


def _whole(low: int, high: int) -> Iterable[int]:
    step = max(1, -(-(high - low) // _BARS))
    size = 10 ** (len(str(step)) - 1)
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= step)
    return range(low // step * step, high + step + 1, step)


def _fractions(low: float, high: float) -> Iterator[float]:
    rough = high / _BARS - low / _BARS  # the difference may be too large for a float
    if rough < 1e-300:
        yield from (low, high)
        return
    size = 10.0 ** math.floor(math.log10(rough))
    step = next((factor * size for factor in (1, 2, 5, 10) if factor * size >= rough), rough)
    first, digits = math.floor(low / step), max(0, -math.floor(math.log10(step)))
    for at in range(math.floor(high / step) - first + 2):
        yield round((first + at) * step, digits)


def _count(values: npt.NDArray[Any], edges: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Numbers between each edge and the next; the last bar holds its upper edge, too."""
    place = np.minimum(np.searchsorted(edges, values, side="right") - 1, len(edges) - 2)
    found: npt.NDArray[np.int64] = np.bincount(place, minlength=len(edges) - 1)
    return found


def _left_out(different: int) -> str:
    return f"and {different - _LISTED} more values" if different > _LISTED else ""
