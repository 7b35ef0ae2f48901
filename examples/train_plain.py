"""A plain torch training loop, over a packed dataset or over the raw files it was made from.

    python examples/train_plain.py packed/                  # a dataset from `packer build`
    torchrun --nproc-per-node 2 examples/train_plain.py s3://my-bucket/packed   # two ranks, from a bucket
    python examples/train_plain.py --raw folder/ --every 5  # decode, MTCNN and crop in __getitem__

The last line printed is JSON: samples per second of each epoch, of rank 0.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

SIZE = 224
RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))  # set by torchrun


def make_loader(options: argparse.Namespace) -> Any:
    """Create the loader, the only difference between raw and packed."""
    if options.raw:
        from raw_faces import RawFaces  # the reference; needs facenet-pytorch and torchvision

        dataset = RawFaces(Path(options.dataset), every=options.every, size=SIZE)
        return torch.utils.data.DataLoader(
            dataset,
            options.batch_size,
            shuffle=True,
            num_workers=options.workers,
            persistent_workers=options.workers > 0,
        )
    from readers import open_dataset

    dataset = open_dataset(options.dataset, fields=["image", "label"])
    return torch.utils.data.DataLoader(
        dataset,
        options.batch_size,
        sampler=dataset.sampler(seed=0, rank=RANK, world_size=RANKS),
        num_workers=options.workers,
        collate_fn=dataset.collate,
        persistent_workers=options.workers > 0,
    )


def make_model(classes: int) -> nn.Module:
    """Create a small network, the same on all ranks."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.AvgPool2d(4), nn.Conv2d(3, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, classes),
    )  # fmt: skip
    if RANKS == 1:
        return model
    torch.distributed.init_process_group("gloo")
    return nn.parallel.DistributedDataParallel(model)


def train(loader: Any, epochs: int) -> list[dict[str, float]]:
    """Train the network and time each epoch."""
    model = make_model(len(loader.dataset.classes or (0, 1)))
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    results = []
    for epoch in range(epochs):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        started_s, samples, total = time.perf_counter(), 0, 0.0
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["image"].float() / 255), batch["label"])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            samples += len(batch["label"])
            total += float(loss.detach()) * len(batch["label"])
        seconds = time.perf_counter() - started_s
        results.append({"samples": samples, "loss": total / samples, "samples_per_s": samples / seconds})
        if RANK == 0:
            print(f"epoch {epoch}: {samples} samples, loss {total / samples:.3f}, {samples / seconds:.1f} samples/s")
    return results


def main() -> None:
    """Train, and print the speed of each epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="a folder, or the URL of a packed dataset")
    parser.add_argument("--raw", action="store_true")
    parser.add_argument("--every", type=int, default=5, help="raw: every N-th frame of a video")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    results = train(make_loader(options), options.epochs)
    if RANK == 0:
        print(json.dumps(results))
    if RANKS > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
