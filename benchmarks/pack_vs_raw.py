"""Raw against packed: the cost of an epoch over files, and over the dataset that they were packed into.

``python -m benchmarks.pack_vs_raw --folder /somewhere --out benchmarks/results`` prints the tables of
``docs/benchmarks.md`` and writes the figures to a new file named by commit and time.

Method. The data are made anew: for *images*, photographs of scikit-image cut at seeded places and enlarged to 2048 ×
1536 (JPEG, quality 92); for *faces*, twenty copies of the pictures and videos of ``examples/make_data.py``. Each recipe
is packed once per way of storing, then measured by `packer.bench`: *raw* runs the recipe's steps
over the files in as many processes as there are workers, one math thread each, item by item, models loaded; *packed*
reads the dataset with `readers.Loader`, shuffled, all fields, in as many threads. Both sides live in processes of their
own and work once before anything counts, so the page cache is warm (the column *disk* says what came from storage all
the same). Runs alternate, raw, packed, raw, packed; a run lasts at least ``--seconds``, and on the packed side at least
``--batches`` batches, after the loader has filled up. Figures are medians over ``--runs`` runs, with the least and the
most. Peak memory is that of all processes of a side, without the page cache that they map.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
import skimage.data

from benchmarks.tables import packing_table
from packer import bench, build

REPOSITORY = Path(__file__).parents[1]
PHOTO = (1536, 2048)
LIBRARIES = ("facepack", "numpy", "opencv-python-headless", "simplejpeg", "torch")

RECIPES: Mapping[str, Mapping[str, Any]] = {
    "images": {"preset": "images", "size": 256, "label_from": "folder"},
    "faces": {"preset": "faces", "size": 224, "every": 5, "label_from": "folder"},
}
WAYS: Mapping[str, Mapping[str, Any]] = {
    "lmdb jpeg": {"format": "lmdb", "encode": "jpeg"},
    "npy raw": {"format": "npy", "encode": "raw"},
}

NUMBER = (int, float)
SIDE = {
    "samples_per_s": NUMBER,
    "rates": [NUMBER],
    "cpu_s_per_sample": NUMBER,
    "peak_bytes": int,
    "file_bytes_per_sample": NUMBER,
    "disk_bytes_per_sample": (int, float, type(None)),
    "epoch_s": NUMBER,
    "epoch_cpu_s": NUMBER,
}
MACHINE = {"cores": int, "platform": str, "python": str}
SCHEMA: Mapping[str, Any] = {
    "benchmark": str,
    "commit": str,
    "changed_files": int,
    "time": str,
    "machine": MACHINE,
    "versions": dict.fromkeys(LIBRARIES, str),
    "method": {"runs": int, "seconds": NUMBER, "batches": int, "batch_size": int, "workers": int},
    "results": [
        {
            "recipe": str, "way": str, "format": str, "same_source": bool, "items": int, "measured_items": int,
            "samples": int, "workers": int, "batch_size": int, "seconds": NUMBER, "runs": int, "machine": MACHINE,
            "raw": SIDE, "read": SIDE, "times_faster": NUMBER, "pack_s": NUMBER, "pack_s_recorded": bool,
            "paid_after_epochs": (int, float, type(None)),
        }
    ],
}  # fmt: skip
"""The JSON that is written: types by key; a list holds one or more values of the kind of its only entry here."""


def problems(found: Any, expected: Any = SCHEMA, where: str = "") -> list[str]:
    """The places where a document differs from the schema; none if it does not."""
    if isinstance(expected, Mapping):
        if not isinstance(found, Mapping):
            return [f"{where}: expected an object, found {type(found).__name__}"]
        wrong = [f"{where}.{key}: expected there, found nothing" for key in expected if key not in found]
        wrong += [f"{where}.{key}: not expected" for key in found if key not in expected]
        return wrong + [
            p for key in found if key in expected for p in problems(found[key], expected[key], f"{where}.{key}")
        ]
    if isinstance(expected, list):
        if not isinstance(found, list) or not found:
            return [f"{where}: expected a list of one or more"]
        return [p for i, value in enumerate(found) for p in problems(value, expected[0], f"{where}[{i}]")]
    if not isinstance(found, expected) or (isinstance(found, bool) and expected is not bool):
        return [f"{where}: expected {expected}, found {found!r}"]
    return []


def make_photos(folder: Path, count: int) -> Path:
    """Photographs of the size that cameras and collections have, in two classes."""
    sources = [skimage.data.astronaut(), skimage.data.coffee(), skimage.data.chelsea(), skimage.data.rocket()]
    rng = np.random.default_rng(0)
    for number in range(count):
        source = sources[number % len(sources)]
        height, width = (
            int(side / rng.uniform(5.2, 6.5)) for side in PHOTO
        )  # enlarged about six times: a soft photograph
        y, x = (int(rng.integers(0, limit - side)) for limit, side in zip(source.shape, (height, width), strict=False))
        picture = cv2.resize(source[y : y + height, x : x + width], PHOTO[::-1], interpolation=cv2.INTER_CUBIC)
        target = folder / ("even", "odd")[number % 2] / f"{number:05d}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(simplejpeg.encode_jpeg(picture, quality=92, colorsubsampling="420"))
    return folder


def make_faces(folder: Path, copies: int) -> Path:
    """The demo's pictures and videos, several times, so that an epoch is not over at once."""
    made = folder / "made"
    subprocess.run([sys.executable, REPOSITORY / "examples" / "make_data.py", made], check=True)
    for name in sorted(path.name for path in made.iterdir()):
        for copy in range(copies):
            shutil.copytree(made / name, folder / name / f"copy-{copy:02d}")
    shutil.rmtree(made)
    return folder


