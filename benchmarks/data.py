"""The samples that every reading benchmark uses, and our packed datasets of them.

Kinds: ``raw``, crops of 224 × 224 pixels; ``jpeg``, the same as JPEG of quality 90; ``photo`` and ``photo500``, JPEG
photos of quality 90 whose shorter side is 256 and 500 pixels. They are windows of scikit-image's photographs at seeded
places, with seeded noise. A sample's label is its number, so that a check knows which sample it sees; its points are
drawn from it.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg
import skimage.data

import packer
from packer.vision.decode.jpeg_header import restart_interval
from shardspec.codecs.image import JPEGCodec
from shardspec.schema import Field

PHOTOS = ("photo", "photo500")
KINDS = ("raw", "jpeg", *PHOTOS)
SIZE, QUALITY = 224, 90
SHARD_BYTES = 256 << 20
_NOISE = 5.0
"""Standard deviation of the noise, levels: about a camera's."""
_SIDES = {"photo": (256, 341), "photo500": (500, 667)}


class SourceImages:
    """The samples of a kind, as they are stored in a folder: ``pixels.npy``, or ``bytes.bin`` and ``offsets.npy``.

    Parameters
    ----------
    folder : Path
        What `make_source` has filled.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.kind = kind
        self.landmarks: npt.NDArray[np.float32] = np.load(folder / "landmarks.npy")
        self.images: npt.NDArray[np.uint8] | None = None
        if kind in ("raw", "jpeg"):
            self.images = np.load(folder / "pixels.npy", mmap_mode="r")
        if kind != "raw":
            self.landmarks = self.landmarks[: len(np.load(folder / f"{kind}.offsets.npy")) - 1]
            self._bytes = np.memmap(folder / f"{kind}.bin", np.uint8, "r")
            self._offsets = np.load(folder / f"{kind}.offsets.npy")

    def __len__(self) -> int:
        return len(self.landmarks)

    def encoded(self, row: int) -> bytes:
        """The JPEG of a sample."""
        return self._bytes[self._offsets[row] : self._offsets[row + 1]].tobytes()

    def pixels(self, row: int) -> npt.NDArray[np.uint8]:
        """The pixels that were encoded; for a photo, those that its JPEG decodes to."""
        if self.images is not None:
            return np.asarray(self.images[row])
        image: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(self.encoded(row))
        return image


def make_source(folder: Path, kinds: tuple[str, ...], rows: dict[str, int]) -> None:
    """Make the samples of some kinds, except those that exist already."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "landmarks.npy").exists():
        most = max(rows.values())
        points = np.random.default_rng(1).random((most, 5, 2), np.float32) * SIZE
        np.save(folder / "landmarks.npy", points)
    if {"raw", "jpeg"} & set(kinds) and not (folder / "pixels.npy").exists():
        shape = (rows["raw"], SIZE, SIZE, 3)
        pixels = np.lib.format.open_memmap(folder / "pixels.npy", "w+", np.uint8, shape)
        for row in range(rows["raw"]):
            pixels[row] = _image(row, SIZE, SIZE)
        pixels.flush()
    for kind in kinds:
        if kind != "raw" and not (folder / f"{kind}.offsets.npy").exists():
            _encode(folder, kind, rows["raw" if kind == "jpeg" else kind])


def _encode(folder: Path, kind: str, rows: int) -> None:
    images = np.load(folder / "pixels.npy", mmap_mode="r") if kind == "jpeg" else None
    lengths = [0]
    with (folder / f"{kind}.bin").open("wb") as file:
        for row in range(rows):
            picture = np.ascontiguousarray(images[row]) if images is not None else _photo(kind, row)
            lengths.append(file.write(simplejpeg.encode_jpeg(picture, QUALITY, colorsubsampling="420")))
    np.save(folder / f"{kind}.offsets.npy", np.cumsum(lengths))


def _photo(kind: str, row: int) -> npt.NDArray[np.uint8]:
    """A third of them upright."""
    sides = _SIDES[kind]
    return _image(row, *(sides if row % 3 else sides[::-1]))


_photographs: list[npt.NDArray[np.uint8]] = []
_noise: list[npt.NDArray[np.int16]] = []


