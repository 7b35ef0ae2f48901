"""JPEGs that are encoded with restart markers."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.command import read_jsonl, run_packer
from support.media import photograph, scene, write_picture
from support.packed import stored_pictures

from packer.jpeg_encoder import encode_jpeg, restart_interval
from packer.recipe import Recipe, StepSpec
from packer.runtime import describe_runtime
from readers.jpeg_parts import crop_jpeg


@given(st.integers(1, 10_000), st.sampled_from([8, 16]))
def test_rows_are_whole_numbers_of_intervals(width: int, mcu_width: int) -> None:
    per_row = -(-width // mcu_width)
    interval = restart_interval(width, mcu_width)
    assert per_row % interval == 0
    others = [count * mcu_width for count in range(1, per_row + 1) if per_row % count == 0]
    assert 32 <= interval * mcu_width <= 128 or not any(32 <= pixels <= 128 for pixels in others)
    assert interval * mcu_width <= 128


@pytest.mark.parametrize(
    ("subsampling", "pillow"), [("420", "4:2:0"), ("422", "4:2:2"), ("444", "4:4:4")], ids=["420", "422", "444"]
)
def test_pixels_are_those_of_other_encoders(subsampling: str, pillow: str) -> None:
    picture = np.ascontiguousarray(photograph("coffee")[:333, :517])
    file = BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=85, subsampling=pillow)
    found = encode_jpeg(picture, 85, subsampling)
    assert np.array_equal(simplejpeg.decode_jpeg(found), simplejpeg.decode_jpeg(file.getvalue()))


def test_small_pictures_get_none() -> None:
    small, large = (encode_jpeg(scene(0, (400, height)), 90, "420", restart_markers=True) for height in (374, 375))
    assert b"\xff\xdd" not in small
    assert b"\xff\xdd" in large


def test_a_build_marks_what_it_encodes_and_keeps_what_it_keeps(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_picture(source / "a.png", scene(0, (480, 360)))
    kept = write_picture(source / "b.jpg", scene(1, (480, 360)), quality=90)
    run_packer(
        "build", source, tmp_path / "out", "--preset", "images", "--format", "npy", "--restart-markers", "--workers", 2
    )
    encoded, whole = stored_pictures(tmp_path / "out")
    assert whole == kept.read_bytes()
    part = crop_jpeg(encoded, (100, 100, 200, 200), 3)
    assert part is not None
    assert (part.left, part.top, part.left + part.width, part.top + part.height) == (96, 96, 224, 208)
    assert np.asarray(Image.open(BytesIO(encoded))).shape == (360, 480, 3)


def test_a_picture_that_cannot_be_jpeg_is_a_reject(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    write_picture(source / "a.png", scene(0, (48, 36)))
    write_picture(source / "b.png", np.zeros((1, 65_501, 3), np.uint8))
    options = ["--preset", "images", "--format", "npy", "--max-rejects", "50%", "--engine", "inline"]
    run_packer("build", source, out, *options, "--restart-markers")
    (reject,) = read_jsonl(out / "rejects.jsonl")
    assert (reject["item"], reject["step"]) == ("b.png", "encode")
    assert "the picture cannot be JPEG" in reject["reason"]


def test_what_the_encoder_is_counts() -> None:
    """Also where no step uses OpenCV."""
    recipes = [Recipe(steps=(StepSpec("decode"),), encode=encode) for encode in ("png", "jpeg")]
    assert ["opencv-python-headless" in describe_runtime(recipe) for recipe in recipes] == [False, True]


def test_raw_pictures_have_none(tmp_path: Path) -> None:
    done = run_packer("build", tmp_path, tmp_path / "out", "--encode", "raw", "--restart-markers", expect=2)
    assert "restart_markers: read only with encode jpeg, found encode raw" in done.stderr
