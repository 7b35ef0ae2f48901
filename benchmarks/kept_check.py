"""What the check of a JPEG that is kept costs, and whether its verdict is that of the whole decoder.

    python -m benchmarks.kept_check [--photos 200] [--rounds 15] [--damaged 100000] [--json FILE]

**Cost**: photos of about 500 x 400 pixels (`benchmarks.pack_pictures.make_photos`), each checked (`check_kept`) and
decoded to pixels (`decode_strict`) in turn, in one thread; medians over the rounds of CPU milliseconds a photo.

**Verdicts**: small JPEGs (4:4:4, 4:2:2, 4:2:0, 4:1:1, 4:4:0, grey; baseline, progressive, with restart markers; coded
as RGB or CMYK, to be turned) are damaged at random places: bits and bytes changed, bytes removed or inserted, the file
cut off, the header changed. Each must be kept by the check just where `decode_picture` would keep its bytes.
"""

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import skimage.data
from PIL import Image

from benchmarks.measure import machine, versions
from benchmarks.pack_pictures import make_photos
from benchmarks.tables import kept_check_text
from packer.vision.decode.jpeg import decode_strict
from packer.vision.decode.limits import PictureError
from packer.vision.decode.picture import check_kept, decode_picture

LIBRARIES = ("numpy", "opencv-python-headless", "simplejpeg", "pillow")
MAX_PIXELS = 4_000_000


def encode(image: npt.NDArray[np.uint8], **options: Any) -> bytes:
    """A picture as a JPEG, with Pillow's options."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def make_pictures() -> Iterator[bytes]:
    """Small JPEGs of many kinds; three of them are not kept: coded as RGB, to be turned, CMYK."""
    photo = skimage.data.astronaut()[::3, ::4].copy()
    yield from (encode(photo[:side, : side + 3], quality=70) for side in (1, 7, 8, 64))
    for options in ({}, {"progressive": True}, {"restart_marker_blocks": 3}, {"optimize": True}):
        yield encode(photo[..., 0].copy(), **options)
        yield from (encode(photo, subsampling=subsampling, **options) for subsampling in (0, 1, 2))
    for factor in (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440):
        yield cv2.imencode(".jpg", photo, [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor])[1].tobytes()
    yield encode(photo, keep_rgb=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    yield encode(photo, exif=exif)
    buffer = io.BytesIO()
    Image.fromarray(photo).convert("CMYK").save(buffer, "JPEG")
    yield buffer.getvalue()


def damage(content: bytes, rng: np.random.Generator) -> bytes:
    """A file damaged at a random place."""
    damaged, at = bytearray(content), int(rng.integers(2, len(content)))
    match rng.integers(6):
        case 0:
            damaged[at] ^= 1 << int(rng.integers(8))
        case 1:
            del damaged[at:]
        case 2:
            del damaged[at : at + int(rng.integers(1, 50))]
        case 3:
            damaged[at:at] = rng.integers(0, 256, 9, np.uint8).tobytes()
        case 4:
            damaged[at : at + 3] = rng.integers(0, 256, 3, np.uint8).tobytes()
        case _:  # in the header
            damaged[int(rng.integers(2, min(len(content), 700)))] = int(rng.integers(256))
    return bytes(damaged)


def decoded_sides(content: bytes) -> tuple[int, ...] | None:
    """Height and width if the whole decoder would keep the bytes, else None."""
    try:
        picture = decode_picture(content, max_pixels=MAX_PIXELS)
    except PictureError:
        return None
    return None if picture.kept is None else picture.image.shape[:2]


def checked_sides(content: bytes) -> tuple[int, ...] | None:
    """Height and width if the check keeps the bytes, else None."""
    checked = check_kept(content, max_pixels=MAX_PIXELS)
    return None if checked is None else (checked[0].height, checked[0].width)


def compare(count: int, seed: int) -> dict[str, int]:
    """How many damaged files the whole decoder keeps, and of how many the check says something else."""
    pictures, rng = list(make_pictures()), np.random.default_rng(seed)
    kept = different = 0
    for number in range(count):
        content = damage(pictures[number % len(pictures)], rng)
        expected = decoded_sides(content)
        kept += expected is not None
        different += checked_sides(content) != expected
    return {"files": count, "kept": kept, "different": different}


def measure(photos: list[bytes], rounds: int) -> dict[str, float]:
    """CPU milliseconds a photo."""
    times: dict[str, list[float]] = {"check": [], "pixels": []}
    for _ in range(rounds):
        for name, run in (("check", check_kept), ("pixels", decode_strict)):
            start = time.process_time()
            for content in photos:
                run(content)
            times[name].append(1e3 * (time.process_time() - start) / len(photos))
    return {f"{name}_ms": statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--damaged", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write everything that was measured here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "photos"
        make_photos(folder, options.photos)
        photos = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]
    found = {
        "benchmark": "kept_check",
        "machine": machine(),
        "versions": versions(LIBRARIES),
        "settings": {name: getattr(options, name) for name in ("photos", "rounds", "damaged", "seed")},
        "cost": {"kb_per_photo": sum(map(len, photos)) / len(photos) / 1e3, **measure(photos, options.rounds)},
        "verdicts": compare(options.damaged, options.seed),
    }
    print(kept_check_text(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
