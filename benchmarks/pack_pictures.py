"""The rate of ``packer build`` on images, against the loop that people write today, and against what limits both.

    python -m benchmarks.pack_pictures --folder /somewhere [PHOTOS] [--kinds ...] [--runs 3] [--json FILE]

PHOTOS is any folder of JPEGs; without it, photos of about 500 × 400 pixels are cut out of scikit-image's photographs.
What is made of them, and the photos, are kept in the folder and used again: JPEG crops of 224 × 224, JPEGs of 64 × 64,
and the crops as one array.

* **resized**: photos with ``--size 256``, JPEG of quality 95. *loop*: ``benchmarks/picture_loop.py``.
* **kept**, **crops**, **small**: the bytes of photos, crops and tiny images are kept, each decoded once for the
  check. *decode*: the same files read and decoded in as many processes, and nothing else: the limit.
  *loop*: bytes kept unseen.
* **raw npy**, **raw lmdb**: a step hands out 50 crops an item from the array. *FFCV*: its writer over the same array.

Method. Every row is a command of its own, ``--runs`` times, all rows of a group in turn, page cache warm. Rates count
from its start to its end, with all processes started and, of ours alone, everything flushed to the disk. CPU seconds
are those of the command's own process (*coordinator*), and of all that it started (*workers*). Memory is the peak of
each, mapped files included. *Without the start* leaves out what the same command takes for one item, run beside it in
each turn. Ratios are those of one turn; medians are given, with the least and the largest.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
import skimage.data

from benchmarks.crop_step import ITEM_CROPS
from benchmarks.measure import machine, per, spread, versions, without_start
from benchmarks.tables import images_table

LIBRARIES = ("numpy", "opencv-python-headless", "simplejpeg", "lmdb", "pillow", "ffcv")
KINDS = ("resized", "kept", "crops", "small", "raw npy", "raw lmdb")
SIZE, CROP, TINY = 256, 224, 64


def make_photos(folder: Path, count: int) -> None:
    """Windows of scikit-image's photographs at seeded places, a third of them upright, with seeded noise."""
    photographs = [skimage.data.astronaut(), skimage.data.coffee(), skimage.data.chelsea(), skimage.data.rocket()]
    folder.mkdir(parents=True)
    for number in range(count):
        rng = np.random.default_rng((7, number))
        photograph = photographs[number % len(photographs)]
        sides = (500, 375 + int(rng.integers(-40, 60)))
        width, height = sides if number % 3 else sides[::-1]
        scale = min(photograph.shape[0] / height, photograph.shape[1] / width) * rng.uniform(0.6, 1.0)
        h, w = int(height * scale), int(width * scale)
        y, x = rng.integers(0, photograph.shape[0] - h + 1), rng.integers(0, photograph.shape[1] - w + 1)
        window = cv2.resize(photograph[y : y + h, x : x + w], (width, height), interpolation=cv2.INTER_CUBIC)
        noisy = np.clip(window + rng.normal(0, 3, (height, width, 1)), 0, 255).astype(np.uint8)
        write(folder / f"{number:06d}.jpg", noisy)


def write(path: Path, image: np.ndarray) -> None:
    """Encode an image."""
    path.write_bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(image), 90, colorsubsampling="420"))


def make_crops(photos: Sequence[Path], folder: Path, count: int, side: int) -> None:
    """Square cut-outs of the photos at seeded places."""
    folder.mkdir(parents=True)
    for number in range(count):
        image = simplejpeg.decode_jpeg(photos[number % len(photos)].read_bytes())
        rng = np.random.default_rng((8, number))
        whole = int(min(image.shape[:2]) * rng.uniform(0.6, 1.0))
        y, x = rng.integers(0, image.shape[0] - whole + 1), rng.integers(0, image.shape[1] - whole + 1)
        crop = cv2.resize(image[y : y + whole, x : x + whole], (side, side), interpolation=cv2.INTER_AREA)
        write(folder / f"{number:06d}.jpg", crop)


def make_sources(options: argparse.Namespace) -> dict[str, Path]:
    """The source of each kind, made unless it exists."""
    root: Path = options.folder
    photos = options.photos or root / f"photos-{options.count}"
    if not photos.exists():
        make_photos(photos, options.count)
    files = sorted(photos.rglob("*.jpg"))
    crops, small = root / f"crops-{options.crops}", root / f"small-{options.small}"
    for kind, folder, count, side in (("crops", crops, options.crops, CROP), ("small", small, options.small, TINY)):
        if (kind in options.kinds or (kind == "crops" and _wants_raw(options))) and not folder.exists():
            make_crops(files, folder, count, side)
    table = root / f"raw-{options.crops}.csv"
    if _wants_raw(options) and not table.exists():
        pixels = root / f"raw-{options.crops}.npy"
        array = np.lib.format.open_memmap(pixels, "w+", np.uint8, (options.crops, CROP, CROP, 3))
        for row, path in enumerate(sorted(crops.iterdir())):
            array[row] = simplejpeg.decode_jpeg(path.read_bytes())
        array.flush()
        rows = [f"{pixels},{first}" for first in range(0, options.crops, ITEM_CROPS)]
        table.write_text("\n".join(["path,first", *rows]) + "\n")
    raw = dict.fromkeys(("raw npy", "raw lmdb"), table)
    return {"resized": photos, "kept": photos, "crops": crops, "small": small, **raw}


def make_start(source: Path, folder: Path) -> Path:
    """The first item of a source alone."""
    if source.suffix == ".csv":
        start = folder / f"start-{source.name}"
        pixels = start.with_suffix(".npy")
        start.write_text(f"path,first\n{pixels},0\n")
        np.save(pixels, np.load(source.with_suffix(".npy"), mmap_mode="r")[:ITEM_CROPS])
        return start
    start = folder / "start"
    shutil.rmtree(start, ignore_errors=True)
    start.mkdir()
    shutil.copy(min(source.rglob("*.jpg")), start)
    return start


