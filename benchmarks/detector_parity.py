"""Compare the detector with facenet-pytorch's own on every image and video frame of a folder.

    python -m benchmarks.detector_parity FOLDER [--runtime openvino] [--min-side 40] [--every 1]

Prints one line per file and the totals, and exits with 1 unless no face of ``--min-side`` pixels and more is missing or
extra, every IoU is at least 0.97 and 0.999 in the mean, and every landmark is within 1.5 px.
"""

import argparse
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import av
import cv2
import numpy as np
import torch
from PIL import Image

from benchmarks.agreement import compare
from benchmarks.detector import facenet
from packer import Detections, Detector

IMAGES = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}
VIDEOS = {".mp4", ".avi", ".mov", ".mkv", ".webm"}


def frames(path: Path, every: int) -> Iterator[np.ndarray]:
    """Yield the image, or each n-th frame of the video, as (H, W, 3) uint8 RGB."""
    if path.suffix.lower() in IMAGES:
        yield np.asarray(Image.open(path).convert("RGB"))
        return
    with av.open(str(path)) as container:
        for i, frame in enumerate(container.decode(video=0)):
            if i % every == 0:
                yield frame.to_ndarray(format="rgb24")


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runtime", default="auto")
    parser.add_argument("--min-side", type=float, default=40, help="faces whose longer side is at least this, pixels")
    parser.add_argument("--every", type=int, default=1, help="compare each n-th frame of a video")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    detector, reference = Detector(runtime=options.runtime), facenet()
    print(detector.describe())
    expected, found = [], []
    for path in sorted(path for path in options.folder.rglob("*") if path.suffix.lower() in IMAGES | VIDEOS):
        start = len(found)
        for frame in frames(path, options.every):
            expected.append(reference(frame))
            found.append(detector.detect([frame]))
        agreed = report(str(path.relative_to(options.folder)), expected[start:], found[start:], options.min_side)
    agreed = report("all", expected, found, options.min_side)
    print("agrees" if agreed else "DOES NOT AGREE")
    return 0 if agreed else 1


def report(name: str, expected: list[Detections], found: list[Detections], min_side: float) -> bool:
    """Print one line; return whether it meets the bounds."""
    result = compare(Detections.concatenate(expected), Detections.concatenate(found), min_side)
    iou, points = result.iou, result.point_errors
    print(
        f"{name}: {len(found)} frames, {len(iou)} faces, {len(result.missing)} missing, {len(result.extra)} extra"
        + (f", IoU mean {iou.mean():.6f} min {iou.min():.4f}, points max {points.max():.4f} px" if len(iou) else ""),
        flush=True,
    )
    lost = len(result.missing) + len(result.extra) > 0
    return not lost and (not len(iou) or bool(iou.min() >= 0.97 and iou.mean() >= 0.999 and points.max() <= 1.5))


if __name__ == "__main__":
    sys.exit(main())
