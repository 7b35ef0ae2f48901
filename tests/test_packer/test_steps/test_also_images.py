"""``--also`` with ``--preset images``: images with their label maps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.command import file_of, read_jsonl, run_packer
from support.face_source import write_frames
from support.media import Picture, photograph, write_image
from support.packed import check_whole, encoded_values, read_samples

import packer
from shardspec.errors import UsageError
from shardspec.layout import Layout

CLASSES = (0, 1, 7, 20, 255)


def label_map(picture: Picture) -> Picture:
    """A class for each pixel, by its brightness, in three equal channels."""
    grey = np.asarray(Image.fromarray(picture).convert("L")).astype(int) * len(CLASSES) // 256
    return np.repeat(np.array(CLASSES, np.uint8)[grey][..., None], 3, axis=2)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two images with label maps, the first as a grey PNG, and one without."""
    for name in ("coffee", "chelsea", "rocket"):
        write_image(tmp_path / "photos" / f"{name}.jpg", photograph(name), quality=90)
    write_image(tmp_path / "maps" / "coffee.png", label_map(photograph("coffee"))[..., 0])
    write_image(tmp_path / "maps" / "chelsea.png", label_map(photograph("chelsea")))
    rows = ["path,mask,label", "photos/coffee.jpg,maps/coffee.png,cup"]
    rows += ["photos/chelsea.jpg,maps/chelsea.png,cat", "photos/rocket.jpg,,rocket"]
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n")
    return tmp_path / "table.csv"


def by_source(out: Path) -> dict[str, dict[str, Any]]:
    check_whole(out)
    return {Path(str(sample["source"])).stem: sample for sample in read_samples(out)}


def test_the_map_is_resized_with_its_image_and_keeps_its_values(tmp_path: Path, table: Path) -> None:
    how = ("--preset", "images", "--size", 64, "--resize", "exact", "--also", "mask", "--quiet")
    run_packer("build", table, tmp_path / "out", *how)
    schema = Layout(tmp_path / "out").load().schema
    assert (schema["image"].codec.name, schema["mask_image"].codec.name) == ("jpeg", "png")
    found = by_source(tmp_path / "out")
    for name in ("coffee", "chelsea"):
        whole = Image.fromarray(label_map(photograph(name)))
        assert np.array_equal(found[name]["mask_image"], whole.resize((64, 64), Image.Resampling.NEAREST))
        assert found[name]["mask_image_valid"]
    assert not found["rocket"]["mask_image_valid"]
    assert not found["rocket"]["mask_image"].any()
    run_packer("build", table, tmp_path / "area", *how, "--also-resample", "area", "--also-missing", "zero")
    averaged = by_source(tmp_path / "area")
    assert not set(np.unique(averaged["coffee"]["mask_image"])) <= set(CLASSES)
    assert averaged["rocket"]["mask_image_valid"]


def test_a_jpeg_that_is_kept_has_its_map_too(tmp_path: Path, table: Path) -> None:
    packer.build(table, tmp_path / "out", preset="images", also="mask", engine="inline", progress=False)
    found = by_source(tmp_path / "out")
    for name in ("coffee", "chelsea"):
        assert np.array_equal(found[name]["mask_image"], label_map(photograph(name)))
    kept = {bytes(data) for data in encoded_values(tmp_path / "out", "image").values()}
    assert kept == {path.read_bytes() for path in (tmp_path / "photos").iterdir()}


def test_frames_of_a_video(tmp_path: Path) -> None:
    shades = [np.full((48, 64, 3), 10 * number, np.uint8) for number in range(12)]
    write_frames(tmp_path / "v.mp4", shades)
    write_frames(tmp_path / "short.mp4", shades[:7])
    (tmp_path / "table.csv").write_text("path,mask\nv.mp4,short.mp4\n")
    how: dict[str, Any] = {"preset": "images", "every": 3, "also": "mask", "encode": "png"}
    packer.build(tmp_path / "table.csv", tmp_path / "out", engine="inline", progress=False, **how)
    samples = read_samples(tmp_path / "out")
    assert [bool(sample["mask_image_valid"]) for sample in samples] == [True, True, True, False]
    for sample in samples[:3]:
        assert np.array_equal(sample["mask_image"], sample["image"])
    (line,) = read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))
    assert (line["kind"], "1 missing frame (the first is frame 9)" in line["reason"]) == ("damage", True)


def test_a_second_image_that_does_not_fit_is_a_reject_with_a_reason(tmp_path: Path, table: Path) -> None:
    write_image(tmp_path / "maps" / "chelsea.png", np.zeros((5, 5, 3), np.uint8))
    (tmp_path / "maps" / "coffee.png").write_bytes(b"\x89PNG\r\n\x1a\nnot really")
    how = ("--preset", "images", "--also", "mask", "--quiet", "--max-rejects", "100%")
    run_packer("build", table, tmp_path / "out", *how)
    reasons = {line["item"]: line["reason"] for line in read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))}
    assert "also: expected images of the same size, found 451 x 300 and 5 x 5" in reasons["photos/chelsea.jpg"]
    assert "also 'maps/coffee.png'" in reasons["photos/coffee.jpg"]
    with pytest.raises(UsageError, match="also: read only by the step 'decode' or 'faces'"):
        packer.Recipe.from_options({"steps": ["my:step"], "also": "mask"})
