"""A data module for Lightning that is exact under DDP and after a resume within an epoch."""

from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from os import PathLike
from typing import Any, Literal, Never
from weakref import WeakSet

import numpy.typing as npt
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_warn
from torch.utils.data import DataLoader

from readers.arguments import as_count, refuse_unknown
from readers.dataset.base import SampleDataset, check_classes
from readers.dataset.views import ViewDataset
from readers.decode.plans import DecodePlan
from readers.formats.machine import available_processors
from readers.formats.pool import Verify
from readers.lightning.batches import (
    REMOTE_OPTIONS,
    Batches,
    DatasetOrPath,
    EvalBatches,
    TrainBatches,
    as_dataset,
    is_remote,
)
from readers.loader.custom_order import choose_custom
from readers.loader.device import BatchTransform
from readers.loader.loader import Loader
from readers.order.custom import CustomOrder, RowsOfEpoch
from readers.order.order import WINDOW_BLOCKS, RankShare
from readers.order.progress import EpochProgress
from readers.order.sampler import OrderSampler
from readers.order.shuffle_choice import (
    AnyShuffle,
    ShuffleChoice,
    agree,
    check_ranks,
    choose_shuffle,
    own_rank,
    ranks_together,
    warn_of_small_cache,
)
from readers.transforms import AnyTransform, check_transform
from shardspec.errors import UsageError
from shardspec.wording import counted, shorten

LoaderKind = Literal["threads", "processes"]
Opened = SampleDataset | tuple[SampleDataset, ...] | None

LOADERS: tuple[LoaderKind, ...] = ("threads", "processes")


