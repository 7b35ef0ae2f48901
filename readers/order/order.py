"""The sequence of samples that an epoch visits, as a pure function of integers.

All ranks share one sequence per epoch: rank r of W takes the positions c + r, c + r + W, …, where c is the first
position that no rank has consumed. So a resume needs only the integer c, at any number of ranks and workers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from readers.arguments import as_count, as_integer
from readers.seeding import Permutation, check_epoch, check_seed, mix_array, mix_words
from shardspec.columns import IntArray
from shardspec.entries import Shard
from shardspec.errors import UsageError
from shardspec.wording import shorten

Shuffle = Literal["full", "blocks", True, False]

SHUFFLES: tuple[Shuffle, ...] = ("full", "blocks", True, False)
WINDOW_BLOCKS = 16
"""Number of blocks that the order ``"blocks"`` mixes with each other."""

MIN_BLOCK_ROWS = 64
"""Smaller units of a format are joined until a block has this many rows."""

_SIZING_CHUNK = 1 << 14
_DRAW_TAG, _BLOCK_TAG, _WINDOW_TAG, _FULL_TAG, _LANE_TAG = range(5)
_REPEAT_TAG = 0x726570656174
_SHARES_LEVEL = -1
_MIX_TAG = 0x6D6978


@dataclass(frozen=True)
class SampledRows:
    """Rows to read, and the key of each row's random draws.

    Attributes
    ----------
    rows : int64 array, (n,)
    seeds : uint64 array, (n,)
        The order's seed. Draws with replacement have separate seeds, and so have repetitions of a row, so that every
        copy of a row is augmented differently.
    keys : int64 array, (n,), or None
        Rows in the base dataset that, together with `seeds`, key the random draws. None: both follow from `rows` and
        the datasets down to the base. All frames of a clip share one key.
    """

    rows: IntArray
    seeds: npt.NDArray[np.uint64]
    epoch: int
    keys: IntArray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, stop: int) -> "SampledRows":
        """Return the picks start … stop-1."""
        keys = None if self.keys is None else self.keys[start:stop]
        return SampledRows(self.rows[start:stop], self.seeds[start:stop], self.epoch, keys)

    def again(self, occurrences: IntArray, level: int) -> "SampledRows":
        """Return the same rows with a seed per occurrence: occurrence 0 of a row keeps its seed, others get new ones.

        Parameters
        ----------
        occurrences : int64 array, (n,)
            Number of earlier occurrences of each row.
        level : int
            Source of the repetitions: −1 for the shares of a mixture, 0 for a sampler, 1 for a part, 2 for a part of a
            part, and so on. The copies of each level differ.
        """
        apart = mix_array(self.seeds ^ mix_array(occurrences, mix_words(_REPEAT_TAG, level)), 0)
        return replace(self, seeds=np.where(occurrences == 0, self.seeds, apart))


def count_occurrences(values: npt.NDArray[Any]) -> IntArray:
    """Return the number of earlier occurrences of each value in the array: int64, (n,)."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(values) else order
    sizes = np.diff(starts, append=len(values))
    out = np.empty(len(values), np.int64)
    out[order] = np.arange(len(values)) - np.repeat(starts, sizes)
    return out


