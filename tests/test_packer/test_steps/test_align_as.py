"""``--align-as``: crops as other projects cut them, through the command line."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from support.command import run_packer
from support.errors import raises
from support.media import Picture, photograph, write_image
from support.packed import check_whole, read_samples
from test_packer.test_vision.test_align import img_align_crop_matrix, norm_crop_matrix

import packer
from packer import Detector
from shardspec.errors import UsageError
from shardspec.layout import Layout

POINTS = (
    *("right_eye_x", "right_eye_y", "left_eye_x", "left_eye_y", "nose_tip_x", "nose_tip_y"),
    *("mouth_right_x", "mouth_right_y", "mouth_left_x", "mouth_left_y"),
)
SIZES = {"arcface": 112, "deepfakebench": 256}


def detected() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The box and the points that the detector finds on the portrait."""
    (faces,) = Detector.dataset(40).detect([photograph("astronaut")])
    return faces.boxes[0], faces.points[0]


def expected(name: str, picture: Picture, points: npt.NDArray[np.float32], size: int) -> Picture:
    """What the other project makes of the same points."""
    matrix = {"arcface": norm_crop_matrix, "deepfakebench": img_align_crop_matrix}[name](points, size)
    return np.asarray(cv2.warpAffine(picture, matrix, (size, size), borderValue=0.0), np.uint8)


def mask() -> Picture:
    out = np.zeros((512, 512, 3), np.uint8)
    cv2.ellipse(out, (225, 120), (40, 60), 0, 0, 360, (255, 255, 255), -1)
    return out


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A portrait and a mask of its face, in a table."""
    write_image(tmp_path / "astronaut.png", photograph("astronaut"))
    write_image(tmp_path / "mask.png", mask())
    (tmp_path / "table.csv").write_text("path,mask\nastronaut.png,mask.png\n")
    return tmp_path / "table.csv"


@pytest.mark.parametrize("name", SIZES)
def test_the_crop_equals_that_of_the_other_project(tmp_path: Path, source: Path, name: str) -> None:
    """With the detector's points, at the size that the project itself makes; the mask is cut alike."""
    how = ("--preset", "faces", "--align-as", name, "--also", "mask", "--encode", "png", "--quiet")
    run_packer("build", source, tmp_path / "out", *how, "--landmarks", "5")
    check_whole(tmp_path / "out")
    (sample,) = read_samples(tmp_path / "out")
    _, points = detected()
    size = SIZES[name]
    assert sample["image"].shape == (size, size, 3)
    assert Layout(tmp_path / "out").load().generations[0].recipe["align_as"] == name
    for field, picture in (("image", photograph("astronaut")), ("mask_image", mask())):
        assert np.abs(sample[field].astype(int) - expected(name, picture, points, size)).max() <= 1, field
    # The matrix leads from the frame to the crop in the convention of all fields.
    moved = np.asarray(points, np.float64) @ sample["matrix"][:, :2].T + sample["matrix"][:, 2]
    assert sample["landmarks"] == pytest.approx(moved, abs=1e-3)


def test_points_of_user_boxes_are_used_as_they_are(tmp_path: Path, source: Path) -> None:
    box, points = detected()
    points = points + np.float32(1.25)
    row: dict[str, Any] = {
        "path": "astronaut.png",
        "frame": 0,
        **dict(zip(POINTS, points.ravel().tolist(), strict=True)),
    }
    row |= dict(zip(("x0", "y0", "x1", "y1"), box.tolist(), strict=True))
    (tmp_path / "boxes.jsonl").write_text(json.dumps(row) + "\n")
    how = ("--preset", "faces", "--align-as", "arcface", "--size", 256, "--encode", "png", "--quiet")
    run_packer("build", source, tmp_path / "out", *how, "--boxes", tmp_path / "boxes.jsonl")
    (sample,) = read_samples(tmp_path / "out")
    assert np.abs(sample["image"].astype(int) - expected("arcface", photograph("astronaut"), points, 256)).max() <= 1


def test_a_frame_without_a_face_is_kept_whole_with_its_mask(tmp_path: Path) -> None:
    write_image(tmp_path / "coffee.png", photograph("coffee"))
    (tmp_path / "table.csv").write_text("path,mask\ncoffee.png,coffee.png\n")
    how: dict[str, Any] = {"preset": "faces", "align_as": "arcface", "keep_faceless": True, "also": "mask"}
    packer.build(tmp_path / "table.csv", tmp_path / "out", encode="png", engine="inline", progress=False, **how)
    (sample,) = read_samples(tmp_path / "out")
    assert np.array_equal(sample["image"], sample["mask_image"])


def test_boxes_without_points_are_refused(tmp_path: Path, source: Path) -> None:
    (tmp_path / "boxes.json").write_text('{"astronaut.png": {"0": [[170, 50, 280, 185]]}}')
    how: dict[str, Any] = {"preset": "faces", "align_as": "arcface", "boxes": str(tmp_path / "boxes.json")}
    with raises(UsageError, found="none"):
        packer.build(source, tmp_path / "out", progress=False, **how)
