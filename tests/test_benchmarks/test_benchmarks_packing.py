"""The benchmarks of packing and of the formats run on a little, and measure what they say."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.face_source import views, write_frames
from support.ranks import run_script

from benchmarks.pack_faces import our_stages, summarise
from benchmarks.tables import scale_tables
from packer import Recipe
from packer.steps.encode import Encoder
from packer.steps.faces.search import FaceSearch
from packer.steps.faces.step import FaceCutter

ROOT = Path(__file__).parents[2]
FRAMES = 6


def run(script: str, folder: Path, *arguments: object) -> dict[str, Any]:
    """The document of a run."""
    out = folder / f"{script}.json"
    run_script("-m", f"benchmarks.{script}", *arguments, "--json", out)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_frames(tmp_path_factory.mktemp("video") / "face.mp4", views(FRAMES))


@pytest.mark.slow
def test_both_ways_of_packing_faces_cut_the_same_faces(video: Path, tmp_path: Path) -> None:
    pytest.importorskip("facenet_pytorch")
    options = ("--every", 2, "--copies", 1, "--runs", 1, "--workers", 1)
    found = run("pack_faces", tmp_path, video, *options)
    (group,) = found["groups"]
    (turn,) = group["runs"]
    for way in ("loop", "build"):
        assert (turn[way]["frames"], turn[way]["faces"]) == (FRAMES // 2, FRAMES // 2)
        assert group[way]["frames_per_s"] == turn[way]["frames"] / turn[way]["s"] > 0
        beyond = turn[way]["s"] - turn[way]["start_s"]
        assert group[way]["frames_per_s_without_start"] == (turn[way]["frames"] / beyond if beyond > 0 else None)
        assert set(found["stages"][way]) == {"decode", "detect", "crop", "encode"}


def test_stages_of_the_build_of_faces_are_measured(video: Path) -> None:
    recipe = Recipe(preset="faces", every=2)
    spent = our_stages(video, recipe, FaceSearch(recipe), FaceCutter(recipe), Encoder(recipe))
    assert list(spent) == ["decode", "detect", "crop", "encode"]
    assert min(spent.values()) > 0  # a face was cut


@pytest.mark.slow
def test_a_failing_build_reports_no_figure(tmp_path: Path) -> None:
    pytest.importorskip("facenet_pytorch")
    faceless = write_frames(tmp_path / "coffee.mp4", views(FRAMES, faceless=range(FRAMES)))
    options = ("--every", "2", "--copies", "1", "--runs", "1", "--workers", "1")
    command = [sys.executable, "-m", "benchmarks.pack_faces", str(faceless), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ended with status 3" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_the_cost_of_packing_an_item_is_measured_for_each_process(tmp_path: Path) -> None:
    options = ("--items", 40, "--files", 3, "--workers", 1, "--no-readers", "--commands", "build", "inspect")
    (group,) = run("pack_scale", tmp_path, *options)["groups"]
    assert (group["items"], list(group["commands"])) == (40, ["build", "inspect"])
    assert group["readers"] == {}
    build = group["commands"]["build"]
    assert build["coordinator_bytes"] > build["own_bytes"] > 10**7
    assert build["worker_bytes"] > build["worker_own_bytes"] > 10**7
    assert 0 < build["coordinator_cpu_s"] < build["cpu_s"] < 10 * build["seconds"]


def test_the_table_of_many_items_shows_the_cost_of_each_further_item() -> None:
    spent = {"coordinator_bytes": 9e6, "worker_bytes": 0, "worker_own_bytes": 0}
    groups = [
        {
            "items": items,
            "commands": {"verify": {**spent, "seconds": 2.0, "cpu_s": cpu, "coordinator_cpu_s": cpu, "own_bytes": own}},
            "readers": {"open": {"seconds": 0.002, "own_bytes": own, "kept_bytes": 1e6}},
        }
        for items, cpu, own in ((1000, 1.0, 1e6), (2000, 1.5, 3e6))
    ]
    lines = [line for text in scale_tables(groups) for line in text.splitlines()]
    assert "| `verify` | 500 | 500 | 2000 | 2 | 9 | 3 |  |" in lines
    assert "| `open` | 2 | 2 | 2000 | 3 | 1 |" in lines


@pytest.mark.slow
def test_every_detector_is_measured_on_the_same_faces(video: Path, tmp_path: Path) -> None:
    pytest.importorskip("facenet_pytorch")
    found = run("detector", tmp_path, video, "--frames", 4)
    for row in found["rows"]:
        assert row["faces"] == 4
        assert row["missing"] == 0
    assert set(found["process_rates"]) == {"1", "2"}


def test_every_way_of_packing_images_is_measured(tmp_path: Path) -> None:
    kinds = ("resized", "crops", "raw npy")
    few = ("--count", 3, "--crops", 4, "--workers", 1, "--runs", 1)
    found = run("pack_pictures", tmp_path, "--folder", tmp_path / "work", "--kinds", *kinds, *few)
    rows = {(group["kind"], row["name"]): row for group in found["groups"] for row in group["rows"]}
    for kind, others in (("resized", ["loop"]), ("crops", ["decode", "loop"]), ("raw npy", [])):
        for name in ("packer", *others):
            row = rows[kind, name]
            assert row["rates"]["median"] > 0
            assert min(row["own_cpu_s"], row["workers_cpu_s"], row["own_peak_mb"], row["workers_peak_mb"]) > 0
    assert rows["resized", "packer"]["ratio"]["median"] > 0
    assert not list((tmp_path / "work" / "work").glob("out*"))


def test_a_run_no_longer_than_its_start_reports_no_figure_without_it() -> None:
    runs = [{way: {"frames": 4, "s": s, "start_s": 2.0, "cpu_s": 1.0} for way in ("loop", "build")} for s in (3.0, 1.5)]
    found = summarise(runs[:1])
    assert (found["build"]["frames_per_s_without_start"], found["ratio_without_start"]["median"]) == (4.0, 1.0)
    found = summarise(runs)
    assert (found["build"]["frames_per_s_without_start"], found["ratio_without_start"]) == (None, None)
    assert found["ratio"] == {"median": 1.0, "low": 1.0, "high": 1.0}
