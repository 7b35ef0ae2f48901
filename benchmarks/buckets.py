"""Batches of images in buckets of shapes: whether epochs are complete, samples in short batches, and speed.

    python -m benchmarks.buckets --folder /somewhere [--images 2000] [--rounds 5] [--trainer sd-scripts/] [--json FILE]

Seeded parts of scikit-image's photographs, whose ratios of sides go from 0.45 to 2.2, are written as JPEGs with a longer
side of 640 pixels. All arms sort them into the shapes of ``area=256²,step=64,max-ratio=2``, in batches of 16, shuffled,
with two threads or worker processes:

* *Loader* over a dataset that ``packer build --resize bucket`` has made, with ``batch_by="bucket"``; and torch's
  ``DataLoader`` with the same batches;
* *datago*, if it is installed: its client decodes, crops and resizes the files in each epoch. It yields single samples,
  which the arm collects by shape: a batch as soon as it is full, the rest at the end of the epoch;
* *sd-scripts*, if ``--trainer`` names a checkout of github.com/kohya-ss/sd-scripts and what it imports is installed: its
  ``DreamBoothDataset`` and collator in the ``DataLoader`` that its ``train_network.py`` makes, with persistent workers.
  Its tokenizer is replaced by one that does nothing, and a caption is the number of its image.

The arms run in turn, each in a process of its own (`benchmarks.measure`). What three epochs consist of is counted
separately: images that are missing, images that come more than once, and samples in batches that are not full.
"""

import argparse
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from multiprocessing import Value
from pathlib import Path
from time import perf_counter
from typing import Any

import cv2
import numpy as np
import skimage.data
import torch
from torch.utils.data import DataLoader

import packer
from benchmarks.contender import Batches
from benchmarks.measure import Entry, artefact, document, measure_group, write
from readers import Loader, open_dataset

BATCH, THREADS, EPOCHS = 16, 2, 3
SIDE, STEP, RATIO, LONGER = 256, 64, 2, 640
PHOTOGRAPHS = ("astronaut", "coffee", "chelsea", "rocket")


def make(folder: Path, images: int) -> None:
    """Write JPEGs of many shapes, with their numbers as names and as captions."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    photographs = [getattr(skimage.data, name)()[..., 2::-1] for name in PHOTOGRAPHS]
    for number in range(images):
        whole = photographs[number % len(photographs)]
        ratio = float(np.exp(rng.uniform(-0.8, 0.8)))
        height = min(whole.shape[0], whole.shape[1] / ratio) * rng.uniform(0.7, 1)
        sides = np.array([height, height * ratio]).astype(int)
        top, left = rng.integers(0, np.array(whole.shape[:2]) - sides + 1)
        part = whole[top : top + sides[0], left : left + sides[1]]
        scale = LONGER / max(part.shape)
        part = cv2.resize(part, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(folder / f"{number:06d}.jpg"), part)
        (folder / f"{number:06d}.txt").write_text(str(number))


def loader_arm(packed: str) -> Batches:
    """Our `Loader`."""
    loader = _loader(packed)

    def batches(epoch: int) -> Iterator[dict[str, Any]]:
        loader.set_epoch(epoch)
        for batch in loader:
            yield {"image": batch["image"], "label": _numbers(batch["source"])}

    return Batches(batches)


def dataloader_arm(packed: str) -> Batches:
    """Torch's ``DataLoader`` over the batches of our `Loader`."""
    loader = _loader(packed)
    usual = DataLoader(
        loader.dataset,
        batch_sampler=loader.batch_sampler,
        collate_fn=loader.collate_fn,
        num_workers=THREADS,
        persistent_workers=True,
    )

    def batches(epoch: int) -> Iterator[dict[str, Any]]:
        loader.set_epoch(epoch)
        for batch in usual:
            yield {"image": batch["image"], "label": _numbers(batch["source"])}

    return Batches(batches)


