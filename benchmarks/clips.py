"""Clips of packed frames beside clips of the same videos as MP4, decoded by torchcodec.

    python -m benchmarks.clips --folder /somewhere --size 112 --json out.json

Made videos of 112 × 112 pixels (moving windows of scikit-image's photographs with seeded noise) are stored losslessly,
packed to LMDB as frames (JPEG of quality 95, PNG, raw arrays) and as videos (``--sample item``: H.264 of QP 21 and 27,
FFV1), and encoded by x264 (CRF 23) as MP4 with a key frame every 4 and 12 frames and as by its default. An epoch has
every clip of ``ds.clips(16, stride=16, start="random")`` once, in batches of 16, and every single frame once for
*single frames*, in batches of 256. All use two threads.

*torchcodec* is `VideoDecoder` in a pool of two threads, each of which makes whole batches. *Kept*: each thread keeps a
decoder of every video, with approximate seek. *New*: a decoder with the default settings is made for each clip. The
numbers of video and frame are blocks in the top row of each frame, by which the epoch of the warm-up checks all frames.
All run in turn, round after round, as in ``benchmarks/README.md``; ratios are those of the same round.
"""

import argparse
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import skimage.data
import torch

import packer
from benchmarks.measure import Entry, artefact, disk_mb, document, measure_group, versions, write
from benchmarks.tables import clips_table
from readers import Loader, open_dataset

SIZE, FRAMES, LENGTH, BATCH = 112, 256, 16, 16
NOISE = 2.0
"""Standard deviation of the noise, levels."""
_BITS, _BLOCK = 13, 8
PACKED: dict[str, dict[str, Any]] = {
    "jpeg": {"encode": "jpeg", "quality": 95},
    "png": {"encode": "png"},
    "raw": {"encode": "raw"},
    "h264, QP 21": {"sample": "item", "encode": "h264", "quality": 21},
    "h264, QP 27": {"sample": "item", "encode": "h264", "quality": 27},
    "ffv1": {"sample": "item", "encode": "ffv1"},
}
"""Options of the packed datasets."""
GOPS = {"a key frame every 4": 4, "a key frame every 12": 12, "x264's default": None}
THREADS = 2
LIBRARIES = ("torchcodec", "av", "lmdb", "simplejpeg", "torch", "numpy")


def make_frames(video: int, frames: int, size: int = SIZE) -> Iterator[np.ndarray]:
    """Yield the frames of a video: a window that moves over a photograph, noise, and the number of the frame."""
    photograph = (skimage.data.astronaut(), skimage.data.coffee(), skimage.data.chelsea())[video % 3]
    rng = np.random.default_rng((3, video))
    side = int(rng.integers(120, 220))
    room = np.array(photograph.shape[:2]) - side
    noise = rng.normal(0, NOISE, (size + 32, size + 32, 3))
    speed, phase = rng.uniform(0.02, 0.06, 2), rng.uniform(0, 2 * np.pi, 2)
    for frame in range(frames):
        y, x = room / 2 * (1 + np.sin(speed * frame + phase))
        window = cv2.getRectSubPix(photograph, (side, side), (x + side / 2, y + side / 2))
        image = cv2.resize(window, (size, size), interpolation=cv2.INTER_AREA)
        top, left = rng.integers(0, 32, 2)
        image = np.clip(image + noise[top : top + size, left : left + size], 0, 255).astype(np.uint8)
        bits = (video * FRAMES + frame) >> np.arange(_BITS) & 1
        image[:_BLOCK, : _BITS * _BLOCK] = np.repeat(bits * 255, _BLOCK)[None, :, None]
        yield image


