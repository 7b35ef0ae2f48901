"""What each of Lightning's processes runs in `test_lightning.py`: ``python lightning_ddp.py DATASET OUT``.

Trains two epochs on two ranks with a checkpoint inside the second, then resumes it with loaders of the other kind; then
once more in an order of batches of its own; then stops in the second epoch, and resumes that; then with a Loader and
with a DataLoader that Lightning is given as they are; then with ranks for which the order "auto" would differ.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from readers import Loader, open_dataset
from readers.lightning import PackedDataModule
from readers.lightning.module import LoaderKind
from readers.order import shuffle_choice

SAMPLES, BATCH_SIZE, SAVED_AFTER = 59, 4, 3
TINY, PLENTY = 10_000, 10**12
"""Memory that is too small for the dataset, and enough."""

LIGHTNINGS_WARNINGS = (
    # Lightning's own warnings: about PyTorch's private trees, a GPU, reading a checkpoint, epochs shorter than its
    # logging, and Slurm.
    "ignore:`isinstance:FutureWarning",
    "ignore:`isinstance:DeprecationWarning",
    "ignore:.*does not have many workers",
    "ignore:.*configuration validation",
    "ignore:The `srun` command is available on your system but is not used",
)


def expected_keys(path: Path, epoch: int, order: shuffle_choice.AnyShuffle = "auto") -> list[str]:
    """The sequence of an epoch, over all ranks."""
    dataset = open_dataset(path, fields=["key"]).subset(range(SAMPLES))
    sampler = dataset.sampler(seed=5, shuffle=order)
    sampler.set_epoch(epoch)
    return [dataset[i]["key"] for i in sampler]


class Recorder(LightningModule):
    """Writes down which samples it trains and validates on, by epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.seen: dict[str, list[str]] = {}

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        self.seen.setdefault(f"train {self.current_epoch}", []).append(batch["key"])
        logits = self.layer(batch["image"].float().mean((2, 3)))
        return torch.nn.functional.cross_entropy(logits, batch["label"])

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.seen.setdefault(f"val {self.current_epoch}", []).append(batch["key"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-3)


class SaveInside(Callback):
    """Saves a checkpoint inside an epoch."""

    def __init__(self, path: Path, epoch: int) -> None:
        self.path, self.epoch = path, epoch

    def on_train_batch_end(self, trainer: Trainer, module: Recorder, *_: Any) -> None:
        if trainer.current_epoch == self.epoch and trainer.fit_loop.epoch_loop.batch_idx + 1 == SAVED_AFTER:
            trainer.save_checkpoint(self.path)


def make_data(
    path: Path, kind: LoaderKind = "threads", batch_size: int | None = BATCH_SIZE, **options: Any
) -> PackedDataModule:
    """A part of a dataset, of a size that is not a multiple of the ranks or of a batch."""
    dataset = open_dataset(path, fields=["key", "image", "label"])
    return PackedDataModule(
        dataset.subset(range(SAMPLES)),
        dataset.subset(range(7)),
        batch_size=batch_size,
        loader=kind,
        train_options={"seed": 5, "workers": 1, **options},
        val_options={"workers": 1, "batch_size": BATCH_SIZE if batch_size is None else None},
    )


def make_batches(path: Path, kind: str, rank: int) -> Loader | DataLoader[Any]:
    """The same part in an object that Lightning takes without a data module."""
    dataset = open_dataset(path, fields=["key", "image", "label"]).subset(range(SAMPLES))
    if kind == "Loader":
        return Loader(dataset, BATCH_SIZE, seed=5, workers=1)
    sampler = dataset.sampler(seed=5, rank=rank, world_size=2)
    return DataLoader(dataset, BATCH_SIZE, sampler=sampler, collate_fn=dataset.collate)


def batches_of(epoch: int) -> list[list[int]]:
    """An order of batches of different sizes, nine in every epoch, with rows that come several times."""
    rng = np.random.default_rng(epoch)
    return [rng.integers(0, SAMPLES, size).tolist() for size in rng.integers(1, 6, 9)]


def make_trainer(folder: Path, **options: Any) -> Trainer:
    """A trainer that is silent and leaves nothing behind."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "num_sanity_val_steps": 0, "accelerator": "cpu", "max_epochs": 2}
    return Trainer(default_root_dir=folder, **{**quiet, **options})


def main(path: Path, out: Path) -> None:
    """Both trainings on this rank."""
    torch.set_num_threads(1)
    checkpoint = out / "inside.ckpt"
    own = {"order": batches_of, "batch_size": None}
    runs: tuple[tuple[str, LoaderKind, Path | None, dict[str, Any]], ...] = (
        ("first", "threads", None, {}),
        ("second", "processes", checkpoint, {}),
        ("own", "threads", None, own),
    )
    for name, kind, resumed, options in runs:
        model = Recorder()
        saver = SaveInside(out / "own.ckpt" if options else checkpoint, 1)
        trainer = make_trainer(out, strategy="ddp", devices=2, callbacks=[] if resumed else [saver])
        trainer.fit(model, datamodule=make_data(path, kind, **options), ckpt_path=resumed)
        result = {"seen": model.seen, "steps": trainer.global_step, "ranks": trainer.world_size}
        (out / f"{name}-{trainer.global_rank}.json").write_text(json.dumps(result))
        trainer.strategy.barrier()
    stopped = out / "stopped.ckpt"
    ends: tuple[tuple[str, LoaderKind, Path | None, int], ...] = (
        ("stopped", "threads", None, -(-SAMPLES // (2 * BATCH_SIZE)) + SAVED_AFTER),
        ("continued", "processes", stopped, -1),
    )
    for name, kind, resumed, steps in ends:
        model, trainer = Recorder(), make_trainer(out, strategy="ddp", devices=2, max_steps=steps)
        trainer.fit(model, datamodule=make_data(path, kind), ckpt_path=resumed)
        if resumed is None:
            trainer.save_checkpoint(stopped)
        result = {"seen": model.seen, "steps": trainer.global_step}
        (out / f"{name}-{trainer.global_rank}.json").write_text(json.dumps(result))
    for name in ("Loader", "DataLoader"):
        model, trainer = Recorder(), make_trainer(out, strategy="ddp", devices=2)
        trainer.fit(model, make_batches(path, name, trainer.global_rank))
        (out / f"{name}-{trainer.global_rank}.json").write_text(json.dumps({"seen": model.seen}))
        trainer.strategy.barrier()
    model, trainer = Recorder(), make_trainer(out, strategy="ddp", devices=2, max_epochs=1)
    shuffle_choice.usable_memory = lambda rank=trainer.global_rank: (TINY, PLENTY)[rank]
    trainer.fit(model, datamodule=make_data(path, "processes"))
    (out / f"auto-{trainer.global_rank}.json").write_text(json.dumps({"seen": model.seen}))
    trainer.strategy.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
