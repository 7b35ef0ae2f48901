"""Every script of `benchmarks/` runs: those that no other file here runs are called on a little, and their output read."""

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
from support import ray_cluster
from support.command import REPOSITORY
from support.face_source import views
from support.ranks import run_script

import packer
from benchmarks import accuracy_tracks, clips, mixing
from benchmarks.tables import clips_table
from readers import open_dataset

STARTED = {"contender", "face_loop", "picture_loop", "timed"}
"""Scripts that other scripts start."""


def test_every_script_is_called_in_a_test() -> None:
    scripts = {path.stem for path in (REPOSITORY / "benchmarks").glob("*.py") if "__main__" in path.read_text()}
    tests = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    called = set(re.findall(r"\b(?:run(?:_script)?\(|from benchmarks(?:\.| import ))[^)\n]*", tests))
    assert {script for script in scripts - STARTED if not re.search(rf"\b{script}\b", " ".join(called))} == set()


def test_the_table_of_mixing_is_that_of_the_docs() -> None:
    page = (REPOSITORY / "docs" / "background" / "benchmarks.md").read_text()
    assert mixing.table() in page


def test_networks_are_trained_on_every_encoding(tmp_path: Path) -> None:
    out = tmp_path / "accuracy.json"
    run_script("-m", "benchmarks.accuracy_tracks", "--seeds", 2, "--epochs", 1, "--videos", 1, "--json", out)
    (group,) = json.loads(out.read_text())["groups"]
    assert [row["name"] for row in group["rows"]] == [*accuracy_tracks.PACKED]
    for row in group["rows"]:
        assert len(row["runs"]) == 2
        for run in row["runs"]:
            for question in ("move", "texture"):  # shares of 32 test videos
                assert 0 <= run[question] <= 1
                assert 32 * run[question] == pytest.approx(round(32 * run[question]))


def test_every_transform_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("albumentations")
    out = tmp_path / "augment.json"
    run_script("-m", "benchmarks.augment", "--size", 32, "--rounds", 1, "--batch", 2, "--json", out)
    found = json.loads(out.read_text())
    assert {row["transform"] for row in found["samples"]} >= {"HorizontalFlip", "RandAugment", "Normalize"}
    assert all(row["cpu_us_median"] > 0 for row in found["samples"] + found["batches"])


@pytest.mark.parametrize("operation", ["where", "split(by='source')"])
def test_operations_of_readers_are_measured(tmp_path: Path, operation: str) -> None:
    with packer.Writer(tmp_path / "out", progress=False) as out:
        for row in range(8):
            out.write(label=f"class-{row % 4}", take=1000 * row, source=f"{row}.mp4")
    done = run_script("-m", "benchmarks.scale_readers", tmp_path / "out", operation)
    assert json.loads(done.stdout)["own_bytes"] >= 0


def test_planted_copies_and_searches_are_measured(tmp_path: Path) -> None:
    out = tmp_path / "duplicates.json"
    sizes = ("--images", 4, "--rows", 8, "--hashes", 1000, "--vectors", 100, "--rounds", 1)
    run_script("-m", "benchmarks.duplicates", *sizes, "--json", out)
    found = json.loads(out.read_text())
    recall = {row["copies"]: row["recall"] for row in found["finding"] if row["tool"] == "packer duplicates"}
    assert recall["half size"] == recall["20 % darker"] == 1
    assert {row["run"] for row in found["computing"]} == {"Loader", "compute quality hash"}
    assert all(row["cpu_s_median"] >= 0 for row in found["searching"])


@pytest.mark.parametrize("kind", ["photographs", "faces"])
def test_planted_copies_of_files_are_counted(tmp_path: Path, kind: str) -> None:
    (tmp_path / "files").mkdir()
    for number, face in enumerate(views(2)):
        cv2.imwrite(str(tmp_path / "files" / f"{number}.png"), cv2.resize(face, ((480, 320), (320, 480))[number]))
    out = tmp_path / "found.json"
    run_script("-m", "benchmarks.duplicates", "--rounds", 0, f"--{kind}", tmp_path / "files", "--json", out)
    found = json.loads(out.read_text())
    assert found["images"] == {"photographs": 4, "faces": 2}[kind]
    assert found["searching"] == found["computing"] == []
    assert {row["recall"] for row in found["finding"] if row["copies"] == "20 % darker"} == {1}