def _image(row: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    """A seeded window of a photograph, resized to a size, with noise."""
    if not _photographs:
        _photographs.extend([skimage.data.astronaut(), skimage.data.coffee(), skimage.data.chelsea()])
        _noise.append(np.random.default_rng(0).normal(0, _NOISE, (1024, 1024, 3)).astype(np.int16))
    rng = np.random.default_rng((2, row))
    photograph = _photographs[row % len(_photographs)]
    fits = min(photograph.shape[0] / height, photograph.shape[1] / width)
    scale = min(fits, 1.0) if height == width == SIZE else fits * rng.uniform(0.7, 1.0)
    h, w = int(height * scale), int(width * scale)
    y, x = rng.integers(0, photograph.shape[0] - h + 1), rng.integers(0, photograph.shape[1] - w + 1)
    window = photograph[y : y + h, x : x + w]
    if window.shape[:2] != (height, width):
        window = cv2.resize(window, (width, height), interpolation=cv2.INTER_CUBIC)
    y, x = rng.integers(0, 1024 - height + 1), rng.integers(0, 1024 - width + 1)
    return np.clip(window + _noise[0][y : y + height, x : x + width], 0, 255).astype(np.uint8)


def fields_of(kind: str) -> dict[str, Any]:
    """The fields of our samples of a kind."""
    image = packer.Image("raw") if kind == "raw" else packer.Image("jpeg", quality=QUALITY)
    return {"image": image, "landmarks": packer.Array("f4", (5, 2)), "label": int}


def pack_ours(
    source: SourceImages, root: Path, format: str, restart_markers: bool = False, shard_bytes: int = SHARD_BYTES
) -> dict[str, float]:
    """Write a packed dataset of the source with `packer.Writer`, unless it exists; its seconds and MB.

    Both figures are stored beside the dataset.

    With `restart_markers` photos are encoded from the pixels that the source's JPEGs were, as ``packer build
    --restart-markers`` would.
    """
    facts = root.with_name(root.name + ".facts.json")
    if facts.exists():
        found: dict[str, float] = json.loads(facts.read_text())
        return found
    start = time.perf_counter()
    encode = partial(_with_markers, source.kind) if restart_markers else source.encoded
    take = source.pixels if source.kind == "raw" else encode
    fields = fields_of(source.kind)
    with packer.Writer(root, format=format, fields=fields, shard_size=shard_bytes, progress=False) as out:
        for row in range(len(source)):
            out.write(image=take(row), landmarks=source.landmarks[row], label=row)
    assert out.result is not None
    mb = sum(shard.bytes for shard in out.result.manifest.shards) / 1e6
    found = {"pack_s": time.perf_counter() - start, "disk_mb": mb}
    facts.write_text(json.dumps(found))
    return found


def _with_markers(kind: str, row: int) -> bytes:
    picture = _photo(kind, row)
    interval = restart_interval(*picture.shape[:2], "420")
    codec = JPEGCodec(Field("image", "bytes", "|u1", (None, None, 3), packer.Image("jpeg", quality=QUALITY).codec))
    return bytes(codec.encode(picture, restart_marker_blocks=interval))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that the benchmarks of reading share."""
    parser.add_argument(
        "--folder",
        type=lambda path: Path(path).absolute(),
        required=True,
        help="where samples and packed data are made and kept",
    )
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rows", type=int, default=10_000, help="samples of the kinds raw and jpeg")
    parser.add_argument("--photos", type=int, default=4_000, help="samples of the kinds photo and photo500")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--settle", type=int, default=0, help="epochs that are not measured before each one that is")
    parser.add_argument("--json", type=Path, help="where to write the figures: a file, or a folder for a new one in it")
    parser.add_argument("--only", nargs="*", help="names of rows, or beginnings of them; limits are always measured")


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments that decide the figures."""
    kept = {name: getattr(arguments, name) for name in ("batch", "rounds", "settle")}
    return {"rows": rows_of(arguments), **kept}


def rows_of(arguments: argparse.Namespace) -> dict[str, int]:
    """Samples of each kind."""
    return {kind: arguments.rows if kind in ("raw", "jpeg") else arguments.photos for kind in KINDS}
