"""JPEGs that are encoded with restart markers."""

from io import BytesIO
from pathlib import Path

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.command import file_of, read_jsonl, run_packer
from support.media import Picture, photograph, scene, write_image
from support.packed import stored_images

from packer.vision.decode.jpeg_header import restart_interval
from readers.decode.jpeg_parts import crop_jpeg
from shardspec.codecs.image import JPEGCodec
from shardspec.schema import Field, NamedConfig

FACTORS = {name: getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{name}") for name in ("420", "422", "444")}
"""OpenCV's names of the subsamplings."""


def encode(image: Picture, subsampling: str, interval: int = 0) -> bytes:
    """The codec's bytes, with a restart marker after so many MCUs."""
    configuration = NamedConfig("jpeg", {"quality": 85, "subsampling": subsampling})
    codec = JPEGCodec(Field("image", "bytes", "|u1", (None, None, 3), configuration))
    return bytes(codec.encode(image, restart_marker_blocks=interval))


@given(st.integers(1, 10_000), st.sampled_from(sorted(FACTORS)))
def test_rows_are_whole_numbers_of_intervals(width: int, subsampling: str) -> None:
    mcu_width = 8 if subsampling == "444" else 16
    per_row = -(-width // mcu_width)
    interval = restart_interval(150_000, width, subsampling)
    assert per_row % interval == 0
    others = [count * mcu_width for count in range(1, per_row + 1) if per_row % count == 0]
    assert 32 <= interval * mcu_width <= 128 or not any(32 <= pixels <= 128 for pixels in others)
    assert interval * mcu_width <= 128


@pytest.mark.parametrize("subsampling", sorted(FACTORS))
def test_pixels_are_those_of_opencvs_encoder_with_markers_and_without(subsampling: str) -> None:
    picture = np.ascontiguousarray(photograph("coffee")[:333, :517])
    options = (cv2.IMWRITE_JPEG_QUALITY, 85, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, FACTORS[subsampling])
    _, expected = cv2.imencode(".jpg", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), options)
    interval = restart_interval(333, 517, subsampling)
    assert interval > 0
    for found in (encode(picture, subsampling), encode(picture, subsampling, interval)):
        assert np.array_equal(simplejpeg.decode_jpeg(found), simplejpeg.decode_jpeg(expected.tobytes()))


def test_small_images_get_no_restart_markers() -> None:
    assert [restart_interval(height, 400, "420") for height in (374, 375)] == [0, 5]


def test_a_build_marks_what_it_encodes_and_keeps_what_it_keeps(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_image(source / "a.png", scene(0, (480, 360)))
    kept = write_image(source / "b.jpg", scene(1, (480, 360)), quality=90)
    run_packer(
        "build", source, tmp_path / "out", "--preset", "images", "--format", "npy", "--restart-markers", "--workers", 2
    )
    encoded, whole = stored_images(tmp_path / "out")
    assert whole == kept.read_bytes()
    part = crop_jpeg(encoded, (100, 100, 200, 200), 3)
    assert part is not None
    assert (part.left, part.top, part.left + part.width, part.top + part.height) == (96, 96, 224, 208)
    assert np.asarray(Image.open(BytesIO(encoded))).shape == (360, 480, 3)


def test_an_image_that_cannot_be_a_jpeg_is_a_reject(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    write_image(source / "a.png", scene(0, (48, 36)))
    write_image(source / "b.png", np.zeros((1, 65_501, 3), np.uint8))
    options = ["--preset", "images", "--format", "npy", "--max-rejects", "50%", "--engine", "inline"]
    run_packer("build", source, out, *options, "--restart-markers")
    (reject,) = read_jsonl(file_of(out, "rejects.jsonl"))
    assert (reject["item"], reject["step"]) == ("b.png", "encode")
    assert "cannot encode the image as JPEG" in reject["reason"]
