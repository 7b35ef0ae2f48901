"""Cost of each augmentation per sample.

    python -m benchmarks.augment [--size 224] [--rounds 15] [--device cuda] [--batch 128] [--json FILE]

Method: one sample with the fields of the faces preset (five landmarks, image and mask in memory), every transform
applied always (p=1). One thread in Python, OpenCV and torch. After a warm-up, all transforms run in turn, round after
round, each for about 20 ms a round with generators made beforehand; the table gives the median of the rounds and their
10th and 90th percentile, and the CPU time of the process, which other programs on the machine disturb less. The first
row, a copy of the picture, is what every transform costs that must not write into its input. The batched rows are times
per sample of a whole batch on the device, including the draws on the CPU.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"

import albumentations as A  # noqa: N812
import cv2
import numpy as np
import skimage.data
import torch

from benchmarks.tables import augment_tables
from packer.vision.landmarks.shape import MEAN_FIVE, hull, regions
from readers.augment import (
    Albumentations,
    BatchCompose,
    BatchCrop,
    BatchDropRegion,
    BatchFlip,
    BatchNormalize,
    BlackoutHull,
    ColorJitter,
    Compose,
    CropJitter,
    DropRegion,
    GaussianBlur,
    HorizontalFlip,
    KeepHull,
    LandmarkCutout,
    Normalize,
    RandAugment,
    RandomErasing,
    VerticalFlip,
)
from readers.seeding import sample_rng

Run = Callable[[int], Any]
ROUND_S = 0.02
DRAWS = 256


def face_sample(size: int) -> dict[str, Any]:
    """A portrait with the geometry that the faces preset would store."""
    photo = cv2.resize(skimage.data.astronaut()[20:244, 110:334], (size, size), interpolation=cv2.INTER_AREA)
    five = MEAN_FIVE * (size / 4.7) + size / 2
    return {
        "image": photo,
        "mask": (photo[..., 0] > 128).astype(np.uint8),
        "landmarks": five.astype(np.float32),
        "landmarks_valid": np.True_,
        "hull": hull(five, "5"),
        "regions": regions(five, "5"),
        "matrix": np.array([[0.5, 0, 3], [0, 0.5, -2]], np.float32),
    }


def contenders(size: int) -> dict[str, Run]:
    """Every transform, as a function of the call's number."""
    sample = face_sample(size)
    generators = [sample_rng(0, 0, row) for row in range(DRAWS)]
    smaller = round(size * 0.9)
    transforms = {
        "HorizontalFlip": HorizontalFlip(p=1),
        "CropJitter, same size as the window": CropJitter((1, 1)),
        "CropJitter(0.8 to 1), enlarged to the old size": CropJitter((0.8, 1.0)),
        f"CropJitter(0.8 to 1, size={smaller})": CropJitter((0.8, 1.0), size=smaller),
        "DropRegion": DropRegion(p=1),
        "BlackoutHull": BlackoutHull(p=1),
        "KeepHull": KeepHull(p=1),
        "LandmarkCutout": LandmarkCutout(p=1),
        "Compose(HorizontalFlip, DropRegion, CropJitter)": Compose(
            [HorizontalFlip(p=1), DropRegion(p=1), CropJitter()]
        ),
        "VerticalFlip": VerticalFlip(p=1),
        "ColorJitter(0.4, 0.4, 0.4)": ColorJitter(0.4, 0.4, 0.4),
        "ColorJitter(0.4, 0.4, 0.4, 0.1)": ColorJitter(0.4, 0.4, 0.4, 0.1),
        "GaussianBlur(5)": GaussianBlur(5),
        "Normalize": Normalize(),
        "RandAugment": RandAugment(),
        "Compose(ColorJitter(0.4, 0.4, 0.4), Normalize, RandomErasing)": Compose(
            [ColorJitter(0.4, 0.4, 0.4), Normalize(), RandomErasing(p=1)]
        ),
        "Albumentations([HorizontalFlip])": Albumentations([A.HorizontalFlip(p=1)]),
        "Albumentations([Affine(rotate, scale)])": Albumentations([A.Affine(rotate=(-15, 15), scale=(0.9, 1.1), p=1)]),
    }
    runs: dict[str, Run] = {
        "copy of the picture": lambda call: sample["image"].copy(),
        "sample_rng": lambda call: sample_rng(0, 0, call),
    }
    for name, transform in transforms.items():
        runs[name] = lambda call, transform=transform: transform(sample, generators[call % DRAWS])
    return runs


def batched(size: int, batch: int, device: torch.device) -> dict[str, Run]:
    """The modules for batches, as functions of the call's number."""
    sample = face_sample(size)
    stacked = {name: torch.from_numpy(np.stack([np.asarray(value)] * batch)) for name, value in sample.items()}
    stacked["image"] = stacked["image"].permute(0, 3, 1, 2)
    values = {name: value.to(device) for name, value in stacked.items()}
    crop = round(size * 0.9)
    modules = {
        "BatchFlip": BatchFlip(),
        f"BatchCrop({crop})": BatchCrop(crop),
        f"BatchCrop({crop}, scale=(0.8, 1))": BatchCrop(crop, (0.8, 1.0)),
        "BatchDropRegion": BatchDropRegion(p=0.5),
        "BatchNormalize": BatchNormalize(),
        "all of them": BatchCompose([BatchFlip(), BatchCrop(crop, (0.8, 1.0)), BatchDropRegion(), BatchNormalize()]),
    }
    runs: dict[str, Run] = {}
    for name, module in modules.items():
        module.to(device)

        def run(call: int, module: torch.nn.Module = module) -> None:
            module(values, torch.arange(batch) + call * batch)
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        runs[name] = run
    return runs


def measure(runs: dict[str, Run], rounds: int, samples: int = 1) -> list[dict[str, Any]]:
    """Run all in turn; microseconds per sample."""
    calls = {}
    for name, run in runs.items():
        for call in range(3):
            run(call)
        begin = time.perf_counter()
        run(3)
        calls[name] = max(1, round(ROUND_S / (time.perf_counter() - begin)))
    found: dict[str, list[float]] = {name: [] for name in runs}
    cpu: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            begin, cpu_begin = time.perf_counter(), time.process_time()
            for call in range(calls[name]):
                run(call)
            elapsed, cpu_elapsed = time.perf_counter() - begin, time.process_time() - cpu_begin
            found[name].append(elapsed / calls[name] / samples * 1e6)
            cpu[name].append(cpu_elapsed / calls[name] / samples * 1e6)
    return [
        {
            "transform": name,
            "us_median": statistics.median(times),
            "us_p10": float(np.percentile(times, 10)),
            "us_p90": float(np.percentile(times, 90)),
            "cpu_us_median": statistics.median(cpu[name]),
        }
        for name, times in found.items()
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    device = torch.device(options.device)
    with torch.no_grad():
        result = {
            "benchmark": "augment",
            "size": options.size,
            "rounds": options.rounds,
            "batch": options.batch,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "machine": {"processor": platform.processor() or platform.machine(), "python": platform.python_version()},
            "versions": {
                name: version(name) for name in ("numpy", "opencv-python-headless", "torch", "albumentations")
            },
            "samples": measure(contenders(options.size), options.rounds),
            "batches": measure(batched(options.size, options.batch, device), options.rounds, options.batch),
        }
    print("\n\n".join(augment_tables(result)))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
