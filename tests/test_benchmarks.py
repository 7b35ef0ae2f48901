"""The reading benchmarks run on a few samples, and their JSON is what the schema says."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks is no installed package

from benchmarks.check import check_epoch  # noqa: E402
from benchmarks.data import Source, make_source  # noqa: E402
from benchmarks.measure import check_document, summarise, table  # noqa: E402

SMALL = ["--rows", "96", "--photos", "64", "--batch", "16", "--rounds", "2"]


def run(script: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """The document of a run."""
    out = folder / f"{script}.json"
    command = [sys.executable, "-m", f"benchmarks.{script}", "--folder", str(folder), "--json", str(out)]
    done = subprocess.run([*command, *SMALL, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def readers_document(folder: Path) -> dict[str, Any]:
    return run("readers", folder, "--kinds", "raw", "photo", "--formats", "npy", "parquet", "--only", "Loader")


def test_readers_measure_all_rows_beside_the_limits(readers_document: dict[str, Any]) -> None:
    check_document(readers_document)
    raw, photo = readers_document["groups"]
    assert raw["limit"] == "gather, reused buffers"
    assert {row["name"] for row in raw["rows"] if row["ours"]} == {
        "Loader, npy",
        "Loader, npy, fresh",
        "Loader, parquet, blocks",
        "Loader, parquet, blocks, unchecked",
    }
    for group in (raw, photo):
        assert [row["error"] for row in group["rows"]] == [""] * len(group["rows"])
        assert all(len(row["rates"]) == 2 and row["of_limit"] > 0 for row in group["rows"])


def test_limits_alone(folder: Path) -> None:
    found = run("limits", folder, "--kinds", "jpeg", "photo")
    check_document(found)
    assert [len(group["rows"]) for group in found["groups"]] == [2, 3]


def test_cold(folder: Path) -> None:
    found = run("cold", folder, "--formats", "npy", "--kinds", "raw")
    check_document(found)
    assert [row["name"] for row in found["groups"][0]["rows"] if row["rates"]] == [
        "read through, npy",
        "Loader, npy, full",
        "Loader, npy, blocks",
    ]


def test_peers_without_the_peers(folder: Path) -> None:
    found = run("peers", folder, "--kinds", "jpeg", "--only", "DataLoader over LMDB", "FFCV", "--long", "0")
    check_document(found)
    rows = {row["name"]: row for group in found["groups"] for row in group["rows"]}
    assert rows["Loader, lmdb"]["rates"]
    assert rows["DataLoader over LMDB"]["rates"]
    assert rows["FFCV"]["rates"] or "ffcv" in rows["FFCV"]["error"]


def test_a_document_that_lacks_something_is_refused(readers_document: dict[str, Any]) -> None:
    row = ("groups", 0, "rows", 1)
    for path, value in (
        (("machine",), None),
        ((*row, "median"), "fast"),
        ((*row, "rates"), [0.0]),
        ((*row, "rates"), []),
        ((*row, "surplus"), 1),
        (("schema",), 0),
    ):
        changed: Any = copy.deepcopy(readers_document)
        at = changed
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        with pytest.raises(ValueError, match="expected"):
            check_document(changed)


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
    text = table(group)
    assert "no such thing" in text
    assert text.count("\n") == len(group["rows"]) + 3


@pytest.mark.parametrize("wrong", ["twice", "missing", "points", "pixels", ""])
def test_wrong_samples_are_found(tmp_path: Path, wrong: str) -> None:
    make_source(tmp_path, ("raw",), {"raw": 32, "jpeg": 32})
    source = Source(tmp_path, "raw")
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
