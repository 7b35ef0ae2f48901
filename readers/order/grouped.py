"""Orders of batches composed by group: balanced over classes, P × K samples, or pairs."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from readers.arguments import as_count
from readers.order.order import Order
from readers.seeding import Permutation, mix_words
from shardspec.columns import IntArray
from shardspec.errors import UsageError
from shardspec.wording import counted, shorten

_ROWS_TAG, _BATCHES_TAG, _VALUES_TAG, _FILL_TAG = range(0x62617463680, 0x62617463684)

Values = npt.ArrayLike | Sequence[str] | tuple[Any, ...]
"""One value for each row. A tuple of such columns: rows with equal values in all of them belong together."""

Names = str | tuple[str, ...]
"""A column of a dataset by its name, or a tuple of names: rows with equal values in all columns belong together."""


@runtime_checkable
class ColumnSource(Protocol):
    """A dataset, of which an order takes columns."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def column(self, name: str) -> Any:
        """Return one field of all rows."""


def _columns(source: ColumnSource | Values, by: Names | None, **others: Values | Names | None) -> tuple[Any, ...]:
    """Return the values by which to group rows, and the other columns; of a dataset, its fields with the given names."""
    if isinstance(source, ColumnSource):
        if by is None:
            raise UsageError(option="by", expected="the field of the dataset by which to group its rows", found="none")
        return tuple(_named(source, option, names) for option, names in {"by": by, **others}.items())
    if by is not None:
        raise UsageError(option="by", expected="none unless the order is made of a dataset", found=shorten(by))
    return (source, *others.values())


def _named(table: ColumnSource, option: str, names: Any) -> Any:
    if names is None:
        return None
    if isinstance(names, tuple) and all(isinstance(name, str) for name in names):
        return tuple(table.column(name) for name in names)
    if not isinstance(names, str):
        raise UsageError(option=option, expected="the name of a field of the dataset", found=shorten(names))
    return table.column(names)


