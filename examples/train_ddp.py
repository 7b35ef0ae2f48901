"""Plain torch DistributedDataParallel over a packed dataset, on CPUs or GPUs, with a resume inside the epoch.

    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py packed/ --checkpoint run.pt
    torchrun --standalone --nproc-per-node 1 examples/train_ddp.py packed/ --checkpoint run.pt   # goes on with one

The loader takes its rank from torch.distributed. Every rank has the same number of steps. The state that is saved is
one integer for all ranks: what the training loops have consumed, however much was read ahead. The last line printed is
JSON.
"""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from readers import Loader, open_dataset


def make_model(classes: int) -> nn.Module:
    """A small network over (B, 3, H, W) pictures in 0 … 1."""
    return nn.Sequential(
        nn.AvgPool2d(4), nn.Conv2d(3, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, classes),
    )  # fmt: skip


def train(options: argparse.Namespace) -> dict[str, object]:
    """Train on this rank; the steps and samples of this run."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    dataset = open_dataset(options.dataset, fields=["image", "label"])
    loader = Loader(dataset, options.batch_size, seed=0, workers=options.workers, device=device)
    torch.manual_seed(0)
    model = DistributedDataParallel(make_model(len(dataset.classes or (0, 1))).to(device))
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    first = 0
    if options.checkpoint and options.checkpoint.exists():
        saved = torch.load(options.checkpoint, map_location=device, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        loader.load_state_dict(saved["loader"])
        first = saved["loader"]["epoch"]
    steps = samples = 0
    for epoch in range(first, options.epochs):
        loader.set_epoch(epoch)  # setting the restored epoch keeps its progress
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["image"].float() / 255), batch["label"])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            steps, samples = steps + 1, samples + len(batch["label"])
            if steps == options.max_steps:
                save(options.checkpoint, model, optimiser, loader)
                return {"epoch": epoch, "steps": steps, "samples": samples}
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {steps} steps so far", flush=True)
        save(options.checkpoint, model, optimiser, loader)
    return {"epoch": options.epochs - 1, "steps": steps, "samples": samples}


def save(path: Path | None, model: DistributedDataParallel, optimiser: torch.optim.Optimizer, loader: Loader) -> None:
    """Write the state of the whole job, once."""
    if path is not None and dist.get_rank() == 0:
        state = {"model": model.module.state_dict(), "optimiser": optimiser.state_dict(), "loader": loader.state_dict()}
        torch.save(state, path.with_suffix(".partial"))
        path.with_suffix(".partial").replace(path)


def main() -> None:
    """Join the other ranks, train, and print what this job did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, help="threads per rank")
    parser.add_argument("--checkpoint", type=Path, help="resumed from, if it exists")
    parser.add_argument("--max-steps", type=int, help="save and end after so many steps")
    options = parser.parse_args()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))  # NCCL sends from this device
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    result = train(options)
    gathered: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, result)
    if dist.get_rank() == 0:
        print(json.dumps(gathered))
    dist.barrier()  # gloo may abort a rank that is still shutting down when another has ended
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
