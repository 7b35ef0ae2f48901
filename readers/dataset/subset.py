"""Views of a dataset: some of its rows, or other labels."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from readers.dataset.base import SampleDataset
from readers.dataset.clips import ONCE, ClipCollate, ClipDataset, Dilation, Start
from readers.dataset.derived import DerivedDataset
from readers.dataset.labels import LabelMap, map_classes, name_classes
from readers.dataset.parts import WithParts, as_rows
from readers.dataset.tracks import FramesOfTracks, holds_tracks
from readers.decode.values import BatchLayout
from readers.order.order import MIN_BLOCK_ROWS, Blocks, MixtureShares, SampledRows, count_occurrences
from readers.order.shuffle_choice import StoredData
from readers.transforms import AnyTransform
from shardspec.columns import Columns, IntArray, mark_missing, missing_in
from shardspec.errors import UsageError
from shardspec.wording import list_some


class DivisibleDataset(WithParts["Subset"]):
    """A dataset of single samples that can be divided into parts, turned into clips and relabelled."""

    def clips(
        self,
        length: int | None,
        stride: int | None = 1,
        dilation: Dilation = 1,
        start: Start = "first",
        by: str | None = "track",
        once: Sequence[str] = ONCE,
        max_step: int | None = None,
        collate: ClipCollate = "list",
        transform: AnyTransform | None = None,
    ) -> ClipDataset:
        """Return clips of samples of a video, or of a track in it. `ClipDataset` describes the parameters.

        If the samples are tracks (``packer build --sample track``), the clips are those of their frames, with the fields
        that a dataset of frames has.
        """
        base: SampleDataset = FramesOfTracks(self) if holds_tracks(self) else self
        return ClipDataset(base, length, stride, dilation, start, by, once, max_step, collate, transform)

    def subset(self, rows: npt.ArrayLike) -> "Subset":
        """Return some rows of this dataset, in the given order."""
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
        """Return the same dataset with the columns of a table as further fields. Nothing is written.

        The values of all rows of the packed dataset are held in memory, in the types that ``packer.add`` would store.

        Parameters
        ----------
        frame : mapping of str to array or list, or table with Arrow's C stream interface (pandas, polars, pyarrow, …)
            Scores, labels, texts, embeddings. Tables need pyarrow (the extra ``parquet``). A missing value is None, or
            NaN for a single number.
        on : str or sequence of str
            The dataset's field to match with the keys: ``"key"``, or another field of text or integers. One row of the
            table goes to all samples with the same value, for example a row per video to its frames (``"source"``).
            Several fields are matched together, for example ``["source", "frame"]`` for a row per frame.
        key : str or sequence of str, optional
            The table's column of keys, or one for each field of `on`; by default the columns named like `on`.
        fields : sequence of str, optional
            Columns to take; by default all but the keys.
        allow_missing : bool
            Whether samples may lack a value. They get a sentinel (0, false, "", nothing), and ``<field>_valid`` is
            false.
        allow_unknown : bool
            Whether to ignore rows of the table whose key no sample has.

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
        """Join a table that must have values for the `required` rows of this dataset; None for all."""
        raise NotImplementedError

    def with_classes(self, classes: Sequence[str]) -> "Relabelled":
        """Return the dataset with labels numbered by another list of classes: reordered, extended or shortened.

        If labels have no names, the list names them, starting with number 0. Existing transforms of this dataset still
        get the old labels.

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
        """Return the dataset with other classes: ``{"original": "real", "deepfakes": "fake", "face2face": "fake"}``.

        The new classes are numbered in the order in which the mapping first names them. Labels without names are mapped
        by number, to numbers or names.

        Parameters
        ----------
        mapping : dict of str to str, of int to int, or of int to str
            The new class of every class that samples have.

        Raises
        ------
        UsageError
            If the mapping names an unknown class, or leaves out one that samples have.
        """
        return Relabelled(self, *map_classes(self, mapping))


class Subset(DerivedDataset, DivisibleDataset):
    """Some rows of a dataset, in a given order. Samples keep the base dataset's transform and randomness.

    A subset takes 8 bytes of memory per row, and another 8 if rows are repeated. Every copy of a row is augmented
    differently, the first as in the base dataset.

    Parameters
    ----------
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
        """Runs of rows in one or a few blocks of the base dataset; None if this subset's rows do not ascend."""
        return self._blocks

    @property
    def shares(self) -> MixtureShares | None:
        """None, because a shuffled epoch visits every row of the subset once, even of a mixture."""
        return None

    @property
    def stored(self) -> tuple[StoredData, ...]:
        """Stored data of the base dataset, with this subset's share of their bytes."""
        return self._share_of(len(self) / max(1, len(self.base)), self._touched)

    @cached_property
    def _touched(self) -> float:
        """Share of the shards of a remote base dataset that have rows of this subset; 1 if it is not known."""
        blocks = self.base.blocks
        if blocks is None or not blocks.whole:
            return 1.0
        return len(np.unique(blocks.of_rows(self.rows))) / max(1, len(blocks))

    @property
    def nesting(self) -> int:
        """Nesting of the base dataset, plus one."""
        return 1 + self.base.nesting

    def rows_in_base(self) -> IntArray:
        """Return the rows of this subset."""
        return self.rows

    def _join(
        self, frame: Any, on: str | Sequence[str], required: npt.NDArray[np.bool_] | None, how: Mapping[str, Any]
    ) -> Self:
        needed = np.zeros(len(self.base), np.bool_)
        needed[self.rows if required is None else self.rows[required]] = True
        return self._on(divisible(self.base)._join(frame, on, needed, how))

    def in_base(self, picks: SampledRows) -> SampledRows:
        """Return the picks in the base dataset."""
        inside = SampledRows(self.rows[picks.rows], picks.seeds, picks.epoch, picks.keys)
        # Picks with keys have the seeds of their clips, which `origins` already passed through here.
        if self._occurrences is None or picks.keys is not None:
            return inside
        return inside.again(self._occurrences[picks.rows], self.nesting)


