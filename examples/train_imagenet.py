"""Train an image classifier with a modern recipe, on any number of GPUs or on the CPU.

    packer list imagenet ILSVRC2012 -o imagenet.csv
    packer build imagenet.csv imagenet/ --root ILSVRC2012 --preset images --size 400 --restart-markers
    packer split imagenet/ parts/ --into split
    torchrun --nproc-per-node 8 examples/train_imagenet.py parts/train parts/val

Repeat the command to resume, also inside an epoch. With another number of ranks or another batch size, training
continues with the remaining samples of the epoch and the matching learning rate.
"""

import argparse
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torchvision
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from readers import CenterCrop, Loader, RandomResizedCrop, open_dataset
from readers.augment import BatchCompose, BatchCutMix, BatchMixUp, Compose, Normalize, RandomErasing, TrivialAugment

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("train", type=Path)
parser.add_argument("val", type=Path)
parser.add_argument("--model", default="resnet50", help="a classifier of torchvision")
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--epochs", type=int, default=300)
parser.add_argument("--batch-size", type=int, default=128, help="samples per rank")
parser.add_argument("--lr", type=float, default=0.5, help="learning rate for 1024 images per step")
parser.add_argument("--checkpoint", type=Path, default=Path("imagenet.pt"))
parser.add_argument("--save-every", type=int, default=1000, metavar="STEPS")
options = parser.parse_args()

cuda, ranked = torch.cuda.is_available(), "RANK" in os.environ
device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
if ranked:  # under torchrun
    dist.init_process_group("nccl" if cuda else "gloo")
rank, ranks = (dist.get_rank(), dist.get_world_size()) if ranked else (0, 1)
torch.manual_seed(0)

# Data. The threads decode only what the crop needs, augment and normalise; whole batches are mixed on the device.
recipe = Compose([TrivialAugment(), Normalize(), RandomErasing(p=0.1)])
crop, whole = RandomResizedCrop(options.size, flip=0.5), CenterCrop(options.size, fraction=0.875)
train = open_dataset(options.train, fields=["image", "label"], decode={"image": crop}, transform=recipe)
val = open_dataset(options.val, fields=["image", "label"], decode={"image": whole}, transform=Normalize())
classes = len(train.classes)
mix = BatchCompose([BatchMixUp(classes, alpha=0.2, p=0.5), BatchCutMix(classes, p=0.5)])
loader = Loader(train, options.batch_size, seed=0, drop_last=True, device=device, batch_transform=mix)
mine = val.subset(range(rank, len(val), ranks))  # every image once, over all ranks
val_loader = Loader(mine, options.batch_size, shuffle=False, rank=0, world_size=1, device=device)

# Network, its moving average, optimizer, schedule. Biases and normalisation layers are not decayed.
model = torchvision.models.get_model(options.model, num_classes=classes)
model = model.to(device, memory_format=torch.channels_last)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9998), use_buffers=True)
decayed = [value for value in model.parameters() if value.ndim > 1]
others = [value for value in model.parameters() if value.ndim <= 1]
lr = options.lr * options.batch_size * ranks / 1024
optimizer = torch.optim.SGD(
    [{"params": decayed, "weight_decay": 2e-5}, {"params": others, "weight_decay": 0.0}],
    lr=lr, momentum=0.9, nesterov=True,
)  # fmt: skip
steps = options.epochs * len(loader)
warmup = min(5 * len(loader), steps // 2)


def factor(step):
    """Return the factor of the learning rate: five epochs of warm-up, then a cosine."""
    return (step + 1) / warmup if step < warmup else 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


parts = {"model": model, "ema": ema, "optimizer": optimizer, "loader": loader}
if options.checkpoint.exists():
    saved = torch.load(options.checkpoint, map_location=device)
    for name, part in parts.items():
        part.load_state_dict(saved[name])
for group in optimizer.param_groups:
    group["initial_lr"] = lr  # of these ranks, not of those that saved
done = loader.state_dict()
step = done["epoch"] * len(loader) + done["consumed"] // (options.batch_size * ranks)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor, last_epoch=step - 1)
network = DistributedDataParallel(model) if ranked else model


def save():
    """Save the state of training atomically."""
    if rank == 0:
        partial = options.checkpoint.with_suffix(".partial")
        torch.save({name: part.state_dict() for name, part in parts.items()}, partial)
        partial.replace(options.checkpoint)


def evaluate():
    """Return the validation accuracy of the averaged network."""
    ema.eval()
    counts = torch.tensor([0.0, len(mine)], device=device)
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=cuda):
        for batch in val_loader:
            counts[0] += (ema(batch["image"]).argmax(1) == batch["label"]).sum()
    if ranked:
        dist.all_reduce(counts)
    return float(counts[0] / counts[1])


for epoch in range(loader.state_dict()["epoch"], options.epochs):
    loader.set_epoch(epoch)  # an epoch that was just restored continues where it was
    network.train()
    for batch in loader:
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            loss = cross_entropy(network(batch["image"]), batch["label"], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        ema.update_parameters(model)
        if scheduler.last_epoch % options.save_every == 0:
            save()
            if rank == 0:
                print(f"step {scheduler.last_epoch} of {steps}: loss {loss.item():.3f}", flush=True)
    accuracy = evaluate()
    save()
    if rank == 0:
        print(f"epoch {epoch}: {accuracy:.2%} of {len(val)} right", flush=True)
if ranked:
    dist.barrier()
    dist.destroy_process_group()
