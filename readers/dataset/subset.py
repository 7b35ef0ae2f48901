"""Parts of a dataset: by row, by split, by a predicate on small fields."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from readers.arguments import as_number
from readers.dataset.base import SampleDataset
from readers.dataset.clips import ONCE, ClipDataset
from readers.decode.values import BatchLayout
from readers.order.auto import Store
from readers.order.blocks import MIN_BLOCK_ROWS, Blocks
from readers.order.order import Picks, count_occurrences
from readers.order.permutation import Permutation
from readers.seeding import AnyTransform
from shardspec.columns import Columns, IntArray
from shardspec.errors import SchemaError, UsageError
from shardspec.splits import assign_groups, classes_of_groups

_SPLIT_TAG = 0x73706C6974


class DivisibleDataset(SampleDataset):
    """A dataset that can be divided into parts, which can be divided again."""

    def clips(
        self,
        length: int,
        stride: int = 1,
        by: str | None = "track",
        once: Sequence[str] = ONCE,
        max_step: int | None = None,
        transform: AnyTransform | None = None,
    ) -> ClipDataset:
        """Clips of consecutive samples of one video, or of one track in it (`readers.dataset.clips.ClipDataset`)."""
        return ClipDataset(self, length, stride, by, once, max_step, transform)

    def subset(self, rows: npt.ArrayLike) -> "Subset":
        """Some rows of this dataset, in the given order."""
        return Subset(self, rows)

    def where(self, predicate: Callable[..., npt.ArrayLike], fields: Sequence[str]) -> "Subset":
        """The rows for which a predicate on small fields holds (`readers.dataset.subset.where`)."""
        return where(self, predicate, fields)

    def join(
        self,
        frame: Any,
        on: str = "key",
        *,
        key: str | None = None,
        fields: Sequence[str] | None = None,
        allow_missing: bool = False,
        allow_unknown: bool = False,
    ) -> Self:
        """The same dataset with the columns of a table as further fields. Nothing is written.

        The values of all rows of the packed dataset are held in memory, in the types that ``packer.add`` would store.

        Parameters
        ----------
        frame : mapping of str to array or list; pandas, polars or pyarrow table; or sequence of mappings (rows)
            Scores, labels, texts, embeddings. A missing value is None, or NaN for a single number.
        on : str
            The dataset's field that is compared with the keys: ``"key"``, or another of text or integers. One row of the
            table goes to all samples with the same value, such as a row per video to its frames (``"source"``).
        key : str, optional
            The table's column of keys; by default the one called like `on`.
        fields : sequence of str, optional
            The columns to take; by default all but the keys.
        allow_missing : bool
            Whether samples may be without a value. They get a sentinel (0, false, "", nothing), and ``<field>_valid``
            is false.
        allow_unknown : bool
            Whether to leave out rows of the table whose key no sample has.

        Raises
        ------
        UsageError
            If the table cannot be read or matched, or the dataset has a field of the same name.
        """
        how = {"key": key, "fields": fields, "allow_missing": allow_missing, "allow_unknown": allow_unknown}
        return self._join(frame, on, None, how)

    def _join(self, frame: Any, on: str, required: npt.NDArray[np.bool_] | None, how: Mapping[str, Any]) -> Self:
        """Join a table whose rows must give values to those rows of this dataset that are `required`; None for all."""
        raise NotImplementedError

    def split(self, fractions: Sequence[float], seed: int = 0, by: str | None = None) -> "tuple[Subset, ...]":
        """Disjoint random parts; equal values of the field `by` stay together (`readers.dataset.subset.split`)."""
        return split(self, fractions, seed, by)


class Subset(DivisibleDataset):
    """Some rows of a dataset, in a given order. Samples keep the base dataset's transform and randomness.

    A subset takes 8 bytes of memory a row, and another 8 if rows are repeated. Each copy of a row is augmented with
    draws of its own, the first as in the base dataset.

    Parameters
    ----------
    base : SampleDataset
    rows : int array, (n,)
        Rows of `base`, 0 to len(base) - 1.
    transform : callable, optional
        One more transform, after that of `base`.
    """

    def __init__(self, base: SampleDataset, rows: npt.ArrayLike, transform: AnyTransform | None = None) -> None:
        super().__init__(transform)
        self.base = base
        self.rows: IntArray = np.asarray(rows)
        if self.rows.ndim != 1 or (self.rows.dtype.kind not in "iu" and len(self.rows)):
            found = f"{self.rows.dtype} of shape {self.rows.shape}"
            hint = ": a mask's rows are np.flatnonzero(mask)" if self.rows.dtype == bool else ""
            raise UsageError(f"rows: expected integers of shape (n,), found {found}{hint}")
        self.rows = self.rows.astype(np.int64)
        if len(self.rows) and not (self.rows.min() >= 0 and self.rows.max() < len(base)):
            found = f"{self.rows.min()} to {self.rows.max()}"
            raise UsageError(f"rows: expected 0 to {len(base) - 1}, found {found}")
        self._blocks = _blocks_of(base.blocks, self.rows)
        self._occurrences = count_occurrences(self.rows) if _repeats(self.rows, len(base)) else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {len(self)} samples of {self.base!r}"

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes of ``label``."""
        return self.base.classes

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def blocks(self) -> Blocks | None:
        """Runs of rows in one block of the base dataset, or in a few; None if this subset's rows do not ascend."""
        return self._blocks

    @property
    def raw_layout(self) -> BatchLayout:
        """How values are laid out in the base dataset."""
        return self.base.layout

    def read_raw(self, picks: Picks, out: Columns, at: IntArray) -> None:
        """Read rows of the base dataset, with its transform."""
        self.base.read_picks(self._in_base(picks), out, at)

    @property
    def stores(self) -> tuple[Store, ...]:
        """Those of the base dataset, with this subset's share of their bytes."""
        share = min(1.0, len(self) / max(1, len(self.base)))
        return tuple(Store(store.root, int(store.bytes * share)) for store in self.base.stores)

    @property
    def sample_bytes(self) -> float:
        """That of the base dataset."""
        return self.base.sample_bytes

    def read_ahead(self, picks: Picks) -> None:
        """Ask the system for the bytes of rows that will be read soon."""
        self.base.read_ahead(self._in_base(picks))

    def origins(self, picks: Picks) -> Picks:
        """The rows in the base dataset and the seeds, which together key the transforms' random draws."""
        return self.base.origins(self._in_base(picks))

    @property
    def draws_at_random(self) -> bool:
        """Whether reading draws from a sample's generator."""
        return super().draws_at_random or self.base.draws_at_random

    @property
    def nesting(self) -> int:
        """One more than in the base dataset."""
        return 1 + self.base.nesting

    def describe(self, row: int) -> str:
        """Key and place of a row, for messages."""
        return self.base.describe(int(self.rows[row]))

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """One field of all rows of the subset (`PackedDataset.column`)."""
        column = self.base.column(name)
        return column[self.rows] if isinstance(column, np.ndarray) else [column[row] for row in self.rows]

    def _join(self, frame: Any, on: str, required: npt.NDArray[np.bool_] | None, how: Mapping[str, Any]) -> Self:
        """Join a table with the base dataset; only rows of the subset need a value."""
        if not isinstance(self.base, DivisibleDataset):
            raise UsageError(f"join: expected a part of a packed dataset, found one of {self.base!r}: join that first")
        needed = np.zeros(len(self.base), np.bool_)
        needed[self.rows if required is None else self.rows[required]] = True
        other = copy(self)
        other.base = self.base._join(frame, on, needed, how)
        other._layout = None
        return other

    def _in_base(self, picks: Picks) -> Picks:
        inside = Picks(self.rows[picks.rows], picks.seeds, picks.epoch, picks.keys)
        # Picks with keys have their clips' seeds, which already went through here by `origins`.
        if self._occurrences is None or picks.keys is not None:
            return inside
        return inside.again(self._occurrences[picks.rows], self.nesting)


