"""Videos packed at a constant rate: ``--resample-fps``."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builds import QUIET
from support.detectors import Counting
from support.face_source import views, write_frames
from support.media import write_image
from support.packed import check_whole, read_samples

import packer

HOW: dict[str, Any] = {"size": 64, "encode": "png", "resample_fps": 50, **QUIET}
FACES = {"preset": "faces", "choose": "largest", **HOW}
COUNT = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video of a face at 25 frames per second."""
    root = tmp_path_factory.mktemp("resampled")
    write_frames(root / "v.mp4", views(COUNT))
    return root


@pytest.fixture(scope="module")
def doubled(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its faces at 50 frames per second, by a detector that counts."""
    out = tmp_path_factory.mktemp("resampled") / "out"
    Counting.seen = 0
    packer.build(folder, out, detector="support.detectors:Counting", **FACES)
    assert Counting.seen == COUNT
    return out


def test_repeated_frames_are_samples_with_true_times_and_one_detection(doubled: Path) -> None:
    check_whole(doubled)
    samples = read_samples(doubled)
    assert [int(sample["frame"]) for sample in samples] == [n // 2 for n in range(2 * COUNT)]
    assert [int(sample["frame_position"]) for sample in samples] == [*range(2 * COUNT)]
    assert np.allclose([sample["time"] for sample in samples], [(n // 2) / 25 for n in range(2 * COUNT)])
    assert len({str(sample["key"]) for sample in samples}) == 2 * COUNT
    assert {int(sample["track"]) for sample in samples} == {0}
    for one, other in zip(samples[::2], samples[1::2], strict=True):
        assert np.array_equal(one["image"], other["image"])


@pytest.mark.parametrize("boxes", ["detect", "detect every", "build"])
def test_boxes_of_repeated_frames_are_taken_once(folder: Path, doubled: Path, tmp_path: Path, boxes: str) -> None:
    if boxes != "build":
        rate = {"resample_fps": 50} if boxes == "detect" else {}
        packer.detect(folder, tmp_path / "boxes", detector="support.detectors:Wrapped", **rate, **QUIET)
    given = doubled if boxes == "build" else tmp_path / "boxes"
    packer.build(folder, tmp_path / "out", boxes=str(given), **FACES)
    for one, other in zip(read_samples(doubled), read_samples(tmp_path / "out"), strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in ("key", "image", "landmarks", "track", "time"))


def test_companions_and_the_boxes_of_an_original_are_repeated_alike(folder: Path, tmp_path: Path) -> None:
    video = str(folder / "v.mp4")
    rows = [{"path": video, "mask": video, "original": video}]
    options = {"root": str(folder), "boxes_from": "original", "also": "mask", **FACES}
    packer.build(rows, tmp_path / "out", detector="support.detectors:Counting", **options)
    samples = read_samples(tmp_path / "out")
    assert len(samples) == 2 * COUNT
    assert all(np.array_equal(sample["image"], sample["mask_image"]) for sample in samples)


def test_a_folder_of_frames_is_resampled_by_its_numbers(tmp_path: Path) -> None:
    for number, view in enumerate(views(6)):
        write_image(tmp_path / "in" / "v" / f"{10 + number:03d}.png", view)
    how = {**HOW, "resample_fps": 20, "frame_folders": 10.0}
    packer.build(tmp_path / "in", tmp_path / "out", **how)
    samples = read_samples(tmp_path / "out")
    assert [int(sample["frame"]) for sample in samples] == [10 + n // 2 for n in range(12)]
    assert [int(sample["frame_position"]) for sample in samples] == [*range(12)]


@pytest.mark.parametrize("smooth", [None, 3])
def test_tracks_are_those_of_the_frames(folder: Path, tmp_path: Path, smooth: int | None) -> None:
    """A second face appears in the middle of the video."""
    rows = [{"path": "v.mp4", "frame": n, "x0": 20, "y0": 20, "x1": 80, "y1": 90} for n in range(COUNT)]
    rows += [{**row, "x0": 200, "x1": 260} for row in rows[COUNT // 2 :]]
    (tmp_path / "boxes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {**FACES, "choose": "all", "boxes": str(tmp_path / "boxes.jsonl"), "smooth": smooth}
    packer.build(folder, tmp_path / "out", **options)
    samples = read_samples(tmp_path / "out")
    by_track = [[int(s["frame_position"]) for s in samples if int(s["track"]) == track] for track in (0, 1)]
    assert by_track == [[*range(2 * COUNT)], [*range(COUNT, 2 * COUNT)]]
