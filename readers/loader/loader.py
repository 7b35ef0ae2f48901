"""The Loader: threads that assemble whole batches ahead of the training loop."""

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from inspect import signature
from typing import Any, ClassVar, Never

import numpy.typing as npt
import torch
from torch.utils.data import Sampler, SequentialSampler, get_worker_info

from readers.arguments import as_count, as_number, refuse_unknown
from readers.dataset.base import SampleDataset, check_dataset
from readers.dataset.collate import Batch, collate_samples
from readers.dataset.views import ViewDataset
from readers.decode.values import BatchLayout
from readers.formats.machine import available_processors
from readers.formats.pool import explain_thread
from readers.loader.batches import (
    BatchPicks,
    BatchRate,
    BatchWork,
    PinnedBuffers,
    Ring,
    sample_seeds,
)
from readers.loader.custom_order import choose_custom
from readers.loader.device import (
    BatchTransform,
    DeviceStage,
    SeededBatch,
    apply_transform,
    as_device,
    as_pinned,
    can_pin,
    move,
    runs_in_threads,
    wants_seeds,
)
from readers.loader.forecast import Forecast
from readers.loader.threads import ReadAhead, ReadStage, default_depth, take_one_thread
from readers.order.custom import CustomEpoch, CustomOrder, RowsOfEpoch
from readers.order.grouped import UniformBatches
from readers.order.order import WINDOW_BLOCKS, Order, RankShare, SampledRows
from readers.order.progress import EpochProgress, Iteration, Resumable
from readers.order.shuffle_choice import (
    AnyShuffle,
    OrderFingerprint,
    ShuffleChoice,
    agree,
    check_ranks,
    choose_apart,
    choose_shuffle,
    find_residence,
    own_rank,
    ranks_together,
    warn_of_small_cache,
)
from readers.seeding import SampledIndex
from readers.staging.client import stats as staging_stats
from readers.transforms import AnyTransform, SampleTransform, SeededTransform, check_transform
from shardspec.errors import DatasetError, UsageError
from shardspec.wording import counted, shorten


