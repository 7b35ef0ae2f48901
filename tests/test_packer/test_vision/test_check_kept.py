"""An image whose bytes are kept is checked without its pixels, and by the same verdicts as if they were made."""

import io
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import skimage.data
from PIL import Image

from packer.vision.decode.image import check_kept, decode_image
from packer.vision.decode.limits import ImageError

MAX_PIXELS = 4_000_000


def encode(image: npt.NDArray[np.uint8], **options: Any) -> bytes:
    """An image as a JPEG, with Pillow's options."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def make_images() -> Iterator[bytes]:
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
        picture = decode_image(content, max_pixels=MAX_PIXELS)
    except ImageError:
        return None
    return None if picture.kept is None else picture.image.shape[:2]


def checked_sides(content: bytes) -> tuple[int, ...] | None:
    """Height and width if the check keeps the bytes, else None."""
    checked = check_kept(content, max_pixels=MAX_PIXELS)
    return None if checked is None else (checked[0].height, checked[0].width)


def compare(count: int, seed: int) -> dict[str, int]:
    """How many damaged files the whole decoder keeps, and of how many the check says something else."""
    images, rng = list(make_images()), np.random.default_rng(seed)
    kept = different = 0
    for number in range(count):
        content = damage(images[number % len(images)], rng)
        expected = decoded_sides(content)
        kept += expected is not None
        different += checked_sides(content) != expected
    return {"files": count, "kept": kept, "different": different}


IMAGES = list(make_images())


def test_whole_images_are_kept_as_by_the_decoder():
    found = [checked_sides(content) for content in IMAGES]
    assert found == [decoded_sides(content) for content in IMAGES]
    assert sum(one is None for one in found) == 3  # coded as RGB, to be turned, CMYK


def test_damage_is_found_as_by_the_decoder():
    found = compare(1500, seed=5)
    assert found["different"] == 0
    assert 150 < found["kept"] < 1125  # both verdicts were met


@pytest.mark.parametrize("content", [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", IMAGES[0][:40]])
def test_incomplete_jpegs_are_left_to_the_decoder(content):
    assert check_kept(content) is None


def test_the_limit_of_pixels_is_left_to_the_decoder():
    assert check_kept(IMAGES[3], max_pixels=64 * 67) is not None
    assert check_kept(IMAGES[3], max_pixels=64 * 67 - 1) is None
