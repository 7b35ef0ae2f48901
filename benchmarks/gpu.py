"""Checks and figures of everything that uses a GPU: the detector, the shared detector, the Loader, half precision.

    python -m benchmarks.gpu [--device cuda] [--frames 256] [--rows 4096] [--workers 1,4,16]

Prints a table for ``docs/background/benchmarks.md``. Without a GPU, it prints why it is skipped and exits with 0; it exits with 1 if
a check fails. Speeds are measured and never judged. It needs torch, numpy, and the small packages that ``make test-gpu``
installs. Faces come from scikit-image's portrait, whose file is read without importing that package.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

SIZE = (1920, 1080)
BATCHES = (1, 4, 16)
BATCH_ROWS, IMAGE, CROP = 64, 224, 192
MATRIX, PRODUCTS = 2048, 4  # side of a matrix, and products for each batch: a stand-in for a training step


class Line(NamedTuple):
    """A line of the table; `good` is None for a figure that is not judged."""

    what: str
    found: str
    good: bool | None = None


def why_not(device: str) -> str:
    """Why nothing can be measured here; empty if it can."""
    if find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        return "torch finds no CUDA device on this machine"
    return ""


def portrait() -> np.ndarray:
    """The astronaut of scikit-image, (512, 512, 3) uint8."""
    spec = find_spec("skimage")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("benchmarks.gpu needs scikit-image's portrait: pip install --no-deps scikit-image")
    return np.asarray(Image.open(Path(spec.submodule_search_locations[0]) / "data" / "astronaut.png").convert("RGB"))


def make_frames(count: int, size: tuple[int, int] = SIZE) -> list[np.ndarray]:
    """Frames with faces of many sizes, each frame another, (H, W, 3) uint8."""
    face, rng = Image.fromarray(portrait()), np.random.default_rng(0)
    frames = []
    for _ in range(count):
        frame = Image.fromarray(rng.integers(0, 80, (size[1] // 8, size[0] // 8, 3), np.uint8)).resize(size)
        for _ in range(4):
            side = int(rng.uniform(0.2, 0.6) * size[1])
            frame.paste(face.resize((side, side)), tuple(int(rng.uniform(0, room - side)) for room in size))
        frames.append(np.array(frame))  # a copy, since torch warns of memory that is read-only
    return frames


def seconds(work: Callable[[], Any], device: str) -> float:
    """Time of a call, with what it left running on the device; after one call that warms up."""
    import torch

    def wait() -> None:
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)

    work()
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


def check_detector(device: str, frames: Sequence[np.ndarray]) -> Iterator[Line]:
    """Compare the detector on the device with float32 on the CPU, and a batch with single frames; measure both."""
    from benchmarks.agreement import compare
    from packer import Detections, Detector
    from packer.vision.detect.networks import build_networks, load_weights
    from packer.vision.detect.torch_runtime import TorchRuntime

    reference, detector = Detector("torch"), Detector("torch", device=device)
    # The default on a GPU; on the CPU, so that tests run the same code.
    detector._runtime = TorchRuntime(build_networks(load_weights().nets), device=device, sample_on_device=True)
    expected, found = reference.detect(frames), detector.detect(frames)
    agreement = compare(expected, found, min_side=20)
    lost = len(agreement.missing) + len(agreement.extra)
    good = lost == 0 and len(agreement.iou) > 0 and agreement.iou.min() > 0.99 and agreement.point_errors.max() < 0.5
    yield Line(
        f"detector, {len(agreement.iou)} faces, against float32 on the CPU",
        f"{lost} missing or extra, IoU {agreement.iou.min(initial=1):.4f} at least, "
        f"points within {agreement.point_errors.max(initial=0):.4f} px",
        bool(good),
    )
    alone = Detections.concatenate([detector.detect([frame]) for frame in frames])
    same = all(np.array_equal(getattr(alone, name), getattr(found, name)) for name in ("boxes", "scores", "points"))
    yield Line("detector, a batch against single frames", "the same bytes" if same else "other bytes", same)
    for name, one, where in (("the CPU", reference, "cpu"), (device, detector, device)):
        for batch in BATCHES:
            some = [frames[i % len(frames)] for i in range(batch)]
            taken = seconds(lambda one=one, some=some: one.detect(some), where)
            yield Line(f"detector on {name}, frames a call: {batch}", f"{batch / taken:.1f} frames/s")


def check_shared(device: str, frames: Sequence[np.ndarray], workers: Sequence[int], folder: Path) -> Iterator[Line]:
    """Run ``packer detect`` with one detector for several workers: the same shards, at which rate."""
    import packer

    for number, frame in enumerate(frames):
        (folder / "frames").mkdir(exist_ok=True)
        Image.fromarray(frame).save(folder / "frames" / f"{number:05d}.jpg", quality=95)
    digests = set()
    for count in workers:
        out = folder / f"detected-{count}"
        start = time.perf_counter()
        result = packer.detect(
            folder / "frames", out, device=device, detector="torch", shared_detector=True, workers=count, progress=False
        )
        taken = time.perf_counter() - start
        digests.add(tuple(file.sha256 for shard in result.manifest.shards for file in shard.files))
        good = len(digests) == 1 and result.manifest.samples >= len(frames)
        yield Line(
            f"shared detector, workers: {count}, start included",
            f"{len(frames) / taken:.1f} frames/s, {'the same' if len(digests) == 1 else 'other'} shards",
            good,
        )


def write_images(folder: Path, rows: int) -> Path:
    """A dataset of small images."""
    import packer

    face, rng = Image.fromarray(portrait()), np.random.default_rng(1)
    with packer.Writer(folder / "images", progress=False) as writer:
        for number in range(rows):
            left, top = rng.integers(0, 512 - IMAGE, 2).tolist()
            picture = np.asarray(face.crop((left, top, left + IMAGE, top + IMAGE)))
            writer.write(image=picture, label=number % 2)
    return folder / "images"


def check_loader(device: str, dataset: Path) -> Iterator[Line]:
    """Compare the batches that a Loader makes on the device with those that it makes on the CPU; measure the overlap."""
    import torch

    from readers import Loader, open_dataset
    from readers.augment import BatchCompose, BatchCrop, BatchFlip, BatchNormalize

    packed = open_dataset(dataset)

    def batches(where: str, dtype: torch.dtype = torch.float32) -> Iterator[Any]:
        chain = BatchCompose([BatchCrop(CROP), BatchFlip(), BatchNormalize(dtype=dtype)])
        yield from Loader(packed, BATCH_ROWS, seed=0, device=where, batch_transform=chain)

    def farthest(dtype: torch.dtype) -> tuple[float, bool]:
        worst, order = 0.0, True
        for ours, theirs in zip(batches(device, dtype), batches("cpu"), strict=True):
            order &= ours["key"] == theirs["key"] and ours["image"].dtype == dtype
            order &= ours["image"].device.type == torch.device(device).type
            worst = max(worst, float((ours["image"].cpu().float() - theirs["image"]).abs().max()))
        return worst, order

    for dtype, bound in ((torch.float32, 1e-4), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        worst, order = farthest(dtype)
        yield Line(
            f"Loader on {device}, {str(dtype).removeprefix('torch.')} batches against float32 on the CPU",
            f"the same samples, values within {worst:.1e}" if order else "other samples",
            order and worst <= bound,
        )
    pinned = torch.device(device).type == "cuda"
    ready = all(batch["image"].is_pinned() for batch in Loader(packed, BATCH_ROWS, pin_memory=pinned or None))
    yield Line(
        "Loader, batches to be copied", "in pinned memory" if ready else "in ordinary memory", ready if pinned else None
    )
    yield from _check_overlap(device, batches)
    yield from _check_half(device)


def _check_overlap(device: str, batches: Callable[[str], Iterator[Any]]) -> Iterator[Line]:
    """How much of the shorter one of loading and computing is hidden behind the other."""
    import torch

    matrix = torch.randn(MATRIX, MATRIX, device=device)
    count = sum(1 for _ in batches(device))

    def compute() -> None:
        for _ in range(PRODUCTS):
            matrix @ matrix

    def load(step: Callable[[], None]) -> None:
        for _ in batches(device):
            step()

    loading = seconds(lambda: load(lambda: None), device)
    computing = seconds(lambda: [compute() for _ in range(count)], device)
    both = seconds(lambda: load(compute), device)
    hidden = min(max((loading + computing - both) / min(loading, computing), 0), 1)
    yield Line(
        f"Loader on {device}, {count} batches of {BATCH_ROWS}",
        f"{count * BATCH_ROWS / loading:,.0f} samples/s; loading {loading:.2f} s, computing {computing:.2f} s, "
        f"both {both:.2f} s: {hidden:.0%} of the shorter one overlaps",
    )


def _check_half(device: str) -> Iterator[Line]:
    """Compare a network's output under autocast with float32."""
    import torch

    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 7, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    ).to(device)
    images = torch.randn(BATCH_ROWS, 3, CROP, CROP, device=device)
    kind = torch.device(device).type
    with torch.inference_mode():
        exact = network(images)
        whole = seconds(lambda: network(images), device)
        with torch.autocast(kind, torch.bfloat16):
            half = network(images).float()
            short = seconds(lambda: network(images), device)
    worst = float((half - exact).abs().max() / exact.abs().max())
    yield Line(
        f"network on {device}, bfloat16 against float32",
        f"outputs within {worst:.1e} of the largest, {whole / short:.1f} times as fast",
        worst < 2e-2,
    )