class Loader(Resumable):
    """Batches of a dataset, read and decoded by threads straight into the batches' memory.

    Iterating yields dicts of torch tensors: images as uint8 (B, 3, H, W) in channels_last memory, other fields as (B,
    ...), fields of varying shape and text as lists. A batch's memory is reused once nothing refers to it or to any view
    of it, so batches may be kept (``list(loader)`` works).

    Iterating again takes the next epoch, which begins with its first batch; `set_epoch` chooses one. Every rank gets
    the same number of batches. Under ``torch.distributed`` the ranks compare what they are about to read, so all of
    them must begin the epoch together. They do so in the first epoch, and in every epoch of a custom order; but not
    with ``shuffle=False`` or if `world_size` is given.

    Parameters
    ----------
    dataset : SampleDataset
        Dataset of `readers.open_dataset`, or a part, clips or a mixture of such datasets.
    batch_size : int
        Samples per batch and rank. Leave it out if `order` or `batch_sampler` makes the batches; the attribute
        ``batch_size`` is then the size of the largest one.
    shuffle : {"auto", "full", "blocks", False}
        ``"blocks"`` reads `window` blocks of neighbouring samples at a time and mixes them: for data larger than memory
        and for network file systems. ``"auto"`` chooses it for such data if the dataset has blocks, and ``"full"``
        otherwise; `order` and `order_reason` tell which and why. The choice is made when the first epoch begins. Under
        ``torch.distributed`` rank 0 makes it for all ranks, which must therefore begin the epoch together. If
        `world_size` is given, the ranks cannot communicate and might choose differently, so the choice is ``"full"``. A
        loaded state determines the order. True is ``"full"``.
    seed : int, 0 to 2**64 - 1
        Seed of the order and of seeded transforms.
    drop_last : bool
        Leave out the samples that fill no batch. Otherwise the last batch is smaller, and if the samples do not divide
        by the ranks, the first few, fewer than there are ranks, are repeated.
    workers : int, optional
        Number of threads; by default the number of processors available to this process. More threads help if reading
        waits for a disk or network. torch operations in sample transforms use no further threads, regardless of
        ``torch.set_num_threads``.
    prefetch : int, optional
        Batches ahead of the training loop, including unfinished ones; ``workers + 2`` by default. About
        ``prefetch + 2`` batches are in memory.
    read_ahead : int, optional
        Number of batches, after those that the threads have begun, whose bytes the system is asked to read. By default
        0 if the data are expected to stay in memory; otherwise four, or fewer if they would take more than an eighth of
        the memory available for them.
    window : int
        Blocks that ``"blocks"`` mixes with each other.
    weights : float array, (N,), optional
        Relative probabilities of draws with replacement, for example from `readers.class_balanced_weights`.
    draws : int, optional
        Length of an epoch with `weights`; by default the number of samples.
    order : callable, optional
        A custom order: a function of the epoch that returns the rows to visit, (n,), in sequence. Without `batch_size`
        it returns batches of rows, ``[[4, 2], [0, 7, 1]]``. With an attribute ``seeded = True`` it is called with
        (epoch, seed). It must return the same for the same arguments, on every rank: each takes its share of the rows,
        or of the whole batches. Every repetition of a row is augmented differently. `readers.BalancedBatches`,
        `readers.PairBatches` and `readers.PKBatches` are such functions.
    sampler, batch_sampler : iterable, optional
        A custom order as a torch sampler that is not divided by ranks. Its draws from the generators of torch, numpy
        and Python, and from generators that it holds, become a function of (seed, epoch).
    batch_by : str, optional
        A small field of which all samples of a batch have the same value, such as ``"bucket"``; of a clip, the value of
        its first sample counts. Images whose shapes are equal within the batch are then one tensor, although they
        differ in the dataset. Each value has at most one
        smaller batch an epoch; with `drop_last` it is left out. `shuffle` and `weights` decide the sequence as usual,
        but ``"auto"`` is decided when the Loader is made. If the batches do not divide by the ranks, the first few are
        repeated, or with `drop_last` the last few left out.
    views : int or sequence of callable, optional
        Number of views of each sample, which are augmented separately; or a transform for each view, applied after all
        others (None for no transform). Fields get an axis of views after the batch's: ``image`` is (B, V, 3, H, W).
        Numbers and text come once, from the first view.
    rank, world_size : int, optional
        Number of this process, and the number of processes that share an epoch; by default those of
        ``torch.distributed`` if it is initialised, otherwise 0 and 1.
    sample_transform : callable, optional
        A further transform of samples, run in the threads after that of the dataset (`readers.open_dataset`).
    batch_transform : callable, optional
        Called with every batch, on `device`. On the CPU, the modules of `readers.augment` run in the Loader's threads,
        and any other function in the thread of the training loop.
    device : torch.device or str, optional
        The device that batches are moved to.
    pin_memory : bool, optional
        Whether batches are in page-locked memory; by default if `device` is a CUDA device. A warning is issued if there
        is no device to copy to.
    timeout_s : float
        Time limit for one batch in seconds; a read that hangs then raises an error that names the file. Also limits the
        wait for other ranks to begin the epoch; after 10 s, the log of `readers` names the missing ones.

    Raises
    ------
    UsageError
        If an argument is invalid, exists only in torch's DataLoader, or requests a device that does not exist.
    """

    def __init__(
        self,
        dataset: SampleDataset,
        batch_size: int | None = None,
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
        order: RowsOfEpoch | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        batch_by: str | None = None,
        views: int | Sequence[AnyTransform | None] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        sample_transform: SampleTransform | SeededTransform | None = None,
        batch_transform: BatchTransform | None = None,
        device: torch.device | str | None = None,
        pin_memory: bool | None = None,
        timeout_s: float = 300.0,
        **unknown: Never,
    ) -> None:
        refuse_unknown(unknown, [name for name in signature(Loader).parameters if name != "unknown"])
        self.workers = available_processors() if workers is None else as_count("workers", workers)
        self.prefetch = self.workers + 2 if prefetch is None else as_count("prefetch", prefetch)
        self._read_ahead = None if read_ahead is None else as_count("read_ahead", read_ahead, 0, "batches")
        self.timeout_s = as_number("timeout_s", timeout_s)
        if not 0 < self.timeout_s < math.inf:
            raise UsageError(option="timeout_s", expected="seconds above 0", found=timeout_s)
        batch_size = None if batch_size is None else as_count("batch_size", batch_size)
        if sample_transform is not None:
            check_transform("sample_transform", sample_transform)
        if batch_transform is not None:
            check_transform("batch_transform", batch_transform, batches=True)
        if (rank is None) != (world_size is None):
            raise UsageError(option="rank, world_size", expected="both or neither", found=f"{rank} and {world_size}")
        check_dataset("dataset", dataset)
        self.dataset: SampleDataset = dataset.with_transform(sample_transform)
        if views is not None:
            self.dataset = ViewDataset(self.dataset, views)
        self.drop_last = drop_last
        self.device = None if device is None else as_device(device)
        self.batch_transform = batch_transform
        wanted = (self.device is not None and self.device.type == "cuda") if pin_memory is None else pin_memory
        self.pin_memory = bool(wanted) and can_pin()
        self._ranks = None if rank is None or world_size is None else RankShare(rank, world_size, drop_last)
        self._batch_by = batch_by
        own: CustomOrder | None = None
        if batch_by is not None:
            if order is not None or sampler is not None or batch_sampler is not None:
                raise UsageError(
                    option="batch_by",
                    expected="none with a custom order (order=, sampler= or batch_sampler=)",
                    found="one",
                )
            own = self._order_by(batch_by, batch_size, shuffle, seed, window, weights, draws)
        elif order is not None or sampler is not None or batch_sampler is not None:
            own, batch_size = choose_custom(
                len(self.dataset), seed, batch_size, order, sampler, batch_sampler, shuffle, weights, draws
            )
        if batch_size is None:
            raise UsageError(option="batch_size", expected="the number of samples of a batch", found="none")
        self._batched = own is not None and own.batched
        self.batch_size = batch_size
        self._step = 1 if self._batched else batch_size  # a batch in the units that the order counts
        if own is None:
            chosen = self.dataset.order("full" if shuffle == "auto" else shuffle, seed, window, weights, draws)
            self._progress = EpochProgress(chosen, self._cut(), auto=shuffle == "auto")
        else:
            self._progress = EpochProgress(own, self._cut())
        rows = batch_size if self._batched else min(batch_size, max(1, self._progress.total))
        self._buffers = PinnedBuffers() if self.pin_memory else Ring(rows, self.prefetch + 2)
        self._pace = BatchRate()
        self._compared = False  # whether the ranks have compared their sequences for the last time
        self._warned_of: Order | CustomOrder | None = None  # the order for which the size of the cache was checked
        self._forecast: Forecast | None = None
        self._handed: SampledRows | None = None  # picks of the batch whose indices were yielded last

    def __len__(self) -> int:
        return self._batches(self._cut().length(self._progress.total))

    def __repr__(self) -> str:
        threads = counted(self.workers, "thread")
        size = f"{counted(len(self), 'batch')} of {'up to ' if self._batched else ''}{self.batch_size}"
        device = "" if self.device is None else f", to {self.device}"
        return (
            f"{type(self).__name__}: {size} an epoch, {self._progress}, "
            f"{self._cut()}, {threads}{device}, from {self.dataset!r}"
        )

    def __getitem__(self, index: Any) -> Never:
        """Refuse an index: a Loader is iterated over.

        Raises
        ------
        UsageError
            Always. Without this method, torch's DataLoader around a Loader would report that it is not subscriptable.
        """
        raise UsageError(
            place="Loader",
            expected="to be iterated over, since it makes batches itself",
            found=f"index {shorten(index)} (a DataLoader around it?)",
            hint=(
                "iterate over the Loader itself, which has threads, or make the DataLoader over the "
                "dataset, with sampler=dataset.sampler() and collate_fn=dataset.collate"
            ),
        )

    def __iter__(self) -> "LoaderIterator":
        _refuse_worker()
        return LoaderIterator(self)

    def _begin(self) -> Iteration:
        """Begin an epoch, or the rest of one."""
        self._progress.cut = self._cut()
        least = self._step if self.drop_last else 1
        iteration = self._progress.begin(least)
        self._progress.warn_if_empty(least)
        if self._progress.undecided:
            self.decide_order(self._choose())
        elif self._asks() and self._progress.shuffle is not False and not self._compared:
            check_ranks(self._mark(), self.timeout_s, self.device)
        if self._progress.order is not self._warned_of:
            self._warned_of = self._progress.order
            warn_of_small_cache(self.dataset.stored, self._warned_of, self.workers * self.batch_size)
        # A custom function may depend on what a rank has learnt since.
        self._compared = isinstance(self._progress.order, Order)
        return iteration

    def _order_by(
        self,
        batch_by: str,
        batch_size: int | None,
        shuffle: AnyShuffle,
        seed: int,
        window: int,
        weights: npt.ArrayLike | None,
        draws: int | None,
    ) -> CustomOrder:
        """Return the order of batches that have one value of a field each."""
        if batch_size is None:
            raise UsageError(option="batch_size", expected="the number of samples of a batch", found="none")
        of_field = self.dataset.layout.get(batch_by)
        if of_field is not None and (of_field.image or len(of_field.shape or ()) > 1):  # clips have an axis of time
            raise UsageError(option="batch_by", expected="a field of integers or texts", found=shorten(batch_by))
        if shuffle == "auto":
            choose = choose_shuffle if self._cut().world_size == 1 else choose_apart
            choice = choose(self.dataset.stored, self.dataset.blocks is not None)
            shuffle, window = choice.shuffle, min(window, choice.window or window)
        rows = self.dataset.order(shuffle, seed, window, weights, draws)
        batches = UniformBatches(rows, self.dataset.column(batch_by), batch_size, self.drop_last)
        return CustomOrder(len(self.dataset), batches, seed, batched=True)

    def _layout(self) -> BatchLayout:
        layout = self.dataset.layout
        if self._batch_by is None:
            return layout
        return {name: replace(value, stacks_equal=value.shape is None) for name, value in layout.items()}

    def _length(self, iteration: Iteration) -> int:
        """Return the samples that this rank takes of an iteration; batches, if the order consists of batches."""
        order, cut = self._progress.order, self._progress.cut
        length = cut.length(order.length(iteration.epoch), iteration.consumed)
        return length - length % self._step if self.drop_last else length

    def _picks(self, iteration: Iteration) -> BatchPicks:
        sequence, cut = self._progress.order.epoch(iteration.epoch), self._progress.cut
        return BatchPicks(sequence, cut, iteration.consumed, self._length(iteration), self._step)

    def _forecast_shards(self, iteration: Iteration) -> Forecast | None:
        """Begin to tell the stager of remote datasets which shards the batches of this and the next epoch need."""
        if self._forecast is not None:
            self._forecast.withdraw()
        remote = len({store.url for store in self.dataset.stored} - {None})
        self._forecast = Forecast(self.dataset, self._coming(iteration), self.workers, remote) if remote else None
        return self._forecast

    def _coming(self, iteration: Iteration) -> Iterator[SampledRows]:
        """Return the picks of the batches of an iteration and, if they are known already, of the next epoch."""
        iterations = [iteration]
        if isinstance(self._progress.order, Order):
            iterations.append(Iteration(iteration.epoch + 1, 0))
        runs = [(self._picks(one), -(-self._length(one) // self._step)) for one in iterations]
        return (picks(number) for picks, batches in runs for number in range(batches))

    def stats(self) -> dict[str, int]:
        """Return what the stagers of this dataset's caches have done for all processes of this machine; empty without any.

        Returns
        -------
        dict of str to int
            ``fetched_bytes``, ``fetched_files``; ``fetching_ms``, the time of all downloads, of which up to four run at
            a time; ``hits`` and ``waits``: shards that were in the cache when a process opened them, and those that it
            waited for; ``evictions``; ``held`` and ``limit``: bytes in the cache, and its size.
        """
        caches = {store.cache for store in self.dataset.stored if store.cache is not None}
        return dict(sum((Counter(found) for found in staging_stats(caches)), Counter()))

    def __getstate__(self) -> dict[str, Any]:
        # A copy or a pickle starts at the same position in the epochs and is independent from then on.
        return {**vars(self), "_progress": copy(self._progress), "_handed": None, "_forecast": None}

    # Attributes read by libraries that make a DataLoader from a Loader: accelerate's `skip_first_batches`, with which
    # Hugging Face's Trainer resumes.

    num_workers: ClassVar[int] = 0
    """Number of worker processes. A Loader has none; trainers read this attribute."""
    prefetch_factor: ClassVar[None] = None
    """None, because there are no worker processes. Without this attribute, accelerate would use 2."""

    @property
    def sampler(self) -> "LoaderSampler":
        """The indices of this rank's samples; iterating takes an epoch of the Loader."""
        return LoaderSampler(self)

    @property
    def batch_sampler(self) -> "LoaderBatchSampler":
        """The indices of each batch; iterating takes an epoch of the Loader."""
        return LoaderBatchSampler(self)

    @property
    def collate_fn(self) -> Callable[[Sequence[dict[str, Any]]], Batch]:
        """Function that turns samples, read in this process at the indices of `batch_sampler`, into batches."""
        return self._collate

    def _collate(self, samples: Sequence[dict[str, Any]]) -> Batch:
        batch = self.dataset.collate(samples) if self._batch_by is None else collate_samples(samples, self._layout())
        seeds = None
        if self.device is None and self.batch_transform is None:
            return batch
        if get_worker_info() is not None:
            raise UsageError(
                place="Loader",
                expected="a DataLoader without worker processes, since device or batch_transform is given",
                found="one with them",
                hint="iterate over the Loader itself",
            )
        if wants_seeds(self.batch_transform) and self._handed is not None:
            seeds = torch.from_numpy(sample_seeds(self.dataset.origins(self._handed)))
        return as_pinned(apply_transform(self.batch_transform, move(batch, self.device), seeds))

    @property
    def read_ahead(self) -> int:
        """Number of batches that are read ahead."""
        if self._read_ahead is None:
            batch_bytes = self.dataset.sample_bytes * self.batch_size
            self._read_ahead = default_depth(find_residence(self.dataset.stored), batch_bytes)
        return self._read_ahead

    def _batches(self, samples: int) -> int:
        return samples // self._step if self.drop_last else -(-samples // self._step)

    def _choose(self) -> ShuffleChoice:
        has_blocks = self.dataset.blocks is not None
        if self._asks():
            return agree(has_blocks, self._mark(), self.timeout_s, self.device)
        alone = self._progress.cut.world_size == 1
        return (choose_shuffle if alone else choose_apart)(self.dataset.stored, has_blocks)

    def _mark(self) -> OrderFingerprint:
        return self._progress.mark(self.dataset.origins, self.dataset.stored)

    def _asks(self) -> bool:
        """Return whether there are other ranks that this one can communicate with."""
        return self._ranks is None and ranks_together() > 1

    def _cut(self) -> RankShare:
        """Return this rank's current share: torch.distributed is often initialised after the Loader is made."""
        if self._ranks is not None:
            return self._ranks
        return RankShare(own_rank(), ranks_together(), self.drop_last)


class LoaderIterator(Iterator[Batch]):
    """One epoch of a `Loader`. It begins with its first batch, so an iterator that yields none uses up no epoch.

    Libraries create iterators for other purposes, for example Lightning to check that it can, and may set the epoch
    after that. The threads end when the iterator is exhausted, closed or no longer referred to.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader: Loader | None = loader  # until the epoch begins
        self._finalizer: weakref.finalize[..., LoaderIterator] | None = None
        self._samples = 0
        self._batches: DeviceStage | None = None

    def _begin(self) -> None:
        loader, self._loader = self._loader, None
        if loader is None:
            return
        self._iteration = iteration = loader._begin()
        dataset = loader.dataset
        self._step, self._length = loader._step, loader._length(iteration)
        jobs = -(-self._length // self._step)
        self._picks = loader._picks(iteration)
        self._number = 0
        # Getting the layout runs the transform, which may fail. So it comes before any thread is started.
        layout = loader._layout() if jobs else {}
        watchers: list[ReadAhead | Forecast] = []
        if loader.read_ahead:
            watchers.append(ReadAhead(_Asker(dataset, loader._picks(iteration)), jobs, loader.read_ahead))
        forecast = loader._forecast_shards(iteration)
        watchers += [] if forecast is None else [forecast]
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
            watchers,
            transform,
            loader.workers,
            loader._pace,
            jobs - 1,
        )
        torch.get_num_threads()  # otherwise this thread would adopt the setting of the Loader's threads
        self._stage: ReadStage[SeededBatch] = ReadStage(
            work, jobs, loader.workers, loader.prefetch, loader.timeout_s, explain_thread, take_one_thread
        )
        # Not a method, which would keep this object alive. At exit it runs before the interpreter ends.
        self._finalizer = weakref.finalize(self, _end, self._stage, watchers)
        self._batches = DeviceStage(self._stage, loader.device, later)

    def __next__(self) -> Batch:
        self._begin()
        if self._batches is None:
            raise DatasetError("the Loader's iterator was closed")
        try:
            batch = next(self._batches)
        except BaseException as error:
            self._iteration.ended = isinstance(error, StopIteration)
            self.close()
            raise
        self._iteration.taken = min(self._iteration.taken + self._step, self._length)
        self._samples += self._picks.size(self._number)
        self._number += 1
        return batch

    @property
    def samples(self) -> int:
        """Number of samples yielded so far."""
        return self._samples

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
        for pool, rows, fields in self._dataset.locate(self._picks(number)):
            pool.read_ahead(rows, fields)


def _end(stage: ReadStage[SeededBatch], watchers: Sequence[ReadAhead | Forecast]) -> None:
    stage.stop()
    for watcher in watchers:
        watcher.stop()


def _refuse_worker() -> None:
    """Refuse a worker process of a DataLoader, whose copy of the Loader does not know the other workers."""
    worker = get_worker_info()
    if worker is not None:
        raise UsageError(
            place="Loader",
            expected="the training process",
            found=(
                f"worker {worker.id} of {worker.num_workers} of torch's DataLoader, each of which would "
                "give the whole epoch"
            ),
            hint=(
                "iterate over the Loader itself, which has threads, or make the DataLoader over the "
                "dataset, with sampler=dataset.sampler() and collate_fn=dataset.collate"
            ),
        )


class LoaderBatchSampler(Sampler[list[int]]):
    """Indices of a `Loader`'s batches, for libraries that expect a torch DataLoader."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[int]]:
        loader = self._loader
        iteration = loader._begin()
        picks = loader._picks(iteration)
        length = loader._length(iteration)
        for number in range(-(-length // loader._step)):
            loader._handed = batch = picks(number)
            iteration.taken = min(iteration.taken + loader._step, length)
            pairs = zip(batch.rows.tolist(), batch.seeds.tolist(), strict=True)
            yield [SampledIndex(row, seed, iteration.epoch) for row, seed in pairs]
        iteration.ended = True

    @property
    def batch_size(self) -> int:
        """Batch size of the Loader.

        Raises
        ------
        UsageError
            If there are several ranks: code that reads this attribute, as accelerate's `prepare_data_loader` does,
            would divide the batches among the ranks again.
        """
        if self._loader._cut().world_size > 1:
            raise UsageError(
                place="Loader",
                expected="to be left as it is, since its batches are already this rank's share",
                found="an attempt to divide them again",
                hint="leave it out of prepare_data_loader (accelerator.prepare lets it be)",
            )
        return self._loader.batch_size

    @property
    def drop_last(self) -> bool:
        """True if the Loader drops an incomplete last batch."""
        return self._loader.drop_last

    @property
    def sampler(self) -> "LoaderSampler":
        """The same indices one by one."""
        return LoaderSampler(self._loader)

    def set_epoch(self, epoch: int) -> None:
        """Make the Loader's next iteration that of `epoch`."""
        self._loader.set_epoch(epoch)


class LoaderSampler(SequentialSampler):
    """Indices of a `Loader`'s samples, one by one.

    It is a `SequentialSampler` so that Lightning's ``overfit_batches`` does not try to replace it.
    """

    def __init__(self, loader: Loader) -> None:
        super().__init__(loader.dataset)
        self._loader = loader

    def __len__(self) -> int:
        loader = self._loader
        progress, cut = loader._progress, loader._cut()
        length = cut.length(progress.total)
        sequence = progress.order.epoch(progress.epoch)
        if loader._batched and isinstance(sequence, CustomEpoch):
            return sum(len(sequence.batch(position)) for position in cut.positions(0, length).tolist())
        return length - length % loader.batch_size if loader.drop_last else length

    def __iter__(self) -> Iterator[int]:
        for batch in LoaderBatchSampler(self._loader):
            yield from batch

    def set_epoch(self, epoch: int) -> None:
        """Make the Loader's next iteration that of `epoch`, unless a later one is due.

        Lightning calls this with its own epoch number, in which a Loader may be iterated over several times, for
        example as the shorter of two. No epoch is then repeated.
        """
        self._loader._progress.move_on_to(epoch)
