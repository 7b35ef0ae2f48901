"""``--crop mouth`` and other parts, by published definitions."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from skimage.transform import estimate_transform
from support.errors import raises
from support.faces import in_frame
from support.media import photograph, write_image
from support.packed import check_whole, read_samples

import packer
from packer.vision.geometry.align import CENTRES, DEFINITIONS, SIZE, part_matrix
from packer.vision.landmarks.shape import five_points
from shardspec.errors import UsageError
from shardspec.layout import Layout

NAMES = ("right_eye", "left_eye", "nose_tip", "mouth_right", "mouth_left")


def points_of(layout: str, seed: int) -> npt.NDArray[np.float64]:
    """Points of a face that is tilted, and differ from the mean face."""
    rng = np.random.default_rng(seed)
    if layout == "5":
        return np.array([[202, 113], [248, 108], [222, 138], [207, 152], [249, 149]]) + rng.normal(size=(5, 2))
    angle = 0.3
    turn = 1.7 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return rng.normal(scale=40, size=(68, 2)) @ turn.T + 300


def published(points: npt.NDArray[np.float64], name: str, part: str, *, whole: bool = True) -> npt.NDArray[np.float64]:
    """The published code's transform to 256 x 256, moved so that the part is in the middle of 96 x 96 pixels."""
    stable, template = DEFINITIONS[name].stable, np.array(DEFINITIONS[name].template)
    source = np.array([points[list(group)].mean(axis=0) for group in stable])
    matrix = np.asarray(estimate_transform("similarity", source, template).params[:2])
    centre = points[list(CENTRES[DEFINITIONS[name].layout][part])].mean(axis=0) @ matrix[:, :2].T + matrix[:, 2]
    matrix[:, 2] -= np.round(centre - SIZE / 2) if whole else centre - SIZE / 2
    return matrix


@pytest.mark.parametrize(("name", "part"), [*product(DEFINITIONS, CENTRES["5"])])
def test_the_cut_is_the_published_one_within_half_a_pixel(name: str, part: str) -> None:
    for seed in range(20):
        points = points_of(DEFINITIONS[name].layout, seed)
        matrix, theirs = part_matrix(points, name, part, SIZE), published(points, name, part)
        corners = np.array([[0, 0], [SIZE, 0], [0, SIZE], [SIZE, SIZE]])
        frame = np.linalg.solve(matrix[:, :2], (corners - matrix[:, 2]).T).T
        # In the published code the centre of a pixel is a whole number.
        moved = (frame - 0.5) @ theirs[:, :2].T + theirs[:, 2] + 0.5
        assert np.abs(moved - corners).max() < 0.502
        assert part_matrix(points, name, part, 2 * SIZE) == pytest.approx(2 * matrix, rel=1e-6)


@pytest.fixture(scope="module")
def five() -> npt.NDArray[np.float64]:
    """The detector's points of the astronaut."""
    (faces,) = packer.Detector.dataset(40).detect([photograph("astronaut")])
    return faces.points[0].astype(np.float64)


@pytest.fixture(scope="module")
def source(five: npt.NDArray[np.float64], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("parts")
    write_image(root / "in" / "astronaut.png", photograph("astronaut"))
    keys = [f"{name}_{axis}" for name, axis in product(NAMES, "xy")]
    row = {"path": "astronaut.png", "frame": 0, "x0": 170, "y0": 50, "x1": 280, "y1": 185}
    row |= dict(zip(keys, five.ravel().tolist(), strict=True))
    (root / "boxes.jsonl").write_text(json.dumps(row) + "\n")
    return root


def build(source: Path, out: Path, **options: Any) -> dict[str, Any]:
    how: dict[str, Any] = {"preset": "faces", "encode": "png", "engine": "inline", "progress": False}
    packer.build(source / "in", out, boxes=str(source / "boxes.jsonl"), **how, **options)
    check_whole(out)
    (sample,) = read_samples(out)
    return sample


@pytest.mark.parametrize(
    ("options", "definition"),
    [
        ({}, "auto-avsr-4"),
        ({"landmarks": "68"}, "auto-avsr-68"),
        ({"landmarks": "68", "align_as": "av-hubert"}, "av-hubert"),
        ({"landmarks": "68", "align_as": "auto-avsr-4"}, "auto-avsr-4"),
    ],
)
@pytest.mark.parametrize("part", ["mouth", "eyes"])
def test_the_fields_of_a_part(
    source: Path,
    five: npt.NDArray[np.float64],
    tmp_path: Path,
    part: str,
    options: dict[str, Any],
    definition: str,
) -> None:
    """The pixels are the published ones; the landmarks of the whole face are in pixels of the crop."""
    sample = build(source, tmp_path / "out", crop=part, **options)
    assert Layout(tmp_path / "out").load().generations[0].recipe["align_as"] == definition
    assert sample["landmarks_valid"]
    found = in_frame(sample, sample["landmarks"])
    assert five_points(found, str(len(found))) == pytest.approx(five, abs=15 if options else 1e-3)
    points = five if definition == "auto-avsr-4" else found
    frame = photograph("astronaut")
    expected = cv2.warpAffine(frame, published(points, definition, part, whole=False), (SIZE, SIZE))
    assert np.abs(sample["image"].astype(int) - expected).max() <= 2
    for left, top, right, bottom in sample["regions"][[3] if part == "mouth" else [0, 1]].tolist():
        assert -8 < left < right < SIZE + 8
        assert 0 < top < bottom < SIZE


def test_the_size_scales_the_same_part(source: Path, tmp_path: Path) -> None:
    small = build(source, tmp_path / "small", crop="mouth")
    large = build(source, tmp_path / "large", crop="mouth", size=192)
    assert large["matrix"] == pytest.approx(2 * small["matrix"], rel=1e-5)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"align_as": "auto-avsr-4"}, {"option": "crop", "found": "face"}),
        ({"crop": "mouth", "align_as": "arcface"}, {"option": "align_as", "found": "arcface"}),
        ({"crop": "mouth", "align_as": "av-hubert"}, {"option": "landmarks", "expected": "68 with align_as av-hubert"}),
        (
            {"crop": "mouth", "align": True},
            {"option": "align", "problem": "read only with crop face, found crop mouth"},
        ),
        ({"crop": "eyes", "margin": 0.5}, {"option": "margin", "problem": "read only with crop face, found crop eyes"}),
        ({"crop": "mouth", "crop_per": "track"}, {"option": "crop_per", "hint": "choose track-median"}),
    ],
)
def test_incompatible_options(options: dict[str, Any], wrong: dict[str, Any]) -> None:
    with raises(UsageError, **wrong):
        packer.Recipe(**{"preset": "faces", **options})
