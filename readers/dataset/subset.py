"""Views of a dataset: some of its rows; other labels."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from readers.dataset.base import SampleDataset
from readers.dataset.clips import ONCE, ClipDataset
from readers.dataset.derived import DerivedDataset
from readers.dataset.labels import Relabelling, map_classes, name_classes
from readers.dataset.parts import WithParts, as_rows
from readers.decode.plans import DecodePlan
from readers.decode.values import BatchLayout
from readers.order.blocks import MIN_BLOCK_ROWS, Blocks
from readers.order.order import Picks, count_occurrences
from readers.order.shares import Shares
from readers.order.store import Store
from readers.transforms import AnyTransform
from shardspec.columns import Columns, IntArray, mark_missing, missing_in
from shardspec.errors import UsageError
from shardspec.wording import list_some


class DivisibleDataset(WithParts["Subset"]):
    """A dataset of single samples: it can be divided into parts and made into clips, and its labels can be changed."""

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

    def join(
        self,
        frame: Any,
        on: str | Sequence[str] = "key",
        *,
        key: str | Sequence[str] | None = None,
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
        on : str or sequence of str
            The dataset's field that is compared with the keys: ``"key"``, or another of text or integers. One row of the
            table goes to all samples with the same value, such as a row per video to its frames (``"source"``). Several
            fields are compared together, such as those of a row per frame (``["source", "frame"]``).
        key : str or sequence of str, optional
            The table's column of keys, or one for each field of `on`; by default those called like `on`.
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

    def _join(
        self, frame: Any, on: str | Sequence[str], required: npt.NDArray[np.bool_] | None, how: Mapping[str, Any]
    ) -> Self:
        """Join a table whose rows must give values to those rows of this dataset that are `required`; None for all."""
        raise NotImplementedError

    def with_classes(self, classes: Sequence[str]) -> "Relabelled":
        """The dataset with labels numbered by another list of classes: the same names in another order, more, or fewer.

        Labels without names are named by it, number 0 first. Transforms that this dataset has already get labels as
        they were.

        Parameters
        ----------
        classes : sequence of str
            Every class that samples have, in the order of its number.

        Raises
        ------
        UsageError
            If samples have a class that is not in the list.
        """
        return Relabelled(self, *name_classes(self, classes))

    def map_labels(self, mapping: Mapping[Any, Any]) -> "Relabelled":
        """The dataset with other classes: ``{"original": "real", "deepfakes": "fake", "face2face": "fake"}``.

        The new classes are numbered in the order in which the mapping first names them. Labels without names are mapped
        by number, to numbers or names.

        Parameters
        ----------
        mapping : dict of str to str, of int to int, or of int to str
            The new class of every class that samples have.

        Raises
        ------
        UsageError
            If it names a class that there is none of, or leaves out one that samples have.
        """
        return Relabelled(self, *map_classes(self, mapping))


class Subset(DerivedDataset, DivisibleDataset):
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
        super().__init__(base, transform)
        self.rows = as_rows(rows, len(base))
        self._blocks = _blocks_of(base.blocks, self.rows)
        self._occurrences = count_occurrences(self.rows) if _repeats(self.rows, len(base)) else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {len(self)} samples of {self.base!r}"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def blocks(self) -> Blocks | None:
        """Runs of rows in one block of the base dataset, or in a few; None if this subset's rows do not ascend."""
        return self._blocks

    @property
    def shares(self) -> Shares | None:
        """None, because a shuffled epoch visits every row of the subset once, even of a mixture."""
        return None

    def item_numbers(self) -> IntArray:
        """The number of each sample's item: int64, (N,)."""
        return self.base.item_numbers()[self.rows]

    def read_raw(self, picks: Picks, out: Columns, at: IntArray) -> None:
        """Read rows of the base dataset, with its transform."""
        self.base.read_picks(self._in_base(picks), out, at)

    @property
    def stores(self) -> tuple[Store, ...]:
        """Stores of the base dataset, with this subset's share of their bytes."""
        share = min(1.0, len(self) / max(1, len(self.base)))
        return tuple(replace(store, bytes=int(store.bytes * share)) for store in self.base.stores)

    def read_ahead(self, picks: Picks) -> None:
        """Ask the system for the bytes of rows that will be read soon."""
        self.base.read_ahead(self._in_base(picks))

    def origins(self, picks: Picks) -> Picks:
        """The rows in the base dataset and the seeds, which together key the transforms' random draws."""
        return self.base.origins(self._in_base(picks))

    @property
    def nesting(self) -> int:
        """One more than in the base dataset."""
        return 1 + self.base.nesting

    def describe(self, row: int) -> str:
        """Key and place of a row, for messages."""
        return self.base.describe(int(self.rows[row]))

    def with_decode(self, decode: Mapping[str, DecodePlan] | None) -> Self:
        """The same samples with other decode plans (`SampleDataset.with_decode`)."""
        return self._on(self.base.with_decode(decode))

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """One field of all rows of the subset (`PackedDataset.column`)."""
        column = self.base.column(name)
        return column[self.rows] if isinstance(column, np.ndarray) else [column[row] for row in self.rows]

    def _join(
        self, frame: Any, on: str | Sequence[str], required: npt.NDArray[np.bool_] | None, how: Mapping[str, Any]
    ) -> Self:
        """Join a table with the base dataset; only rows of the subset need a value."""
        needed = np.zeros(len(self.base), np.bool_)
        needed[self.rows if required is None else self.rows[required]] = True
        return self._on(divisible(self.base)._join(frame, on, needed, how))

    def _in_base(self, picks: Picks) -> Picks:
        inside = Picks(self.rows[picks.rows], picks.seeds, picks.epoch, picks.keys)
        # Picks with keys have their clips' seeds, which already went through here by `origins`.
        if self._occurrences is None or picks.keys is not None:
            return inside
        return inside.again(self._occurrences[picks.rows], self.nesting)


