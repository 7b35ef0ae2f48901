"""A picture whose bytes are kept is checked without its pixels, and by the same verdicts as if they were made."""

import io

import cv2
import numpy as np
import pytest
from PIL import Image
from skimage import data

from packer.vision.decode.limits import PictureError
from packer.vision.decode.picture import check_kept, decode_picture

PHOTO = data.astronaut()[::3, ::4].copy()


def _jpeg(image, **options):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def _pictures():
    yield from (_jpeg(PHOTO[:side, : side + 3], quality=70) for side in (1, 7, 8, 64))
    for options in ({}, {"progressive": True}, {"restart_marker_blocks": 3}, {"optimize": True}):
        yield _jpeg(PHOTO[..., 0].copy(), **options)
        yield from (_jpeg(PHOTO, subsampling=subsampling, **options) for subsampling in (0, 1, 2))
    for factor in (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440):
        yield cv2.imencode(".jpg", PHOTO, [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor])[1].tobytes()
    yield _jpeg(PHOTO, keep_rgb=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    yield _jpeg(PHOTO, exif=exif)
    buffer = io.BytesIO()
    Image.fromarray(PHOTO).convert("CMYK").save(buffer, "JPEG")
    yield buffer.getvalue()


PICTURES = list(_pictures())


def _verdict(content):
    """Height and width if the whole decoder would keep the bytes, else None."""
    try:
        picture = decode_picture(content, max_pixels=4_000_000)
    except PictureError:
        return None
    return picture.image.shape[:2] if picture.passthrough else None


def _checked(content):
    header = check_kept(content, max_pixels=4_000_000)
    return None if header is None else (header.height, header.width)


def test_whole_pictures_are_kept_as_by_the_decoder():
    found = [_checked(content) for content in PICTURES]
    assert found == [_verdict(content) for content in PICTURES]
    assert sum(one is None for one in found) == 3  # coded as RGB, to be turned, CMYK


def _damage(content, rng):
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


def test_damage_is_found_as_by_the_decoder():
    rng = np.random.default_rng(5)
    kept = 0
    for number in range(4000):
        content = _damage(PICTURES[number % len(PICTURES)], rng)
        expected = _verdict(content)
        assert _checked(content) == expected, number
        kept += expected is not None
    assert 400 < kept < 3000  # both verdicts were met


@pytest.mark.parametrize("content", [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", PICTURES[0][:40]])
def test_what_is_no_whole_jpeg_is_left_to_the_decoder(content):
    assert check_kept(content) is None


def test_the_limit_of_pixels_is_left_to_the_decoder():
    assert check_kept(PICTURES[3], max_pixels=64 * 67) is not None
    assert check_kept(PICTURES[3], max_pixels=64 * 67 - 1) is None
