"""Clips: consecutive samples of one video, or of one track of a face, as one sample."""

import logging
from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from readers.arguments import as_count
from readers.dataset.base import SampleDataset
from readers.dataset.derived import DerivedDataset, stacked, ungrouped
from readers.dataset.parts import WithParts, as_rows
from readers.decode.values import BatchLayout
from readers.order.blocks import MIN_BLOCK_ROWS, Blocks
from readers.order.order import Picks, count_occurrences
from readers.order.shares import MixtureShares
from readers.order.store import Store
from readers.transforms import AnyTransform
from shardspec.columns import Columns, IntArray, fill_missing, missing_in
from shardspec.errors import SchemaError, UsageError
from shardspec.wording import shorten

ONCE = ("key", "label", "source", "track")
"""Fields that a clip has once by default: the value of its first sample."""

_log = logging.getLogger("readers")

_GAP = 1.5  # times the median distance between neighbours


class ClipDataset(DerivedDataset, WithParts["ClipDataset"]):
    """Clips of consecutive samples: fields get a leading axis of `length` samples, except for those in `once`.

    The samples of a clip have the same item (the part of the key before the ``-``), the same value of `by` and, if
    ``label`` is among `once`, the same label. They are in the order of ``frame``, without a gap. Random decode plans
    draw once per clip. The base dataset's transform is for single samples and is not applied; the transform of the
    clips gets the whole clip, with ``image`` as (T, H, W, 3).

    Parameters
    ----------
    base : SampleDataset
        With the columns ``key`` and ``frame``, and `by`.
    length : int
        Samples of a clip.
    stride : int
        Samples from the start of one clip to the start of the next clip of the same track.
    by : str or None
        A field of integers or of text; samples with a negative integer, or without a value, belong to no clip. None: by
        item alone.
    once : sequence of str
        Fields that a clip has once: the value of its first sample.
    max_step : int, optional
        Maximum number of frames from one sample to the next; a longer step is a gap. By default a missing sampled frame
        is a gap (``frame_position``). In a dataset without that field, a step of more than 1.5 times the track's median
        step is a gap.
    transform : callable, optional
        Transform of clips (`readers.transforms`).

    Attributes
    ----------
    videos : int
        Number of items with samples in `base`.
    videos_without : int
        Number of items without a clip, because they are too short, have gaps, or have no track. The log of ``readers``
        and the ``repr`` show the number.
    """

    def __init__(
        self,
        base: SampleDataset,
        length: int,
        stride: int = 1,
        by: str | None = "track",
        once: Sequence[str] = ONCE,
        max_step: int | None = None,
        transform: AnyTransform | None = None,
    ) -> None:
        super().__init__(base, transform)
        self.length = as_count("length", length, unit="sample")
        stride = as_count("stride", stride, unit="sample")
        if max_step is not None:
            max_step = as_count("max_step", max_step, unit="frame")
        self._once = frozenset(once)
        column = base.column("frame")
        frames = np.asarray(column, np.int64)
        items = base.item_numbers()
        groups = _groups(base, items, by, "label" in self._once and "label" in base.raw_layout)
        groups[missing_in(column)] = -1
        positions = None if max_step is not None else _positions(base)
        self._sequence, runs = _runs(groups, frames, positions, max_step)
        firsts = [np.arange(a, b - length + 1, stride) for a, b in pairwise(runs.tolist()) if b - a >= length]
        self._firsts: IntArray = np.concatenate(firsts) if firsts else np.empty(0, np.int64)
        self._all = len(self._firsts)
        self._occurrences: IntArray | None = None
        self.videos = len(np.unique(items))
        self.videos_without = self.videos - len(np.unique(items[self._sequence[self._firsts]]))
        if self.videos_without:
            advice = "take a smaller length, a larger max_step or another by=, or pack more frames"
            if self.videos == len(base) and self.length > 1:  # as in datasets of `packer.Writer`
                advice = "every sample is a separate video, according to the number before the '-' of its key"
            _log.warning(
                "%d of %d videos have no clip of %d samples: %s", self.videos_without, self.videos, self.length, advice
            )

    def __len__(self) -> int:
        return len(self._firsts)

    def __repr__(self) -> str:
        without = f", none from {self.videos_without} of {self.videos} videos" if self.videos_without else ""
        part = "" if len(self) == self._all else f" of {self._all}"
        return (
            f"{type(self).__name__}: {len(self)}{part} clips of {self.length} samples each{without}, from {self.base!r}"
        )

    def subset(self, rows: npt.ArrayLike) -> "ClipDataset":
        """Return some of the clips, in the given order. Every copy of a repeated clip has separate draws."""
        other = copy(self)
        other._firsts = self._firsts[as_rows(rows, len(self))]
        repeated = len(np.unique(other._firsts)) < len(other._firsts)
        other._occurrences = count_occurrences(other._firsts) if repeated else None
        other._layout = None
        return other

    @property
    def rows(self) -> IntArray:
        """Rows of every clip in the base dataset: int64, (N, length). Made on demand."""
        return self._rows_of(np.arange(len(self)))

    @property
    def blocks(self) -> Blocks | None:
        """Runs of neighbouring clips; None if the clips of a part do not ascend."""
        if bool((self._firsts[1:] <= self._firsts[:-1]).any()):
            return None
        return Blocks.even(len(self), max(1, MIN_BLOCK_ROWS // self.length))

    @property
    def shares(self) -> MixtureShares | None:
        """None, because a shuffled epoch visits every clip once, even of a mixture."""
        return None

    def item_numbers(self) -> IntArray:
        """Return the number of each clip's item: int64, (N,)."""
        return self.base.item_numbers()[self._sequence[self._firsts]]

    @property
    def raw_layout(self) -> BatchLayout:
        """Layout of the base dataset, with a leading axis for every field that is not in `once`."""
        return stacked(self.base.raw_layout, self.length, self._once)

    def read_raw(self, picks: Picks, out: Columns, at: IntArray) -> None:
        """Read clips, clip i into place ``at[i]``; images go straight into the batch."""
        rows = self._rows_of(picks.rows)
        origins = self.origins(picks)
        keys, seeds = np.repeat(origins.rows, self.length), np.repeat(origins.seeds, self.length)
        flat = Picks(rows.reshape(-1), seeds, picks.epoch, keys)
        places = (at[:, None] * self.length + np.arange(self.length)).reshape(-1)
        with ungrouped(out, self.base.raw_layout, at, self.length, self._once) as columns:
            self.base.read_raw(flat, columns, places)

    @property
    def stores(self) -> tuple[Store, ...]:
        """Stores of the base dataset, with the share of their bytes that the clips use."""
        return self._stores_of(len(self) / max(1, self._all))

    @property
    def sample_bytes(self) -> float:
        """Mean number of bytes of a clip's samples in the stores."""
        return self.length * self.base.sample_bytes

    def read_ahead(self, picks: Picks) -> None:
        """Ask the system for the bytes of clips that will be read soon."""
        rows = self._rows_of(picks.rows).reshape(-1)
        self.base.read_ahead(Picks(rows, np.repeat(picks.seeds, self.length), picks.epoch))

    def origins(self, picks: Picks) -> Picks:
        """Return each clip's first row in the base dataset, which keys its transforms' random draws."""
        firsts = Picks(self._sequence[self._firsts[picks.rows]], picks.seeds, picks.epoch)
        if self._occurrences is not None:
            firsts = firsts.again(self._occurrences[picks.rows], self.nesting)
        return self.base.origins(firsts)

    @property
    def nesting(self) -> int:
        """Nesting of the base dataset, plus one if clips are repeated."""
        return self.base.nesting + (self._occurrences is not None)

    def describe(self, row: int) -> str:
        """Describe where a clip begins, for messages."""
        first = int(self._sequence[self._firsts[row]])
        return f"clip {row} of {self.length} samples; its first {self.base.describe(first)}"

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """Return a field of every clip's first sample."""
        column = self.base.column(name)
        rows = self._sequence[self._firsts]
        return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows]

    def _rows_of(self, clips: IntArray) -> IntArray:
        rows: IntArray = self._sequence[self._firsts[clips][:, None] + np.arange(self.length)]
        return rows


def _groups(base: SampleDataset, items: IntArray, by: str | None, with_label: bool) -> IntArray:
    """Number the samples by the groups of which clips are made: int64, (N,); −1 for samples that belong to no clip."""
    parts = [items]
    if by is not None:
        parts.append(_numbers(by, base.column(by)))
    if with_label:
        parts.append(fill_missing(base.column("label")))
    _, numbers = np.unique(np.stack(parts, axis=1), axis=0, return_inverse=True)
    numbers = numbers.reshape(-1).astype(np.int64)
    if by is not None:
        numbers[parts[1] < 0] = -1
    return numbers


def _numbers(by: str, column: npt.NDArray[Any] | list[Any]) -> IntArray:
    """Return a column's integers, or number its texts: int64, (N,); −1 where a value is missing."""
    if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "iub":
        return fill_missing(column)
    if isinstance(column, list) and all(value is None or isinstance(value, str) for value in column):
        seen: dict[str | None, int] = {None: -1}
        return np.array([seen.setdefault(value, len(seen)) for value in column], np.int64)
    found = f"{column.dtype} {column.shape[1:]}" if isinstance(column, np.ndarray) else "one of varying shape"
    raise UsageError(
        option="by", expected="a field of one integer or of text, such as 'track'", found=f"{shorten(by)}, {found}"
    )


def _positions(base: SampleDataset) -> IntArray | None:
    """Return each sample's position among the sampled frames of its video; None if the dataset lacks it."""
    try:
        return np.asarray(base.column("frame_position"), np.int64)
    except (SchemaError, UsageError):
        return None


def _runs(
    groups: IntArray, frames: IntArray, positions: IntArray | None, max_step: int | None
) -> tuple[IntArray, IntArray]:
    """Return the samples sorted by group and frame, and the starts of runs without a gap, with the end of the last."""
    order = np.lexsort((np.arange(len(groups)), frames, groups))
    order = order[groups[order] >= 0]
    group, frame = groups[order], frames[order]
    same = group[1:] == group[:-1]
    steps = frame[1:] - frame[:-1]
    if positions is not None:
        steps = np.diff(positions[order])
        limit = np.ones(len(steps))
    elif max_step is None:
        limit = np.full(len(steps), np.inf)
        for a, b in pairwise([0, *(np.flatnonzero(~same) + 1).tolist(), len(order)]):
            if b - a > 1:
                limit[a : b - 1] = _GAP * max(1.0, float(np.median(steps[a : b - 1])))
    else:
        limit = np.full(len(steps), float(max_step))
    broken = np.flatnonzero(~same | (steps > limit) | (steps <= 0)) + 1
    return order, np.concatenate([[0], broken, [len(order)]]).astype(np.int64)
