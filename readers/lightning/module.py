"""A data module for Lightning that is exact under DDP and after a resume within an epoch."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal
from weakref import WeakSet

from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_warn
from torch.utils.data import DataLoader

from readers.arguments import as_count
from readers.dataset.base import SampleDataset, check_classes
from readers.formats.machine import available_processors
from readers.lightning.batches import (
    Batches,
    DatasetOrPath,
    EvalBatches,
    TrainBatches,
    as_dataset,
)
from readers.loader.loader import Loader
from readers.order.custom import CustomOrder
from readers.order.order import RankShare
from readers.order.progress import EpochProgress
from readers.order.sampler import OrderSampler
from readers.order.shuffle_choice import (
    ShuffleChoice,
    agree,
    check_ranks,
    choose_shuffle,
    own_rank,
    ranks_together,
    warn_of_small_cache,
)
from shardspec.errors import UsageError
from shardspec.wording import counted, shorten

LoaderKind = Literal["threads", "processes"]
Opened = SampleDataset | tuple[SampleDataset, ...] | None

Options = Mapping[str, Any]

LOADERS: tuple[LoaderKind, ...] = ("threads", "processes")

_ROWS = ("shuffle", "window", "weights", "draws", "order", "sampler", "batch_sampler", "batch_by")
"""Options of a `Loader` that choose rows."""


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
        Training dataset. A path or URL is opened by ``readers.open_dataset(path)``; call it yourself for its options.
    val, test, predict : SampleDataset or path, or a list of them, optional
        Read in stored order; random transforms draw the same every time. (Predictions of several ranks: sample i of
        rank r of W is row i W + r; samples past the end are repetitions. ``BasePredictionWriter`` gets these rows.)
        With a list, Lightning reads one dataset after the other, and its steps take ``dataloader_idx``.
    batch_size : int, optional
        Samples of a batch, per rank. Leave it out for an order of batches; the attribute is then the size of the
        largest batch.
    loader : {"threads", "processes"}
        ``"threads"``: `readers.Loader`. ``"processes"``: torch's DataLoader, for transforms with slow Python code. It
        has worker processes instead of threads, `prefetch` counts for each of them, and it takes no `batch_transform`,
        no `read_ahead`, no `batch_by` and no orders of batches.
    train_options : dict, optional
        Options of the `readers.Loader` for training, for example ``{"seed": 1, "workers": 8}``. The module sets `rank`,
        `world_size` and `device`; `workers` is by default the number of processors available to this process, divided
        by the ranks of the node. Rank 0 decides ``shuffle="auto"`` for all ranks. ``Trainer(overfit_batches=…)`` turns
        shuffling off, and every epoch then has the rows of epoch 0 of a custom order. If the epochs of such an order
        differ in length, Lightning has to ask again in each: ``Trainer(reload_dataloaders_every_n_epochs=1)``.
    val_options, test_options, predict_options : dict, optional
        The same for the other stages, without the options that choose rows. The last two are by default `val_options`.
        ``"batch_size"`` in them is used instead of `batch_size`, even after that is changed.

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
        train_options: Options | None = None,
        val_options: Options | None = None,
        test_options: Options | None = None,
        predict_options: Options | None = None,
    ) -> None:
        super().__init__()
        if loader not in LOADERS:
            raise UsageError(option="loader", expected="'threads' or 'processes'", found=shorten(loader))
        self.loader = loader
        others = {"val": val_options, "test": test_options, "predict": predict_options}
        self._options = {"train": _checked("train", train_options, loader)}
        for stage, options in others.items():
            self._options[stage] = _checked(stage, val_options if options is None else options, loader)
        opened: dict[str, SampleDataset] = {}

        def open_one(name: str, source: DatasetOrPath) -> SampleDataset:
            opened[name] = as_dataset(name, source)
            return opened[name]

        def open_all(name: str, source: DatasetOrPath | Sequence[DatasetOrPath] | None) -> Opened:
            if isinstance(source, Sequence) and not isinstance(source, str):
                return tuple(open_one(f"{name}[{number}]", one) for number, one in enumerate(source))
            return None if source is None else open_one(name, source)

        self.train = open_one("train", train)
        self.val, self.test, self.predict = open_all("val", val), open_all("test", test), open_all("predict", predict)
        labelled = {name: found for name, found in opened.items() if "label" in found.raw_layout}
        if labelled:
            check_classes("train, val, test, predict", labelled)
        planned = self._loader("train", self.train, batch_size, pin_memory=False)
        self.batch_size: int = planned.batch_size
        order = planned._progress.order
        self._by_value = "batch_by" in self._options["train"]  # the Loader makes these batches from `batch_size`
        self._own = order if isinstance(order, CustomOrder) and not self._by_value else None
        if self._own is not None:  # a sampler was made a function of the epoch
            kept = {name: value for name, value in self._options["train"].items() if name not in _ROWS}
            self._options["train"] = {**kept, "order": self._own.rows_of}
        if self._own is not None and self._own.batched and loader == "processes":
            raise UsageError(
                option="batch_size",
                expected="the samples of a batch with loader='processes'",
                found="none",
                hint="use loader='threads' for an order of batches",
            )
        for stage in others:
            self._loader(stage, self.train, self.batch_size, pin_memory=False)  # checks the options
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

    def train_dataloader(self) -> TrainBatches:
        """Return batches of `train` for this rank."""
        chosen: dict[str, Any] = {}
        if self.trainer is not None and self.trainer.overfit_batches > 0:
            chosen["shuffle"] = False
            if self._own is not None:
                chosen["order"] = self._own.always_first().rows_of
        batched = self._own is not None and self._own.batched
        loader = self._loader("train", self.train, None if batched else self.batch_size, **chosen)
        batched |= self._by_value
        choice = self._choose(loader.timeout_s) if loader._progress.undecided else None
        batches, source = self._finish("train", loader, choice)
        step = 1 if batched else self.batch_size  # a batch in the units that the order counts
        source._progress.warn_if_empty(step if loader.drop_last else 1)
        epoch = 0 if self.trainer is None else self.trainer.current_epoch
        ranks = self._ranks()[1]

        def begin() -> None:
            if 1 < ranks == ranks_together():  # otherwise other ranks divide the samples
                check_ranks(source._progress.mark(self.train.origins, self.train.stored), loader.timeout_s)

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
        return self._eval_batches("val", self.val)

    def test_dataloader(self) -> EvalBatches | list[EvalBatches]:
        """Return batches of `test` for this rank, in stored order."""
        return self._eval_batches("test", self.test)

    def predict_dataloader(self) -> EvalBatches | list[EvalBatches]:
        """Return batches of `predict` for this rank, in stored order."""
        return self._eval_batches("predict", self.predict)

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

    def _eval_batches(self, stage: str, datasets: Opened) -> EvalBatches | list[EvalBatches]:
        several = (datasets,) if isinstance(datasets, SampleDataset) else datasets or ()
        loaders = [self._loader(stage, one, self.batch_size, shuffle=False) for one in several]
        made = [EvalBatches(*self._finish(stage, loader), loader.batch_size) for loader in loaders]
        self._eval.update(made)
        return made[0] if isinstance(datasets, SampleDataset) else made

    def _loader(self, stage: str, dataset: SampleDataset, batch_size: int | None, **chosen: Any) -> Loader:
        """Return a `Loader` with the options of a stage, which may have a batch size of its own."""
        rank, world_size = self._ranks()
        device = None if self.trainer is None else self.trainer.strategy.root_device
        options = {"batch_size": batch_size, "workers": self._default_workers(), **self._options[stage], **chosen}
        if self.loader == "processes":
            options["workers"] = None  # of the DataLoader (`_finish`)
        if device is not None and device.type == "cuda":
            options["device"] = device
        return Loader(dataset, rank=rank, world_size=world_size, **options)

    def _finish(
        self, stage: str, loader: Loader, choice: ShuffleChoice | None = None
    ) -> tuple[Batches, Loader | OrderSampler]:
        """Return the batches of a `Loader` by the chosen kind of loader, and the object that determines their order."""
        if self.loader == "threads":
            if choice is not None:
                loader.decide_order(choice)
            return loader, loader
        options = self._options[stage]
        workers = options.get("workers", self._default_workers())
        sampler = OrderSampler(loader._progress.order, *self._ranks(), loader.drop_last, choice)
        warn_of_small_cache(loader.dataset.stored, sampler._progress.order)
        made = DataLoader(
            loader.dataset, loader.batch_size, sampler=sampler, drop_last=loader.drop_last, num_workers=workers,
            collate_fn=loader.dataset.collate, pin_memory=loader.pin_memory, persistent_workers=workers > 0,
            prefetch_factor=options.get("prefetch") if workers else None, timeout=loader.timeout_s if workers else 0,
        )  # fmt: skip
        return made, sampler

    def _default_workers(self) -> int:
        return max(1, available_processors() // (1 if self.trainer is None else self.trainer.num_devices))

    def _choose(self, timeout_s: float) -> ShuffleChoice:
        """Return the order that rank 0 chooses for every rank, once for this module."""
        if self._choice is None:
            stored, has_blocks = self.train.stored, self.train.blocks is not None
            choice = choose_shuffle(stored, has_blocks)
            if self.trainer is not None:
                choice = self.trainer.strategy.broadcast(choice, src=0)
            elif ranks_together() > 1:
                progress = EpochProgress(self.train.order(), RankShare())
                choice = agree(has_blocks, progress.mark(self.train.origins, stored), timeout_s)
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


def _checked(stage: str, options: Options | None, loader: LoaderKind) -> dict[str, Any]:
    """Return the options of a stage without those that are None. `Loader` checks the rest when the module is made."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise UsageError(
            option=f"{stage}_options", expected="a dict of options of readers.Loader", found=shorten(options)
        )
    refused = dict.fromkeys(("dataset", "rank", "world_size", "device"), "the module sets it")
    if stage == "train":
        refused["batch_size"] = "give it to the module"
    else:
        refused |= dict.fromkeys(_ROWS, "these rows are read in stored order")
    if loader == "processes":
        refused["batch_transform"] = "use loader='threads', or the model's on_after_batch_transfer"
        refused["read_ahead"] = "use loader='threads'"
        refused["batch_by"] = "use loader='threads'"
        as_count("workers", options.get("workers") or 0, 0)
    for name in options:
        if name in refused:
            raise UsageError(
                option=f"{stage}_options",
                expected=f"no option {name!r} here",
                found=shorten(options[name]),
                hint=refused[name],
            )
    return {name: value for name, value in options.items() if value is not None}
