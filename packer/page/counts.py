"""Bar charts of the values of a small field. Each bar has the condition that selects its samples."""

import math
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packer.packed.browse.columns import ColumnArray, Selection
from packer.packed.browse.dataset import BrowsedDataset
from shardspec.columns import missing_in
from shardspec.errors import UsageError
from shardspec.schema import Field

_BARS = 30
"""Approximate number of bars of a histogram."""
_LISTED = 25
"""Maximum number of texts, classes or numbers with a separate bar."""
_FOLDED = 1000
"""Number of different texts above which their bars are folded."""
_FEW_NUMBERS = 12
"""A smaller range of integers is counted value by value instead of as a histogram."""


@dataclass(frozen=True)
class Bar:
    """Some values of a field.

    Attributes
    ----------
    where : str
        The condition that selects the bar's samples (`readers.conditions`).
    count : int
        Number of samples in the whole dataset.
    selected : int
        Number of samples in the selection.
    """

    label: str
    where: str
    count: int
    selected: int


@dataclass(frozen=True)
class Spread:
    """The values of a field.

    Attributes
    ----------
    kind : {"list", "histogram", "none"}
        ``"list"`` counts single values, ``"histogram"`` ranges of numbers. ``"none"``: not counted, because too many
        samples have texts, or because the values would have to be downloaded.
    note : str
        Description of values without a bar.
    is_folded : bool
        Whether a page shows the bars on demand, because there are many more values than bars.
    """

    name: str
    kind: str
    bars: tuple[Bar, ...]
    note: str = ""
    is_folded: bool = False

    @property
    def is_constant(self) -> bool:
        """True if all samples have the same value."""
        return self.kind == "list" and len(self.bars) == 1 and not self.note

    @property
    def most(self) -> int:
        """Number of samples of the longest bar."""
        return max((bar.count for bar in self.bars), default=0) or 1


def spread(dataset: BrowsedDataset, name: str, selection: Selection | None = None) -> Spread:
    """Count a field's values.

    Parameters
    ----------
    name : str
        Name of a small field of the dataset.
    selection : Selection, optional
        The selected rows; all by default.
    """
    whole = megabytes(sum(part.bytes for part in dataset.manifest.parts))
    if dataset.needs_download(name):
        note = f"not counted: this may need a download of {whole}, which a filter or sorting by {name} starts"
        return Spread(name, "none", (), note)
    found = _spread(dataset, name, selection)
    if not dataset.is_sampled(name) or dataset.sample is None:
        return found
    note = f"in {len(dataset.sample)} of {len(dataset)} samples; all may need a download of {whole}"
    return replace(found, note="; ".join(filter(None, [found.note, note])))


def _spread(dataset: BrowsedDataset, name: str, selection: Selection | None) -> Spread:
    field = dataset.field(name)
    if field.kind == "text":
        return _of_texts(dataset, name, selection)
    values = _ValueCounts.of(dataset, name, selection)
    if field.dtype == "|b1":
        return _of_integers(field, values, ("False", "True"))
    if field.classes is not None or _few(field, values):
        return _of_integers(field, values, field.classes or ())
    return _histogram(field, values)


class _ValueCounts(NamedTuple):
    """The finite values of a field of numbers.

    Attributes
    ----------
    all, selected : array
        Values of all samples, and of the selected samples.
    missing : int
        Number of samples without a finite value.
    """

    all: ColumnArray
    selected: ColumnArray
    missing: int

    @classmethod
    def of(cls, dataset: BrowsedDataset, name: str, selection: Selection | None) -> "_ValueCounts":
        column = dataset.column(name)
        values, there = np.ma.getdata(column), ~missing_in(column)
        if values.dtype.kind == "f":
            there &= np.isfinite(values)
        every = values[there]
        return cls(every, every if selection is None else values[there & selection.mask], len(values) - len(every))


def _few(field: Field, values: _ValueCounts) -> bool:
    if field.dtype[1] not in "iu" or not len(values.all):
        return False
    return int(values.all.max()) - int(values.all.min()) < _FEW_NUMBERS


