"""Limits of the machine, measured next to the loaders: rows gathered from a mapped file, JPEGs decoded from memory.

There are two threads, each with batches of its own, which is faster than threads that share one.

- *gather, reused buffers*: random rows of one mapped ``.npy`` file by ``np.take`` into a buffer per thread that is
written
  again and again. The upper limit of a loader that uses its buffers again.
- *gather, fresh memory*: the same into a new array for every batch. The limit of a loader whose batches are kept.
- *decode*: libjpeg-turbo, as simplejpeg bundles it, over random JPEGs held in memory, into a buffer per thread; with
its
  defaults, and with the fast inverse transform and fast upsampling.
- *decode, smallest sufficient scale*: the photos of a random crop of 224 pixels, decoded at the smallest eighth that
the
  crop needs, without cutting or resizing. *And resized*: the crop is also cut out and resized to 224 pixels by OpenCV.
- *whole decode*: the photos at full size.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg

from benchmarks.data import SIZE, SourceImages
from benchmarks.measure import Entry
from readers.decode.crops import RandomResizedCrop, whole_pixels

Job = Callable[[int, Any], None]
"""Fills the batch of a thread with the given rows."""


class LimitArm:
    """Threads, each of which does whole batches.

    Parameters
    ----------
    rows, batch, threads : int
    job : callable
        Called with the number of its thread and the rows of a batch.
    """

    def __init__(self, rows: int, batch: int, threads: int, job: Job) -> None:
        self._rows, self._batch, self._threads = rows, batch, threads
        self._job = job

    def run(self, epoch: int) -> int:
        """All whole batches of a random order."""
        count = self._rows // self._batch
        order = np.random.default_rng(epoch).permutation(self._rows)[: count * self._batch].reshape(count, self._batch)
        threads = [
            threading.Thread(target=self._work, args=(t, order[t :: self._threads])) for t in range(self._threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return count * self._batch

    def batches(self, epoch: int) -> list[dict[str, Any]]:
        """Runs an epoch and gives nothing: there is nothing to check."""
        self.run(epoch)
        return []

    def _work(self, thread: int, batches: Any) -> None:
        for rows in batches:
            self._job(thread, rows)


def gather(source: str, kind: str, batch: int, threads: int = 2, fresh: bool = False) -> LimitArm:
    """Random rows of the mapped file."""
    images = SourceImages(Path(source), kind).images
    assert images is not None
    pixels = np.asarray(images)
    if not fresh:
        buffers = np.zeros((threads, batch, SIZE, SIZE, 3), np.uint8)
        return LimitArm(len(pixels), batch, threads, lambda t, rows: _take(pixels, rows, buffers[t]))

    def into_fresh(thread: int, rows: Any) -> None:
        _take(pixels, rows, np.empty((batch, SIZE, SIZE, 3), np.uint8))

    return LimitArm(len(pixels), batch, threads, into_fresh)


def _take(pixels: Any, rows: Any, out: Any) -> None:
    np.take(pixels, rows, axis=0, out=out, mode="clip")


def decode(source: str, kind: str, batch: int, threads: int = 2, fast: bool = False) -> LimitArm:
    """Random JPEGs, whole; photos into new arrays, as their sizes vary."""
    samples = SourceImages(Path(source), kind)
    data = [samples.encoded(row) for row in range(len(samples))]
    buffers = np.zeros((threads, SIZE, SIZE, 3), np.uint8)

    def job(thread: int, rows: Any) -> None:
        out = buffers[thread] if kind == "jpeg" else None
        for row in rows.tolist():
            simplejpeg.decode_jpeg(data[row], "RGB", fastdct=fast, fastupsample=fast, buffer=out)

    return LimitArm(len(data), batch, threads, job)


def decode_crop(
    source: str, kind: str, batch: int, threads: int = 2, fast: bool = False, resize: bool = False
) -> LimitArm:
    """Random JPEG photos, at the smallest scale that a random crop needs."""
    samples = SourceImages(Path(source), kind)
    data = [samples.encoded(row) for row in range(len(samples))]
    buffers = np.zeros((threads, SIZE, SIZE, 3), np.uint8)
    generators = [np.random.default_rng(thread) for thread in range(threads)]
    plan = RandomResizedCrop(SIZE)

    def job(thread: int, rows: Any) -> None:
        for row in rows.tolist():
            height, width, _, _ = simplejpeg.decode_jpeg_header(data[row])
            box = plan.box(height, width, generators[thread])
            eighths = plan.eighths(box)
            h, w = -(-height * eighths // 8), -(-width * eighths // 8)
            image = simplejpeg.decode_jpeg(data[row], "RGB", fastdct=fast, fastupsample=fast, min_height=h, min_width=w)
            if resize:
                left, top, right, bottom = whole_pixels(box, height, width, eighths)
                part = image[top:bottom, left:right]
                shrinks = part.shape[0] > SIZE or part.shape[1] > SIZE
                how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
                cv2.resize(part, (SIZE, SIZE), dst=buffers[thread], interpolation=how)

    cv2.setNumThreads(0)
    return LimitArm(len(data), batch, threads, job)


def limits_of(kind: str, source: Path, batch: int) -> list[Entry]:
    """The limits of a kind; the first is what its loaders are compared with."""
    options = {"source": str(source), "kind": kind, "batch": batch}

    def entry(name: str, function: str, **more: Any) -> Entry:
        return Entry(name, f"benchmarks.limits:{function}", options | more, is_limit=True, checked=False)

    if kind == "raw":
        return [entry("gather, reused buffers", "gather"), entry("gather, fresh memory", "gather", fresh=True)]
    if kind == "jpeg":
        return [entry("decode", "decode"), entry("decode, fast", "decode", fast=True)]
    return [
        entry("decode, smallest sufficient scale", "decode_crop"),
        entry("the same, and resized", "decode_crop", resize=True),
        entry("whole decode", "decode"),
    ]
