"""Usual scripts that pack images, and the limits of any way of packing them, each as a command.

    python -m benchmarks.picture_loop loop FOLDER OUT WORKERS [--size 256]
    python -m benchmarks.picture_loop decode FOLDER OUT WORKERS
    python -m benchmarks.picture_loop ffcv PIXELS OUT WORKERS

*loop*: a ``ProcessPoolExecutor`` over the files of a folder. With `--size` each is read by OpenCV, its shorter side
brought to that many pixels (area average) and encoded as JPEG of quality 95; without, its bytes are kept unseen. The
parent puts all of them into one LMDB transaction. *decode*: the same processes read each file and decode it once with
simplejpeg, and nothing is written (OUT is not used). *ffcv*: FFCV's writer over an array of crops, stored raw.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import cv2
import lmdb
import numpy as np
import simplejpeg

QUALITY, CHUNK = 95, 16


def resized(size: int, path: str) -> bytes:
    """An image whose shorter side has `size` pixels."""
    cv2.setNumThreads(1)
    image = cv2.imread(path)
    height, width = image.shape[:2]
    scale = size / min(height, width)
    sides = (max(size, round(width * scale)), max(size, round(height * scale)))
    image = cv2.resize(image, sides, interpolation=cv2.INTER_AREA)
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()


def kept(path: str) -> bytes:
    """The bytes of a file."""
    return Path(path).read_bytes()


def decoded(path: str) -> int:
    """The number of an image's pixels, once it is read and decoded."""
    with open(path, "rb") as file:  # noqa: PTH123 -- the quickest way: this is a limit
        return int(simplejpeg.decode_jpeg(file.read(), "RGB").size)


def pack(paths: list[str], out: Path, workers: int, work: Callable[[str], bytes]) -> None:
    """Put what the workers make of the files into one LMDB file, in order."""
    with (
        lmdb.open(str(out), map_size=1 << 40, subdir=False) as environment,
        ProcessPoolExecutor(workers) as pool,
        environment.begin(write=True) as transaction,
    ):
        for number, data in enumerate(pool.map(work, paths, chunksize=CHUNK)):
            transaction.put(b"%08d" % number, data, append=True)


def pack_ffcv(pixels: Path, out: Path, workers: int) -> None:
    """Write crops with FFCV."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    fields = {"image": RGBImageField(write_mode="raw"), "label": IntField()}
    DatasetWriter(str(out), fields, num_workers=workers).from_indexed_dataset(Crops(pixels), chunksize=100)


class Crops:
    """An array of crops as the dataset that FFCV takes."""

    def __init__(self, pixels: Path) -> None:
        self._pixels = np.load(pixels, mmap_mode="r")

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return np.array(self._pixels[row]), row


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("loop", "decode", "ffcv"))
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("workers", type=int)
    parser.add_argument("--size", type=int)
    options = parser.parse_args()
    if options.what == "ffcv":
        pack_ffcv(options.source, options.out, options.workers)
        return
    paths = sorted(map(str, options.source.rglob("*.jpg")))
    if options.what == "decode":
        with ProcessPoolExecutor(options.workers) as pool:
            sum(pool.map(decoded, paths, chunksize=CHUNK))
        return
    work = kept if options.size is None else partial(resized, options.size)
    pack(paths, options.out, options.workers, work)


if __name__ == "__main__":
    main()
