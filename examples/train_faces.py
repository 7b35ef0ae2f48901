"""Train a detector of forged faces: frames of videos, balanced batches, figures by video.

    packer build videos/ faces/ --preset faces --fps 3 --size 256 --encode png --label-from folder --classes real,fake
    packer split faces/ parts/ --by source --stratify label --ratios train=0.7,val=0.15,test=0.15
    python examples/train_faces.py parts/

Repeat the command to resume, also inside an epoch.
"""

import argparse
from collections import defaultdict
from pathlib import Path

import torch
import torchvision
from torch.nn.functional import binary_cross_entropy_with_logits

from readers import BalancedBatches, Loader, open_dataset
from readers.augment import (
    BlackoutHull,
    ColorJitter,
    Compose,
    CropJitter,
    DropRegion,
    GaussianBlur,
    HorizontalFlip,
    Normalize,
    OneOf,
)

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("parts", type=Path, help="folder with the datasets train, val and test")
parser.add_argument("--model", default="efficientnet_b0", help="a classifier of torchvision")
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--lr", type=float, default=2e-4)
parser.add_argument("--checkpoint", type=Path, default=Path("faces.pt"))
parser.add_argument("--save-every", type=int, default=500, metavar="STEPS")
options = parser.parse_args()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)

# Data. Regions and outline of each face steer what is painted over; the network itself is given neither.
augment = Compose(
    [
        HorizontalFlip(p=0.5),
        CropJitter(scale=(0.8, 1.0), size=options.size),
        OneOf([DropRegion(p=1), BlackoutHull(p=1)], p=0.3),
        ColorJitter(0.2, 0.2, 0.2),
        GaussianBlur(5, p=0.1),
        Normalize(),
    ]
)
geometry = ["landmarks", "landmarks_valid", "hull", "regions"]
train = open_dataset(options.parts / "train", fields=["image", "label", *geometry], transform=augment)
plain = Compose([CropJitter(scale=(1.0, 1.0), shift=0, size=options.size), Normalize()])
val, test = (
    open_dataset(options.parts / name, fields=["image", "label", "source"], transform=plain) for name in ("val", "test")
)
if len(set(val.column("label").tolist())) < 2:
    parser.error(f"{options.parts}/val has one class alone, so no AUC: split with --stratify label")
order = BalancedBatches(train, options.batch_size)  # every batch half real, half fake
loader = Loader(train, order=order, seed=0, device=device)

model = torchvision.models.get_model(options.model, num_classes=1).to(device, memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(loader))


def score_videos(dataset):
    """Return the mean score of each video's frames, and its label."""
    model.eval()
    scores, labels = defaultdict(list), {}
    with torch.inference_mode():
        for batch in Loader(dataset, options.batch_size, shuffle=False, device=device):
            found = model(batch["image"])[:, 0].sigmoid().tolist()
            for source, label, score in zip(batch["source"], batch["label"].tolist(), found, strict=True):
                scores[source].append(score)
                labels[source] = label
    means = torch.tensor([sum(values) / len(values) for values in scores.values()])
    return means, torch.tensor([labels[source] for source in scores])


def auc(scores, labels):
    """Return the area under the ROC curve: how often a fake scores higher than a real video."""
    fake, real = scores[labels == 1, None], scores[labels == 0]
    return float(((fake > real).float() + 0.5 * (fake == real).float()).mean())


best = -1.0
if options.checkpoint.exists():
    saved = torch.load(options.checkpoint, map_location=device)
    for name, part in {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader}.items():
        part.load_state_dict(saved[name])
    best = saved["best"]


def save(path):
    """Save the state of training atomically."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    torch.save({**state, "loader": loader.state_dict(), "best": best}, path.with_suffix(".partial"))
    path.with_suffix(".partial").replace(path)


for epoch in range(loader.state_dict()["epoch"], options.epochs):
    loader.set_epoch(epoch)  # an epoch that was just restored continues where it was
    model.train()
    for step, batch in enumerate(loader, 1):
        logits = model(batch["image"])[:, 0]
        loss = binary_cross_entropy_with_logits(logits, batch["label"].float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % options.save_every == 0:
            save(options.checkpoint)
            print(f"epoch {epoch}, step {step}: loss {loss.item():.3f}", flush=True)
    found = auc(*score_videos(val))
    if found > best:
        best = found
        save(options.checkpoint.with_suffix(".best.pt"))
    save(options.checkpoint)
    print(f"epoch {epoch}: AUC by video {found:.3f} (best {best:.3f})", flush=True)

model.load_state_dict(torch.load(options.checkpoint.with_suffix(".best.pt"), map_location=device)["model"])
print(f"test: AUC by video {auc(*score_videos(test)):.3f}, of {len(test)} faces")
