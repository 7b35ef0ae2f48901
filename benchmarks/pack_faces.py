"""The rate of ``packer build --preset faces`` on a video, against the loop that people write today.

    python -m benchmarks.pack_faces VIDEO [--every 10] [--copies 2] [--runs 5] [--workers 1 2] [--json FILE]

Method. Both work on the same copies of the video, `--copies` for each worker, and cut the same faces (40 px and more, p
of 0.95 and more, margin 0.3, 224 x 224, JPEG of quality 95). *The loop* is ``benchmarks/face_loop.py``: as many
processes as workers, one math thread each, the videos dealt out evenly. *The build* is the ``packer`` command with as
many workers; it also stores landmarks, outline, regions, matrices, tracks, digests, and flushes all of it to the disk.
They run in turn, one after the other, `--runs` times, and the ratio is that of each run; medians are given, with the
least and the largest. Rates count from the start of the command to its end. *Without the start* leaves out what a
command takes before its first frame: for the loop what it says itself, for the build the time of the same command on an
image of 64 x 64 pixels, run in turn with the others. CPU time is that of all processes.

The table of stages is made in this process: one pass over the video by each, the loop's own clock for the loop, and the
same objects that a worker uses for ours; medians over `--runs` of CPU milliseconds per sampled frame.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks.measure import machine, per, spread, versions, without_start
from benchmarks.tables import rates_table, stages_table
from packer import Recipe
from packer.assembly.records import checked_lines
from packer.sources.item import Item
from packer.steps.encode import Encoder
from packer.steps.faces.frame import FrameFaces, counting_faces
from packer.steps.faces.search import BATCH_FRAMES, FaceSearch
from packer.steps.faces.step import FaceCutter
from packer.vision.decode.sampling import Sampling
from packer.vision.decode.video import VideoReader
from shardspec.layout import ITEMS_NAME, Layout

LOOP = Path(__file__).with_name("face_loop.py")
STAGES = ("decode", "detect", "crop", "encode")
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
LIBRARIES = ("numpy", "torch", "mtcnn", "opencv-python-headless", "openvino", "av", "simplejpeg")


def run(commands: Sequence[Sequence[str]], statuses: Sequence[int] = (0,)) -> tuple[float, float, list[str]]:
    """Run commands at the same time: seconds until the last ends, CPU seconds of all, and what each printed.

    Raises
    ------
    RuntimeError
        If one ended with another status, so that nothing was measured.
    """
    start = time.perf_counter()
    processes = [subprocess.Popen(command, env=ONE_THREAD, stdout=subprocess.PIPE, text=True) for command in commands]
    outputs, cpu_s = [], 0.0
    for process in processes:
        assert process.stdout is not None
        outputs.append(process.stdout.read())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        cpu_s += usage.ru_utime + usage.ru_stime
    wall_s = time.perf_counter() - start
    for process, command in zip(processes, commands, strict=True):
        if process.returncode not in statuses:
            raise RuntimeError(f"{' '.join(command)}: ended with status {process.returncode}")
    return wall_s, cpu_s, outputs


def run_loop(videos: Sequence[Path], workers: int, every: int, folder: Path) -> dict[str, float]:
    """One run of the loop."""
    commands = [
        [sys.executable, str(LOOP), str(folder / "loop"), str(every), *map(str, videos[worker::workers])]
        for worker in range(workers)
    ]
    wall_s, cpu_s, outputs = run(commands)
    printed = [json.loads(output) for output in outputs]
    shutil.rmtree(folder / "loop")
    return {
        "s": wall_s,
        "cpu_s": cpu_s,
        "start_s": max(one["load_s"] for one in printed),
        "frames": sum(one["frames"] for one in printed),
        "faces": sum(one["faces"] for one in printed),
    }


def run_build(source: Path, workers: int, every: int, folder: Path, *, faces: bool = True) -> dict[str, float]:
    """One run of the build. Over a source without faces, the build fails at its end."""
    out = folder / "packed"
    command = [sys.executable, "-m", "packer", "build", str(source), str(out), "--preset", "faces", "--quiet"]
    command += ["--every", str(every), "--workers", str(workers), "--max-rejects", "100%"]
    wall_s, cpu_s, _ = run([command], statuses=(0,) if faces else (3,))
    found = {"s": wall_s, "cpu_s": cpu_s}
    if faces:
        items = [*map(json.loads, checked_lines(Layout(out), Layout(out).load(), ITEMS_NAME))]
        found |= {"frames": sum(item["frames"] for item in items), "faces": sum(item["samples"] for item in items)}
    shutil.rmtree(out, ignore_errors=True)
    return found


def compare(video: Path, workers: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both in turn, several times."""
    source, tiny = folder / f"videos-{workers}", folder / "tiny"
    source.mkdir()
    videos = [source / f"{number:02d}{video.suffix}" for number in range(options.copies * workers)]
    for path in videos:
        shutil.copyfile(video, path)
    tiny.mkdir(exist_ok=True)
    cv2.imwrite(str(tiny / "grey.png"), np.full((64, 64, 3), 128, np.uint8))
    runs = []
    for _ in range(options.runs):
        loop = run_loop(videos, workers, options.every, folder)
        start = run_build(tiny, workers, options.every, folder, faces=False)
        build = {**run_build(source, workers, options.every, folder), "start_s": start["s"]}
        runs.append({"loop": loop, "build": build})
        print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    return {"workers": workers, "videos": len(videos), "runs": runs, **summarise(runs)}