class Relabelled(DerivedDataset, DivisibleDataset):
    """A dataset with other labels (`DivisibleDataset.with_classes`, `DivisibleDataset.map_labels`).

    Samples keep the base dataset's transform and randomness. The base's transform gets the old labels; transforms added
    to this dataset get the new ones.

    Parameters
    ----------
    classes : tuple of str
        Names of the new classes; empty if labels are numbers without names.
    """

    def __init__(self, base: SampleDataset, relabelling: LabelMap, classes: tuple[str, ...]) -> None:
        super().__init__(base)
        self._relabelling = relabelling
        self._classes = classes
        dtype = np.asarray(base.column("label")).dtype
        if not relabelling.fits(dtype):
            raise UsageError(
                option="label", expected=f"labels that {dtype} can hold, as they are stored", found="others"
            )

    def __repr__(self) -> str:
        named = f", classes {list_some(list(map(repr, self._classes)))}" if self._classes else ""
        return f"{type(self).__name__}: {len(self)} samples{named}, of {self.base!r}"

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the new classes."""
        return self._classes

    @property
    def raw_layout(self) -> BatchLayout:
        """Layout of the base dataset."""
        layout = self.base.layout
        label = layout.get("label")
        if label is not None and (label.dtype is None or not self._relabelling.fits(label.dtype)):
            raise UsageError(
                option="label", expected="integers", found=label, hint="relabel before a transform that changes labels"
            )
        return layout

    def read_raw(self, picks: SampledRows, out: Columns, at: IntArray) -> None:
        """Read rows of the base dataset, with its transform, and relabel them."""
        super().read_raw(picks, out, at)
        if "label" in out:
            out["label"][at] = self._relabelling(out["label"][at])

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """Return one field of the whole dataset; ``label`` with its new numbers."""
        column = self.base.column(name)
        if name != "label":
            return column
        labels: npt.NDArray[Any] = mark_missing(self._relabelling(np.ma.getdata(column)), ~missing_in(column))
        return labels

    def _join(
        self, frame: Any, on: str | Sequence[str], required: npt.NDArray[np.bool_] | None, how: Mapping[str, Any]
    ) -> Self:
        return self._on(divisible(self.base)._join(frame, on, required, how))


def divisible(base: SampleDataset) -> DivisibleDataset:
    """Return `base` if it can be joined with a table; raise `UsageError` for a dataset of clips."""
    if not isinstance(base, DivisibleDataset):
        raise UsageError(
            option="join", expected="a view of a packed dataset", found=f"one of {base!r}", hint="join before that"
        )
    return base


def _repeats(rows: IntArray, length: int) -> bool:
    if len(rows) < 2 or bool((rows[1:] > rows[:-1]).all()):
        return False
    met = np.zeros(length, np.bool_)
    met[rows] = True
    return int(np.count_nonzero(met)) < len(rows)


def _blocks_of(base: Blocks | None, rows: IntArray) -> Blocks | None:
    """Return the blocks of a base dataset for some of its rows, ascending; blocks with few of the rows are joined.

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
    return Blocks(counts, counts, base.whole)