def _wants_raw(options: argparse.Namespace) -> bool:
    return any(kind.startswith("raw") for kind in options.kinds)


def commands(kind: str, source: Path, out: Path, workers: int) -> dict[str, list[str]]:
    """The rows of a group with so many workers, the one that ours is compared with first."""
    others = ["benchmarks.picture_loop"]
    ours = ["packer", "build", str(source), str(out), "--workers", str(workers), "--quiet"]
    ends = [str(source), str(out), str(workers)]
    if kind.startswith("raw"):
        step = [
            "--root",
            str(source.parent),
            "--steps",
            "benchmarks.crop_step:hand_out",
            "--encode",
            "raw",
            "--format",
            kind.split()[1],
        ]
        return {
            "FFCV": [*others, "ffcv", str(source.with_suffix(".npy")), *ends[1:]],
            "packer": [*ours, *step],
        }
    loop = [*others, "loop", *ends]
    if kind == "resized":
        size = ["--size", str(SIZE)]
        return {"loop": [*loop, *size], "packer": [*ours, "--format", "lmdb", *size]}
    stored = ["--format", "npy" if kind == "small" else "lmdb"]
    return {"decode": [*others, "decode", *ends], "packer": [*ours, *stored], "loop": loop}


def run(command: Sequence[str], folder: Path) -> dict[str, Any]:
    """One run of a row; what it wrote is removed."""
    report = folder / "report.json"
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.timed", str(report), *command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},  # modules are compiled once, as where they are installed
    )
    seconds = time.perf_counter() - start
    for path in folder.glob("out*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"error": lines[-1] if lines else f"ended with status {done.returncode}"}
    return {"s": seconds, **json.loads(report.read_text())}


def compare(kind: str, source: Path, samples: int, options: argparse.Namespace) -> dict[str, Any]:
    """All rows of a kind in turn, several times."""
    work = options.folder / "work"
    work.mkdir(exist_ok=True)
    start = make_start(source, work)
    rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for turn in range(options.runs):
        for workers in options.workers:
            for name, command in commands(kind, source, work / "out", workers).items():
                if options.only and name not in options.only:
                    continue
                found = run(command, work)
                begun = run(commands(kind, start, work / "out", workers)[name], work)
                if "s" in found:
                    found["start_s"] = begun["s"]
                rows.setdefault((name, workers), []).append(found)
                print(json.dumps({"row": [kind, turn, name, workers], **found}), file=sys.stderr, flush=True)
    return {"kind": kind, "samples": samples, "rows": [summarise(rows, *row, samples) for row in rows]}


def summarise(
    rows: dict[tuple[str, int], list[dict[str, Any]]], name: str, workers: int, samples: int
) -> dict[str, Any]:
    """Medians of a row's runs, and its ratios to the group's first row and to one worker, turn by turn."""
    runs = rows[name, workers]
    row: dict[str, Any] = {"name": name, "workers": workers, "runs": runs}
    if any("error" in one for one in runs):
        return row
    row["rates"] = spread([samples / one["s"] for one in runs])
    row["start_s"] = statistics.median(one["start_s"] for one in runs)
    for whose in ("own", "workers"):
        row[f"{whose}_cpu_s"] = statistics.median(one[whose]["cpu_s"] for one in runs)
        row[f"{whose}_peak_mb"] = max(one[whose]["peak_mb"] for one in runs)
    first = rows[next(iter(rows))[0], workers]
    if all("s" in one for one in first):
        pairs = list(zip(first, runs, strict=True))
        row["ratio"] = spread([a["s"] / b["s"] for a, b in pairs])
        row["ratio_without_start"] = spread([per(without_start(a), without_start(b)) for a, b in pairs])
        row["cpu_ratio"] = spread([_cpu(a) / _cpu(b) for a, b in pairs])
    alone = rows.get((name, 1))
    if workers > 1 and alone is not None and all("s" in one for one in alone):
        row["scaling"] = spread([a["s"] / b["s"] for a, b in zip(alone, runs, strict=True)])
        row["scaling_without_start"] = spread(
            [per(without_start(a), without_start(b)) for a, b in zip(alone, runs, strict=True)]
        )
    return row


def _cpu(one: dict[str, Any]) -> float:
    return float(one["own"]["cpu_s"] + one["workers"]["cpu_s"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=lambda path: Path(path).absolute(), nargs="?", help="a folder of JPEGs")
    parser.add_argument(
        "--folder",
        type=lambda path: Path(path).absolute(),
        required=True,
        help="where sources and packed data are made",
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--only", nargs="+", choices=("packer", "loop", "decode", "FFCV"), help="these rows")
    parser.add_argument("--count", type=int, default=4_000, help="photos to make")
    parser.add_argument("--crops", type=int, default=10_000)
    parser.add_argument("--small", type=int, default=100_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write everything that was measured here")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    # In a process of its own: a new process begins with the peak memory of the one that starts it.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        sources = pool.submit(make_sources, options).result()
    counts = {"crops": options.crops, "small": options.small, "raw npy": options.crops, "raw lmdb": options.crops}
    photos = sum(1 for _ in sources["kept"].rglob("*.jpg"))
    found: dict[str, Any] = {
        "benchmark": "pack_pictures",
        "machine": machine(),
        "versions": versions(LIBRARIES),
        "settings": {name: getattr(options, name) for name in ("crops", "small", "workers", "runs")},
        "groups": [compare(kind, sources[kind], counts.get(kind, photos), options) for kind in options.kinds],
    }
    for group in found["groups"]:
        print(f"\n{images_table(group)}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