def _repeats(rows: IntArray, length: int) -> bool:
    """Whether any of the rows, each below `length`, is repeated."""
    if len(rows) < 2 or bool((rows[1:] > rows[:-1]).all()):
        return False
    met = np.zeros(length, np.bool_)
    met[rows] = True
    return int(np.count_nonzero(met)) < len(rows)


def _blocks_of(base: Blocks | None, rows: IntArray) -> Blocks | None:
    """The blocks of a base dataset as they cut ascending rows; blocks with few of the rows are joined.

    An order mixes a fixed number of blocks, so blocks of few rows would hardly mix anything.
    """
    if base is None or (len(rows) > 1 and not bool((rows[1:] > rows[:-1]).all())):
        return None
    _, stops = base.bounds(np.arange(len(base)))
    ends = np.searchsorted(rows, stops)
    least = min(MIN_BLOCK_ROWS, base.rows // max(1, len(base)))
    sizes, held = [], 0
    for count in np.diff(ends, prepend=0).tolist():
        held += count
        if held >= least:
            sizes.append(held)
            held = 0
    counts = np.array([*sizes, held] if held else sizes, np.int64)
    return Blocks(counts, counts)


def where(dataset: SampleDataset, predicate: Callable[..., npt.ArrayLike], fields: Sequence[str]) -> Subset:
    """The rows for which a predicate on small fields holds. Pictures are not read.

    Parameters
    ----------
    predicate : callable
        Called once with the whole column of each field, in order; returns booleans, (N,). Texts are an array too, of
        numpy's ``StringDType``, so that ``split == "train"`` and `numpy.strings` work on whole columns; other fields of
        varying shape are lists.
    fields : sequence of str
        Scalar fields come from the dataset's index; any other field is read from the shards, from the first row to the
        last.

    Raises
    ------
    UsageError
        If the predicate does not return booleans, (N,).
    """
    chosen = np.asarray(predicate(*(_comparable(dataset.column(name)) for name in fields)))
    if chosen.shape != (len(dataset),) or chosen.dtype != bool:
        raise UsageError(
            f"predicate: expected booleans of shape ({len(dataset)},), found {chosen.dtype} of shape {chosen.shape}"
        )
    return Subset(dataset, np.flatnonzero(chosen))


def _comparable(column: npt.NDArray[Any] | list[Any]) -> npt.NDArray[Any] | list[Any]:
    """A column that is compared value by value: texts as an array; anything else as it is."""
    if isinstance(column, np.ndarray) or not all(isinstance(value, str) for value in column):
        return column
    try:
        return np.array(column, np.dtypes.StringDType())
    except UnicodeEncodeError:  # names of files that are not UTF-8
        return np.array([*column, None], object)[:-1]


def split(
    dataset: SampleDataset, fractions: Sequence[float], seed: int = 0, by: str | None = None
) -> tuple[Subset, ...]:
    """Split a dataset at random into disjoint parts; a function of the seed.

    With `by`, the fractions are met as closely as whole groups allow, and each part gets a group of every class of
    ``label`` if there are enough; the same seed gives the same parts as ``packer split``
    (`shardspec.splits.assign_groups`).

    Parameters
    ----------
    fractions : sequence of float
        Each part's share of the samples: above 0, with a sum of at most 1. A sum of 1 leaves nothing out.
    by : str, optional
        A field whose equal values stay in one part: ``"source"`` keeps the frames of a video together.

    Raises
    ------
    UsageError
        If the fractions are invalid, or leave a part without a sample, or samples have no value of `by`.
    """
    if not isinstance(fractions, Iterable) or isinstance(fractions, Mapping | str):
        raise UsageError(f"fractions: expected a list of numbers such as [0.9, 0.1], found {fractions!r}")
    shares = [as_number("fractions", share) for share in fractions]
    if not shares or not min(shares) > 0 or sum(shares) > 1 + 1e-9:
        raise UsageError(f"fractions: expected numbers above 0 with a sum of at most 1, found {shares}")
    if by is not None:
        return _split_groups(dataset, shares, seed, by)
    count = len(dataset)
    ranks = Permutation(count, seed, _SPLIT_TAG)(np.arange(count))
    bounds = np.round(np.cumsum([0.0, *shares]) * count).astype(np.int64)
    if count and not np.diff(bounds).all():
        raise _empty_part(shares, count, "samples")
    return tuple(
        Subset(dataset, np.flatnonzero((ranks >= low) & (ranks < high))) for low, high in pairwise(bounds.tolist())
    )


def _split_groups(dataset: SampleDataset, shares: list[float], seed: int, by: str) -> tuple[Subset, ...]:
    """Parts that consist of whole groups."""
    values = np.asarray(dataset.column(by))
    _check_values(dataset, by, values)
    found, groups = np.unique(values, return_inverse=True)
    if not len(found):
        return tuple(Subset(dataset, []) for _ in shares)
    sizes = np.bincount(groups)
    if len(found) < len(shares) or min(shares) * len(values) < sizes.min() / 2:
        raise _empty_part(shares, len(found), f"values of {by!r}")
    classes = None
    with suppress(SchemaError):
        labels = np.asarray(dataset.column("label"))
        if labels.dtype.kind in "iu" and labels.ndim == 1:
            classes = classes_of_groups(groups, labels, len(found))
    ratios = {str(number): share for number, share in enumerate(shares)}
    rest = str(len(shares))
    ratios |= {rest: 1 - sum(shares)} if sum(shares) < 1 - 1e-9 else {}
    # As `packer split` names them.
    known = dict(enumerate(dataset.classes or ())) if by == "label" else {}
    names = [known.get(value, str(value)) for value in found.tolist()]
    chosen = np.array(assign_groups(names, sizes.tolist(), ratios, seed, classes, rest))
    return tuple(Subset(dataset, np.flatnonzero(chosen[groups] == str(number))) for number in range(len(shares)))


def _empty_part(shares: list[float], count: int, what: str) -> UsageError:
    return UsageError(
        f"fractions: expected some of the {count} {what} for each part, found {shares}, which leave a part empty"
    )


def _check_values(dataset: SampleDataset, by: str, values: npt.NDArray[Any]) -> None:
    """Refuse samples without a value: they do not form a group, since each may belong to any."""
    without = values == "" if values.dtype.kind in "UT" else np.zeros(len(values), np.bool_)
    with suppress(SchemaError):
        valid = np.asarray(dataset.column(f"{by}_valid"))
        if valid.dtype == np.bool_ and valid.ndim == 1:  # a column of the user's own may be called so
            without |= ~valid
    if without.any():
        raise UsageError(
            f"by: expected a value of {by!r} in every sample, found none in {np.count_nonzero(without)} of "
            f"{len(values)}, which therefore belong to no part: "
            "take another field, or first select the samples that have one with `where`"
        )