def run(device: str, frames: int, rows: int, workers: Sequence[int], size: tuple[int, int] = SIZE) -> list[Line]:
    """Run all checks on a device.

    Parameters
    ----------
    device : str
        What torch takes. On ``"cpu"`` the same code runs, which tests use.
    frames, rows : int
        Frames for the detectors, samples for the Loader.
    workers : sequence of int
        Numbers of workers that share a detector.
    size : tuple of int
        Width and height of the frames.
    """
    images = make_frames(min(frames, 16), size)
    lines = list(check_detector(device, images))
    with tempfile.TemporaryDirectory() as folder:
        many = [images[i % len(images)] for i in range(frames)]
        lines += check_shared(device, many, workers, Path(folder))
        lines += check_loader(device, write_images(Path(folder), rows))
    return lines


def table(lines: Sequence[Line]) -> str:
    """The lines as a table of Markdown."""
    marks = {True: "yes", False: "**NO**", None: ""}
    rows = [f"| {line.what} | {line.found} | {marks[line.good]} |" for line in lines]
    return "\n".join(["| | found | as expected |", "|---|---|---|", *rows])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--frames", type=int, default=256, help="frames for the shared detector")
    parser.add_argument("--rows", type=int, default=4096, help="samples for the Loader")
    parser.add_argument("--workers", default="1,4,16", help="numbers of workers that share a detector")
    options = parser.parse_args(arguments)
    reason = why_not(options.device)
    if reason:
        print(f"skipped: {reason}")
        return 0
    import torch

    name = torch.cuda.get_device_name(options.device) if options.device.startswith("cuda") else options.device
    lines = run(options.device, options.frames, options.rows, [int(count) for count in options.workers.split(",")])
    print(f"On {name}, torch {torch.__version__}, numpy {np.__version__}:\n\n{table(lines)}")
    return 1 if any(line.good is False for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
