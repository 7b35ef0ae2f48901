"""Parts of JPEGs: rectangles of those that have restart markers, and upper rows."""

import io
from dataclasses import replace

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.datasets import picture
from support.fuzz import SEED, examples
from support.media import photograph

from readers import CenterCrop, RandomResizedCrop, Resize
from readers.decode import crops, jpeg_parts
from readers.decode.jpeg_parts import crop_jpeg, rows_are_complete, upper_rows
from readers.seeding import sample_rng
from shardspec.codecs import codec_for
from shardspec.errors import CodecError

FIELD = picture("image", "jpeg")
CODEC = codec_for(FIELD)
PHOTO = photograph("astronaut")
SAMPLING = {name: getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{name}") for name in ("411", "420", "422", "440", "444")}
"""OpenCV's names of its subsamplings."""


def encode(image, **options):
    """A JPEG as Pillow writes it."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", **{"quality": 90, "subsampling": "4:2:0", **options})
    return file.getvalue()


MARKED = encode(PHOTO, restart_marker_blocks=4)
HEADER = MARKED[: MARKED.index(b"\xff\xda")]


def any_jpeg(rng):
    """A JPEG of any subsampling, in colour or grey, with restart markers or without."""
    height, width, interval = (*rng.integers(1, 400, 2).tolist(), int(rng.integers(0, 3)))
    image = np.ascontiguousarray(PHOTO[:height, 60 : 60 + width])
    kind = rng.choice([*SAMPLING, "grey", "grey of 2 x 2", "CMYK"])
    if kind in SAMPLING:
        options = {cv2.IMWRITE_JPEG_SAMPLING_FACTOR: SAMPLING[kind], cv2.IMWRITE_JPEG_RST_INTERVAL: interval}
        return cv2.imencode(".jpg", image, [n for pair in options.items() for n in pair])[1].tobytes()
    if kind == "CMYK":
        file = io.BytesIO()
        Image.fromarray(image).convert("CMYK").save(file, "JPEG", restart_marker_blocks=interval)
        return file.getvalue()
    data = bytearray(encode(np.ascontiguousarray(image[..., 0]), restart_marker_blocks=interval))
    if kind == "grey of 2 x 2":  # factors of one component mean nothing (T.81, A.2.2)
        data[data.index(b"\xff\xc0") + 11] = 0x22
    return bytes(data)


PLANS = [
    RandomResizedCrop(40),
    RandomResizedCrop(24, (0.01, 0.3)),
    RandomResizedCrop((90, 150), (0.01, 0.5), interpolation="nearest"),  # every pixel counts
    CenterCrop(20, fraction=0.3),
]


def test_parts_and_upper_rows_decode_to_the_pixels_of_the_whole(monkeypatch):
    """At every scale, with interpolated and with repeated chroma, however few pixels are saved."""
    rng = np.random.default_rng(SEED)
    for module, name in ((crops, "WORTH_CUTTING"), (jpeg_parts, "WORTH_CUTTING"), (jpeg_parts, "ROWS_WORTH_CUTTING")):
        monkeypatch.setattr(module, name, 1)
    for number in range(400):
        data, fast = any_jpeg(rng), bool(number & 4)
        plan = replace(PLANS[number % 4], fast_dct=fast, fast_upsampling=fast)
        found = plan.decode(data, FIELD, CODEC, sample_rng(number, 0, 0), None)
        with monkeypatch.context() as patched:
            patched.setattr(crops, "crop_jpeg", lambda *arguments: None)
            patched.setattr(crops, "upper_rows", lambda *arguments: None)
            expected = plan.decode(data, FIELD, CODEC, sample_rng(number, 0, 0), None)
        assert np.array_equal(found, expected), f"number {number} of TEST_SEED={SEED}"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"restart_marker_blocks": 5},
        {"restart_marker_blocks": 64},
        {"restart_marker_blocks": 4, "progressive": True},
    ],
    ids=["none", "across rows", "two rows", "progressive"],
)
def test_other_jpegs_are_decoded_whole(options):
    assert crop_jpeg(encode(PHOTO, **options), (100, 100, 200, 200), 3) is None


def test_damaged_markers_leave_the_decision_to_the_decoder():
    data = bytearray(MARKED)
    at = data.index(b"\xff\xd3")
    for damaged in (data[:at] + data[at + 2 :], data[: at + 1] + b"\xd5" + data[at + 2 :], data[:-2], data[:300], b""):
        assert crop_jpeg(bytes(damaged) + b"\0\0", (100, 100, 200, 200), 3) is None


@pytest.mark.parametrize("whole", [MARKED, encode(PHOTO)], ids=["markers", "none"])
@given(draws=st.data())
@examples(250)
def test_damaged_bytes_yield_an_image_or_an_error(whole, draws):
    data = bytearray(whole)
    for _ in range(draws.draw(st.integers(1, 4))):
        at = draws.draw(st.integers(2, len(HEADER) + 40) | st.integers(2, len(data) - 1))
        data[at] = draws.draw(st.sampled_from([0x00, 0x01, 0xFF, 0xD0, 0xD8, 0xDA]) | st.integers(0, 255))
    try:
        found = RandomResizedCrop(32).decode(bytes(data), FIELD, CODEC, sample_rng(0, 0, 0), None)
    except CodecError:
        return
    assert found.shape == (32, 32, 3)


def test_fill_bytes_before_markers_change_nothing():
    filled = HEADER.replace(b"\xff\xc0", b"\xff\xff\xff\xc0") + MARKED[len(HEADER) :]
    expected, found = (crop_jpeg(data, (100, 100, 200, 200), 3) for data in (MARKED, filled))
    assert np.array_equal(simplejpeg.decode_jpeg(found.data), simplejpeg.decode_jpeg(expected.data))


@pytest.mark.parametrize("code", [0x00, 0x01, 0xD0], ids=["stuffed zero", "TEM", "restart"])
def test_codes_without_a_length_are_not_read_as_segments(code):
    """What follows looks like a segment's length and two bytes."""
    at = MARKED.index(b"\xff\xc0")
    data = MARKED[:at] + bytes([0xFF, code]) + b"\x00\x04\x00\x00" + MARKED[at:]
    assert crop_jpeg(data, (100, 100, 200, 200), 3) is None


def test_header_segments_stay_before_the_image():
    """A thumbnail in the EXIF data is a JPEG with markers of its own."""
    thumbnail = encode(np.ascontiguousarray(PHOTO[:48, :64]), restart_marker_blocks=1)
    exif = Image.Exif()
    exif[0x9286] = thumbnail
    data = encode(PHOTO, restart_marker_blocks=4, exif=exif)
    assert thumbnail in data
    part = crop_jpeg(memoryview(data), (100, 100, 200, 200), 3)
    whole, cut = simplejpeg.decode_jpeg(data), simplejpeg.decode_jpeg(part.data)
    rows, columns = slice(100 - part.top, 200 - part.top), slice(100 - part.left, 200 - part.left)
    assert np.array_equal(cut[rows, columns], whole[100:200, 100:200])


@pytest.mark.parametrize(
    "data",
    [encode(PHOTO, progressive=True), MARKED, encode(PHOTO[..., 0])],
    ids=["progressive", "restart markers", "grey"],
)
def test_other_jpegs_are_not_decoded_in_part(data):
    assert upper_rows(data, *PHOTO.shape[:2], 100) is None


@pytest.mark.parametrize("place", ["comment", "progressive"])
def test_bytes_that_only_look_like_a_header_are_kept(place):
    """A comment with the image's sides; a progressive image whose header says that it is none."""
    height, width = PHOTO.shape[:2]
    data = encode(PHOTO)
    if place == "comment":
        at = data.index(b"\xff\xc0")
        data = data[:2] + b"\xff\xfe\x00\x0c" + data[at : at + 10] + data[2:]
    else:
        image = simplejpeg.decode_jpeg(data)
        options = [cv2.IMWRITE_JPEG_PROGRESSIVE, 1]
        data = cv2.imencode(".jpg", image, options)[1].tobytes().replace(b"\xff\xc2\x00\x11", b"\xff\xc0\x00\x11", 1)
    cut = upper_rows(data, height, width, 100)
    image = np.zeros((100, width, 3), np.uint8)
    with pytest.raises(ValueError, match=r".") as raised:
        simplejpeg.decode_jpeg(cut, "RGB", buffer=image)
    assert not rows_are_complete(raised.value)


def plan_at(top, bottom):
    """The middle of an image between two rows."""

    class Rows(Resize):
        def box(self, height, width, rng):
            return 0.0, float(top), float(width), float(bottom)

    return Rows(64)


def test_damage_counts_as_far_as_rows_are_decoded():
    """Two bytes in the middle of the coded image that end it, and a file that ends early."""
    data = encode(PHOTO)
    scan = data.index(b"\xff\xda")
    at = (scan + len(data)) // 2
    damaged = data[:at] + b"\xff\xd9" + data[at + 2 :]
    upper_half = plan_at(0, PHOTO.shape[0] // 4)
    expected = upper_half.decode(data, FIELD, CODEC, None, None)
    assert np.array_equal(upper_half.decode(damaged, FIELD, CODEC, None, None), expected)
    with pytest.raises(CodecError, match="Corrupt JPEG data: premature end of data segment"):
        plan_at(0, PHOTO.shape[0] - 40).decode(damaged, FIELD, CODEC, None, None)
    with pytest.raises(CodecError, match="Premature end"):
        upper_half.decode(data[:at], FIELD, CODEC, None, None)
