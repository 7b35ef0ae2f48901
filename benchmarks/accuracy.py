"""Does training on a packed dataset learn what training on files learns? ``python -m benchmarks.accuracy`` prints a table.

Three ways to train one small network on one small real dataset, on the CPU, each with several seeds:

* ``files``: JPEG files, torchvision's `ImageFolder`, `RandomResizedCrop`, `RandomHorizontalFlip`, `Normalize`, and
  torch's `DataLoader`;
* ``packed, antialias``: the same files packed, `readers.RandomResizedCrop(antialias=True)`, `Normalize`, `Loader`;
* ``packed``: the same with the plan as it is by default, bilinear.

With one seed, all begin with the same weights. Orders and crops differ, as they do from seed to seed: so curves can only
agree within the noise of the seeds, which is what the table shows.

The dataset: grey patches of twelve photographs and textures that scikit-image ships. A class is a photograph; the left
part gives the patches to train on, the right part those to test on, and a gap of a patch's width lies between them.
"""

import argparse
import statistics
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import skimage.data
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torchvision import datasets, transforms

import packer
from readers import CenterCrop, Loader, RandomResizedCrop, open_dataset
from readers.augment import Normalize

PHOTOGRAPHS = (
    "astronaut", "brick", "camera", "chelsea", "coffee", "coins", "grass", "gravel", "immunohistochemistry", "moon",
    "retina", "rocket",
)  # fmt: skip
PATCH, SIZE, BATCH = 64, 48, 32
"""Sides of a patch and of the network's input in pixels; samples of a batch."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALE = (0.35, 1.0)
"""Share of a patch that a random crop takes."""

Batches = Iterable[tuple[Tensor, Tensor]]
Arm = Callable[[Path, int], tuple[Batches, Batches]]
"""Gives the batches to train on, another epoch each time it is iterated over, and those to test on."""


def write_patches(root: Path, count: int) -> None:
    """Write `count` patches of every photograph to ``root/train`` and as many to ``root/test``, in class folders."""
    rng = np.random.default_rng(0)
    for name in PHOTOGRAPHS:
        picture = np.asarray(Image.fromarray(getattr(skimage.data, name)()).convert("L"))
        if picture.shape[1] > 1000:
            picture = picture[::2, ::2]
        middle = picture.shape[1] * 6 // 10
        for part, half in (("train", picture[:, :middle]), ("test", picture[:, middle + PATCH :])):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                patch = Image.fromarray(random_patch(half, rng)).convert("RGB")
                patch.save(root / part / name / f"{number:03d}.jpg", quality=95)


def random_patch(picture: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """A square out of an image that has some contrast, (PATCH, PATCH)."""
    while True:
        top, left = (int(rng.integers(side - PATCH + 1)) for side in picture.shape)
        patch = picture[top : top + PATCH, left : left + PATCH]
        if patch.std() > 4:
            return np.ascontiguousarray(patch)


def from_files(root: Path, seed: int) -> tuple[Batches, Batches]:
    """Files through torchvision and torch's `DataLoader`."""
    as_numbers = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    augment = [transforms.RandomResizedCrop(SIZE, SCALE, antialias=True), transforms.RandomHorizontalFlip()]
    train = datasets.ImageFolder(root / "train", transforms.Compose([*augment, *as_numbers]))
    test = datasets.ImageFolder(root / "test", transforms.Compose([transforms.CenterCrop(SIZE), *as_numbers]))
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.utils.data.DataLoader(train, BATCH, shuffle=True, drop_last=True, generator=generator),
        torch.utils.data.DataLoader(test, 256),
    )


class Pairs:
    """The batches of a `Loader` as pairs."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self._loader:
            yield batch["image"], batch["label"]


def packed(antialias: bool) -> Arm:
    """The same files packed, through a decode plan and a `Loader`."""

    def make(root: Path, seed: int) -> tuple[Batches, Batches]:
        crop, normalize = RandomResizedCrop(SIZE, scale=SCALE, flip=0.5, antialias=antialias), Normalize(MEAN, STD)
        train = open_dataset(root / "packed-train", ["image", "label"], normalize, decode={"image": crop})
        whole = CenterCrop(SIZE, fraction=SIZE / PATCH)
        test = open_dataset(root / "packed-test", ["image", "label"], normalize, decode={"image": whole})
        loader = Loader(train, BATCH, seed=seed, drop_last=True, workers=1)
        return Pairs(loader), Pairs(Loader(test, 256, shuffle=False, workers=1))

    return make


ARMS: dict[str, Arm] = {"files": from_files, "packed, antialias": packed(True), "packed": packed(False)}


def make_network(classes: int) -> nn.Module:
    """Four convolutions of rising width."""
    layers: list[nn.Module] = []
    width = 3
    for wider in (16, 32, 64, 64):
        layers += [nn.Conv2d(width, wider, 3, 2, 1, bias=False), nn.BatchNorm2d(wider), nn.ReLU()]
        width = wider
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def train(arm: Arm, root: Path, seed: int, epochs: int) -> list[float]:
    """The share of the test patches that are named right, after each epoch."""
    torch.manual_seed(seed)
    network = make_network(len(PHOTOGRAPHS)).to(memory_format=torch.channels_last)
    batches, tests = arm(root, seed)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    curve = []
    for _ in range(epochs):
        network.train()
        for image, label in batches:
            loss = nn.functional.cross_entropy(network(image), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        network.eval()
        with torch.inference_mode():
            right = torch.cat([network(image).argmax(1) == label for image, label in tests])
        curve.append(float(right.float().mean()))
    return curve


def measure(root: Path, seeds: int, epochs: int, count: int) -> dict[str, list[list[float]]]:
    """Every arm's curves, one for each seed; the arms in turn."""
    write_patches(root, count)
    for part in ("train", "test"):
        packer.build(root / part, root / f"packed-{part}", preset="images", label_from="folder", engine="inline")
    curves: dict[str, list[list[float]]] = {name: [] for name in ARMS}
    for seed in range(seeds):
        for name, arm in ARMS.items():
            curves[name].append(train(arm, root, seed, epochs))
    return curves


def table(curves: dict[str, list[list[float]]]) -> str:
    """Markdown: after some epochs, each arm's mean over the seeds, with the lowest and the highest."""
    epochs = len(curves["files"][0])
    shown = sorted({1, 2, 3, 5, 10, 15, 20, 30, epochs} & set(range(1, epochs + 1)))
    lines = [f"| after epoch | {' | '.join(curves)} |", "|--:|" + "--:|" * len(curves)]
    for epoch in shown:
        cells = []
        for found in curves.values():
            values = [100 * curve[epoch - 1] for curve in found]
            cells.append(f"{statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})")
        lines.append(f"| {epoch} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--patches", type=int, default=60, help="of every photograph, to train on and to test on")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        print(table(measure(Path(folder), options.seeds, options.epochs, options.patches)))


if __name__ == "__main__":
    main()