class BalancedBatches:
    """Batches with equally many samples of every class: exactly half and half for two classes.

    An epoch has every sample of the largest class once, and every sample of the others once or more, as evenly as
    possible; the last batch is filled up by repetition. Every copy of a sample is augmented differently. In a batch the
    classes alternate: with two classes, every other sample is of the second.

    Parameters
    ----------
    labels : SampleDataset; or array of int or sequence of str, (N,)
        The dataset that is read; or the class of each of its rows, such as ``ds.column("label")``. Rows without a class
        are left out: a negative number, an empty text, a missing value.
    batch_size : int
        Samples of a batch, per rank: a multiple of the number of classes.
    repeat : bool
        False: an epoch ends when the smallest class cannot fill its share of another batch, and repeats nothing. The
        next epochs take other samples of larger classes, as long as there are enough for a whole epoch.
    groups : str; or array of int or sequence of str, (N,); optional
        If given, an epoch takes one sample of each group, drawn by (seed, epoch). With ``"source"`` (or, if `labels` is
        an array, ``ds.column("source")``), that is one frame or clip of each video. Classes are then balanced by groups
        instead of samples. Rows without a group are left out.
    by : str or tuple of str, optional
        With a dataset, its field with the classes, ``"label"`` by default.

    Raises
    ------
    UsageError
        If the labels are not one per row, or the batch size is not a multiple of the number of classes.

    Examples
    --------
    >>> loader = Loader(ds, order=BalancedBatches(ds, 64), seed=0)  # doctest: +SKIP
    """

    seeded = True

    def __init__(
        self,
        labels: ColumnSource | Values,
        batch_size: int,
        repeat: bool = True,
        groups: Values | Names | None = None,
        by: Names | None = None,
    ) -> None:
        by = "label" if by is None and isinstance(labels, ColumnSource) else by
        classes_of, groups_of = _columns(labels, by, groups=groups)
        of_row = number_values("labels", classes_of)
        self.dataset_rows = len(of_row)
        self._within: _ValueGroups | None = None
        if groups_of is not None:
            units = number_values("labels, groups", (classes_of, groups_of))
            self._within = _ValueGroups(units)
            of_unit = np.zeros(len(self._within.sizes), np.int64)
            of_unit[units[units >= 0]] = of_row[units >= 0]
            of_row = of_unit
        self._groups = _ValueGroups(of_row)
        self.batch_size = as_count("batch_size", batch_size)
        self.repeat = bool(repeat)
        classes = len(self._groups.sizes)
        if not classes:
            raise UsageError(option="labels", expected="samples of two classes or more", found="none of any")
        self._share = self.batch_size // classes
        if self.batch_size % classes:
            raise UsageError(
                option="batch_size",
                expected=f"a multiple of the number of classes, {classes}",
                found=batch_size,
                hint=f"take {max(1, self._share) * classes}, for example",
            )
        sizes = self._groups.sizes
        self._batches = -(-int(sizes.max()) // self._share) if self.repeat else int(sizes.min()) // self._share
        if not self._batches:
            raise UsageError(
                option="batch_size",
                expected=f"{self._share} samples or more of every class for a batch of {batch_size}",
                found=f"a class of {sizes.min()}",
                hint="take repeat=True, or smaller batches",
            )

    def __len__(self) -> int:
        return self._batches

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}: {counted(len(self), 'batch')} of {self.batch_size}, "
            f"{self._share} of each of {counted(len(self._groups.sizes), 'class')}"
        )

    def __call__(self, epoch: int, seed: int) -> IntArray:
        """Return the batches of an epoch: int64, (batches, batch_size)."""
        quota = self._batches * self._share
        columns = []
        for number, size in enumerate(self._groups.sizes.tolist()):
            members = self._groups.members(number)
            if self.repeat:
                taken = Permutation(size, seed, epoch, number, _ROWS_TAG)(np.arange(quota) % size)
            else:
                cycle, part = divmod(epoch, size // quota)  # epochs of one cycle have no sample in common
                taken = Permutation(size, seed, cycle, number, _ROWS_TAG)(part * quota + np.arange(quota))
            chosen = members[taken]
            if self._within is not None:
                chosen = self._within.pick(chosen, np.arange(quota) // size, seed, epoch)
            columns.append(chosen)
        return np.stack(columns, axis=1).reshape(self._batches, self.batch_size)


class PKBatches:
    """Batches of P values with K samples each, for triplet and other metric losses: P people, K images of each.

    An epoch has every sample once or more. If the samples of a value do not divide by K, a few of them come twice, in
    different batches if there are K or more. Some more are repeated to give every batch P different values. Every copy
    is augmented differently. In a batch the K samples of a value are adjacent.

    Parameters
    ----------
    values : SampleDataset; or array of int or sequence of str, (N,)
        The dataset that is read; or the group of each of its rows, such as ``ds.column("person")``. Rows without a
        group are left out: a negative number, an empty text, a missing value.
    p : int
        Different values in a batch.
    k : int
        Samples of each value.
    by : str or tuple of str, optional
        With a dataset, its field with the groups, such as ``"person"``.

    Raises
    ------
    UsageError
        If the values are not one per row, or there are fewer than `p` different ones.

    Examples
    --------
    >>> loader = Loader(ds, order=PKBatches(ds, p=16, k=4, by="person"), seed=0)  # doctest: +SKIP
    """

    seeded = True

    def __init__(self, values: ColumnSource | Values, p: int, k: int, by: Names | None = None) -> None:
        (groups_of,) = _columns(values, by)
        of_row = number_values("values", groups_of)
        self.dataset_rows = len(of_row)
        self._groups = _ValueGroups(of_row)
        self.p, self.k = as_count("p", p), as_count("k", k)
        if len(self._groups.sizes) < self.p:
            raise UsageError(option="p", expected=f"at most the {len(self._groups.sizes)} different values", found=p)
        self._pieces: IntArray = -(-self._groups.sizes // self.k)
        self._batches = max(int(self._pieces.max()), -(-int(self._pieces.sum()) // self.p))

    def __len__(self) -> int:
        return self._batches

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}: {counted(len(self), 'batch')} of {self.p} × {self.k}, "
            f"of {len(self._groups.sizes)} different values"
        )

    def __call__(self, epoch: int, seed: int) -> IntArray:
        """Return the batches of an epoch: int64, (batches, p · k)."""
        groups, batches = self._groups, self._batches
        pieces = self._pieces.copy()
        places = np.arange(len(pieces))
        shuffled = Permutation(len(pieces), seed, epoch, _FILL_TAG)(places)
        missing = batches * self.p - int(pieces.sum())
        while missing:  # give values one more piece in turn, but none more pieces than there are batches
            more = shuffled[pieces[shuffled] < batches][:missing]
            pieces[more] += 1
            missing -= len(more)
        sequence = Permutation(len(pieces), seed, epoch, _VALUES_TAG)(places)
        # The pieces of a value are adjacent and no more than the batches. So when pieces are dealt to the batches in
        # turn, no batch gets two of one value.
        of_piece = np.repeat(sequence, pieces[sequence])
        nth = np.arange(len(of_piece)) - np.repeat(np.cumsum(pieces[sequence]) - pieces[sequence], pieces[sequence])
        within = (nth[:, None] * self.k + np.arange(self.k)) % groups.sizes[of_piece][:, None]
        rows = groups.shuffled(seed, epoch)[groups.starts[of_piece][:, None] + within]
        dealt = rows.reshape(self.p, batches, self.k).swapaxes(0, 1).reshape(batches, self.p * self.k)
        return dealt[Permutation(batches, seed, epoch, _BATCHES_TAG)(np.arange(batches))]


class PairBatches:
    """Batches of pairs: two samples with the same value, such as a video, or the real and the fake of one original.

    An epoch has every sample that has a partner once or more. Of a value with an odd number of samples, one comes
    twice; with `labels`, the class with fewer samples is repeated evenly. Every copy is augmented differently. Samples
    2i and 2i + 1 of a batch are a pair; the last batch may be smaller.

    Parameters
    ----------
    values : SampleDataset; or array of int or sequence of str, (N,)
        The dataset that is read; or the value of each of its rows, such as ``ds.column("original")``. Both samples of a
        pair have the same value. Rows without a value (a negative number, an empty text, a missing value) and rows
        without a partner are left out; the ``repr`` counts them.
    batch_size : int
        Samples of a batch, per rank: an even number.
    labels : str; or array of int or sequence of str, (N,); optional
        Two classes, or the dataset's field with them; a pair has one sample of each, the smaller label first.
    groups : str or tuple of str; or array of int or sequence of str, (N,); optional
        Group of each row's value, or the dataset's field with the groups. From each group, an epoch takes only one
        value, drawn by (seed, epoch), with all its pairs. All epochs have the same length: a value with fewer pairs
        than others of its group repeats some.
    by : str or tuple of str, optional
        With a dataset, its field with the values, such as ``"original"``.

    Raises
    ------
    UsageError
        If the values are not one per row, the batch size is odd, or there is no pair.

    Examples
    --------
    The second order has clips of a fake and of its original at the same frames, from one place of each original.

    >>> order = PairBatches(ds, 64, by="original", labels="label")  # doctest: +SKIP
    >>> loader = Loader(ds, order=order, seed=0)  # doctest: +SKIP
    >>> order = PairBatches(clips, 32, by=("original", "frame"), labels="label", groups="original")  # doctest: +SKIP
    """

    seeded = True

    def __init__(
        self,
        values: ColumnSource | Values,
        batch_size: int,
        labels: Values | Names | None = None,
        groups: Values | Names | None = None,
        by: Names | None = None,
    ) -> None:
        values_of, labels_of, groups_of = _columns(values, by, labels=labels, groups=groups)
        self.batch_size = as_count("batch_size", batch_size, 2)
        if self.batch_size % 2:
            raise UsageError(option="batch_size", expected="an even number, since it holds pairs", found=batch_size)
        of_row = number_values("values", values_of)
        self.dataset_rows = len(of_row)
        sides = [np.ones(len(of_row), np.bool_)]
        if labels_of is not None:
            classes = number_values("labels", labels_of)
            found = np.unique(classes[classes >= 0])
            if len(classes) != len(of_row) or len(found) != 2:
                raise UsageError(
                    option="labels",
                    expected=f"one of two classes for each of {len(of_row)} samples",
                    found=f"{len(classes)} labels of {len(found)} classes",
                    hint="reduce them to two with ds.map_labels",
                )
            sides = [classes == label for label in found.tolist()]
        counts = [
            np.bincount(of_row[side & (of_row >= 0)], minlength=int(of_row.max(initial=-1)) + 1) for side in sides
        ]
        least = np.minimum.reduce(counts)
        paired = least >= (2 if labels is None else 1)
        kept = [np.where((of_row >= 0) & side & np.append(paired, False)[of_row], of_row, -1) for side in sides]
        self._sides = [_ValueGroups(side) for side in kept]
        sizes = np.maximum.reduce([side.sizes for side in self._sides])
        self._pairs: IntArray = -(-sizes // 2) if labels is None else sizes
        if not len(sizes):
            raise UsageError(option="values", expected="two samples or more of one value", found="no pair")
        self._groups: _ValueGroups | None = None
        if groups_of is not None:
            numbers = number_values("groups", groups_of)
            if len(numbers) != len(of_row):
                raise UsageError(option="groups", expected=f"one for each of {len(of_row)} samples", found=len(numbers))
            side = self._sides[0]
            self._groups = _ValueGroups(numbers[side.shuffled(0, 0)[side.starts]])
            self._pairs = np.maximum.reduceat(self._pairs[self._groups.shuffled(0, 0)], self._groups.starts)

    def __len__(self) -> int:
        return -(-2 * int(self._pairs.sum()) // self.batch_size)

    def __repr__(self) -> str:
        without = self.dataset_rows - sum(int(side.sizes.sum()) for side in self._sides)
        left_out = f", {counted(without, 'sample')} without a partner left out" if without else ""
        return f"{type(self).__name__}: {counted(len(self), 'batch')} of {self.batch_size} samples in pairs{left_out}"

    def __call__(self, epoch: int, seed: int) -> list[IntArray]:
        """Return the batches of an epoch: int64, (batch_size,); the last one may be smaller."""
        numbers = np.arange(len(self._pairs))
        chosen = numbers if self._groups is None else self._groups.pick(numbers, np.zeros_like(numbers), seed, epoch)
        of_pair = np.repeat(chosen, self._pairs)
        nth = np.arange(len(of_pair)) - np.repeat(np.cumsum(self._pairs) - self._pairs, self._pairs)
        places = [2 * nth, 2 * nth + 1] if len(self._sides) == 1 else [nth, nth]
        columns = []
        for number, place in enumerate(places):
            side = self._sides[number % len(self._sides)]
            rows = side.shuffled(mix_words(seed, number % len(self._sides)), epoch)
            columns.append(rows[side.starts[of_pair] + place % side.sizes[of_pair]])
        pairs = np.stack(columns, axis=1)
        pairs = pairs[Permutation(len(pairs), seed, epoch, _BATCHES_TAG)(np.arange(len(pairs)))].reshape(-1)
        return [pairs[start : start + self.batch_size] for start in range(0, len(pairs), self.batch_size)]


class UniformBatches:
    """The sequence of an order, divided into batches whose samples have one value, such as one shape.

    Batches come in the order in which their last samples do, so that an order of blocks still reads block by block.
    Every value has at most one batch that is not full. Rows without a value belong together.

    Parameters
    ----------
    order : Order
        Decides the rows of every epoch and their sequence.
    values : array of int or sequence of str, (N,)
        The value of each row.
    batch_size : int
        Samples of a batch, per rank.
    drop_last : bool
        Leave out the batches that are not full.

    Raises
    ------
    UsageError
        If the values are not one per row.
    """

    def __init__(self, order: Order, values: Values, batch_size: int, drop_last: bool) -> None:
        self._order = order
        self._numbers = number_values("batch_by", values)
        self._batch_size = batch_size
        self._drop_last = drop_last
        self.dataset_rows = len(self._numbers)

    def __call__(self, epoch: int) -> list[IntArray]:
        """Return the batches of an epoch."""
        rows = self._order.epoch(epoch).at(np.arange(len(self._order))).rows
        numbers = self._numbers[rows]
        places = np.argsort(numbers, kind="stable")
        starts = np.flatnonzero(np.diff(numbers[places], prepend=-2))
        ends = np.append(starts, len(places))[1:]
        batches = [
            places[first : min(first + self._batch_size, end)]
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
            for first in range(start, end, self._batch_size)
        ]
        batches = [batch for batch in batches if len(batch) == self._batch_size or not self._drop_last]
        return [rows[batch] for batch in sorted(batches, key=lambda batch: int(batch[-1]))]


class _ValueGroups:
    """Rows by value. Rows without a value are in no group.

    Parameters
    ----------
    numbers : int64 array, (N,)
        Number of each row's value (`number_values`).

    Attributes
    ----------
    sizes, starts : int64 array, (G,)
        Size and first place of each group in `shuffled`.
    """

    def __init__(self, numbers: IntArray) -> None:
        self._rows = np.flatnonzero(numbers >= 0)
        _, self._of_row, sizes = np.unique(numbers[self._rows], return_inverse=True, return_counts=True)
        self.sizes: IntArray = sizes.astype(np.int64)
        self.starts: IntArray = np.cumsum(self.sizes) - self.sizes
        self._sorted = self._rows[np.argsort(self._of_row, kind="stable")]

    def members(self, number: int) -> IntArray:
        start = int(self.starts[number])
        return self._sorted[start : start + int(self.sizes[number])]

    def shuffled(self, seed: int, epoch: int) -> IntArray:
        """Return all rows, group by group, shuffled within each group."""
        drawn = Permutation(len(self._rows), seed, epoch, _ROWS_TAG)(np.arange(len(self._rows)))
        return self._rows[drawn[np.argsort(self._of_row[drawn], kind="stable")]]

    def pick(self, numbers: IntArray, nth: IntArray, seed: int, epoch: int) -> IntArray:
        """Return the n-th row of some groups in the epoch's sequence; after a group's last row, its first one again."""
        picked: IntArray = self.shuffled(seed, epoch)[self.starts[numbers] + nth % self.sizes[numbers]]
        return picked


def number_values(name: str, values: Values) -> IntArray:
    """Number the different values: int64, (N,); −1 for a negative number, an empty text and a missing value."""
    if isinstance(values, tuple) and values and all(np.ndim(column) == 1 for column in values):
        columns = [number_values(name, column) for column in values]
        if len({len(column) for column in columns}) > 1:
            raise UsageError(option=name, expected="columns of one length", found=list(map(len, columns)))
        known = np.minimum.reduce(columns) >= 0
        combined: IntArray = np.full(len(known), -1)
        combined[known] = np.unique(np.stack(columns, 1)[known], axis=0, return_inverse=True)[1].reshape(-1)
        return combined
    if isinstance(values, list) and any(isinstance(value, str) for value in values):
        values = ["" if value is None else value for value in values]
    try:
        column: Any = np.ma.asarray(values)
    except ValueError:  # arrays of different shapes
        column = np.ma.empty((0, 0))
    found: npt.NDArray[Any] = column.data
    if found.ndim != 1 or (found.dtype.kind not in "iubUT" and found.size):
        raise UsageError(
            option=name, expected="an integer or a text for each row, such as ds.column('label')", found=shorten(values)
        )
    none = found == "" if found.dtype.kind in "UT" else found < 0
    _, numbers = np.unique(found, return_inverse=True)
    return np.where(none | np.ma.getmaskarray(column), -1, numbers).astype(np.int64)