def git(*words: str) -> list[str]:
    """The lines of git's output; none if this is not a clone."""
    done = subprocess.run(["git", "-C", REPOSITORY, *words], capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def measure(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Make the data, pack them every way, and compare each with the raw files."""
    results = []
    for recipe in options.recipes:
        raw = folder / f"raw-{recipe}"
        source = make_photos(raw, options.photos) if recipe == "images" else make_faces(raw, options.copies)
        for way in options.ways:
            packed = folder / f"{recipe}-{way.replace(' ', '-')}"
            build(source, packed, progress=False, workers=options.workers, **RECIPES[recipe], **WAYS[way])
            report = bench(
                source, packed, workers=options.workers, batch_size=options.batch_size, runs=options.runs,
                seconds=options.seconds, batches=options.batches, progress=False,
            )  # fmt: skip
            document = {name: value for name, value in report.to_json().items() if name not in ("source", "packed")}
            results.append({"recipe": recipe, "way": way, **document})
            print(packing_table(results[-1:]).splitlines()[-1], flush=True)
    return results


def main() -> None:
    """Measure, print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recipes", nargs="*", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--photos", type=int, default=400)
    parser.add_argument("--copies", type=int, default=20, help="of the demo's data")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--folder", type=Path, help="where to make and pack the data; about 1 GB")
    parser.add_argument("--out", type=Path, help="folder of the JSON file")
    options = parser.parse_args()
    now = datetime.now(UTC)
    commit = (git("rev-parse", "--short=12", "HEAD") or ["unknown"])[0]
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        results = measure(Path(folder), options)
    document = {
        "benchmark": "pack_vs_raw",
        "commit": commit,
        "changed_files": len(git("status", "--porcelain", "--untracked-files=no")),
        "time": now.isoformat(timespec="seconds"),
        "machine": {"cores": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()},
        "versions": {name: version(name) for name in LIBRARIES},
        "method": {name: getattr(options, name) for name in ("runs", "seconds", "batches", "batch_size", "workers")},
        "results": results,
    }
    assert not problems(document), problems(document)
    print(packing_table(results))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        with (options.out / f"pack_vs_raw-{commit}-{now:%Y%m%dT%H%M%S}.json").open("x") as file:
            json.dump(document, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