def summarise(runs: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, Any]:
    """Medians, and the least and the largest ratio."""
    out: dict[str, Any] = {}
    for name in ("loop", "build"):
        rates = [one[name]["frames"] / one[name]["s"] for one in runs]
        bare = spread([per(one[name]["frames"], without_start(one[name])) for one in runs])
        out[name] = {
            "frames_per_s": statistics.median(rates),
            "frames_per_s_without_start": None if bare is None else bare["median"],
            "start_s": statistics.median(one[name]["start_s"] for one in runs),
            "cpu_ms_per_frame": statistics.median(1e3 * one[name]["cpu_s"] / one[name]["frames"] for one in runs),
        }
    ratios: dict[str, list[float | None]] = {
        "ratio": [one["loop"]["s"] / one["build"]["s"] for one in runs],
        "ratio_without_start": [per(without_start(one["loop"]), without_start(one["build"])) for one in runs],
        "cpu_ratio": [one["loop"]["cpu_s"] / one["build"]["cpu_s"] for one in runs],
    }
    return out | {name: spread(values) for name, values in ratios.items()}


def our_stages(
    video: Path, recipe: Recipe, search: FaceSearch, cutter: FaceCutter, encoder: Encoder
) -> dict[str, float]:
    """CPU milliseconds per sampled frame of each stage, in one pass over the video."""
    spent: dict[str, float] = defaultdict(float)
    count, mark = 0, time.process_time()

    def lap(stage: str) -> None:
        nonlocal mark
        now = time.process_time()
        spent[stage] += now - mark
        mark = now

    item = Item(0, video.name, str(video))
    with VideoReader(video, Sampling(every=recipe.every)) as reader, search.of_item(item, None) as finder:
        frames = iter(reader)
        while batch := list(islice(frames, BATCH_FRAMES)):
            lap("decode")
            found = finder.faces([{"frame": frame.index, "image": frame.image} for frame in batch])
            lap("detect")
            count += len(batch)
            for frame, faces in zip(batch, found, strict=True):
                assert isinstance(faces, FrameFaces)
                counting = cutter.prepare(frame.image, faces.take(counting_faces(faces, recipe)))
                for face in range(len(counting)):
                    known = {"box": counting.boxes[face], "score": counting.scores[face]}
                    sample = {**cutter.cut(frame.image, counting, face), **known}
                    lap("crop")
                    encoder.encode(sample)
                    lap("encode")
        lap("decode")
    return {stage: 1e3 * spent[stage] / count for stage in STAGES}


def stages(video: Path, every: int, runs: int, folder: Path) -> dict[str, dict[str, float]]:
    """Median CPU milliseconds per sampled frame of each stage, in turn."""
    cv2.setNumThreads(1)
    recipe = Recipe(preset="faces", every=every)
    ours = (FaceSearch(recipe), FaceCutter(recipe), Encoder(recipe))
    our_stages(video, recipe, *ours)
    passes: dict[str, list[dict[str, float]]] = {"loop": [], "build": []}
    for _ in range(runs):
        _, _, (output,) = run([[sys.executable, str(LOOP), str(folder / "stages"), str(every), str(video)]])
        printed = json.loads(output)
        passes["loop"].append({s: 1e3 * printed["cpu_seconds"][s] / printed["frames"] for s in STAGES})
        passes["build"].append(our_stages(video, recipe, *ours))
    return {
        name: {stage: statistics.median(one[stage] for one in found) for stage in STAGES}
        for name, found in passes.items()
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("video", type=Path)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--copies", type=int, default=2, help="of the video, for each worker")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", type=Path, help="write everything that was measured here")
    options = parser.parse_args()
    settings = {name: getattr(options, name) for name in ("every", "copies", "runs", "workers")}
    found: dict[str, Any] = {
        "benchmark": "pack_faces",
        "machine": machine(),
        "versions": versions(LIBRARIES),
        "settings": {"video": options.video.name, **settings},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found["stages"] = stages(options.video, options.every, options.runs, folder)
        found["groups"] = [compare(options.video, workers, options, folder) for workers in options.workers]
    print(f"{rates_table(found)}\n\n{stages_table(found)}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
