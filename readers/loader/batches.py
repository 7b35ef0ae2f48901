"""What the Loader's threads do: put batches together, each from the picks of its number."""

import threading

import numpy as np
import numpy.typing as npt
import torch

from readers.dataset.base import SampleDataset
from readers.dataset.collate import collate_columns
from readers.decode.values import BatchLayout
from readers.loader.ahead import ReadAhead
from readers.loader.device import SeededBatch
from readers.loader.ring import Buffers
from readers.order.order import Cut, EpochOrder, Picks
from readers.order.permutation import mix_array, mix_words

_POSITIONS = 4096
"""Positions of the order that are computed at once."""


class BatchPicks:
    """The picks of every batch of an iteration, by its number. Safe between threads; nearby numbers are cheapest.

    Parameters
    ----------
    sequence : EpochOrder
        For this object alone.
    cut : Cut
    consumed : int
        Samples of the epoch that all ranks had consumed before.
    length : int
        Samples that this rank takes.
    batch_size : int
    """

    def __init__(self, sequence: EpochOrder, cut: Cut, consumed: int, length: int, batch_size: int) -> None:
        self._sequence = sequence
        self._cut = cut
        self._consumed = consumed
        self._length = length
        self._batch_size = batch_size
        self._lock = threading.Lock()
        self._picks: Picks | None = None
        self._start = 0

    def __call__(self, number: int) -> Picks:
        """The picks of batch `number` of this rank."""
        start = number * self._batch_size
        stop = min(start + self._batch_size, self._length)
        with self._lock:
            if self._picks is None or not self._start <= start <= stop <= self._start + len(self._picks):
                end = min(start + max(1, _POSITIONS // self._batch_size) * self._batch_size, self._length)
                self._picks = self._sequence.at(self._cut.positions(start, end, self._consumed))
                self._start = start
            return self._picks.part(start - self._start, stop - self._start)


class BatchWork:
    """Puts one batch together; the job of the Loader's threads."""

    def __init__(
        self,
        dataset: SampleDataset,
        layout: BatchLayout,
        picks: BatchPicks,
        buffers: Buffers,
        seeds_wanted: bool,
        ahead: ReadAhead | None,
    ) -> None:
        self._dataset = dataset
        self._layout = layout
        self._picks = picks
        self._buffers = buffers
        self._seeds_wanted = seeds_wanted
        self._ahead = ahead

    def __call__(self, number: int) -> SeededBatch:
        """Batch `number` of this rank, and the seeds of its samples."""
        if self._ahead is not None:
            self._ahead.begin(number)
        picks = self._picks(number)
        columns = self._buffers.take(self._layout, len(picks))
        self._dataset.read_picks(picks, columns, np.arange(len(picks)))
        seeds = torch.from_numpy(sample_seeds(self._dataset.origins(picks))) if self._seeds_wanted else None
        return collate_columns(columns, self._layout), seeds


def sample_seeds(origins: Picks) -> npt.NDArray[np.int64]:
    """A number for each sample that is a function of seed, epoch and row in the base dataset: int64, (n,)."""
    mixed = mix_array(origins.seeds ^ mix_array(origins.rows, mix_words(origins.epoch)), 0)
    return mixed.view(np.int64)
