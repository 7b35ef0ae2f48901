"""Lightning over a packed dataset. Several devices and a resume need no further line.

    python examples/train_lightning.py packed/
    python examples/train_lightning.py packed/ --devices 2 --accelerator cpu
    python examples/train_lightning.py packed/ --resume run/last.ckpt      # resumes inside the epoch

The last line printed is JSON.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from readers.lightning import PackedDataModule


class Classifier(LightningModule):
    """A small network over uint8 pictures."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.AvgPool2d(4), nn.Conv2d(3, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, classes),
        )  # fmt: skip
        self.samples = 0

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        """The loss of one batch."""
        self.samples += len(batch["label"])
        return nn.functional.cross_entropy(self.network(batch["image"].float() / 255), batch["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), 1e-3)


def main() -> None:
    """Train, and print what this process did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("run"), help="where checkpoints go")
    parser.add_argument("--batch-size", type=int, default=16, help="per device")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--loader", choices=("threads", "processes"), default="threads")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--resume", type=Path, help="checkpoint to go on from")
    options = parser.parse_args()
    data = PackedDataModule(
        options.dataset, batch_size=options.batch_size, fields=["image", "label"],
        loader=options.loader, workers=options.workers,
    )  # fmt: skip
    model = Classifier(len(data.train.classes or (0, 1)))
    checkpoints = ModelCheckpoint(options.folder, filename="last", every_n_train_steps=1, enable_version_counter=False)
    trainer = Trainer(
        accelerator=options.accelerator, devices=options.devices, strategy="ddp" if options.devices > 1 else "auto",
        max_epochs=options.epochs, max_steps=options.max_steps, logger=False, default_root_dir=options.folder,
        callbacks=[checkpoints], enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, data, ckpt_path=options.resume)
    if trainer.is_global_zero:
        print(json.dumps({"epoch": trainer.current_epoch, "steps": trainer.global_step, "samples": model.samples}))


if __name__ == "__main__":
    main()