def _of_texts(dataset: BrowsedDataset, name: str, selection: Selection | None) -> Spread:
    try:
        texts, known = dataset.texts(name), dataset.known(name)
    except UsageError as error:  # too many samples
        return Spread(name, "none", (), str(error))
    there = np.ones(len(texts.codes), np.bool_) if known is None else known
    counts = np.bincount(texts.codes[there], minlength=len(texts.names))
    chosen = counts
    if selection is not None:
        chosen = np.bincount(texts.codes[there & selection.mask], minlength=len(counts))
    order = [at for at in np.argsort(-chosen, kind="stable").tolist() if counts[at]]
    bars = [
        Bar(text, f"{name} == {text!r}", int(counts[at]), int(chosen[at]))
        for at, text in zip(order, texts.names[order[:_LISTED]].tolist(), strict=False)
    ]
    note = _note(len(order), len(texts.codes) - int(counts.sum()))
    return Spread(name, "list", tuple(bars), note, is_folded=len(order) > _FOLDED)


def _of_integers(field: Field, values: _ValueCounts, names: tuple[str, ...]) -> Spread:
    """Count integers one by one: classes in their order, other numbers ascending."""
    counts, chosen = _counted(values.all), _counted(values.selected)
    bars = []
    for value in sorted(counts)[:_LISTED]:
        label = names[value] if 0 <= value < len(names) else str(value)
        bars.append(Bar(label, condition_of(field, value), counts[value], chosen.get(value, 0)))
    return Spread(field.name, "list", tuple(bars), _note(len(counts), values.missing))


def _counted(values: ColumnArray) -> dict[int, int]:
    found, counts = np.unique(values, return_counts=True)
    return dict(zip(map(int, found.tolist()), counts.tolist(), strict=True))


def megabytes(bytes: int) -> str:
    """Write a size for a page, such as ``3.2 MB``."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if bytes >= size:
            return f"{bytes / size:.1f} {unit}" if bytes < 100 * size else f"{bytes / size:,.0f} {unit}"
    return f"{bytes} B"


def condition_of(field: Field, value: Any) -> str:
    """Return the condition that selects the samples with a value."""
    if field.dtype == "|b1":
        return field.name if value else f"not {field.name}"
    if field.name == "label" and field.classes is not None and 0 <= value < len(field.classes):
        value = field.classes[value]
    return f"{field.name} == {value!r}"


def _histogram(field: Field, values: _ValueCounts) -> Spread:
    name = field.name
    note = _note(0, values.missing)
    if not len(values.all):
        return Spread(name, "histogram", (), note)
    lowest, highest = values.all.min(), values.all.max()
    if lowest == highest:
        bar = Bar(str(lowest), f"{name} == {lowest}", len(values.all), len(values.selected))
        return Spread(name, "list", (bar,), note)
    edges = _round_edges(lowest, highest, field.numpy_dtype)
    counts, chosen = _count(values.all, edges), _count(values.selected, edges)
    texts = [str(edge) for edge in edges]  # edges have the field's dtype, so each text is the shortest exact one
    bars = [
        Bar(
            f"{low} to {high}",
            f"{name} >= {low} and {name} {'<=' if at == len(edges) - 2 else '<'} {high}",
            int(counts[at]),
            int(chosen[at]),
        )
        for at, (low, high) in enumerate(pairwise(texts))
    ]
    return Spread(name, "histogram", tuple(bars), note)


def _round_edges(low: Any, high: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return ascending edges of about `_BARS` equal bars, mostly at round numbers, from `low` to `high` or beyond."""
    lowest, highest = Decimal(low.item()), Decimal(high.item())
    rough = (highest - lowest) / _BARS
    limits: Any = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
    if dtype.kind in "iu":
        rough = max(rough, Decimal(1))
    size = Decimal(1).scaleb(rough.adjusted())
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= rough)
    multiples = range(math.floor(lowest / step), math.ceil(highest / step) + 1)
    edges = np.unique(np.array([min(max(n * step, int(limits.min)), int(limits.max)) for n in multiples], dtype))
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], high)  # rounding to the dtype may have cut off a value
    return edges if len(edges) > 1 else np.array([low, high], dtype)


def _count(values: npt.NDArray[Any], edges: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Count numbers between edges. The last bar includes its upper edge."""
    place = np.minimum(np.searchsorted(edges, values, side="right") - 1, len(edges) - 2)
    found: npt.NDArray[np.int64] = np.bincount(place, minlength=len(edges) - 1)
    return found


def _note(different: int, missing: int) -> str:
    """Describe the values without a bar: values beyond the first ones, and missing values."""
    more = f"and {different - _LISTED} more values" if different > _LISTED else ""
    without = f"{missing} samples without a value" if missing else ""
    return "; ".join(filter(None, [more, without]))
