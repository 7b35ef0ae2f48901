"""Does training on videos learn what training on JPEG frames learns? ``python -m benchmarks.accuracy_tracks``.

Made clips of 32 × 32 pixels pose two questions. In which of four directions does a window of a photograph move? And
does the frame have a faint texture at a fixed place? The texture, stripes of ±`TEXTURE` levels under noise of standard
deviation `NOISE`, stands for the traces that forgery detectors look for, which lossy encoding may remove. The
photographs for testing are not among those for training.

The same lossless videos are packed as JPEG frames (quality 95), and as H.264 of QP 21 (the default) and 16. One small
network is trained on random clips of 8 frames of each (``ds.clips``) to answer both questions, on the CPU, with several
seeds. With one seed, all begin with the same weights and see the same clips in the same order. The table has the
accuracies on the test videos, packed in the same way.
"""

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import skimage.data
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import packer
from benchmarks.clips import encode
from benchmarks.measure import artefact, disk_mb, document, spread, versions, write
from readers import Loader, open_dataset

SIZE, FRAMES, LENGTH, BATCH = 32, 16, 8, 32
TEXTURE, NOISE = 3.0, 3.0
MOVES = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
PHOTOGRAPHS = {
    "train": ("astronaut", "brick", "coins", "grass", "gravel", "hubble_deep_field", "retina", "rocket"),
    "test": ("camera", "chelsea", "coffee", "immunohistochemistry"),
}
PACKED: dict[str, dict[str, Any]] = {
    "jpeg, quality 95": {"encode": "jpeg", "quality": 95},
    "h264, QP 21": {"sample": "item", "encode": "h264", "quality": 21},
    "h264, QP 16": {"sample": "item", "encode": "h264", "quality": 16},
}


def make_frames(
    photograph: np.ndarray, move: tuple[int, int], texture: bool, rng: np.random.Generator
) -> Iterator[Any]:
    """Yield the frames of a video, (SIZE, SIZE, 3) uint8."""
    room = np.array(photograph.shape[:2]) - SIZE - FRAMES
    start = (rng.random(2) * room).astype(int) + FRAMES // 2
    stripes = np.where(np.add.outer(np.arange(SIZE), np.arange(SIZE)) // 2 % 2, TEXTURE, -TEXTURE)[..., None]
    for frame in range(FRAMES):
        y, x = start + (frame - FRAMES // 2) * np.array(move)
        window = photograph[y : y + SIZE, x : x + SIZE] + rng.normal(0, NOISE, (SIZE, SIZE, 1))
        yield np.clip(window + stripes * texture, 0, 255).astype(np.uint8)


def make_all(root: Path, count: int) -> None:
    """Write `count` videos of each class and photograph without loss, and pack them in every way."""
    for part, names in PHOTOGRAPHS.items():
        rng = np.random.default_rng(len(part))
        for name in names:
            photograph = np.asarray(Image.fromarray(getattr(skimage.data, name)()).convert("RGB"))
            for move, step in MOVES.items():
                for texture in (False, True):
                    folder = root / part / f"{move}-{'texture' if texture else 'plain'}"
                    folder.mkdir(parents=True, exist_ok=True)
                    for number in range(count):
                        path = folder / f"{name}-{number:03d}.mp4"
                        encode(path, make_frames(photograph, step, texture, rng), 1, 0)
        for way, options in PACKED.items():
            how = {"label_from": "folder", "engine": "inline", "progress": False}
            packer.build(root / part, root / f"{part}-{way}", **how, **options)


def make_network() -> nn.Module:
    """Two convolutions over the frames of a clip as channels; scores of the moves, then of the textures."""
    return nn.Sequential(
        *(nn.Conv2d(LENGTH, 32, 5, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, 2, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, len(MOVES) + 2)),
    )


def batches(root: Path, seed: int, train: bool) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield one epoch's clips in grey, (N, LENGTH, SIZE, SIZE), moves and textures; of test videos the middle clips."""
    dataset = open_dataset(root)
    dataset = open_dataset(root, ["video" if "video" in dataset.schema else "image", "label"])
    clips = dataset.clips(LENGTH, stride=None, start="random" if train else "middle", by=None)
    loader = Loader(clips, BATCH, seed=seed, shuffle="full" if train else False, drop_last=train, workers=1)
    for batch in loader:
        grey = batch["image"].float().mean(2)
        # Classes are sorted by name: two for each move, plain before texture.
        yield (grey - grey.mean((1, 2, 3), keepdim=True)) / 32, batch["label"] // 2, batch["label"] % 2


def train(root: Path, way: str, seed: int, epochs: int) -> dict[str, float]:
    """Train a network on one way of packing, and return its accuracies on the test videos of that way."""
    torch.manual_seed(seed)
    network = make_network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.003)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for epoch in range(epochs):
        network.train()
        for images, moves, textures in batches(root / f"train-{way}", 1000 * seed + epoch, train=True):
            scores = network(images)
            loss = cross_entropy(scores[:, : len(MOVES)], moves) + cross_entropy(scores[:, len(MOVES) :], textures)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
    network.eval()
    right = []
    with torch.inference_mode():
        for images, moves, textures in batches(root / f"test-{way}", 0, train=False):
            scores = network(images)
            move, texture = scores[:, : len(MOVES)].argmax(1), scores[:, len(MOVES) :].argmax(1)
            right.append(torch.stack([move == moves, texture == textures]))
    shares = torch.cat(right, 1).float().mean(1).tolist()
    return dict(zip(("move", "texture"), shares, strict=True))


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: of each way, its bytes and accuracies: the mean over the seeds, with the lowest and the highest."""
    lines = ["| | MB | accuracy of the move, % | of the texture, % |", "|---|--:|--:|--:|"]
    for row in rows:
        cells = []
        for name in ("move", "texture"):
            values = [100 * run[name] for run in row["runs"]]
            cells.append(f"{statistics.mean(values):.1f} ({min(values):.1f}–{max(values):.1f})")
        lines.append(f"| {row['name']} | {row['disk_mb']:.1f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--videos", type=int, default=5, help="of every class and photograph")
    parser.add_argument("--json", type=Path, help="where to write the figures: a file, or a folder for a new one in it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        root = Path(folder)
        make_all(root, options.videos)
        rows: list[dict[str, Any]] = [
            {"name": way, "disk_mb": disk_mb(root / f"train-{way}"), "runs": []} for way in PACKED
        ]
        for seed in range(options.seeds):  # the ways in turn
            for row in rows:
                row["runs"].append(train(root, row["name"], seed, options.epochs))
    for row in rows:
        row |= {name: spread([run[name] for run in row["runs"]]) for name in ("move", "texture")}
    print(table(rows))
    settings = {name: getattr(options, name) for name in ("seeds", "epochs", "videos")}
    settings |= {"size": SIZE, "frames": FRAMES, "length": LENGTH, "texture": TEXTURE, "noise": NOISE}
    settings |= {"libraries": versions(("torch", "av", "simplejpeg", "numpy"))}
    write(
        document("accuracy_tracks", settings, [{"name": "accuracy", "rows": rows}]),
        artefact(options.json, "accuracy_tracks"),
    )


if __name__ == "__main__":
    main()
