"""Construct batches: choose their samples (picks), fill them in threads, and manage their memory."""

import math
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from readers.dataset.base import SampleDataset
from readers.dataset.collate import collate_columns, stored_dtype
from readers.decode.values import BatchLayout, empty_aligned
from readers.loader.device import BatchTransform, SeededBatch, apply_transform
from readers.loader.forecast import Forecast
from readers.loader.threads import ReadAhead, ThreadJob
from readers.order.custom import CustomEpoch
from readers.order.order import EpochOrder, RankShare, SampledRows
from readers.seeding import mix_array, mix_words
from shardspec.columns import Columns

_POSITIONS = 4096
"""Number of positions of the order that are computed together."""

_PART_S = 0.005
"""Minimum time of a part of a divided batch: dividing takes about 1 % of it."""

_LAST_PARTS = 8
"""Maximum number of parts per thread of an epoch's last batch."""

_LEASE_BYTES_MIN = 1 << 16
"""Smaller arrays are allocated each time, which costs less than tracking them."""


class BatchPicks:
    """The picks of every batch of an iteration, by batch number. Thread-safe. Nearby numbers are cheapest.

    Parameters
    ----------
    sequence : EpochOrder or CustomEpoch
        Not shared with any other object.
    cut : RankShare
        The share of this rank.
    consumed : int
        Samples of the epoch that all ranks had consumed before; batches, if the order yields batches.
    length : int
        Samples, or batches, that this rank takes.
    batch_size : int
        Samples of a batch; 1 if the order yields batches.
    """

    def __init__(
        self, sequence: EpochOrder | CustomEpoch, cut: RankShare, consumed: int, length: int, batch_size: int
    ) -> None:
        self._sequence = sequence
        self._cut = cut
        self._consumed = consumed
        self._length = length
        self._batch_size = batch_size
        self._lock = threading.Lock()
        self._picks: SampledRows | None = None
        self._start = 0

    def __call__(self, number: int) -> SampledRows:
        """Return the picks of batch `number` of this rank."""
        if isinstance(self._sequence, CustomEpoch) and self._sequence.batched:
            return self._sequence.batch(int(self._cut.positions(number, number + 1, self._consumed)[0]))
        start = number * self._batch_size
        stop = start + self.size(number)
        with self._lock:
            if self._picks is None or not self._start <= start <= stop <= self._start + len(self._picks):
                end = min(start + max(1, _POSITIONS // self._batch_size) * self._batch_size, self._length)
                self._picks = self._sequence.at(self._cut.positions(start, end, self._consumed))
                self._start = start
            return self._picks.part(start - self._start, stop - self._start)

    def size(self, number: int) -> int:
        """Return the number of samples of batch `number`."""
        if isinstance(self._sequence, CustomEpoch) and self._sequence.batched:
            return len(self(number))
        return min(self._batch_size, self._length - number * self._batch_size)


class BatchRate:
    """Time per sample of a thread of a Loader in seconds, as last measured; 0 before the first batch."""

    sample_s = 0.0


class BatchWork:
    """Assembles batches in the Loader's threads.

    A batch that takes long is divided among the threads, so the first batch of an epoch comes sooner. The last batch is
    divided further, so that no thread is idle at the end for as long as a part takes.

    Parameters
    ----------
    watchers : sequence of ReadAhead or Forecast
        Told which batches begin.
    last : int
        Number of the last batch.
    """

    def __init__(
        self,
        dataset: SampleDataset,
        layout: BatchLayout,
        picks: BatchPicks,
        buffers: "Ring | PinnedBuffers",
        seeds_wanted: bool,
        watchers: Sequence[ReadAhead | Forecast],
        transform: BatchTransform | None,
        threads: int,
        pace: BatchRate,
        last: int,
    ) -> None:
        self._dataset = dataset
        self._layout = layout
        self._picks = picks
        self._buffers = buffers
        self._seeds_wanted = seeds_wanted
        self._watchers = watchers
        self._transform = getattr(transform, "forward_", transform)
        self._threads = threads
        self._pace = pace
        self._last = last

    def __call__(self, number: int) -> ThreadJob[SeededBatch]:
        """Return the work, in parts, whose result is batch `number` of this rank and the seeds of its samples."""
        for watcher in self._watchers:
            watcher.begin(number)
        picks = self._picks(number)
        columns = self._buffers.take(self._layout, len(picks))
        most = self._threads * (_LAST_PARTS if number == self._last and self._threads > 1 else 1)
        count = max(1, min(most, len(picks), int(len(picks) * self._pace.sample_s / _PART_S)))
        edges = [len(picks) * part // count for part in range(count + 1)]
        parts = [partial(self._read, picks, columns, *edges[part : part + 2]) for part in range(count)]
        return ThreadJob(parts, partial(self._end, picks, columns))

    def _read(self, picks: SampledRows, columns: Columns, start: int, stop: int) -> None:
        begin = perf_counter()
        self._dataset.read_picks(picks.part(start, stop), columns, np.arange(start, stop))
        self._pace.sample_s = (perf_counter() - begin) / max(1, stop - start)

    def _end(self, picks: SampledRows, columns: Columns) -> SeededBatch:
        """Collate and transform the filled columns."""
        seeds = torch.from_numpy(sample_seeds(self._dataset.origins(picks))) if self._seeds_wanted else None
        batch = collate_columns(columns, self._layout)
        return apply_transform(self._transform, batch, seeds), seeds


def sample_seeds(origins: SampledRows) -> npt.NDArray[np.int64]:
    """Return a number per sample, a function of seed, epoch and row in the base dataset: int64, (n,)."""
    mixed = mix_array(origins.seeds ^ mix_array(origins.rows, mix_words(origins.epoch)), 0)
    return mixed.view(np.int64)


class Ring:
    """Buffers in ordinary memory. If no buffer is free, a new one is allocated without waiting. Thread-safe.

    Memory that was used before is already mapped, which makes filling it twice as fast.

    Parameters
    ----------
    rows : int
        Rows of the largest batch.
    keep : int
        Number of unused buffers kept per field; others are freed.
    """

    def __init__(self, rows: int, keep: int) -> None:
        self._rows = rows
        self._keep = keep
        self._free: dict[str, deque[npt.NDArray[Any]]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._rows, self._keep)  # without the buffers

    def take(self, layout: BatchLayout, rows: int) -> Columns:
        """Return columns for a batch of `rows` rows, which are not reused while anything refers to them.

        A batch larger than all before enlarges the ring's buffers.
        """
        out: Columns = {}
        most = self._rows = max(self._rows, rows)
        for name, value in layout.items():
            if value.shape is None or value.dtype is None:
                out[name] = [None] * rows
            elif rows * math.prod(value.shape) * value.dtype.itemsize < _LEASE_BYTES_MIN:
                out[name] = np.empty((rows, *value.shape), value.dtype)
            else:
                out[name] = self._lease(name, (most, *value.shape), value.dtype, value.begin, rows)
        return out

    def _lease(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], begin: int, rows: int
    ) -> npt.NDArray[Any]:
        free = self._free.setdefault(name, deque())
        try:
            memory = free.pop()
        except IndexError:
            memory = empty_aligned(shape, dtype, begin)
        if memory.shape != shape or memory.dtype != dtype:  # from an earlier layout
            memory = empty_aligned(shape, dtype, begin)
        lease = _BufferOwner(memory, (rows, *shape[1:]))
        weakref.finalize(lease, _give_back, free, memory, self._keep).atexit = False
        return np.asarray(lease)


class PinnedBuffers:
    """Buffers in page-locked memory, from torch's caching host allocator.

    The allocator reuses a buffer only after the copies to the device that read it have finished.
    """

    def take(self, layout: BatchLayout, rows: int) -> Columns:
        """Return columns for a batch of `rows` rows."""
        out: Columns = {}
        for name, value in layout.items():
            if value.shape is None or value.dtype is None:
                out[name] = [None] * rows
            else:
                stored = stored_dtype(value.dtype)
                like = torch.from_numpy(np.empty(0, stored))
                # The array keeps the tensor, and so the page-locked memory, alive.
                pinned = torch.empty((rows, *value.shape), dtype=like.dtype, device="cpu", pin_memory=True)
                out[name] = pinned.numpy().view(value.dtype)
        return out


class _BufferOwner:
    """Owner of a buffer, between the buffer and the arrays made of it.

    Every numpy view of such an array, and every tensor made of it, refers to this object, and to the buffer only
    through it. So this object is freed when none of them is left.
    """

    def __init__(self, memory: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
        interface = memory.__array_interface__
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": interface["typestr"],
            "data": interface["data"],
        }


def _give_back(free: "deque[npt.NDArray[Any]]", memory: npt.NDArray[Any], keep: int) -> None:
    """Return the memory of a lease to the ring, in the thread that dropped the last reference."""
    if len(free) < keep:
        free.append(memory)
