"""The reading benchmarks run on a few samples, and their JSON is what the schema says."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

from benchmarks import peers
from benchmarks.check import check_epoch
from benchmarks.data import SourceImages, make_source
from benchmarks.measure import summarise
from benchmarks.memory_group import NoMemoryGroupError, memory_group
from benchmarks.tables import reading_table
from readers.formats.machine import usable_memory
from shardspec.formats import FORMATS

ROOT = Path(__file__).parents[2]

SMALL = ["--rows", "96", "--photos", "64", "--batch", "16", "--rounds", "2"]


def run(script: str, folder: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """The document of a run, and what it printed."""
    out = folder / f"{script}.json"
    command = [sys.executable, "-m", f"benchmarks.{script}", "--folder", str(folder), "--json", str(out)]
    done = subprocess.run([*command, *SMALL, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    return found, done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def readers_document(folder: Path) -> dict[str, Any]:
    only = ("Loader, npy, fresh", "Loader, parquet, blocks, unchecked", "DataLoader over npy")
    return run("readers", folder, "--kinds", "raw", "--formats", "npy", "parquet", "--only", *only)[0]


def test_readers_measure_all_rows_next_to_the_limits(readers_document: dict[str, Any]) -> None:
    (group,) = readers_document["groups"]
    assert group["limit"] == "gather, reused buffers"
    assert {row["name"] for row in group["rows"] if row["ours"]} == {
        "Loader, npy, fresh",
        "DataLoader over npy",
        "Loader, parquet, blocks, unchecked",
    }
    assert [row["error"] for row in group["rows"]] == [""] * len(group["rows"])
    assert all(len(row["rates"]) == 2 and row["of_limit"] > 0 for row in group["rows"])


def test_larger_than_memory(folder: Path) -> None:
    found, _ = run("cold", folder, "--formats", "npy", "--cache-mb", "8")
    limit, *ours = found["groups"][0]["rows"]
    assert limit["rates"]
    assert [row["name"].removeprefix("Loader, npy, ") for row in ours] == [
        *("full", "full, nothing ahead", "blocks", "blocks, nothing ahead"),
    ]
    try:
        with memory_group(1 << 30):
            pass
    except NoMemoryGroupError:
        assert all("not measured: no memory group" in row["error"] for row in ours)
    else:
        assert all(len(row["rates"]) == 2 for row in ours), [row["error"] for row in ours]


def test_a_dataset_on_a_slow_server(folder: Path) -> None:
    words = ("--rates", "200", "--kinds", "raw", "--shard-mb", "1", "--only", "Loader, blocks", "--rounds", "1")
    found, printed = run("remote", folder, *words)
    loaders, small_cache = found["groups"]
    ours = loaders["rows"][0]
    assert (ours["name"], ours["error"]) == ("Loader, blocks", "")
    assert len(ours["of_link"]) == len(ours["first_s"]) == 1
    assert all(0 < share <= 1 for share in ours["of_link"])
    assert all(times > 0.5 for one in small_cache["rows"] for times in one["epochs"])
    assert [line.split(" | ")[0] for line in printed.splitlines() if "**Loader, blocks**" in line] == [
        *("| raw, 200 MB/s", "| raw, a cache of a quarter"),
    ]


def test_a_memory_group_limits_its_process_and_is_removed() -> None:
    before, groups = usable_memory(), Path("/proc/self/cgroup").read_text()
    try:
        with memory_group(100 << 20) as group:
            assert usable_memory() == 100 << 20
    except NoMemoryGroupError as error:
        pytest.skip(str(error))
    assert (usable_memory(), Path("/proc/self/cgroup").read_text()) == (before, groups)
    assert not group.exists()


def test_a_relative_folder_is_that_of_the_caller(tmp_path: Path) -> None:
    options = ("--kinds", "jpeg", "--formats", "npy", "--only", "torchdata nodes", "--rounds", "1")
    command = [sys.executable, "-m", "benchmarks.peers", "--folder", "data", "--json", "out.json", *SMALL, *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (group,) = json.loads((tmp_path / "out.json").read_text())["groups"]
    assert [row["name"] for row in group["rows"] if not row["rates"]] == []
    assert {row["name"] for row in group["rows"]} >= {"Loader, npy", "torchdata nodes"}


@pytest.mark.slow
def test_peers_without_the_peers(folder: Path) -> None:
    words = ("--kinds", "photo", "--formats", "npy", "--recipes", "jitter", "--only", "DataLoader over LMDB", "FFCV")
    found, _ = run("peers", folder, *words)
    group, recipe = found["groups"]
    assert [row["name"] for row in recipe["rows"] if row["name"] != "FFCV" and row["rates"]] == [
        "decode, smallest sufficient scale",
        "Loader, npy",
        "DataLoader over LMDB",
    ]
    rows = {row["name"]: row for row in group["rows"]}
    assert [name for name, row in rows.items() if not row["rates"]] in ([], ["FFCV"])
    assert {"Loader, npy", "Loader, npy, fast", "DataLoader over LMDB"} < set(rows)
    if not rows["FFCV"]["rates"]:
        assert "ffcv" in rows["FFCV"]["error"]


def test_each_peer_and_format_has_a_separate_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SourceImages", "pack_ours", "pack_peer"):
        monkeypatch.setattr(peers, name, lambda *_, **__: {})
    for kind in peers.KINDS:
        entries = peers.ours(kind, tmp_path, tmp_path, 8, sorted(FORMATS), False)
        entries += [peer.entry(kind, tmp_path, tmp_path, 8) for peer in peers.PEERS]
        roots = [Path(entry.options["root"]) for entry in entries]
        assert len(set(roots)) == len(roots) == len(FORMATS) + len(peers.PEERS)
        # As the facts of a peer do: each is a folder of its own below the run's.
        assert {root.parent for root in roots} == {tmp_path}


def test_ratios_are_taken_round_by_round() -> None:
    limit: dict[str, Any] = {"rates": [100.0, 10.0, 50.0]}
    row: dict[str, Any] = {"rates": [50.0, 5.0, 40.0]}
    summarise(row, limit)
    assert row["median"] == 40.0
    assert (row["low"], row["high"]) == (5.0, 50.0)
    assert row["of_limit"] == 0.5


def test_tables_name_what_failed(readers_document: dict[str, Any]) -> None:
    group = copy.deepcopy(readers_document["groups"][0])
    group["rows"][2] |= {"rates": [], "error": "no such thing"}
    text = reading_table(group)
    assert "no such thing" in text
    assert text.count("\n") == len(group["rows"]) + 1


@pytest.mark.parametrize("shift", [0, 20])
def test_jpeg_pixels_are_compared_as_far_as_jpeg_allows(tmp_path: Path, shift: int) -> None:
    make_source(tmp_path, ("jpeg",), {"raw": 4, "jpeg": 4})
    source = SourceImages(tmp_path, "jpeg")
    images = np.stack([simplejpeg.decode_jpeg(source.encoded(row)) for row in range(4)])
    batch = {"image": np.roll(images, shift, 1), "landmarks": source.landmarks, "label": np.arange(4)}
    options = {"source": str(tmp_path), "kind": "jpeg", "batch": 4}
    if shift:
        with pytest.raises(ValueError, match="levels from the source"):
            check_epoch([batch], options)
    else:
        assert check_epoch([batch], options)["samples"] == 4


@pytest.mark.parametrize("wrong", ["twice", "missing", "points", "pixels", ""])
def test_wrong_samples_are_found(tmp_path: Path, wrong: str) -> None:
    make_source(tmp_path, ("raw",), {"raw": 32, "jpeg": 32})
    source = SourceImages(tmp_path, "raw")
    assert source.images is not None
    labels = np.random.default_rng(0).permutation(32)
    if wrong == "twice":
        labels[0] = labels[1]
    if wrong == "missing":
        labels = labels[:20]
    images, points = np.array(source.images[labels]), source.landmarks[labels].copy()
    if wrong == "points":
        points[[3, 4]] = points[[4, 3]]
    if wrong == "pixels":
        images[5, 0, 0, 0] ^= 1
    batches = [
        {"image": images[a : a + 4], "landmarks": points[a : a + 4], "label": labels[a : a + 4]}
        for a in range(0, len(labels), 4)
    ]
    options = {"source": str(tmp_path), "kind": "raw", "batch": 4}
    if wrong:
        with pytest.raises(ValueError, match=r"twice|expected|label|pixels"):
            check_epoch(batches, options)
    else:
        assert check_epoch(batches, options)["samples"] == 32
