"""``--resize bucket``: each image is cropped and scaled to the shape that crops the least."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.command import run_packer

import packer
from packer.recipe import Recipe
from packer.recipe.buckets import Bucket, nearest_bucket, parse_buckets
from packer.steps.scale import make_scaling
from readers import open_dataset
from shardspec.errors import UsageError


def build(source: Any, out: Path, **options: Any) -> Any:
    packer.build(source, out, progress=False, engine="inline", resize="bucket", **options)
    return open_dataset(out)


def write(path: Path, width: int, height: int) -> None:
    """An image whose red is the column and whose green is the row."""
    image = np.zeros((height, width, 3), np.uint8)
    image[..., 0], image[..., 1] = np.arange(width)[None], np.arange(height)[:, None]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def test_a_rule_gives_the_shapes_of_sd_scripts() -> None:
    # make_bucket_resolutions((512, 512), min_size=256, max_size=1024, divisible=64), without ratios above 2
    shapes = {tuple(shape) for shape in parse_buckets("area=512²,step=64,max-ratio=2", 8192)}
    assert {(512, 512), (576, 448), (640, 384), (704, 320)} - shapes == {(704, 320)}
    assert shapes == {(height, width) for width, height in shapes}
    assert all(width * height <= 512**2 and width % 64 == height % 64 == 0 for width, height in shapes)
    assert parse_buckets("area=512^2", 8192) == parse_buckets("area=512,step=64,max-ratio=2", 8192)


def test_the_shape_is_the_one_that_crops_least() -> None:
    shapes = parse_buckets("64x64,128x128,64x128,128x64", 8192)
    rng = np.random.default_rng(0)
    for width, height in rng.integers(20, 400, (200, 2)).tolist():
        found = nearest_bucket(shapes, width, height)

        def kept(shape: Bucket, width: int = width, height: int = height) -> float:
            scale = max(shape.width / width, shape.height / height)
            return shape.width * shape.height / (width * height * scale**2)

        assert kept(found) == pytest.approx(max(map(kept, shapes)))
    assert nearest_bucket(shapes, 100, 100) == (64, 64)
    assert nearest_bucket(shapes, 128, 128) == (128, 128)
    assert nearest_bucket(shapes, 20, 20) == (64, 64)


def test_the_middle_is_kept_and_the_field_names_the_shape(tmp_path: Path) -> None:
    write(tmp_path / "in" / "wide.png", 100, 40)
    write(tmp_path / "in" / "high.png", 40, 100)
    dataset = build(tmp_path / "in", tmp_path / "out", buckets="40x40,40x80", encode="png")
    high, wide = dataset[0], dataset[1]
    assert (high["bucket"], wide["bucket"]) == ("40x80", "40x40")
    assert np.array_equal(np.asarray(high["image"])[..., 1], np.repeat(np.arange(10, 90)[:, None], 40, 1))
    assert np.array_equal(np.asarray(wide["image"])[..., 0], np.repeat(np.arange(30, 70)[None], 40, 0))


def test_masks_and_landmarks_follow_their_image(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.png", 100, 50)
    write(tmp_path / "masks" / "a.png", 100, 50)
    (tmp_path / "in" / "rows.csv").write_text("path,mask\na.png,masks/a.png\n")
    (tmp_path / "masks").rename(tmp_path / "in" / "masks")
    sample = build(tmp_path / "in" / "rows.csv", tmp_path / "out", buckets="25x25", also="mask", encode="png")[0]
    assert np.asarray(sample["image"]).shape == np.asarray(sample["mask_image"]).shape == (25, 25, 3)
    assert abs(int(np.asarray(sample["mask_image"])[12, 12, 0]) - 50) <= 1
    step = make_scaling(Recipe(preset="images", resize="bucket", buckets="25x25"))
    points, matrix = np.array([[20, 10], [50, 25]], np.float32), np.eye(2, 3)
    (made,) = step(iter([{"image": np.zeros((50, 100, 3), np.uint8), "landmarks": points, "matrix": matrix}]))
    assert made["landmarks"].tolist() == [[-2.5, 5.0], [12.5, 12.5]]
    assert np.allclose(points @ made["matrix"][:, :2].T + made["matrix"][:, 2], made["landmarks"])


@pytest.mark.parametrize(
    ("shapes", "part"),
    [
        (None, "none"),
        ("", "512x512"),
        ("512x", "512x"),
        ("0x9", "0x9"),
        ("9x99999", "9x99999"),
        ("area=20,step=64", "step"),
        ("area=512,steps=8", "steps=8"),
        ("step=8", "area"),
        ("area=2000,step=1", "1000 shapes"),
    ],
)
def test_wrong_shapes_are_one_line(tmp_path: Path, shapes: str | None, part: str) -> None:
    write(tmp_path / "in" / "a.png", 9, 9)
    with pytest.raises(UsageError, match="buckets") as error:
        packer.build(tmp_path / "in", tmp_path / "out", resize="bucket", buckets=shapes, progress=False)
    assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_the_command_takes_buckets(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.png", 90, 60)
    done = run_packer("build", tmp_path / "in", tmp_path / "out", "--resize", "bucket", "--buckets", "30x20,20x30")
    assert "1 sample" in done.stdout
    assert open_dataset(tmp_path / "out")[0]["bucket"] == "30x20"
