"""How many planted copies ``packer duplicates`` finds, how many pairs are false, and what it costs.

    python -m benchmarks.duplicates [--images 500] [--rows 4000] [--hashes 1000000] [--vectors 20000] [--rounds 3] [--json FILE]
        [--photographs FOLDER] [--faces FOLDER] [--fastdup PYTHON]

Finding: tiles of 160 pixels from scikit-image's photographs, none of which overlap, and of which the flattest are left
out, are packed as one dataset; copies of each tile (JPEG quality 30, half size, brightness ± 20 %, cropped by 5 % of the
sides, a caption bar, mirrored) as another, one dataset for each kind. A found pair is right if it is a tile and its copy. If they
are installed, imagededup (perceptual hash, up to 10 bits) and CleanVision (near and exact duplicates) look at the same
files. So does fastdup (its neighbours with a similarity of at least 0.9, its default, and of 0.96), whose dependencies
need an environment of their own: ``--fastdup`` names its interpreter.

``--photographs`` takes two tiles of 240 pixels, side by side, from each image of a folder instead, and ``--faces`` the
middle 160 pixels of each image, as the face is in images of LFW.

Speed: pairs of random hashes with planted pairs; pairs of random vectors of 512; `packer.compute` of ``quality`` and
``hash`` next to an epoch of the `Loader` over `--rows` JPEGs of these tiles, enlarged to 224 pixels. CPU seconds are those of the process and its
children, which other programs on the machine disturb less.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import skimage.data

import packer
from packer.analysis.duplicates.search import near_hashes, near_vectors
from readers import Loader, open_dataset

TILE, HALF = 160, 240
PHOTOGRAPHS = (
    *("astronaut", "camera", "chelsea", "coffee", "coins", "brick", "grass", "gravel", "hubble_deep_field"),
    *("immunohistochemistry", "microaneurysms", "moon", "page", "retina", "rocket", "text"),
)

COPIES: dict[str, Callable[[Any], Any]] = {
    "JPEG quality 30": lambda image: cv2.imdecode(
        cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 30])[1], cv2.IMREAD_COLOR
    ),
    "half size": lambda image: cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA),
    "20 % brighter": lambda image: cv2.convertScaleAbs(image, alpha=1.2),
    "20 % darker": lambda image: cv2.convertScaleAbs(image, alpha=0.8),
    "cropped by 5 %": lambda image: image[
        len(image) // 20 : -(len(image) // 20), len(image) // 20 : -(len(image) // 20)
    ],
    "caption bar": lambda image: cv2.rectangle(image.copy(), (0, len(image) * 7 // 8), (9999, 9999), (0, 0, 0), -1),
    "mirrored": lambda image: image[:, ::-1],
}
"""The kinds of copies."""


def tiles(most: int) -> Iterator[Any]:
    """Yield tiles that do not overlap, with structure, taking turns between the photographs."""
    found = []
    for name in PHOTOGRAPHS:
        image = getattr(skimage.data, name)()
        image = image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2)
        corners = [
            (y, x) for y in range(0, image.shape[0] - TILE + 1, TILE) for x in range(0, image.shape[1] - TILE + 1, TILE)
        ]
        parts = [np.ascontiguousarray(image[y : y + TILE, x : x + TILE, :3]) for y, x in corners]
        found.append([part for part in parts if part.std() > 8])
    flat = [part[turn] for turn in range(max(map(len, found))) for part in found if turn < len(part)]
    yield from flat[:most]


def halves(folder: Path, most: int) -> Iterator[Any]:
    """Yield two tiles from each photograph of a folder, which do not overlap."""
    for path in sorted(folder.iterdir())[: (most + 1) // 2]:
        image = cv2.imread(str(path))
        image = image if image.shape[1] > image.shape[0] else np.rot90(image)
        top = (len(image) - HALF) // 2
        yield from (np.ascontiguousarray(image[top : top + HALF, x : x + HALF]) for x in (0, image.shape[1] - HALF))


def middles(folder: Path, most: int) -> Iterator[Any]:
    """Yield the middle of each image of a folder."""
    for path in sorted(folder.iterdir())[:most]:
        image = cv2.imread(str(path))
        top, left = (side // 2 - TILE // 2 for side in image.shape[:2])
        yield np.ascontiguousarray(image[top : top + TILE, left : left + TILE])


def write(folder: Path, images: list[Any]) -> None:
    """Write images as PNG files and pack them; the file's name is the tile's number."""
    (folder / "files").mkdir(parents=True)
    for number, image in enumerate(images):
        cv2.imwrite(str(folder / "files" / f"{number:05d}.png"), image)
    packer.build(folder / "files", folder / "packed", encode="png", engine="inline", progress=False)


def finding(root: Path, images: list[Any], fastdup: Path | None) -> list[dict[str, Any]]:
    """Recall and precision for each kind of copies, of ours and of the other tools."""
    write(root / "originals", images)
    rows: list[dict[str, Any]] = []

    def add(kind: str, tool: str, pairs: set[tuple[int, int]]) -> None:
        rows.append({"copies": kind, "tool": tool, **_scores(pairs, len(images))})
        show(rows[-1])

    for kind, copy in COPIES.items():
        write(root / kind, [copy(image) for image in images])
        found = packer.duplicates([root / "originals/packed", root / kind / "packed"], workers=0, progress=False)
        pairs = {(pair.one.row, pair.other.row) for pair in found.pairs}
        add(kind, "packer duplicates", pairs)
        for tool, (module, find) in RIVALS.items():
            if find_spec(module) is not None:
                add(kind, tool, find(root, kind))
        if fastdup is not None:
            similar = _fastdup(root, kind, fastdup)
            for least in (0.9, 0.96):
                add(kind, f"fastdup {least}", {pair for pair, similarity in similar.items() if similarity >= least})
    return rows


def _scores(pairs: set[tuple[int, int]], images: int) -> dict[str, Any]:
    right = sum(one == other for one, other in pairs)
    return {"recall": right / images, "precision": right / len(pairs) if pairs else None, "false": len(pairs) - right}


def _imagededup(root: Path, kind: str) -> set[tuple[int, int]]:
    from imagededup.methods import PHash  # of the rivals, which are not among our dependencies

    hasher = PHash(verbose=False)
    encodings = {
        f"{side}-{number:05d}": hasher.encode_image(str(root / folder / "files" / f"{number:05d}.png"))
        for side, folder in (("a", "originals"), ("b", kind))
        for number in range(len(list((root / folder / "files").iterdir())))
    }
    found = hasher.find_duplicates(encoding_map=encodings, max_distance_threshold=10)
    pairs = ((one, other) for one, others in found.items() for other in others)
    return {(int(one[2:]), int(other[2:])) for one, other in pairs if one[0] == "a" and other[0] == "b"}


def _side_by_side(root: Path, kind: str) -> Path:
    """Link the originals and copies of a kind into one folder, as ``a-NUMBER.png`` and ``b-NUMBER.png``."""
    both = root / "both"
    shutil.rmtree(both, ignore_errors=True)
    both.mkdir()
    for side, folder in (("a", "originals"), ("b", kind)):
        for path in (root / folder / "files").iterdir():
            os.link(path, both / f"{side}-{path.name}")
    return both


def _cleanvision(root: Path, kind: str) -> set[tuple[int, int]]:
    from cleanvision import Imagelab

    lab = Imagelab(data_path=str(_side_by_side(root, kind)))
    lab.find_issues({"near_duplicates": {}, "exact_duplicates": {}}, n_jobs=1, verbose=False)
    pairs = set()
    for issue in ("near_duplicates", "exact_duplicates"):
        for group in lab.info[issue]["sets"]:
            names = [Path(path).stem for path in group]
            pairs |= {
                (int(one[2:]), int(other[2:])) for one in names if one[0] == "a" for other in names if other[0] == "b"
            }
    return pairs


_FASTDUP = """
import sys, fastdup
found = fastdup.create(work_dir=sys.argv[2], input_dir=sys.argv[1])
found.run(overwrite=True)
found.similarity()[["filename_from", "filename_to", "distance"]].to_json(sys.argv[3], orient="values")
"""


def _fastdup(root: Path, kind: str, python: Path) -> dict[tuple[int, int], float]:
    """Return the similarity of pairs of tiles and copies."""
    shutil.rmtree(root / "fastdup", ignore_errors=True)
    (root / "fastdup").mkdir()
    out = root / "fastdup.json"
    command = [str(python), "-c", _FASTDUP, str(_side_by_side(root, kind)), str(root / "fastdup"), str(out)]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"SENTRY_OPT_OUT": "1"}, cwd=root)
    similar: dict[tuple[int, int], float] = {}
    for *names, similarity in json.loads(out.read_text()):
        sides = sorted(Path(name).stem for name in names)
        if [side[0] for side in sides] == ["a", "b"]:
            similar[int(sides[0][2:]), int(sides[1][2:])] = similarity
    return similar


RIVALS = {"imagededup PHash": ("imagededup", _imagededup), "CleanVision": ("cleanvision", _cleanvision)}
"""Other tools: their modules, and functions that return pairs of numbers of tiles and copies."""


def measured(run: Callable[[], Any], rounds: int) -> dict[str, Any]:
    """Median, lowest and highest seconds of some runs, and their CPU seconds."""
    seconds, cpu = [], []
    for _ in range(rounds):
        before, started = os.times(), time.perf_counter()
        run()
        after = os.times()
        seconds.append(time.perf_counter() - started)
        cpu.append(sum(after[:4]) - sum(before[:4]))
    return {
        "s_median": statistics.median(seconds), "s_low": min(seconds), "s_high": max(seconds),
        "cpu_s_median": statistics.median(cpu),
    }  # fmt: skip


def searching(hashes: int, vectors: int, rounds: int) -> list[dict[str, Any]]:
    """Searches of all pairs."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**64, hashes, dtype=np.uint64)
    values[: hashes // 100] = values[-(hashes // 100) :] ^ np.uint64(7)
    points = rng.normal(size=(vectors, 512)).astype(np.float32)
    return [
        {"search": f"{hashes} hashes", **measured(lambda: near_hashes(values, np.arange(hashes)), rounds)},
        {"search": f"{vectors} vectors", **measured(lambda: near_vectors(points, np.arange(vectors), 0.3), rounds)},
    ]


def computing(root: Path, images: list[Any], rows: int, rounds: int) -> list[dict[str, Any]]:
    """`packer.compute` next to an epoch of the `Loader`, in this process, over JPEGs of 224 pixels."""
    (root / "speed").mkdir()
    for number in range(rows):
        image = images[number % len(images)]
        large = cv2.resize(image, (224, 224), interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(root / "speed" / f"{number:05d}.jpg"), large, [cv2.IMWRITE_JPEG_QUALITY, 90])
    packed = root / "speed_packed"
    packer.build(root / "speed", packed, engine="inline", progress=False)
    dataset = open_dataset(packed, ["image"])

    def epoch() -> None:
        for _ in Loader(dataset, 64, shuffle=False):
            pass

    def compute() -> None:
        packer.compute(packed, ["quality", "hash"], workers=0, replace=True, progress=False)

    runs = {"Loader": epoch, "compute quality hash": compute}
    epoch()
    return [{"run": name, "images": len(dataset), **measured(run, rounds)} for name, run in runs.items()]


def show(row: dict[str, Any]) -> None:
    """Print a row."""
    shown = (f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items())
    print("  ".join(shown), flush=True)


def main() -> None:
    """Measure, print, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--hashes", type=int, default=1_000_000)
    parser.add_argument("--vectors", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3, help="0: finding only")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--photographs", type=Path)
    parser.add_argument("--faces", type=Path)
    parser.add_argument("--fastdup", type=Path, metavar="PYTHON")
    options = parser.parse_args()
    if options.photographs is not None:
        images = list(halves(options.photographs, options.images))
    else:
        images = list(tiles(options.images) if options.faces is None else middles(options.faces, options.images))
    with tempfile.TemporaryDirectory() as folder:
        document = {
            "benchmark": "duplicates",
            "machine": {
                "cores": len(os.sched_getaffinity(0)),
                "python": platform.python_version(),
                "load": os.getloadavg(),
            },
            "images": len(images),
            "finding": finding(Path(folder), images, options.fastdup),
            "computing": computing(Path(folder), images, options.rows, options.rounds) if options.rounds else [],
            "searching": searching(options.hashes, options.vectors, options.rounds) if options.rounds else [],
        }
    for row in document["computing"] + document["searching"]:
        show(row)
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