def numbers_of(images: np.ndarray) -> np.ndarray:
    """The numbers of frames, (..., H, W, 3), from the blocks in their top row."""
    centres = images[..., _BLOCK // 2, _BLOCK // 2 : _BITS * _BLOCK : _BLOCK, :]
    return ((centres.mean(axis=-1) > 127) << np.arange(_BITS)).sum(axis=-1)


def encode(path: Path, frames: Iterable[np.ndarray], gop: int | None, crf: int) -> None:
    """Write an MP4 file of H.264."""
    frames = iter(frames)
    first = next(frames)
    options = {"crf": str(crf)} | ({} if gop is None else {"g": str(gop)})
    with av.open(path, "w") as file:
        stream = file.add_stream("libx264", 25, options=options)
        stream.height, stream.width = first.shape[:2]
        stream.pix_fmt = "yuv420p"
        for image in chain([first], frames):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        file.mux(stream.encode(None))


def make_all(folder: Path, videos: int, size: int = SIZE) -> dict[str, Path]:
    """The data of each way, made unless they exist."""
    folder = folder / f"clips-{size}"
    source = folder / "source"
    roots = {name: folder / f"mp4-{gop or 'default'}" for name, gop in GOPS.items()}
    for root, gop, crf in ((source, None, 0), *((roots[name], gop, 23) for name, gop in GOPS.items())):
        if not root.exists():
            root.mkdir(parents=True)
            for video in range(videos):
                encode(root / f"{video:03d}.mp4", make_frames(video, FRAMES, size), gop, crf)
    for way, options in PACKED.items():
        roots[way] = folder / way.replace(", QP ", "-")
        if not roots[way].exists():
            packer.build(source, roots[way], preset="images", format="lmdb", label_from="none", **options)
    return roots


class FramesArm:
    """An arm whose samples are frames; the epoch of number 0 is checked.

    Parameters
    ----------
    epoch : callable
        Gives the batches of an epoch as tensors of frames.
    clips : bool
        Whether a batch has an axis of clips and one of frames.
    size : int
        Side of a frame.
    """

    def __init__(self, epoch: Callable[[int], Iterable[torch.Tensor]], clips: bool, size: int = SIZE) -> None:
        self._epoch = epoch
        self._clips = clips
        self._size = size

    def run(self, epoch: int) -> int:
        """Consume an epoch; the number of frames."""
        count = 0
        for images in self._epoch(epoch):
            frames = images.flatten(0, 1) if self._clips else images
            count += len(frames)
            if epoch == 0:
                self._check(frames.numpy())
            del images, frames
        return count

    def batches(self, epoch: int) -> list[dict[str, Any]]:
        """Runs an epoch and gives nothing: it checks itself."""
        self.run(epoch)
        return []

    def _check(self, frames: np.ndarray) -> None:
        if frames.shape[1] == 3:
            frames = frames.transpose(0, 2, 3, 1)
        side = self._size
        if frames.shape[1:] != (side, side, 3) or frames.dtype != np.uint8:
            raise ValueError(f"expected frames of {side} × {side} in uint8, found {frames.shape}, {frames.dtype}")
        if self._clips:
            steps = np.diff(numbers_of(frames).reshape(-1, LENGTH), axis=1)
            if not (steps == 1).all():
                raise ValueError("a clip whose frames do not follow each other")


def packed(root: str, clips: bool, size: int = SIZE) -> FramesArm:
    """Our Loader over packed frames, one by one or as clips, or over packed videos as clips."""
    torch.set_num_threads(1)
    frames = open_dataset(root)
    frames = open_dataset(root, ["video" if "video" in frames.schema else "image"])
    dataset = frames.clips(LENGTH, stride=LENGTH, start="random", by=None) if clips else frames
    loader = Loader(dataset, BATCH if clips else BATCH * LENGTH, workers=THREADS, shuffle="full", drop_last=True)

    def epoch(number: int) -> Iterator[torch.Tensor]:
        loader.set_epoch(number)
        for batch in loader:
            yield batch["image"]

    return FramesArm(epoch, clips, size)


def torchcodec(root: str, keep: bool, size: int = SIZE) -> FramesArm:
    """Clips of MP4 files in a pool of two threads."""
    from torchcodec.decoders import VideoDecoder

    torch.set_num_threads(1)
    paths = sorted(Path(root).glob("*.mp4"))
    kept = threading.local()

    def decoder(video: int) -> Any:
        if not keep:
            return VideoDecoder(paths[video])
        decoders = kept.__dict__
        if video not in decoders:
            decoders[video] = VideoDecoder(paths[video], seek_mode="approximate")
        return decoders[video]

    def batch(clips: np.ndarray) -> torch.Tensor:
        out = torch.empty((len(clips), LENGTH, 3, size, size), dtype=torch.uint8)
        for place, (video, start) in enumerate(clips.tolist()):
            out[place] = decoder(video).get_frames_in_range(start, start + LENGTH).data
        return out

    pool = ThreadPoolExecutor(THREADS)

    def epoch(number: int) -> Iterator[torch.Tensor]:
        rng = np.random.default_rng(number)
        videos, starts = np.mgrid[: len(paths), :FRAMES:LENGTH].reshape(2, -1)
        starts = np.minimum(starts + rng.integers(0, LENGTH, len(starts)), FRAMES - LENGTH)
        clips = rng.permutation(np.stack([videos, starts], axis=1))
        tasks = (clips[first : first + BATCH] for first in range(0, len(clips) // BATCH * BATCH, BATCH))
        waiting: deque[Future[torch.Tensor]] = deque(pool.submit(batch, task) for task in islice(tasks, 2 * THREADS))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(batch, task) for task in islice(tasks, 1))

    return FramesArm(epoch, True, size)


def entries_of(roots: dict[str, Path], size: int = SIZE) -> list[Entry]:
    """The rows."""
    entries = []
    for way, how in PACKED.items():
        for name, clips in (("clips", True), ("single frames", False)):
            if not clips and "sample" in how:
                continue
            options = {"root": str(roots[way]), "clips": clips, "size": size}
            facts = {"disk_mb": disk_mb(roots[way])}
            entries.append(
                Entry(f"{way}, {name}", "benchmarks.clips:packed", options, ours=True, checked=False, facts=facts)
            )
    for name in GOPS:
        ways = {"kept": True, "new": False} if GOPS[name] == 12 else {"kept": True}
        for way, keep in ways.items():
            options = {"root": str(roots[name]), "keep": keep, "size": size}
            facts = {"disk_mb": disk_mb(roots[name])}
            title = f"torchcodec, {name}, {way}"
            entries.append(Entry(title, "benchmarks.clips:torchcodec", options, checked=False, facts=facts))
    return entries


def main() -> None:
    """Make the videos, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=lambda path: Path(path).absolute(), required=True)
    parser.add_argument("--videos", type=int, default=32)
    parser.add_argument("--size", type=int, default=SIZE, help="side of a frame in pixels")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="where to write the figures: a file, or a folder for a new one in it")
    arguments = parser.parse_args()
    entries = entries_of(make_all(arguments.folder, arguments.videos, arguments.size), arguments.size)
    group = measure_group("clips", entries, arguments.rounds)
    print(clips_table(group))
    settings = {
        "videos": arguments.videos,
        "frames": FRAMES,
        "size": arguments.size,
        "rounds": arguments.rounds,
        "peers": versions(LIBRARIES),
    }
    write(document("clips", settings, [group]), artefact(arguments.json, "clips"))


if __name__ == "__main__":
    main()