def _loader(packed: str) -> Loader:
    dataset = open_dataset(packed, ["image", "source", "bucket"])
    return Loader(dataset, BATCH, batch_by="bucket", shuffle="full", workers=THREADS, seed=0)


def datago_arm(files: str) -> Batches:
    """Datago's client, and batches made of its samples."""
    import datago  # not among our dependencies

    os.environ["DATAGO_MAX_TASKS"] = str(THREADS)
    shapes = {"default_image_size": SIDE, "downsampling_ratio": STEP, "min_aspect_ratio": 1 / RATIO}
    config = {
        "source_type": "file",
        "source_config": {"root_path": files, "random_sampling": True, "rank": 0, "world_size": 1},
        "image_config": {"crop_and_resize": True, "max_aspect_ratio": RATIO, "pre_encode_images": False, **shapes},
        "limit": len(list(Path(files).glob("*.jpg"))),
        "samples_buffer_size": 64,
    }
    client = datago.DatagoClient(json.dumps(config))

    def batches(_: int) -> Iterator[dict[str, Any]]:
        waiting: dict[tuple[int, ...], list[tuple[int, Any]]] = defaultdict(list)
        client.start()
        while (sample := client.get_sample()) is not None:
            image = sample.image.to_numpy_array()
            samples = waiting[image.shape]
            samples.append((int(Path(sample.id.strip('"')).stem), image))
            if len(samples) == BATCH:
                yield _collected(waiting.pop(image.shape))
        for samples in waiting.values():
            yield _collected(samples)

    return Batches(batches)


def _collected(samples: list[tuple[int, Any]]) -> dict[str, Any]:
    return {
        "image": torch.from_numpy(np.stack([image for _, image in samples])),
        "label": [number for number, _ in samples],
    }


def trainer_arm(files: str, code: str) -> Batches:
    """The dataset and collator of sd-scripts, in the ``DataLoader`` of its ``train_network.py``."""
    sys.path.insert(0, code)
    from library import strategy_base, train_util  # fetched code, which is no part of the project

    class Tokens(strategy_base.TokenizeStrategy):  # type: ignore[misc] # no stubs
        def tokenize(self, _: Any) -> list[torch.Tensor]:
            return [torch.zeros(1, 1, dtype=torch.long)]

    strategy_base.TokenizeStrategy.set_strategy(Tokens())
    off = dict.fromkeys(("shuffle_caption", "enable_wildcard", "color_aug", "flip_aug", "random_crop"), False)
    none = dict.fromkeys(("keep_tokens_separator", "secondary_separator", "caption_prefix", "caption_suffix"))
    zero = dict.fromkeys(("caption_dropout_every_n_epochs", "caption_dropout_rate", "caption_tag_dropout_rate"), 0)
    subset = train_util.DreamBoothSubset(
        files, is_reg=False, class_tokens=None, caption_extension=".txt", cache_info=False, alpha_mask=False,
        num_repeats=1, caption_separator=",", keep_tokens=0, face_crop_aug_range=None, token_warmup_min=1,
        token_warmup_step=0, **off, **none, **zero,
    )  # fmt: skip
    shortest = SIDE * SIDE // (SIDE + STEP) // STEP * STEP
    dataset = train_util.DreamBoothDataset(
        [subset], is_training_dataset=True, batch_size=BATCH, resolution=(SIDE, SIDE), network_multiplier=1.0,
        enable_bucket=True, min_bucket_reso=shortest, max_bucket_reso=SIDE + STEP, bucket_reso_steps=STEP,
        bucket_no_upscale=False, prior_loss_weight=1.0, debug_dataset=False, validation_split=0.0,
        validation_seed=None, resize_interpolation=None,
    )  # fmt: skip
    dataset.set_seed(0)
    dataset.make_buckets()
    group = train_util.DatasetGroup([dataset])
    group.set_current_strategies()
    current = Value("i", 0)
    collate = train_util.collator_class(current, Value("i", 0), None)
    usual = DataLoader(
        group, batch_size=1, shuffle=True, collate_fn=collate, num_workers=THREADS, persistent_workers=True
    )

    def batches(epoch: int) -> Iterator[dict[str, Any]]:
        current.value = epoch + 1
        for batch in usual:
            yield {"image": batch["images"], "label": list(map(int, batch["captions"]))}

    return Batches(batches)


