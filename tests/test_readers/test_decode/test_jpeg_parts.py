"""Parts of JPEGs: rectangles of those that have restart markers, and upper rows."""

import io

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.datasets import picture
from support.fuzz import examples
from support.media import photograph

from readers import CenterCrop, RandomResizedCrop, Resize
from readers.decode import crops
from readers.decode.jpeg_parts import crop_jpeg, rows_are_complete, upper_rows
from readers.seeding import sample_rng
from shardspec.codecs import codec_for
from shardspec.errors import CodecError

FIELD = picture("image", "jpeg")
CODEC = codec_for(FIELD)
PHOTO = photograph("astronaut")
MCU = {"4:4:4": (8, 8), "4:2:2": (16, 8), "4:2:0": (16, 16)}
"""Width and height in pixels by subsampling."""
SAMPLING = {name: getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{name}") for name in ("411", "420", "422", "440", "444")}
"""OpenCV's names of its subsamplings."""


def encode(image, **options):
    """A JPEG as Pillow writes it."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", **{"quality": 90, "subsampling": "4:2:0", **options})
    return file.getvalue()


MARKED = encode(PHOTO, restart_marker_blocks=4)
HEADER = MARKED[: MARKED.index(b"\xff\xda")]


def divisors(number):
    return [n for n in range(1, number + 1) if number % n == 0]


@st.composite
def jpegs_and_boxes(draw):
    """A JPEG with restart markers that divide its rows, and a box of it."""
    width, height = draw(st.integers(1, 400)), draw(st.integers(1, 400))
    subsampling = draw(st.sampled_from(sorted(MCU)))
    grey = draw(st.booleans())
    per_row = -(-width // (8 if grey else MCU[subsampling][0]))
    interval = draw(st.sampled_from(divisors(per_row)))
    image = np.ascontiguousarray(PHOTO[:height, 60 : 60 + width, 0] if grey else PHOTO[:height, 60 : 60 + width])
    options = {} if grey else {"subsampling": subsampling}
    data = encode(image, restart_marker_blocks=interval, **options)
    left, top = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    return data, (left, top, draw(st.integers(left + 1, width)), draw(st.integers(top + 1, height)))


def assert_same_pixels(data, part, box, eighths, fast):
    """A part holds a box, and decodes there to the pixels of the whole."""
    height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    assert part.left <= box[0] < box[2] <= part.left + part.width
    assert part.top <= box[1] < box[3] <= part.top + part.height

    def decoded(jpeg, rows, columns):
        least = {"min_height": -(-rows * eighths // 8), "min_width": -(-columns * eighths // 8)}
        return simplejpeg.decode_jpeg(jpeg, "RGB", fastdct=fast, fastupsample=fast, **least)

    left, top, right, bottom = crops.whole_pixels(box, height, width, eighths)
    x, y = part.left * eighths // 8, part.top * eighths // 8
    whole, cut = decoded(data, height, width), decoded(part.data, part.height, part.width)
    assert np.array_equal(cut[top - y : bottom - y, left - x : right - x], whole[top:bottom, left:right])


@given(jpegs_and_boxes(), st.sampled_from([1, 2, 4, 8]), st.booleans())
@examples(300)
def test_a_part_decodes_to_the_pixels_of_the_whole(made, eighths, fast):
    """At every scale, with interpolated and with repeated chroma."""
    data, box = made
    part = crop_jpeg(data, box, 3 * 8 // eighths, least_saved=1)
    if part is not None:  # else the box takes everything, or a few pixels at an edge
        assert_same_pixels(data, part, box, eighths, fast)


@pytest.mark.parametrize("name", [*SAMPLING, "grey of 2 x 2", "CMYK"])
@pytest.mark.parametrize("eighths", [1, 2, 4, 8])
def test_parts_of_every_sampling(name, eighths):
    image = np.ascontiguousarray(PHOTO[100:183, 150:255])
    if name in SAMPLING:
        options = {cv2.IMWRITE_JPEG_SAMPLING_FACTOR: SAMPLING[name], cv2.IMWRITE_JPEG_RST_INTERVAL: 1}
        data = cv2.imencode(".jpg", image, [n for pair in options.items() for n in pair])[1].tobytes()
    elif name == "CMYK":
        file = io.BytesIO()
        Image.fromarray(image).convert("CMYK").save(file, "JPEG", restart_marker_blocks=1)
        data = file.getvalue()
    else:  # factors of one component mean nothing (T.81, A.2.2)
        data = bytearray(encode(np.ascontiguousarray(image[..., 0]), restart_marker_blocks=1))
        data[data.index(b"\xff\xc0") + 11] = 0x22
    margin = 3 * 8 // eighths
    for box in ((40, 30, 60, 50), (0, 0, 60, 50), (40, 30, 105, 83), (104, 82, 105, 83), (0, 80, 1, 83)):
        part = crop_jpeg(data, box, margin, least_saved=1)
        assert (
            part is not None or margin > 3
        )  # at smaller scales most of so small an image is needed, or a few pixels at its edge
        if part is not None:
            assert_same_pixels(data, part, box, eighths, fast=False)


@pytest.mark.parametrize(
    "plan",
    [RandomResizedCrop(40), RandomResizedCrop(112, flip=0.5), CenterCrop(64, fraction=0.4), Resize(100)],
    ids=str,
)
def test_plans_give_the_same_with_parts_and_without(monkeypatch, plan):
    data = MARKED
    cut = []

    def crop(*arguments):
        cut.append(crop_jpeg(*arguments))
        return cut[-1]

    monkeypatch.setattr(crops, "crop_jpeg", crop)
    found = [plan.decode(data, FIELD, CODEC, sample_rng(seed, 0, 0), None) for seed in range(20)]
    monkeypatch.setattr(crops, "crop_jpeg", lambda *arguments: None)
    expected = [plan.decode(data, FIELD, CODEC, sample_rng(seed, 0, 0), None) for seed in range(20)]
    assert np.array_equal(found, expected)
    assert any(cut) == (not isinstance(plan, Resize))
    assert all(len(part.data) < len(data) for part in cut if part is not None)


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
def test_damaged_bytes_give_a_image_or_an_error_that_says_so(whole, draws):
    data = bytearray(whole)
    for _ in range(draws.draw(st.integers(1, 4))):
        at = draws.draw(st.integers(2, len(HEADER) + 40) | st.integers(2, len(data) - 1))
        data[at] = draws.draw(st.sampled_from([0x00, 0x01, 0xFF, 0xD0, 0xD8, 0xDA]) | st.integers(0, 255))
    try:
        found = RandomResizedCrop(32).decode(bytes(data), FIELD, CODEC, sample_rng(0, 0, 0), None)
    except CodecError:
        return
    assert found.shape == (32, 32, 3)


@pytest.mark.parametrize("code", [0x00, 0x01, 0xD0], ids=["stuffed zero", "TEM", "restart"])
def test_codes_without_a_length_are_not_taken_for_segments(code):
    """What follows looks like a segment's length and two bytes."""
    at = MARKED.index(b"\xff\xc0")
    data = MARKED[:at] + bytes([0xFF, code]) + b"\x00\x04\x00\x00" + MARKED[at:]
    assert crop_jpeg(data, (100, 100, 200, 200), 3) is None


def test_what_the_header_carries_stays_in_front():
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


def upper(data, height, width, rows, eighths, fast):
    """The upper rows of a JPEG, decoded; None if they are not cut out."""
    cut = upper_rows(data, height, width, rows, least_saved=1)
    if cut is None:
        return None
    image = np.zeros((-(-rows * eighths // 8), -(-width * eighths // 8), 3), np.uint8)
    least = {"min_height": image.shape[0], "min_width": image.shape[1]}
    try:
        simplejpeg.decode_jpeg(cut, "RGB", fastdct=fast, fastupsample=fast, buffer=image, **least)
    except ValueError as error:
        if not rows_are_complete(error):
            raise
    return image


@given(
    st.tuples(st.integers(2, 400), st.integers(1, 400)),
    st.floats(0, 1),
    st.sampled_from(sorted(SAMPLING)),
    st.sampled_from([1, 2, 4, 8]),
    st.booleans(),
)
@examples(300)
def test_upper_rows_decode_to_the_pixels_of_the_whole(sides, share, sampling, eighths, fast):
    height, width = sides
    rows = 1 + int(share * (height - 2))
    factor = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, SAMPLING[sampling]]
    data = cv2.imencode(".jpg", np.ascontiguousarray(PHOTO[:height, 60 : 60 + width]), factor)[1].tobytes()
    least = {"min_height": -(-height * eighths // 8), "min_width": -(-width * eighths // 8)}
    whole = simplejpeg.decode_jpeg(data, "RGB", fastdct=fast, fastupsample=fast, **least)
    found = upper(data, height, width, rows, eighths, fast)
    same = max(0, (rows - 3 * 8 // eighths) * eighths // 8)
    assert np.array_equal(found[:same], whole[:same])


@pytest.mark.parametrize("plan", [RandomResizedCrop(40), RandomResizedCrop(224, flip=0.5), CenterCrop(64)], ids=str)
def test_plans_give_the_same_with_upper_rows_and_with_all(monkeypatch, plan):
    data, cut = encode(PHOTO), []

    def rows(*arguments):
        cut.append(upper_rows(*arguments))
        return cut[-1]

    monkeypatch.setattr(crops, "upper_rows", rows)
    found = [plan.decode(memoryview(data), FIELD, CODEC, sample_rng(seed, 0, 0), None) for seed in range(20)]
    monkeypatch.setattr(crops, "upper_rows", lambda *arguments: None)
    expected = [plan.decode(data, FIELD, CODEC, sample_rng(seed, 0, 0), None) for seed in range(20)]
    assert np.array_equal(found, expected)
    assert any(cut) == isinstance(plan, RandomResizedCrop)


@pytest.mark.parametrize(
    "data",
    [encode(PHOTO, progressive=True), MARKED, encode(PHOTO[..., 0])],
    ids=["progressive", "restart markers", "grey"],
)
def test_of_other_jpegs_no_upper_rows_are_cut_out(data):
    assert upper_rows(data, *PHOTO.shape[:2], 100) is None


@pytest.mark.parametrize("place", ["comment", "progressive"])
def test_what_only_looks_like_a_header_is_left_alone(place):
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