class Relabelled(DerivedDataset, DivisibleDataset):
    """A dataset whose labels mean other classes (`DivisibleDataset.with_classes`, `DivisibleDataset.map_labels`).

    Samples keep the base dataset's transform and randomness. Its transform gets the labels as they were, those added
    to this dataset get the new ones.

    Parameters
    ----------
    base : SampleDataset
    relabelling : Relabelling
    classes : tuple of str or None
        The names of the new classes; None if labels are numbers without names.
    """

    def __init__(self, base: SampleDataset, relabelling: Relabelling, classes: tuple[str, ...] | None) -> None:
        super().__init__(base)
        self._relabelling = relabelling
        self._classes = classes
        dtype = np.asarray(base.column("label")).dtype
        if not relabelling.fits(dtype):
            raise UsageError(f"label: expected labels that {dtype} can hold, as they are stored, found others")

    def __repr__(self) -> str:
        named = "" if self._classes is None else f", classes {list_some(list(map(repr, self._classes)))}"
        return f"{type(self).__name__}: {len(self)} samples{named}, of {self.base!r}"

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the new classes."""
        return self._classes

    @property
    def raw_layout(self) -> BatchLayout:
        """How values are laid out in the base dataset."""
        layout = self.base.layout
        label = layout.get("label")
        if label is not None and (label.dtype is None or not self._relabelling.fits(label.dtype)):
            raise UsageError(f"label: expected integers, found {label}: relabel before a transform that changes labels")
        return layout

    def read_raw(self, picks: Picks, out: Columns, at: IntArray) -> None:
        """Read rows of the base dataset, with its transform, and relabel them."""
        self.base.read_picks(picks, out, at)
        if "label" in out:
            out["label"][at] = self._relabelling(out["label"][at])

    def with_decode(self, decode: Mapping[str, DecodePlan] | None) -> Self:
        """The same samples with other decode plans (`SampleDataset.with_decode`)."""
        return self._on(self.base.with_decode(decode))

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """One field of the whole dataset; ``label`` with its new numbers."""
        column = self.base.column(name)
        if name != "label":
            return column
        labels: npt.NDArray[Any] = mark_missing(self._relabelling(np.ma.getdata(column)), ~missing_in(column))
        return labels

    def _join(
        self, frame: Any, on: str | Sequence[str], required: npt.NDArray[np.bool_] | None, how: Mapping[str, Any]
    ) -> Self:
        """Join a table with the base dataset."""
        return self._on(divisible(self.base)._join(frame, on, required, how))


def divisible(base: SampleDataset) -> DivisibleDataset:
    """The dataset that a view is of, for a join.

    Raises
    ------
    UsageError
        If it consists of clips.
    """
    if not isinstance(base, DivisibleDataset):
        raise UsageError(f"join: expected a view of a packed dataset, found one of {base!r}: join before that")
    return base


def _repeats(rows: IntArray, length: int) -> bool:
    """Return whether any of the rows, each below `length`, is repeated."""
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