def _numbers(names: list[str]) -> list[int]:
    return [int(Path(name).stem) for name in names]


ARMS: dict[str, Callable[..., Batches]] = {
    "Loader": loader_arm,
    "DataLoader, batches of a Loader": dataloader_arm,
    "datago": datago_arm,
    "sd-scripts": trainer_arm,
}


def epochs_of(arm: Batches, images: int) -> dict[str, list[float]]:
    """Count the images of epochs that are missing or come again, and the share of samples in short batches."""
    found: dict[str, list[float]] = {"missing": [], "repeated": [], "in_short_batches": [], "shapes": []}
    for epoch in range(EPOCHS):
        seen, short, shapes = Counter[int](), 0, set()
        for batch in arm.batches(epoch):
            seen.update(batch["label"])
            short += len(batch["label"]) % BATCH
            shapes.add(tuple(batch["image"].shape[1:]))
        found["missing"].append(images - len(seen))
        found["repeated"].append(sum(seen.values()) - len(seen))
        found["in_short_batches"].append(short / sum(seen.values()))
        found["shapes"].append(len(shapes))
    return found


def table(group: dict[str, Any]) -> str:
    """The rows as Markdown."""
    columns = "missing | come again | in short batches | images/s | CPU ms an image"
    lines = [f"| | {columns} |", "|---|" + "--:|" * 5]
    for row in group["rows"]:
        name = f"**{row['name']}**" if row["ours"] else row["name"]
        if not row["rates"]:
            lines.append(f"| {name} | {row['error'].strip().splitlines()[-1][:120]} | | | | |")
            continue
        counts = [", ".join(f"{count:g}" for count in row["epochs"][key]) for key in ("missing", "repeated")]
        short = f"{max(row['epochs']['in_short_batches']):.2%}"
        rate = f"{row['median']:,.0f} ({row['low']:,.0f}–{row['high']:,.0f})"
        lines.append(f"| {name} | {' | '.join([*counts, short, rate])} | {row['cpu_ms']:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Make the images, measure, count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=lambda path: Path(path).absolute(), required=True)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trainer", type=lambda path: Path(path).absolute(), help="checkout of sd-scripts")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    files, packed = arguments.folder / "files", arguments.folder / "packed"
    if not files.exists():
        make(files, arguments.images)
    begin = perf_counter()
    buckets = f"area={SIDE}²,step={STEP},max-ratio={RATIO}"
    packer.build(files, packed, resize="bucket", buckets=buckets, workers=2, overwrite=True, progress=False)
    pack_s = perf_counter() - begin

    options = {name: {"packed": str(packed)} for name in ("Loader", "DataLoader, batches of a Loader")}
    if find_spec("datago") is not None:
        options["datago"] = {"files": str(files)}
    if arguments.trainer is not None:
        options["sd-scripts"] = {"files": str(files), "code": str(arguments.trainer)}
    entries = [
        Entry(name, f"benchmarks.buckets:{ARMS[name].__name__}", given, ours="packed" in given, checked=False)
        for name, given in options.items()
    ]
    group = measure_group("buckets", entries, arguments.rounds)
    for row in group["rows"]:
        if row["rates"]:
            row["epochs"] = epochs_of(ARMS[row["name"]](**options[row["name"]]), arguments.images)
    print(table(group))
    settings = {"images": arguments.images, "batch": BATCH, "buckets": buckets, "pack_s": pack_s}
    try:
        settings["datago"] = version("datago")
    except PackageNotFoundError:
        settings["datago"] = None
    write(document("buckets", settings, [group]), artefact(arguments.json, "buckets"))


if __name__ == "__main__":
    main()
