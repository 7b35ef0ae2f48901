"""The Loader: threads that put whole batches together ahead of the training loop."""

import os
import weakref
from collections.abc import Iterator
from typing import Any

import numpy.typing as npt
import torch

from readers.ahead import ReadAhead, default_depth
from readers.batches import BatchPicks, BatchWork
from readers.choice import AnyShuffle, Choice, agree, announce, choose_apart, choose_shuffle
from readers.collate import Batch
from readers.device import BatchTransform, DeviceStage, SeededBatch, wants_seeds
from readers.order import WINDOW_BLOCKS, Cut
from readers.progress import Progress
from readers.ring import Buffers, PinnedBuffers, Ring
from readers.samples import SampleDataset
from readers.seeding import SampleTransform, SeededTransform
from readers.shards import explain_thread
from readers.stages import Stage, StageTimes
from readers.stores import find_residence
from shardspec.errors import UsageError


class Loader:
    """Batches of a dataset, read and decoded by threads straight into the batches' memory.

    Iterating gives dicts of torch tensors: pictures as uint8 (B, 3, H, W) in channels_last memory, other fields as (B, ...),
    fields of varying shape and text as lists. A batch's memory is used again once nothing refers to it or to any view of it, so
    batches may be kept (``list(loader)`` works).

    Iterating again takes the next epoch; `set_epoch` chooses one. Every rank gets as many batches.

    Parameters
    ----------
    dataset : SampleDataset
        `readers.open_dataset`, a subset, clips, a mixture.
    batch_size : int
        Per rank.
    shuffle : {"auto", "full", "blocks", False}
        ``"blocks"`` reads `window` blocks of neighbouring samples at a time and mixes them: for data larger than memory and for
        network file systems. ``"auto"`` takes it there, where the dataset has blocks, and ``"full"`` anywhere else (`order` and
        `order_reason` say which and why). It is decided when the first epoch begins; under ``torch.distributed`` by rank 0 for all, which
        therefore must begin it together. With `world_size` given the ranks cannot ask each other, and each deciding for itself
        would mix two orders: then it is ``"full"``. A state that is loaded brings its order along.
    seed : int
        Of the order and of seeded transforms.
    drop_last : bool
        Leave out the samples that fill no batch. Otherwise the last batch is smaller, and where the samples do not divide by
        the ranks the first few are repeated, fewer than there are ranks.
    workers : int, optional
        Threads; as many as this process may use processors by default. More help where reading waits for a disk or network.
    prefetch : int, optional
        Batches ahead of the training loop, those in work among them; ``workers + 2`` by default. About ``prefetch + 2`` batches
        are in memory.
    read_ahead : int, optional
        Batches, behind those that the threads have begun, whose bytes the system is asked to read. By default 0 where the data
        are expected to stay in memory, else four, or fewer where they would take more than an eighth of it.
    weights, draws
        Draws with replacement (`readers.order.Order`).
    rank, world_size : int, optional
        From ``torch.distributed`` where it is initialised, else 0 of 1.
    sample_transform : callable, optional
        One more transform of samples behind the dataset's own (`readers.seeding`), run in the threads.
    batch_transform : callable, optional
        Transform of whole batches, run on the device (`readers.device`).
    device : torch.device or str, optional
        Where batches go.
    pin_memory : bool, optional
        Page-locked batches; by default where `device` is a CUDA device.
    timeout_s : float
        For one batch; a read that hangs is then an error that names the file.
    """

    def __init__(
        self,
        dataset: SampleDataset,
        batch_size: int,
        *,
        shuffle: AnyShuffle = "auto",
        seed: int = 0,
        drop_last: bool = False,
        workers: int | None = None,
        prefetch: int | None = None,
        read_ahead: int | None = None,
        window: int = WINDOW_BLOCKS,
        weights: npt.ArrayLike | None = None,
        draws: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        sample_transform: SampleTransform | SeededTransform | None = None,
        batch_transform: BatchTransform | None = None,
        device: torch.device | str | None = None,
        pin_memory: bool | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        self.workers = available_processors() if workers is None else workers
        self.prefetch = self.workers + 2 if prefetch is None else prefetch
        for name, value in (("batch_size", batch_size), ("workers", self.workers), ("prefetch", self.prefetch)):
            if value < 1:
                raise UsageError(f"{name}: expected 1 or more, found {value}")
        if read_ahead is not None and read_ahead < 0:
            raise UsageError(f"read_ahead: expected 0 batches or more, found {read_ahead}")
        if (rank is None) != (world_size is None):
            raise UsageError(f"rank, world_size: expected both or neither, found {rank} and {world_size}")
        self.dataset = dataset.with_transform(sample_transform)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.timeout_s = timeout_s
        self.device = None if device is None else torch.device(device)
        self.batch_transform = batch_transform
        self.pin_memory = (self.device is not None and self.device.type == "cuda") if pin_memory is None else pin_memory
        self._ranks = None if rank is None or world_size is None else Cut(rank, world_size, drop_last)
        order = self.dataset.order("full" if shuffle == "auto" else shuffle, seed, window, weights, draws)
        self._progress = Progress(order, Cut(drop=drop_last), auto=shuffle == "auto")
        self._read_ahead = read_ahead
        self._buffers: Buffers = PinnedBuffers() if self.pin_memory else Ring(batch_size, self.prefetch + 2)
        self._iterator: weakref.ref[LoaderIterator] | None = None
        self._taken = 0
        self._ended = False  # the epoch, and with `drop_last` before all of its samples were taken

    def __len__(self) -> int:
        return self._batches(self._cut().length(len(self._progress.order)))

    def __iter__(self) -> "LoaderIterator":
        self._progress.cut = self._cut()
        if self._progress.undecided:
            self.decide_order(self._choose())
        epoch, consumed = self._progress.begin()
        self._taken, self._ended = 0, False
        length = self._progress.cut.length(len(self._progress.order), consumed)
        if self.drop_last:
            length -= length % self.batch_size
        iterator = LoaderIterator(self, epoch, consumed, length, self._buffers, self.read_ahead)
        self._iterator = weakref.ref(iterator)
        return iterator

    @property
    def order(self) -> str | bool:
        """``"full"``, ``"blocks"``, False or ``"weighted"``; ``"auto"`` until the first epoch has begun."""
        return self._progress.shuffle

    @property
    def order_reason(self) -> str:
        """Why that order."""
        return self._progress.reason

    @property
    def read_ahead(self) -> int:
        """Batches that are read ahead."""
        if self._read_ahead is None:
            self._read_ahead = default_depth(find_residence(self.dataset.stores), len(self.dataset), self.batch_size)
        return self._read_ahead

    def decide_order(self, choice: Choice) -> None:
        """Take an order that all ranks have agreed on, in place of ``"auto"``."""
        self._progress.decide(choice)
        if self._cut().rank == 0:
            announce(choice)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of `epoch`."""
        self._progress.set_epoch(epoch)
        self._taken, self._ended = 0, False

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """The state from which `load_state_dict` goes on, at any number of ranks and threads and any batch size.

        Parameters
        ----------
        consumed : int, optional
            Samples of this epoch that all ranks together have consumed; by default those of the batches handed out.
        """
        if consumed is None:
            taken = self._progress.consumed + self._taken * self._progress.cut.world_size
            consumed = len(self._progress.order) if self._ended else taken
        return self._progress.state_dict(consumed)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state: the next iteration gives the rest of its epoch.

        Raises
        ------
        UsageError
            The state is of another order.
        """
        self._progress.load_state_dict(state)
        self._taken, self._ended = 0, False

    @property
    def times(self) -> StageTimes | None:
        """Where the time of the running iteration goes; None if none is running."""
        iterator = None if self._iterator is None else self._iterator()
        return None if iterator is None else iterator.times

    def _batches(self, samples: int) -> int:
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def _choose(self) -> Choice:
        stores, has_blocks = self.dataset.stores, self.dataset.blocks is not None
        if self._ranks is None:
            return agree(stores, has_blocks, self._progress.order, self.device)
        return choose_shuffle(stores, has_blocks) if self._ranks.world_size == 1 else choose_apart()

    def _cut(self) -> Cut:
        """The ranks as they are now: torch.distributed is often initialised after the Loader is made."""
        if self._ranks is not None:
            return self._ranks
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return Cut(torch.distributed.get_rank(), torch.distributed.get_world_size(), self.drop_last)
        return Cut(drop=self.drop_last)


class LoaderIterator(Iterator[Batch]):
    """One epoch of a `Loader`. Ends its threads when it is exhausted, closed or no longer referred to."""

    def __init__(self, loader: Loader, epoch: int, consumed: int, length: int, buffers: Buffers, depth: int) -> None:
        self._loader = loader
        self._left = length
        loader.dataset.layout  # noqa: B018 # tries the transform, which may fail, before there is a thread to end
        jobs = -(-length // loader.batch_size)
        order, cut, size = loader._progress.order, loader._progress.cut, loader.batch_size
        ahead = None
        if depth:
            picks = BatchPicks(order.epoch(epoch), cut, consumed, length, size)
            ahead = ReadAhead(_Asker(loader.dataset, picks), jobs, depth)
        work = BatchWork(
            loader.dataset,
            BatchPicks(order.epoch(epoch), cut, consumed, length, size),
            buffers,
            wants_seeds(loader.batch_transform),
            ahead,
        )
        self._stage: Stage[SeededBatch] = Stage(
            work, jobs, loader.workers, loader.prefetch, loader.timeout_s, explain_thread
        )
        # Not a method of this object: the threads must not keep it alive. At exit it runs before the interpreter goes.
        self._finalizer = weakref.finalize(self, _end, self._stage, ahead)
        batches = _take(self._stage, jobs)
        self._batches = DeviceStage(batches, self._stage.ready, loader.device, loader.batch_transform)

    def __next__(self) -> Batch:
        try:
            batch = next(self._batches)
        except BaseException as error:
            self._loader._ended = isinstance(error, StopIteration)
            self.close()
            raise
        loader = self._loader
        loader._taken += min(loader.batch_size, self._left)
        self._left -= min(loader.batch_size, self._left)
        return batch

    @property
    def times(self) -> StageTimes:
        """Where the time goes."""
        return self._stage.times

    def close(self) -> None:
        """End the threads and let go of the batches that were not taken."""
        self._finalizer()


class _Asker:
    """Asks the system for the bytes of a batch; knows no iterator, which its thread would keep alive."""

    def __init__(self, dataset: SampleDataset, picks: BatchPicks) -> None:
        self._dataset = dataset
        self._picks = picks

    def __call__(self, number: int) -> None:
        self._dataset.read_ahead(self._picks(number))


def _end(stage: Stage[SeededBatch], ahead: ReadAhead | None) -> None:
    stage.stop()
    if ahead is not None:
        ahead.stop()


def _take(stage: Stage[SeededBatch], jobs: int) -> Iterator[SeededBatch]:
    for _ in range(jobs):
        yield stage.take()


def available_processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