def test_buckets_are_read_and_their_epochs_counted(tmp_path: Path) -> None:
    out = tmp_path / "buckets.json"
    done = run_script("-m", "benchmarks.buckets", "--folder", tmp_path, "--images", 60, "--rounds", 1, "--json", out)
    (group,) = json.loads(out.read_text())["groups"]
    assert {row["name"] for row in group["rows"]} >= {"Loader", "DataLoader, batches of a Loader"}
    for row in group["rows"]:
        assert row["epochs"]["shapes"] == [3] * 3
        assert f"| {row['median']:,.0f} (" in done.stdout
        if row["ours"]:
            assert row["epochs"]["missing"] == row["epochs"]["repeated"] == [0] * 3
            assert 0 < max(row["epochs"]["in_short_batches"]) < 1


@pytest.mark.ray
def test_the_coordinating_process_of_a_ray_cluster_is_measured() -> None:
    lacking = ray_cluster.missing()
    if lacking:
        pytest.skip(lacking)
    done = run_script("-m", "benchmarks.ray_driver", "--units", 64, "--workers", 2)
    (row,) = (line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("| 64 "))
    assert all(float(cell.replace(",", "")) > 0 for cell in row[3:])


def test_sound_is_packed_and_read_next_to_other_decoders(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    pytest.importorskip("soxr")
    sizes = ("--files", 2, "--seconds", 4, "--rounds", 1)
    done = run_script("-m", "benchmarks.sounds", "--folder", tmp_path, *sizes)
    assert re.findall(r"(?m)^(?:packed|Loader|DataLoader)\b", done.stdout) == ["packed", "Loader", "DataLoader"]


def test_our_detector_agrees_with_the_reference_on_a_face(tmp_path: Path) -> None:
    pytest.importorskip("facenet_pytorch")
    (face,) = views(1)
    cv2.imwrite(str(tmp_path / "face.png"), cv2.cvtColor(face, cv2.COLOR_RGB2BGR))
    done = run_script("-m", "benchmarks.detector_parity", tmp_path)
    assert "face.png: 1 frames, 1 faces, 0 missing, 0 extra" in done.stdout
    assert done.stdout.endswith("agrees\n")


@pytest.mark.parametrize("codec", ["mp4", "jpeg", "raw"])
def test_the_numbers_of_frames_survive_their_codecs(clip_roots: dict[str, Path], codec: str) -> None:
    if codec == "mp4":
        with clips.av.open(clip_roots["x264's default"] / "001.mp4") as file:
            frames = np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])
    else:
        dataset = open_dataset(clip_roots[codec], ["image"])
        frames = np.stack([dataset[row]["image"] for row in range(clips.FRAMES, 2 * clips.FRAMES)])
    assert clips.numbers_of(frames).tolist() == list(range(clips.FRAMES, 2 * clips.FRAMES))


@pytest.fixture(scope="module")
def clip_roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return clips.make_all(tmp_path_factory.mktemp("clips"), 2)


def test_clips_are_measured_next_to_those_of_videos(clip_roots: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "clips.json"
    folder = clip_roots["jpeg"].parent
    run_script("-m", "benchmarks.clips", "--folder", folder, "--videos", 2, "--rounds", 1, "--json", out)
    (group,) = json.loads(out.read_text())["groups"]
    for row in group["rows"]:
        assert row["rates"] or (not row["ours"] and "torchcodec" in row["error"]), row["error"]
    assert "| **jpeg, clips** |" in clips_table(group)


def test_a_clip_of_other_frames_is_found() -> None:
    frames = np.stack(list(clips.make_frames(0, 2 * clips.LENGTH)))
    swapped = frames[[1, 0, *range(2, len(frames))]]
    arms = [
        clips.FramesArm(lambda _, images=images: [clips.torch.from_numpy(images).unflatten(0, (2, -1))], clips=True)
        for images in (frames, swapped)
    ]
    assert arms[0].run(0) == len(frames)
    with pytest.raises(ValueError, match="do not follow each other"):
        arms[1].run(0)