class PackedDataModule(LightningDataModule):  # type: ignore[misc] # lightning is not looked into
    """Packed datasets as a data module.

    It works with any setting of ``Trainer(use_distributed_sampler=…)``: Lightning replaces only samplers of a
    ``DataLoader``, and this module passes it iterables that know their rank. Every rank gets the same number of
    batches; if the samples do not divide by the ranks, the first few, fewer than there are ranks, are repeated (with
    `drop_last`, the last few are left out), in validation and test too.

    A checkpoint holds the number of samples that the training loop has consumed, without those that were read ahead.
    Resumed with ``fit(ckpt_path=…)``, the epoch continues with the very next sample, at any number of ranks and workers
    and any batch size, also if ``max_steps``, ``max_time`` or ``trainer.should_stop`` ended the run.

    Parameters
    ----------
    train : SampleDataset or path
        Training dataset.
    val, test, predict : SampleDataset or path, or a list of them, optional
        Read in stored order; random transforms draw the same every time. (Predictions of several ranks: sample i of
        rank r of W is row i W + r; samples past the end are repetitions. ``BasePredictionWriter`` gets these rows.)
        With a list, Lightning reads one dataset after the other, and its steps take ``dataloader_idx``.
    batch_size : int, optional
        Samples of a training batch, per rank. Leave it out for an order of batches; the attribute is then the size of
        the largest batch.
    loader : {"threads", "processes"}
        ``"threads"``: `readers.Loader`. ``"processes"``: torch's DataLoader, for transforms with slow Python code.
    eval_batch_size : int, optional
        Samples of any other batch, per rank; by default `batch_size`, even after it is changed.
    fields, verify, checksums
        For all datasets that are given as a path or URL (`readers.open_dataset`).
    cache, cache_size, storage_options
        For all datasets that are given as a URL (`readers.open_dataset`).
    transform, decode, sample_transform, batch_transform
        For training. `batch_transform` needs ``"threads"``.
    eval_transform, eval_decode, eval_batch_transform
        For everything but training.
    shuffle, seed, drop_last, window, weights, draws
        For training (`readers.Loader`). Rank 0 decides ``shuffle="auto"`` for all ranks. ``Trainer(overfit_batches=…)``
        turns shuffling off.
    order, sampler, batch_sampler, views
        For training (`readers.Loader`). Orders of batches need ``"threads"``. If the epochs of an order differ in
        length, Lightning has to ask again in each: ``Trainer(reload_dataloaders_every_n_epochs=1)``. With
        ``Trainer(overfit_batches=…)`` every epoch has the rows of epoch 0.
    workers : int, optional
        Threads or processes per rank; by default the number of processors available to this process, divided by the
        ranks of the node.
    prefetch : int, optional
        Batches ahead of the training loop; with ``"processes"``, per worker.
    read_ahead : int, optional
        For ``"threads"`` only (`readers.Loader`).
    pin_memory : bool, optional
        By default True if batches go to a CUDA device.
    timeout_s : float
        Time limit for one batch, in seconds.

    Raises
    ------
    UsageError
        If options exclude each other or are invalid, or the datasets have labels of different classes.
    """

    def __init__(
        self,
        train: DatasetOrPath,
        val: DatasetOrPath | Sequence[DatasetOrPath] | None = None,
        test: DatasetOrPath | Sequence[DatasetOrPath] | None = None,
        predict: DatasetOrPath | Sequence[DatasetOrPath] | None = None,
        *,
        batch_size: int | None = None,
        loader: LoaderKind = "threads",
        eval_batch_size: int | None = None,
        fields: Sequence[str] | None = None,
        verify: Verify | bool = "size",
        checksums: bool = True,
        cache: str | PathLike[str] | None = None,
        cache_size: int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        transform: AnyTransform | None = None,
        decode: Mapping[str, DecodePlan] | None = None,
        sample_transform: AnyTransform | None = None,
        batch_transform: BatchTransform | None = None,
        eval_transform: AnyTransform | None = None,
        eval_decode: Mapping[str, DecodePlan] | None = None,
        eval_batch_transform: BatchTransform | None = None,
        shuffle: AnyShuffle = "auto",
        seed: int = 0,
        drop_last: bool = False,
        window: int = WINDOW_BLOCKS,
        weights: npt.ArrayLike | None = None,
        draws: int | None = None,
        order: RowsOfEpoch | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        views: int | Sequence[AnyTransform | None] | None = None,
        workers: int | None = None,
        prefetch: int | None = None,
        read_ahead: int | None = None,
        pin_memory: bool | None = None,
        timeout_s: float = 300.0,
        **unknown: Never,
    ) -> None:
        super().__init__()
        refuse_unknown(
            unknown, [n for n in signature(PackedDataModule).parameters if n != "unknown"], "PackedDataModule"
        )
        _check_kind(loader, batch_transform, eval_batch_transform)
        if sample_transform is not None:
            check_transform("sample_transform", sample_transform)
        remote = dict(zip(REMOTE_OPTIONS, (cache, cache_size, storage_options), strict=True))
        how: dict[str, Any] = {"verify": verify, "checksums": checksums, **remote}
        sources = [one for given in (train, val, test, predict) for one in _several(given)]
        for option, value in remote.items():
            if value is not None and not any(map(is_remote, sources)):
                raise UsageError(option=option, expected="the URL of a dataset in a store", found="none")
        trained = as_dataset("train", train, fields, transform, decode, how)
        self.train = trained.with_transform(sample_transform)
        if views is not None:
            self.train = ViewDataset(self.train, views)
        opened = {"train": self.train}

        def open_one(name: str, source: DatasetOrPath) -> SampleDataset:
            opened[name] = as_dataset(name, source, fields, eval_transform, eval_decode, how)
            return opened[name]

        def open_all(name: str, source: DatasetOrPath | Sequence[DatasetOrPath] | None) -> Opened:
            if isinstance(source, Sequence) and not isinstance(source, str):
                return tuple(open_one(f"{name}[{number}]", one) for number, one in enumerate(source))
            return None if source is None else open_one(name, source)

        self.val, self.test, self.predict = open_all("val", val), open_all("test", test), open_all("predict", predict)
        labelled = {name: found for name, found in opened.items() if "label" in found.raw_layout}
        if labelled:
            check_classes("train, val, test, predict", labelled)
        batch_size = None if batch_size is None else as_count("batch_size", batch_size)
        self._own: CustomOrder | None = None
        if order is not None or sampler is not None or batch_sampler is not None:
            self._own, batch_size = choose_custom(
                len(self.train), seed, batch_size, order, sampler, batch_sampler, shuffle, weights, draws
            )
        elif batch_size is None:
            raise UsageError(option="batch_size", expected="the number of samples of a batch", found="none")
        self.batch_size = batch_size
        if self._own is not None and self._own.batched and loader == "processes":
            raise UsageError(
                option="batch_size",
                expected="the samples of a batch with loader='processes'",
                found="none",
                hint="use loader='threads' for an order of batches",
            )
        self._eval_batch_size = None if eval_batch_size is None else as_count("eval_batch_size", eval_batch_size)
        self.loader = loader
        self._drop_last = drop_last
        self._order = {"shuffle": shuffle, "seed": seed, "window": window, "weights": weights, "draws": draws}
        self._transforms = (batch_transform, eval_batch_transform)
        least = 1 if loader == "threads" else 0
        self._workers = None if workers is None else as_count("workers", workers, least)
        self._prefetch = None if prefetch is None else as_count("prefetch", prefetch)
        self._read_ahead, self._pin_memory, self._timeout_s = read_ahead, pin_memory, timeout_s
        self._batches: TrainBatches | None = None
        # With `reload_dataloaders_every_n_epochs` Lightning requests new ones and drops the old ones.
        self._eval: WeakSet[EvalBatches] = WeakSet()
        self._state: dict[str, Any] | None = None
        self._choice: ShuffleChoice | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the batches, which a copy creates again: ``strategy="ddp_spawn"`` sends one to every rank."""
        return {name: value for name, value in vars(self).items() if name not in ("_batches", "_eval")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= {**state, "_batches": None, "_eval": WeakSet()}

    @property
    def eval_batch_size(self) -> int:
        """Samples of a batch for validation, test or prediction, per rank."""
        return self.batch_size if self._eval_batch_size is None else self._eval_batch_size

    @eval_batch_size.setter
    def eval_batch_size(self, value: int) -> None:
        self._eval_batch_size = as_count("eval_batch_size", value)

    def train_dataloader(self) -> TrainBatches:
        """Return batches of `train` for this rank."""
        order, own = dict(self._order), self._own
        if self.trainer is not None and self.trainer.overfit_batches > 0:
            order["shuffle"] = False
            own = None if own is None else own.always_first()
        choice = None
        if own is None and order["shuffle"] == "auto" and order["weights"] is None:
            choice = self._choose()
        batches, source = self._make(
            self.train, self.batch_size, self._drop_last, self._transforms[0], order, choice, own
        )
        step = 1 if own is not None and own.batched else self.batch_size  # a batch in the units that the order counts
        source._progress.warn_if_empty(step if self._drop_last else 1)
        epoch = 0 if self.trainer is None else self.trainer.current_epoch
        ranks = self._ranks()[1]

        def begin() -> None:
            if 1 < ranks == ranks_together():  # otherwise other ranks divide the samples
                check_ranks(source._progress.mark(self.train.origins, self.train.stored), self._timeout_s)

        state = self._state_to_resume()
        made = TrainBatches(batches, source, step * ranks, self._processed, epoch, begin)
        if state is not None:
            made.load_state_dict(state)
            self._move_progress(state, made)
            if choice is not None:  # Lightning may request batches again, which then keep the state's order
                self._choice = ShuffleChoice("blocks" if source.order == "blocks" else "full", source.order_reason)
        self._batches, self._state = made, None  # in this order, so that a signal handler finds one of them
        return made

    def val_dataloader(self) -> EvalBatches | list[EvalBatches]:
        """Return batches of `val` for this rank, in stored order."""
        return self._eval_batches(self.val)

    def test_dataloader(self) -> EvalBatches | list[EvalBatches]:
        """Return batches of `test` for this rank, in stored order."""
        return self._eval_batches(self.test)

    def predict_dataloader(self) -> EvalBatches | list[EvalBatches]:
        """Return batches of `predict` for this rank, in stored order."""
        return self._eval_batches(self.predict)

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch, and the number of its samples that the training loops of all ranks have consumed."""
        if self._batches is None:
            return {} if self._state is None else self._state
        return self._batches.consumed_state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Make the next training continue from a state; from the beginning, if it was saved before the first epoch."""
        self._state = dict(state_dict) or None

    def teardown(self, stage: str) -> None:
        """End threads and worker processes."""
        if self._batches is not None:
            self._batches.close()
        for batches in self._eval:
            batches.close()
        self._eval.clear()

    def _eval_batches(self, datasets: Opened) -> EvalBatches | list[EvalBatches]:
        several = (datasets,) if isinstance(datasets, SampleDataset) else datasets or ()
        size, order = self.eval_batch_size, {"shuffle": False}
        made = [EvalBatches(*self._make(one, size, False, self._transforms[1], order), size) for one in several]
        self._eval.update(made)
        return made[0] if isinstance(datasets, SampleDataset) else made

    def _make(
        self,
        dataset: SampleDataset,
        batch_size: int,
        drop_last: bool,
        batch_transform: BatchTransform | None,
        order: dict[str, Any],
        choice: ShuffleChoice | None = None,
        own: CustomOrder | None = None,
    ) -> tuple[Batches, Loader | OrderSampler]:
        """Return the batches of a dataset, and the object that determines their order."""
        rank, world_size = self._ranks()
        device = None if self.trainer is None else self.trainer.strategy.root_device
        cuda = device is not None and device.type == "cuda"
        workers = self._workers
        if workers is None:
            workers = max(1, available_processors() // (1 if self.trainer is None else self.trainer.num_devices))
        if self.loader == "threads":
            if own is not None:
                order = {"order": own.rows_of, "seed": own.seed}
            made = Loader(
                dataset, None if own is not None and own.batched else batch_size, drop_last=drop_last, workers=workers,
                prefetch=self._prefetch, rank=rank, world_size=world_size, read_ahead=self._read_ahead,
                batch_transform=batch_transform, device=device if cuda else None, pin_memory=self._pin_memory,
                timeout_s=self._timeout_s, **order,
            )  # fmt: skip
            if choice is not None:
                made.decide_order(choice)
            return made, made
        if order["shuffle"] == "auto":
            order = order | {"shuffle": "full"}  # the choice overrides it
        chosen = dataset.order(**order) if own is None else own
        sampler = OrderSampler(chosen, rank, world_size, drop_last, choice)
        warn_of_small_cache(dataset.stored, sampler._progress.order)
        loader = DataLoader(
            dataset, batch_size, sampler=sampler, drop_last=drop_last, num_workers=workers, collate_fn=dataset.collate,
            pin_memory=cuda if self._pin_memory is None else self._pin_memory, persistent_workers=workers > 0,
            prefetch_factor=self._prefetch if workers else None, timeout=self._timeout_s if workers else 0,
        )  # fmt: skip
        return loader, sampler

    def _choose(self) -> ShuffleChoice:
        """Return the order that rank 0 chooses for every rank, once for this module."""
        if self._choice is None:
            stored, has_blocks = self.train.stored, self.train.blocks is not None
            choice = choose_shuffle(stored, has_blocks)
            if self.trainer is not None:
                choice = self.trainer.strategy.broadcast(choice, src=0)
            elif ranks_together() > 1:
                progress = EpochProgress(self.train.order(), RankShare())
                choice = agree(has_blocks, progress.mark(self.train.origins, stored), self._timeout_s)
            self._choice = choice
        return self._choice

    def _ranks(self) -> tuple[int, int]:
        """Return the rank of this process, and the number of ranks that divide the samples."""
        if self.trainer is not None:
            shares = self.trainer.distributed_sampler_kwargs
            return (0, 1) if shares is None else (shares["rank"], shares["num_replicas"])
        return own_rank(), ranks_together()

    def _processed(self) -> int:
        """Return the batches of this epoch that this rank's training loop has processed, as Lightning counts them."""
        if self.trainer is None:
            return 0
        return int(self.trainer.fit_loop.epoch_loop.batch_progress.current.processed)

    def _state_to_resume(self) -> dict[str, Any] | None:
        """Return the loaded state, or the state of the epoch in which the last `fit` of this trainer was stopped."""
        if self._state is not None or self.trainer is None or self._batches is None:
            return self._state
        last = self._batches.consumed_state()
        loop = self.trainer.fit_loop
        return last if _counts_as_processed(loop, last) and not loop.epoch_loop.batch_progress.is_last_batch else None

    def _move_progress(self, state: Mapping[str, Any], batches: TrainBatches) -> None:
        """Make Lightning's counts agree with a restored state, and warn about lost gradients."""
        if self.trainer is None:
            return
        loop = self.trainer.fit_loop
        progress = loop.epoch_loop.batch_progress
        if _counts_as_processed(loop, state):
            stopped = not progress.is_last_batch
            if stopped:  # `max_steps` or `should_stop` ended the run within the epoch, which now continues
                for epochs in (loop.epoch_progress.total, loop.epoch_progress.current):
                    epochs.processed = epochs.completed = epochs.ready - 1
            # With `max_steps`, Lightning would otherwise continue a finished epoch, and skip the next one.
            loop._restarting = loop.epoch_loop.restarting = stopped
        lost = progress.current.processed % self.trainer.accumulate_grad_batches
        if lost and not progress.is_last_batch:
            rank_zero_warn(
                "The run that is resumed ended between two optimizer steps, and Lightning does not save gradients. The "
                f"{counted(lost, 'batch')} since the last step will not contribute to training. Stop a run, and save "
                "its checkpoints, after a multiple of accumulate_grad_batches="
                f"{self.trainer.accumulate_grad_batches} batches."
            )
        if state["samples_per_step"] == batches.samples_per_step or state["consumed"] == 0:
            return
        current = progress.current
        moved = len(batches) - batches.left() - current.processed
        for name in ("ready", "started", "processed", "completed"):
            setattr(current, name, getattr(current, name) + moved)


def _counts_as_processed(loop: Any, state: Mapping[str, Any]) -> bool:
    """Return whether Lightning counts the epoch of a state as processed, as it does even if a run ends within it."""
    return bool(loop.epoch_progress.current.processed == state["epoch"] + 1)


def _several(source: DatasetOrPath | Sequence[DatasetOrPath] | None) -> Sequence[DatasetOrPath | None]:
    return source if isinstance(source, Sequence) and not isinstance(source, str) else [source]


def _check_kind(loader: str, *batch_transforms: BatchTransform | None) -> None:
    if loader not in LOADERS:
        raise UsageError(option="loader", expected="'threads' or 'processes'", found=shorten(loader))
    if loader == "processes" and any(transform is not None for transform in batch_transforms):
        raise UsageError(
            option="batch_transform",
            expected="none with loader='processes', which cannot run it",
            hint="use loader='threads', or the model's on_after_batch_transfer",
        )
