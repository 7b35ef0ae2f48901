"""Speed and recall of the detector on a video, as ratios to facenet-pytorch's ``MTCNN.detect``.

    python -m benchmarks.detector VIDEO [--frames 24] [--min-face 40] [--json FILE]

Method: frames spread evenly over the video are decoded beforehand. Every contender, facenet-pytorch among them, takes
each frame alone, with one math thread, in one process, after two warm-up frames. They work in turn, four frames at a
time, in an order that rotates; the ratio is that of the summed times, by the clock and by the CPU time that the process
used (on a busy machine the latter is steadier). The faces of each contender are compared with facenet-pytorch's on the
same frames. The last rows run the dataset mode in one and in two processes of their own, in turn, several times, and
give the median rates. Run it on a machine that does nothing else. ``python -m benchmarks.tables FILE...`` prints the
tables again, several runs side by side.
"""

import argparse
import json
import multiprocessing
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import torch
from facenet_pytorch import MTCNN

from benchmarks.agreement import compare
from benchmarks.tables import detector_table, faces_table
from packer import Detections, Detector

Frames = list[np.ndarray]
MIN_SIDE, MIN_SCORE = 40, 0.95  # the faces that dataset mode must keep
BLOCK = 4  # frames of one turn


def read_frames(video: Path, count: int) -> Frames:
    """Decode ``count`` frames spread evenly over a video, (H, W, 3) uint8 RGB."""
    with av.open(str(video)) as container:
        total = sum(1 for _ in container.decode(video=0))
    wanted = set(np.linspace(0, total - 1, min(count, total)).astype(int).tolist())
    with av.open(str(video)) as container:
        decoded = enumerate(container.decode(video=0))
        return [frame.to_ndarray(format="rgb24") for i, frame in decoded if i in wanted]


def facenet() -> Callable[[np.ndarray], Detections]:
    """Return the reference as a function of one frame."""
    mtcnn = MTCNN(keep_all=True)

    def detect(frame: np.ndarray) -> Detections:
        boxes, scores, points = mtcnn.detect(frame, landmarks=True)
        if boxes is None:
            boxes, scores, points = np.zeros((0, 4)), np.zeros(0), np.zeros((0, 5, 2))
        arrays = [np.asarray(value, np.float32) for value in (boxes, scores, points)]
        return Detections(*arrays, np.array([0, len(boxes)], np.int64))

    return detect


def ours(detector: Detector) -> Callable[[np.ndarray], Detections]:
    """Return a detector as a function of one frame."""
    return lambda frame: detector.detect([frame])


def measure(contenders: dict[str, Callable[[np.ndarray], Detections]], frames: Frames) -> list[dict[str, Any]]:
    """Run all contenders in turn; the first is the reference."""
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in names}
    found: dict[str, list[Detections]] = {name: [] for name in names}
    for detect in contenders.values():
        for frame in frames[:2]:
            detect(frame)
    for turn, start in enumerate(range(0, len(frames), BLOCK)):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            for frame in frames[start : start + BLOCK]:
                begin, cpu_begin = time.perf_counter(), time.process_time()
                result = contenders[name](frame)
                seconds[name].append(time.perf_counter() - begin)
                cpu_seconds[name].append(time.process_time() - cpu_begin)
                found[name].append(result)
    base = Detections.concatenate(found[names[0]])
    rows = []
    for name in names:
        others = Detections.concatenate(found[name])
        every, sure = compare(base, others, MIN_SIDE), compare(base, others, MIN_SIDE, MIN_SCORE)
        square = compare(base, others, MIN_SIDE, MIN_SCORE, shorter=True)
        rows.append(
            {
                "contender": name,
                "ms": 1e3 * statistics.median(seconds[name]),
                "ratio": sum(seconds[names[0]]) / sum(seconds[name]),
                "best_ms": 1e3 * min(seconds[name]),
                "cpu_ratio": sum(cpu_seconds[names[0]]) / sum(cpu_seconds[name]),
                "faces": len(every.iou) + len(every.missing),
                "missing": len(every.missing),
                "extra": len(every.extra),
                "sure_faces": len(sure.iou) + len(sure.missing),
                "sure_missing": len(sure.missing),
                "sure_square_faces": len(square.iou) + len(square.missing),
                "sure_square_missing": len(square.missing),
                "iou_mean": float(every.iou.mean()),
                "iou_min": float(every.iou.min()),
                "points_max": float(every.point_errors.max()),
            }
        )
    return rows


def _work(path: str, min_face: float, rounds: int, barrier: Barrier, results: Any) -> None:
    cv2.setNumThreads(1)
    frames = list(np.load(path, mmap_mode="r"))
    detector = Detector.dataset(min_face=min_face)
    detector.detect(frames[:2])
    for _ in range(rounds):
        barrier.wait()
        start = time.perf_counter()
        detector.detect(frames)
        results.put(time.perf_counter() - start)
        barrier.wait()


def process_rates(path: str, count: int, min_face: float, rounds: int) -> dict[int, float]:
    """Median frames/s of the dataset mode in one process and in two (the slower of the two counts), in turn."""
    context = multiprocessing.get_context("spawn")
    pools = {}
    for workers in (1, 2):
        barrier, results = context.Barrier(workers + 1), context.Queue()
        processes = [
            context.Process(target=_work, args=(path, min_face, rounds, barrier, results)) for _ in range(workers)
        ]
        for process in processes:
            process.start()
        pools[workers] = (barrier, results, processes)
    rates: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for workers, (barrier, results, _processes) in pools.items():
            barrier.wait()
            slowest = max(results.get() for _ in range(workers))
            barrier.wait()
            rates[workers].append(workers * count / slowest)
    for _barrier, _results, processes in pools.values():
        for process in processes:
            process.join()
    return {workers: statistics.median(values) for workers, values in rates.items()}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("video", type=Path)
    parser.add_argument("--frames", type=int, default=24)
    parser.add_argument("--min-face", type=float, default=40, help="smallest wanted face of dataset mode, pixels")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    frames = read_frames(options.video, options.frames)
    dataset = Detector.dataset(min_face=options.min_face, runtime="openvino")
    rows = measure(
        {
            "facenet-pytorch": facenet(),
            "parity, openvino": ours(Detector(runtime="openvino")),
            "parity, torch": ours(Detector(runtime="torch")),
            "dataset, openvino": ours(dataset),
            "dataset, torch": ours(Detector.dataset(min_face=options.min_face, runtime="torch")),
        },
        frames,
    )
    machine = {
        "processor": platform.processor() or platform.machine(),
        "detector": dataset.describe(),
        "torch": torch.__version__,
        "frames": len(frames),
        "shape": list(frames[0].shape),
    }
    print(json.dumps(machine))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frames.npy"
        np.save(path, np.stack(frames))
        rates = process_rates(str(path), len(frames), options.min_face, rounds=7)
    found = {
        "benchmark": "detector",
        "machine": machine,
        "rows": rows,
        "process_rates": {str(workers): rate for workers, rate in rates.items()},
    }
    print(faces_table(found) + "\n\n" + detector_table([found]))
    print(f"\ndataset, openvino: {rates[1]:.1f} frames/s in one process, {rates[2]:.1f} in two")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
