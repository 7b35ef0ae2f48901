"""Clips: samples of one video, or of one track of a face, as one sample."""

import logging
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from readers.arguments import as_choice, as_count
from readers.dataset.base import SampleDataset
from readers.dataset.collate import mirrored
from readers.dataset.derived import DerivedDataset, stacked, ungrouped
from readers.dataset.parts import WithParts, as_rows
from readers.dataset.runs import find_runs, find_starts, ranges
from readers.decode.values import JOINED, BatchLayout, ValueLayout, allocate_values
from readers.formats.pool import RowsOfShards
from readers.order.order import MIN_BLOCK_ROWS, Blocks, MixtureShares, SampledRows, count_occurrences
from readers.order.shuffle_choice import StoredData
from readers.seeding import mix_array, mix_words
from readers.transforms import AnyTransform
from shardspec.columns import Columns, IntArray

ONCE = ("key", "label", "source", "track")
"""Fields that a clip has once by default: the value of its first sample."""

Dilation = int | Literal["spread"]
Start = Literal["first", "middle", "random"]
ClipCollate = Literal["list", "pad", "mirror"]

_START_TAG, _SPREAD_TAG = range(0x636C69700, 0x636C69702)

_log = logging.getLogger("readers")


class ClipDataset(DerivedDataset, WithParts["ClipDataset"]):
    """Clips of samples of one track: fields get a leading axis of time, T samples, except for those in `once`.

    The samples of a track have the same item (the part of the key before the ``-``), the same value of `by` and, if
    ``label`` is among `once`, the same label. They are in the order of ``frame_position``, or of ``frame`` in datasets
    without it. The field ``audio`` of all samples becomes one array, (T · n,). Random decode plans draw once per clip.
    The base dataset's transform is for single samples and is not applied; the transform of the clips gets the whole
    clip, with ``image`` as (T, H, W, 3).

    The set of clips is fixed, so their rows can be selected, weighted and ordered like those of any dataset. With
    ``start="random"``, each clip begins at a place drawn from (seed, epoch, row).

    Parameters
    ----------
    base : SampleDataset
        With the columns ``key`` and ``frame``, and `by`.
    length : int or None
        Samples of a clip. None: all samples of a track, across gaps unless `max_step` is given.
    stride : int or None
        Samples from the start of one clip to the start of the next clip of the same track. None: one clip of each
        track.
    dilation : int or "spread"
        Samples from one sample of a clip to the next. ``"spread"``: the track is divided into `length` equal parts, and
        the clip has one sample of each; gaps do not matter unless `max_step` is given.
    start : {"first", "middle", "random"}
        Which of the `stride` samples begins the clip; with ``dilation="spread"``, which sample of each part belongs to
        the clip. With ``stride=None``, a clip may begin wherever the track has `length` samples.
    by : str or None
        A field of integers or of text; samples with a negative integer, or without a value, belong to no clip. None: by
        item alone.
    once : sequence of str
        Fields that a clip has once: the value of its first sample.
    max_step : int, optional
        Maximum number of frames from one sample to the next; a longer step is a gap. By default a missing sampled frame
        is a gap (``frame_position``). In a dataset without that field, a step of more than 1.5 times the track's median
        step is a gap.
    collate : {"list", "pad", "mirror"}
        How clips of different lengths become a batch: as lists, or as arrays padded to the longest clip of the batch
        with zeros, or with the clip backwards and forwards in turn. The bool field ``frame_valid``, (T,), is added to
        padded clips, and tells which samples are not padding; ``audio`` is padded with zeros. If `length` is given,
        padding also gives one clip of `length` samples to each track that is too short for any.
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
        length: int | None,
        stride: int | None = 1,
        dilation: Dilation = 1,
        start: Start = "first",
        by: str | None = "track",
        once: Sequence[str] = ONCE,
        max_step: int | None = None,
        collate: ClipCollate = "list",
        transform: AnyTransform | None = None,
    ) -> None:
        super().__init__(base, transform)
        self.length = None if length is None else as_count("length", length, unit="sample")
        stride = None if stride is None else as_count("stride", stride, unit="sample")
        self._dilation = dilation if dilation == "spread" else as_count("dilation", dilation, unit="sample")
        self._start = as_choice("start", start, ("first", "middle", "random"))
        self._padding = as_choice("collate", collate, ("list", "pad", "mirror"))
        if max_step is not None:
            max_step = as_count("max_step", max_step, unit="frame")
        self._once = frozenset(once)
        with_label = "label" in self._once and "label" in base.raw_layout
        sliding = self.length is not None and self._dilation != "spread"
        least = self.length or 1
        if sliding and isinstance(self._dilation, int):
            least = (least - 1) * self._dilation + 1
        runs = find_runs(base, by, with_label, max_step, gaps=not sliding)
        starts = find_starts(runs, least, sliding, stride, short=self._padding != "list")
        self._sequence, self._firsts, self._sizes = runs.rows, starts.firsts, starts.sizes
        self._lows, self._counts = starts.lows, starts.counts
        if self._start != "random":
            self._lows = starts.lows + ((starts.counts - 1) // 2 if self._start == "middle" else 0)
            self._counts = np.broadcast_to(np.int64(1), starts.counts.shape)
        if len(self._sizes) and self._sizes.min() == self._sizes.max():
            self._sizes = np.broadcast_to(self._sizes[0], self._sizes.shape)  # takes no memory
        self._all = len(self._lows)
        self._occurrences: IntArray | None = None
        items = base.item_numbers()
        self.videos = len(np.unique(items))
        self.videos_without = self.videos - len(np.unique(items[self._heads_of()]))
        if self.videos_without:
            advice = "take a smaller length, a larger max_step or another by=, or pack more frames"
            if self.videos == len(base) and least > 1:  # as in datasets of `packer.Writer`
                advice = "every sample is a separate video, according to the number before the '-' of its key"
            _log.warning(
                "%d of %d videos have no clip of %d samples: %s", self.videos_without, self.videos, least, advice
            )

    def __len__(self) -> int:
        return len(self._lows)

    def __repr__(self) -> str:
        without = f", none from {self.videos_without} of {self.videos} videos" if self.videos_without else ""
        part = "" if len(self) == self._all else f" of {self._all}"
        samples = "all samples of a track" if self.length is None else f"{self.length} samples each"
        return f"{type(self).__name__}: {len(self)}{part} clips of {samples}{without}, from {self.base!r}"

    def subset(self, rows: npt.ArrayLike) -> "ClipDataset":
        """Return some of the clips, in the given order. Every copy of a repeated clip has separate draws."""
        other = copy(self)
        chosen = as_rows(rows, len(self))
        other._lows, other._counts = self._lows[chosen], self._counts[chosen]
        repeated = len(np.unique(other._lows)) < len(other._lows)
        other._occurrences = count_occurrences(other._lows) if repeated else None
        other._layout = None
        return other

    @property
    def rows(self) -> IntArray | list[IntArray]:
        """Rows of every clip in the base dataset: int64, (N, length), or a list of (T,) if `length` is None.

        Made on demand. Padding repeats the rows that it mirrors. With ``start="random"``, these are the rows of seed 0
        and epoch 0.
        """
        clips = SampledRows(np.arange(len(self)), np.zeros(len(self), np.uint64), 0)
        if self.length is not None:
            return self._cut(clips, self.length)[0]
        rows, counts = self._whole(clips)
        return np.split(rows, np.cumsum(counts)[:-1]) if len(self) else []

    @property
    def blocks(self) -> Blocks | None:
        """Runs of neighbouring clips; None if the clips of a part do not ascend."""
        if bool((self._lows[1:] <= self._lows[:-1]).any()):
            return None
        return Blocks.even(len(self), max(1, int(MIN_BLOCK_ROWS // self._mean_length)))

    @property
    def shares(self) -> MixtureShares | None:
        """None, because a shuffled epoch visits every clip once, even of a mixture."""
        return None

    @property
    def raw_layout(self) -> BatchLayout:
        """Layout of the base dataset, with a leading axis for every field that is not in `once`."""
        base = self.base.raw_layout
        pads = self._padding != "list"
        if self.length is None:
            layout = {name: self._in_time(name, value) for name, value in base.items()}
        else:
            layout = dict(stacked(base, self.length, self._once))
        for name in self._joined(base):
            shape = base[name].shape
            if self.length is None or shape is None:
                layout[name] = ValueLayout(None, None, time="pad" if pads else "list")
            else:
                layout[name] = replace(base[name], shape=(self.length * shape[0], *shape[1:]))
        if pads and self.length is None:
            layout["frame_valid"] = ValueLayout(None, None, time="pad")
        elif pads and self.length is not None:
            layout["frame_valid"] = ValueLayout((self.length,), np.dtype(np.bool_))
        return layout

    def _in_time(self, name: str, value: ValueLayout) -> ValueLayout:
        if name in self._once or value.shape is None:
            return value
        return ValueLayout(None, None, value.image, time=self._padding)

    def _joined(self, layout: BatchLayout) -> list[str]:
        return [name for name in JOINED if name in layout and name not in self._once]

    def read_raw(self, picks: SampledRows, out: Columns, at: IntArray) -> None:
        """Read clips, clip i into place ``at[i]``; images of clips of one length go straight into the batch."""
        if self.length is None:
            self._read_whole(picks, out, at)
            return
        length, layout = self.length, self.base.raw_layout
        rows, valid = self._cut(picks, length)
        read = valid | (self._padding == "mirror")
        places = at[:, None] * length + np.arange(length)
        with ungrouped(out, layout, at, length, self._once) as columns:
            self.base.read_raw(self._flat(picks, rows[read], read.sum(axis=1)), columns, places[read])
            for name, column in columns.items():
                silent = ~valid if name in JOINED else ~read
                if isinstance(column, np.ndarray) and silent.any():
                    column[places[silent]] = 0
        for name in self._joined(layout):
            if layout[name].shape is None:
                for place, known in zip(at.tolist(), valid, strict=True):
                    out[name][place] = np.concatenate(out[name][place][: known.sum()])
        if "frame_valid" in out:
            out["frame_valid"][at] = valid

    def _read_whole(self, picks: SampledRows, out: Columns, at: IntArray) -> None:
        layout = self.base.raw_layout
        rows, counts = self._whole(picks)
        columns = allocate_values(layout, len(rows))
        self.base.read_raw(self._flat(picks, rows, counts), columns, np.arange(len(rows)))
        joined = self._joined(layout)
        ends = np.cumsum(counts).tolist()
        for place, start, end in zip(at.tolist(), [0, *ends[:-1]], ends, strict=True):
            for name, column in columns.items():
                if name in self._once:
                    out[name][place] = column[start]
                elif name in joined:
                    out[name][place] = np.concatenate(column[start:end])
                else:
                    out[name][place] = column[start:end]
            if "frame_valid" in out:
                out["frame_valid"][place] = np.ones(end - start, np.bool_)

    def _flat(self, picks: SampledRows, rows: IntArray, counts: IntArray) -> SampledRows:
        """Return the picks of clips' samples, all of which share the key of their clip."""
        origins = self.origins(picks)
        return SampledRows(rows, np.repeat(origins.seeds, counts), picks.epoch, np.repeat(origins.rows, counts))

    @property
    def stored(self) -> tuple[StoredData, ...]:
        """Stored data of the base dataset, with the share of their bytes that the clips use."""
        return self._share_of(len(self) / max(1, self._all))

    @property
    def sample_bytes(self) -> float:
        """Mean number of bytes of a clip's stored samples."""
        return self._mean_length * self.base.sample_bytes

    @property
    def _mean_length(self) -> float:
        if self.length is not None:
            return float(self.length)
        return float(self._sizes[self._lows].mean()) if len(self) else 1.0

    def locate(self, picks: SampledRows) -> Iterator[RowsOfShards]:
        """Yield the rows of packed datasets that a read of some clips touches."""
        if self.length is None:
            rows, counts = self._whole(picks)
        else:
            cut, valid = self._cut(picks, self.length)
            rows, counts = cut[valid], valid.sum(axis=1)
        return self.base.locate(SampledRows(rows, np.repeat(picks.seeds, counts), picks.epoch))

    def in_base(self, picks: SampledRows) -> SampledRows:
        """Return the picks of each clip's first possible start in the base dataset, which key its random draws."""
        firsts = SampledRows(self._heads_of(picks.rows), picks.seeds, picks.epoch)
        if self._occurrences is None:
            return firsts
        return firsts.again(self._occurrences[picks.rows], self.nesting)

    def rows_in_base(self) -> IntArray:
        """Return the row of each clip's first possible start."""
        return self._heads_of()

    @property
    def draws_at_random(self) -> bool:
        """True if reading draws from a sample's generator."""
        return super().draws_at_random or self._start == "random"

    @property
    def nesting(self) -> int:
        """Nesting of the base dataset, plus one if clips are repeated."""
        return self.base.nesting + (self._occurrences is not None)

    def describe(self, row: int) -> str:
        """Describe where a clip begins, for messages."""
        size = self.length or int(self._sizes[self._lows[row]])
        return f"clip {row} of {size} samples; its first {self.base.describe(int(self._heads_of(row)))}"

    def _heads_of(self, clips: IntArray | slice | int = slice(None)) -> IntArray:
        """Return the row of some clips' first possible start in the base dataset: int64, (n,)."""
        heads: IntArray = self._sequence[self._firsts[self._lows[clips]]]
        return heads

    def _starts_of(self, picks: SampledRows) -> tuple[IntArray, IntArray, npt.NDArray[np.uint64]]:
        """Return where clips begin in the sequence, the samples of the run from there, and a random number of each."""
        lows, draws = self._lows[picks.rows], np.zeros(len(picks), np.uint64)
        if self._start == "random":
            origins = self.origins(picks)
            draws = mix_array(origins.seeds ^ mix_array(origins.rows, mix_words(picks.epoch, _START_TAG)), 0)
            lows = lows + (_unit(draws) * self._counts[picks.rows]).astype(np.int64)
        return self._firsts[lows], self._sizes[lows], draws

    def _whole(self, picks: SampledRows) -> tuple[IntArray, IntArray]:
        """Return the rows of clips of any length, one clip after the other, and the number of samples of each."""
        firsts, sizes, _ = self._starts_of(picks)
        return self._sequence[ranges(firsts, sizes)], sizes

    def _cut(self, picks: SampledRows, length: int) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """Return the rows of clips of one length, (n, length), and which samples are not padding."""
        firsts, sizes, draws = self._starts_of(picks)
        steps, sizes = np.arange(length), sizes[:, None]
        if isinstance(self._dilation, int):
            known = np.minimum(-(-sizes // self._dilation), length)
            within = mirrored(steps, known) * self._dilation
        else:
            known = np.minimum(sizes, length)
            shift: Any = 0.5 if self._start == "middle" else 0.0
            if self._start == "random":
                shift = _unit(mix_array(draws[:, None] ^ mix_array(steps, _SPREAD_TAG), 0))
            # A product just below the size of the run may be rounded up to it.
            spread = np.minimum(((steps + shift) * sizes / length).astype(np.int64), sizes - 1)
            within = np.where(sizes >= length, spread, mirrored(steps, known))
        return self._sequence[firsts[:, None] + within], steps < known


def _unit(draws: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    """Turn random numbers of 64 bits into numbers in [0, 1)."""
    numbers: npt.NDArray[Any] = (draws >> np.uint64(11)) * 2.0**-53
    return numbers
