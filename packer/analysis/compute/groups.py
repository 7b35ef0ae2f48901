"""Functions that compute one value for several samples, such as one embedding for a track, from its best frames."""

from typing import Any, NamedTuple

import numpy as np

from packer.analysis.compute.function import Function
from packer.analysis.compute.values import Values
from shardspec.columns import IntArray, missing_in
from shardspec.errors import UsageError


class GroupedRows(NamedTuple):
    """The samples to look at, and which samples share their mean.

    Attributes
    ----------
    rows : (m,) int64
        Samples to compute, ascending.
    group : (N,) int64
        Group of each sample of the dataset.
    """

    rows: IntArray
    group: IntArray


def group_rows(dataset: Any, function: Function) -> GroupedRows:
    """Group a dataset's samples by the fields in `Function.per` that it has, and choose the best of each group.

    Without any of these fields, or where a value is missing or negative, a sample is a group of its own.

    Parameters
    ----------
    dataset : readers.PackedDataset
    """
    rows = len(dataset)
    group, known = np.zeros(rows, np.int64), np.ones(rows, np.bool_)
    there = [name for name in function.per if name in dataset.pool.schema]
    for name in there:
        column = dataset.column(name)
        known &= ~missing_in(column)
        values = np.ma.getdata(column) if isinstance(column, np.ndarray) else np.array([one or "" for one in column])
        if values.dtype.kind == "i":  # the track of an image is -1
            known &= values >= 0
        codes = np.unique(values, return_inverse=True)[1]
        group = np.unique(group * (codes.max(initial=0) + 1) + codes, return_inverse=True)[1]
    alone = ~known if there else np.ones(rows, np.bool_)
    group = np.unique(np.where(alone, rows + np.arange(rows), group), return_inverse=True)[1]
    scores = function.rank(dataset)
    order = np.lexsort((np.arange(rows), -scores, group))
    first = np.searchsorted(group[order], group[order])  # place of the first sample of the same group
    chosen = order[np.arange(rows) - first < function.frames]
    return GroupedRows(np.sort(chosen), group)


def spread(grouped: GroupedRows, values: Values, function: str, name: str) -> Values:
    """Give every sample of a group the mean of the values of its chosen samples; a missing value if none has one."""
    rows, groups = len(grouped.group), int(grouped.group.max(initial=-1)) + 1
    kind = values.kind
    if kind is None:
        return Values(None, [None] * rows, np.zeros(rows, np.bool_))
    if kind.form != "array" or not kind.dtype.startswith("<f"):
        raise UsageError(
            place=f"function {function}, column {name!r}",
            expected="floating-point numbers, whose mean goes to all samples of a group",
            found=kind.describe(),
        )
    of = grouped.group[grouped.rows][values.valid]
    counts = np.bincount(of, minlength=groups)
    total = np.zeros((groups, *kind.shape))
    np.add.at(total, of, np.asarray(values.data)[values.valid])
    mean = total / np.maximum(counts, 1).reshape(-1, *[1] * len(kind.shape))
    return Values(kind, mean.astype(kind.dtype)[grouped.group], (counts > 0)[grouped.group])