class Blocks:
    """Consecutive runs of rows that cover 0 … rows-1, in stretches of equal run length (one stretch per shard).

    Parameters
    ----------
    stretch_rows : int array, (S,)
        Rows of each stretch.
    block_rows : int array, (S,)
        Rows of each block in the stretch, 1 or more; its last block may be shorter.
    whole : bool
        Whether blocks are whole shards of a remote dataset, which are downloaded before they are read.
    """

    def __init__(self, stretch_rows: IntArray, block_rows: IntArray, whole: bool = False) -> None:
        self.whole = whole
        self._block_rows = block_rows
        self._row_ends = np.cumsum(stretch_rows)
        self._row_starts = self._row_ends - stretch_rows
        counts = -(-stretch_rows // block_rows)
        self._block_ends = np.cumsum(counts)
        self._block_starts = self._block_ends - counts
        self.rows = int(self._row_ends[-1]) if len(stretch_rows) else 0

    def __len__(self) -> int:
        return int(self._block_ends[-1]) if len(self._block_ends) else 0

    def bounds(self, blocks: IntArray) -> tuple[IntArray, IntArray]:
        """Return the first row of each given block, and the row after its last."""
        stretch = np.searchsorted(self._block_ends, blocks, side="right")
        step = self._block_rows[stretch]
        start = self._row_starts[stretch] + (blocks - self._block_starts[stretch]) * step
        return start, np.minimum(start + step, self._row_ends[stretch])

    def digest(self) -> bytes:
        """Return a digest of all bounds."""
        return _digest(self._row_ends, self._block_rows, np.array([self.whole]))

    def of_rows(self, rows: IntArray) -> IntArray:
        """Return the block of each row."""
        _, stops = self.bounds(np.arange(len(self)))
        return np.searchsorted(stops, rows, side="right")

    @classmethod
    def of_shards(cls, shards: Iterable[Shard], whole: bool = False) -> "Blocks":
        """Return the blocks of a dataset: the units of each shard, joined until a block has `MIN_BLOCK_ROWS`.

        With `whole`, each shard is a block.
        """
        pairs = [
            (s.samples, s.samples if whole else min(s.samples, -(-MIN_BLOCK_ROWS // s.block_rows) * s.block_rows))
            for s in shards
            if s.samples
        ]
        table = np.array(pairs, np.int64).reshape(-1, 2)
        return cls(table[:, 0], table[:, 1], whole)

    @classmethod
    def even(cls, rows: int, block_rows: int = MIN_BLOCK_ROWS) -> "Blocks":
        """Return blocks of equal length, for rows that are not in shards."""
        return cls(np.array([rows], np.int64), np.array([block_rows], np.int64))


@dataclass(frozen=True, eq=False)
class MixtureShares:
    """Number of samples that each dataset of a mixture contributes to an epoch, and their rows.

    The rows of the first dataset come first, then the rows of the second, and so on. Each dataset is read in
    permutations that continue from epoch to epoch, so no row is repeated before all rows of its dataset were read.

    Attributes
    ----------
    sizes : int64 array, (D,)
        Rows of each dataset.
    quotas : int64 array, (D,)
        Samples of each dataset in an epoch.
    seed : int
        Seed of the permutations.
    within : tuple of MixtureShares or None, (D,)
        Shares inside each dataset that is itself a mixture.
    """

    sizes: IntArray
    quotas: IntArray
    seed: int
    within: "tuple[MixtureShares | None, ...]"

    @property
    def samples(self) -> int:
        """Samples of an epoch."""
        return int(self.quotas.sum())

    def digest(self) -> bytes:
        """Return a digest of all attributes."""
        inner = [b"" if shares is None else shares.digest() for shares in self.within]
        return _digest(self.sizes, self.quotas, np.array([self.seed], np.uint64), *inner)

    def rows(self, places: IntArray, epoch: int) -> tuple[IntArray, IntArray]:
        """Return the rows at some places of an epoch, 0 to samples - 1, and the permutation that each comes from.

        No row occurs twice in one permutation. The samples of a dataset have neighbouring places.
        """
        rows, cycles = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
        ends, firsts = np.cumsum(self.quotas), np.cumsum(self.sizes) - self.sizes
        which = np.searchsorted(ends, places, side="right")
        for number in np.unique(which).tolist():
            chosen = np.flatnonzero(which == number)
            inner, quota = self.within[number], int(self.quotas[number])
            length = int(self.sizes[number]) if inner is None else inner.samples
            passes, nth = np.divmod(places[chosen] - (int(ends[number]) - quota) + epoch * quota, length)
            for cycle in np.unique(passes).tolist():
                now = passes == cycle
                permuted = Permutation(length, self.seed, cycle, number, _MIX_TAG)(nth[now])
                found = (permuted, cycle) if inner is None else inner.rows(permuted, cycle)
                rows[chosen[now]], cycles[chosen[now]] = firsts[number] + found[0], found[1]
        return rows, cycles


@dataclass(frozen=True, eq=False)
class Order:
    """The sequence of every epoch over ``range(samples)``.

    Attributes
    ----------
    samples : int
        Rows of the dataset.
    shuffle : {"full", "blocks", False}
        ``"full"`` permutes the samples, in constant memory. ``"blocks"`` permutes blocks and mixes the samples within
        `window` of them; an epoch takes 8 bytes per window. True is ``"full"``.
    seed : int
        0 to 2**64 - 1.
    blocks : Blocks or None
        Required for ``"blocks"``.
    window : int
        Number of blocks that are mixed with each other.
    weights : float64 array, (samples,), or None
        Relative probabilities of draws with replacement; `shuffle` is then ignored. 8 bytes per sample.
    draws : int or None
        Length of a weighted epoch; None for the number of samples, or for the mixture's `MixtureShares.samples`.
    shares : MixtureShares or None
        Shares of a mixture: ``"full"`` reads each dataset's share. Weighted draws and False, the order of the rows,
        ignore them.
    lanes : int or None
        For ``"blocks"`` of whole shards: the sequence alternates between this many lanes, each of which reads its own
        blocks. With as many ranks as lanes, or a divisor of that number, each rank reads the shards of its lanes only.
        None until it is known: the number of ranks that begin the first epoch (the canonical nodes of MosaicML
        Streaming). A resume keeps it, so that another number of ranks sees the same samples.
    """

    samples: int
    shuffle: Shuffle = "full"
    seed: int = 0
    blocks: Blocks | None = None
    window: int = WINDOW_BLOCKS
    weights: npt.NDArray[np.float64] | None = None
    draws: int | None = None
    shares: MixtureShares | None = None
    lanes: int | None = None
    _cumulative: npt.NDArray[np.float64] | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_seed(self.seed))
        object.__setattr__(self, "window", as_count("window", self.window, unit="block"))
        if self.shuffle not in SHUFFLES:
            raise UsageError(
                option="shuffle",
                expected="'full', 'blocks' or False ('auto' in a Loader or a sampler)",
                found=shorten(self.shuffle),
            )
        if not isinstance(self.shuffle, str):  # a state with numpy's False, for example, could not be saved
            object.__setattr__(self, "shuffle", "full" if self.shuffle else False)
        if self.draws is not None:
            object.__setattr__(self, "draws", as_count("draws", self.draws, least=0))
            if self.weights is None:
                raise UsageError(option="draws", expected="together with weights", found=f"{self.draws} without")
        if self.shuffle == "blocks" and self.weights is None:
            if self.blocks is None:
                raise UsageError(
                    "'blocks' needs a dataset with blocks, and this one has none", option="shuffle", hint="use 'full'"
                )
            if self.blocks.rows != self.samples:
                raise UsageError(option="blocks", expected=f"to cover {self.samples} rows", found=self.blocks.rows)
        if self.weights is not None:
            object.__setattr__(self, "_cumulative", _cumulate(self.weights, self.samples))

    def __len__(self) -> int:
        if self.draws is not None:
            return self.draws
        in_row_order = self.weights is None and not self.shuffle
        return self.samples if self.shares is None or in_row_order else self.shares.samples

    @property
    def takes_shuffle(self) -> bool:
        """True if the shuffle has an effect; weighted draws ignore it."""
        return self.weights is None

    @property
    def name(self) -> str | bool:
        """The shuffle, or ``"weighted"``."""
        return "weighted" if self.weights is not None else self.shuffle

    def length(self, epoch: int) -> int:
        """Return the number of samples of an epoch, the same for all epochs."""
        return len(self)

    def with_shuffle(self, shuffle: Shuffle, seed: int, window: int | None = None, lanes: int | None = None) -> "Order":
        """Return the same order with another shuffle and seed, and another window and lanes if they are given."""
        window, lanes = window or self.window, lanes or self.lanes
        return replace(self, shuffle=shuffle, seed=seed, window=window, lanes=lanes)

    @property
    def has_lanes(self) -> bool:
        """True if the order has lanes, whose number may not be known yet."""
        in_blocks = self.shuffle == "blocks" and self.weights is None
        return in_blocks and self.blocks is not None and self.blocks.whole

    def epoch(self, epoch: int) -> "EpochOrder":
        """Return the sequence of one epoch."""
        return EpochOrder(self, check_epoch(epoch))

    def state(self, epoch: int) -> dict[str, int | str | bool | None]:
        """Return the state that a resume compares, the same in all epochs.

        Orders with equal states have equal sequences.
        """
        return {
            "length": len(self),
            "seed": self.seed,
            "shuffle": self.name,
            "window": self.window if self.shuffle == "blocks" and self.weights is None else None,
            "lanes": self.lanes if self.has_lanes else None,
            "rows": self._content,
        }

    @cached_property
    def _content(self) -> str | None:
        """Digest of what determines the rows of an epoch besides the numbers in `state`: weights, blocks or shares."""
        if self.weights is not None:
            return _digest(self.weights).hex()
        source = {"blocks": self.blocks, "full": self.shares}.get(str(self.shuffle))
        return None if source is None else source.digest().hex()


class EpochOrder:
    """The sequence of one epoch, readable at any positions; ascending ones are cheapest. Not safe between threads."""

    def __init__(self, order: Order, epoch: int) -> None:
        self.order = order
        self.epoch = epoch
        self._full = Permutation(len(order), order.seed, epoch, _FULL_TAG)
        self._lanes: list[_Windows] = []
        if order.has_lanes:
            self._lanes = [_lane_windows(order, epoch, lane) for lane in range(order.lanes or 1)]
        elif order.shuffle == "blocks" and order.weights is None:
            self._lanes = [_block_windows(order, epoch)]

    def __len__(self) -> int:
        return len(self.order)

    def at(self, positions: IntArray) -> SampledRows:
        """Return the picks at some positions. Those beyond the length wrap around, so all ranks get equally many."""
        order = self.order
        if len(order) == 0:
            return SampledRows(np.empty(0, np.int64), np.empty(0, np.uint64), self.epoch)
        positions = positions % len(order)
        seeds = np.full(len(positions), order.seed, np.uint64)
        if order._cumulative is not None:
            draws = mix_array(positions, mix_words(order.seed, self.epoch, _DRAW_TAG))
            total = order._cumulative[-1]
            unit = (draws >> np.uint64(11)) * 2.0**-53
            heights = np.minimum(unit * total, np.nextafter(total, 0))  # the product may round up to the total
            rows = np.searchsorted(order._cumulative, heights, side="right")
            return SampledRows(rows.astype(np.int64), draws, self.epoch)
        if self._lanes:
            return SampledRows(self._in_lanes(positions), seeds, self.epoch)
        places = self._full(positions) if order.shuffle else positions
        if order.shares is None or not order.shuffle:
            return SampledRows(places, seeds, self.epoch)
        rows, cycles = order.shares.rows(places, self.epoch)
        return SampledRows(rows, seeds, self.epoch).again(cycles, _SHARES_LEVEL)

    def _in_lanes(self, positions: IntArray) -> IntArray:
        """Return the rows at some positions: position p is the place p // L of lane p % L, of L lanes."""
        if len(self._lanes) == 1:
            return self._lanes[0].at(positions)
        places, lanes = np.divmod(positions, len(self._lanes))
        rows = np.empty(len(positions), np.int64)
        for lane in np.unique(lanes).tolist():
            chosen = lanes == lane
            rows[chosen] = self._lanes[lane].at(places[chosen])
        return rows


class _Windows:
    """Rows that are mixed within windows of neighbouring blocks. Holds the rows of one window at a time.

    Parameters
    ----------
    begins : int64 array, (n + 1,)
        Place of the first row of each window, and the number of all rows.
    bounds_of : callable
        Returns the first rows, and the rows after the last, of the blocks of a window by its number.
    words : int
        Key of the permutations.
    """

    def __init__(
        self, begins: IntArray, bounds_of: Callable[[int], tuple[IntArray, IntArray]], words: tuple[int, ...]
    ) -> None:
        self._begins, self._bounds_of, self._words = begins, bounds_of, words
        self._number, self._rows = -1, np.empty(0, np.int64)

    def at(self, places: IntArray) -> IntArray:
        """Return the rows at some places."""
        windows = np.searchsorted(self._begins, places, side="right") - 1
        out = np.empty(len(places), np.int64)
        for number in np.unique(windows).tolist():
            self._load(number)
            chosen = windows == number
            out[chosen] = self._rows[places[chosen] - self._begins[number]]
        return out

    def _load(self, number: int) -> None:
        if number == self._number:
            return
        rows = np.concatenate([np.arange(a, b) for a, b in zip(*self._bounds_of(number), strict=True)])
        mixed = Permutation(len(rows), *self._words, number)
        self._number, self._rows = number, rows[mixed(np.arange(len(rows)))]


def _block_windows(order: Order, epoch: int) -> _Windows:
    """Return the order ``"blocks"`` of one epoch: windows of permuted blocks."""
    blocks, window = order.blocks, order.window
    assert blocks is not None
    permuted = Permutation(len(blocks), order.seed, epoch, _BLOCK_TAG)

    def bounds_of(first: int, last: int) -> tuple[IntArray, IntArray]:
        return blocks.bounds(permuted(np.arange(first, min(last, len(blocks)))))

    sizes = [np.zeros(1, np.int64)]
    step = window * max(1, _SIZING_CHUNK // window)
    for first in range(0, len(blocks), step):
        starts, stops = bounds_of(first, first + step)
        sizes.append(np.add.reduceat(stops - starts, np.arange(0, len(starts), window)))
    begins = np.cumsum(np.concatenate(sizes))
    return _Windows(
        begins,
        lambda number: bounds_of(number * window, (number + 1) * window),
        (order.seed, epoch, _WINDOW_TAG),
    )


def _lane_windows(order: Order, epoch: int, lane: int) -> _Windows:
    """Return a lane of the order ``"blocks"`` of whole shards, in one epoch.

    The permuted shards, one after the other, are cut into lanes of equal length. Every second lane is read backwards, so
    that two lanes read the shard between them at the same time, and a machine that reads both downloads it once. The
    first windows have 1, 1, 2, 4, … shards, so that the first batch waits for a single download.
    """
    blocks, lanes = order.blocks, order.lanes or 1
    assert blocks is not None
    permuted = Permutation(len(blocks), order.seed, epoch, _BLOCK_TAG)(np.arange(len(blocks)))
    starts, stops = blocks.bounds(permuted)
    ends = np.cumsum(stops - starts)
    low = lane * (blocks.rows // lanes) + min(lane, blocks.rows % lanes)
    high = low + (blocks.rows + lanes - 1 - lane) // lanes
    first, last = int(np.searchsorted(ends, low, side="right")), int(np.searchsorted(ends, high)) + 1
    step = -1 if lane % 2 else 1
    starts = np.maximum(starts, stops - (ends - low))[first:last][::step]
    stops = np.minimum(stops, stops - (ends - high))[first:last][::step]
    edges = [0, 1]
    while edges[-1] < len(starts):
        edges.append(edges[-1] + min(edges[-1], order.window))
    begins = np.append(0, np.cumsum(stops - starts))[np.minimum(edges, len(starts))]

    def bounds_of(number: int) -> tuple[IntArray, IntArray]:
        some = slice(edges[number], edges[number + 1])
        return starts[some], stops[some]

    return _Windows(begins, bounds_of, (order.seed, epoch, _LANE_TAG, lane))


def _cumulate(weights: npt.NDArray[np.float64], samples: int) -> npt.NDArray[np.float64]:
    if weights.shape != (samples,):
        raise UsageError(
            option="weights", expected=f"one for each of {samples} samples", found=f"shape {weights.shape}"
        )
    if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.max(initial=0) > 0):
        raise UsageError(option="weights", expected="finite numbers, none below 0 and not all 0")
    # Scaled by a power of two, which changes no digit, so that the sum is finite.
    return np.cumsum(np.ldexp(weights, -np.frexp(weights.max())[1]), dtype=np.float64)


def _digest(*parts: npt.NDArray[Any] | bytes) -> bytes:
    state = blake2b(digest_size=8)
    for part in parts:
        state.update(part if isinstance(part, bytes) else part.astype(part.dtype.newbyteorder("<")).tobytes())
    return state.digest()


@dataclass(frozen=True)
class RankShare:
    """The share of every epoch that one rank takes.

    Attributes
    ----------
    rank, world_size : int
        0 <= rank < world_size.
    drop : bool
        If the number of samples is not a multiple of the ranks: leave out the last few (fewer than there are ranks)
        instead of repeating a few from the start of the sequence. Either way all ranks have the same length.
    """

    rank: int = 0
    world_size: int = 1
    drop: bool = False

    def __post_init__(self) -> None:
        rank, world_size = as_integer("rank", self.rank), as_integer("world_size", self.world_size)
        if world_size < 1 or not 0 <= rank < world_size:
            raise UsageError(
                option="rank",
                expected="0 <= rank < world_size",
                found=f"rank {self.rank} of world_size {self.world_size}",
            )

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size}"

    def length(self, total: int, consumed: int = 0) -> int:
        """Return the samples left for this rank in an epoch of `total`, of which all ranks have consumed `consumed`."""
        left = max(0, total - consumed)
        return left // self.world_size if self.drop else -(-left // self.world_size)

    def positions(self, start: int, stop: int, consumed: int = 0) -> IntArray:
        """Return the positions of this rank's samples start … stop-1, counted after the consumed ones."""
        return consumed + self.rank + self.world_size * np.arange(start, stop, dtype=np.int64)
