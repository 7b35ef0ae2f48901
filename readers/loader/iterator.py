"""One epoch of a `Loader`: the threads that make its batches, and its progress."""

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from readers.dataset.base import SampleDataset
from readers.dataset.collate import Batch
from readers.formats.pool import explain_thread
from readers.loader.batches import BatchPicks, BatchWork
from readers.loader.device import DeviceStage, SeededBatch, runs_in_threads, wants_seeds
from readers.loader.threads import ReadAhead, ReadStage, StageTimes, take_one_thread
from shardspec.errors import DatasetError

if TYPE_CHECKING:
    from readers.loader.loader import Loader


class LoaderIterator(Iterator[Batch]):
    """One epoch of a `Loader`. It begins with its first batch, so an iterator that yields none uses up no epoch.

    Libraries create iterators for other purposes, for example Lightning to check that it can, and may set the epoch
    after that. The threads end when the iterator is exhausted, closed or no longer referred to.
    """

    def __init__(self, loader: "Loader") -> None:
        self._loader: Loader | None = loader  # until the epoch begins
        self._finalizer: weakref.finalize[..., LoaderIterator] | None = None
        self._samples = 0
        self._times = StageTimes()

    def _begin(self) -> None:
        loader, self._loader = self._loader, None
        if loader is None:
            return
        self._iteration = iteration = loader._begin()
        dataset, length = loader.dataset, loader._length(iteration)
        self._step = loader._step
        jobs = -(-length // self._step)
        self._left = length
        self._picks = loader._picks(iteration)
        self._number = 0
        # Getting the layout runs the transform, which may fail. So it comes before any thread is started.
        layout = dataset.layout if jobs else {}
        ahead = None
        if loader.read_ahead:
            ahead = ReadAhead(_Asker(dataset, loader._picks(iteration)), jobs, loader.read_ahead)
        transform, later = loader.batch_transform, None
        seeds_wanted = wants_seeds(transform)
        if not runs_in_threads(transform, loader.device):
            transform, later = None, transform
        picks = loader._picks(iteration)
        work = BatchWork(
            dataset,
            layout,
            picks,
            loader._buffers,
            seeds_wanted,
            ahead,
            transform,
            threads=loader.workers,
            pace=loader._pace,
            last=jobs - 1,
        )
        torch.get_num_threads()  # otherwise this thread would adopt the setting of the Loader's threads
        self._stage: ReadStage[SeededBatch] = ReadStage(
            work, jobs, loader.workers, loader.prefetch, loader.timeout_s, explain_thread, take_one_thread
        )
        self._times = self._stage.times
        # Not a method, which would keep this object alive. At exit it runs before the interpreter ends.
        self._finalizer = weakref.finalize(self, _end, self._stage, ahead)
        self._batches = DeviceStage(self._stage, loader.device, later)

    def __next__(self) -> Batch:
        self._begin()
        if self._finalizer is None:
            raise DatasetError("the Loader's iterator was closed")
        try:
            batch = next(self._batches)
        except BaseException as error:
            self._iteration.ended = isinstance(error, StopIteration)
            self.close()
            raise
        taken = min(self._step, self._left)
        self._iteration.taken += taken
        self._left -= taken
        self._samples += self._picks.size(self._number)
        self._number += 1
        return batch

    @property
    def samples(self) -> int:
        """Number of samples yielded so far."""
        return self._samples

    @property
    def times(self) -> StageTimes:
        """Time spent in each stage."""
        return self._times

    def close(self) -> None:
        """End the threads and drop the batches that were not taken."""
        self._loader = None
        if self._finalizer is not None:
            self._finalizer()


class _Asker:
    """Requests the bytes of a batch from the system. A reference to the iterator would keep it alive in its thread."""

    def __init__(self, dataset: SampleDataset, picks: BatchPicks) -> None:
        self._dataset = dataset
        self._picks = picks

    def __call__(self, number: int) -> None:
        self._dataset.read_ahead(self._picks(number))


def _end(stage: ReadStage[SeededBatch], ahead: ReadAhead | None) -> None:
    stage.stop()
    if ahead is not None:
        ahead.stop()
