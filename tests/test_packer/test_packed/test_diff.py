"""``packer diff``: samples, fields and pixels that differ, by key."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builds import QUIET, write_images
from support.command import run_packer

import packer
from packer.packed.browse.dataset import BrowsedDataset
from packer.packed.inspect import diff
from shardspec.errors import UsageError

ROWS = 40


def write(
    out: Path, change: dict[int, dict[str, Any]] | None = None, rows: range = range(ROWS), **options: Any
) -> Path:
    """A dataset of small images, of which some rows have other values."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (max(rows) + 1, 8, 8, 3), np.uint8)
    with packer.Writer(out, shard_size="3kB", progress=False, **{"encode": "png", **options}) as writer:
        for row in rows:
            sample = {"image": images[row], "label": row % 3, "score": row / 7, "note": f"n{row}"}
            writer.write(key=f"k{row:03d}", **{**sample, **(change or {}).get(row, {})})
    return out


def test_equal_datasets_have_no_difference_in_any_format_and_encoding(tmp_path: Path) -> None:
    one = write(tmp_path / "a")
    for name, options in {
        "same": {},
        "npy": {"format": "npy"},
        "raw": {"encode": "raw", "format": "parquet"},
        "webp": {"encode": "webp-lossless", "format": "webdataset"},
    }.items():
        found = packer.diff(one, write(tmp_path / name, **options), progress=False)
        assert not found.found, (name, found)
        assert found.same == ROWS


def test_an_order_does_not_matter(tmp_path: Path) -> None:
    write_images(tmp_path / "in", [f"{number}.png" for number in range(9)])
    for name, seed in (("a", None), ("b", 3)):
        packer.build(tmp_path / "in", tmp_path / name, shuffle=seed, **QUIET)
    assert packer.diff(tmp_path / "a", tmp_path / "b", progress=False).same == 9


@pytest.mark.parametrize("rows_at_a_time", [7, diff._ROWS])
def test_samples_fields_and_pixels_that_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_a_time: int
) -> None:
    monkeypatch.setattr(diff, "_ROWS", rows_at_a_time)
    other = np.zeros((8, 8, 3), np.uint8)
    change: dict[int, dict[str, Any]] = {
        5: {"image": other},
        6: {"label": 9},
        7: {"note": "x", "label": 9},
        8: {"score": 0.5},
    }
    one = write(tmp_path / "a", rows=range(ROWS))
    two = write(tmp_path / "b", change, rows=range(3, ROWS + 2))
    done = run_packer("diff", one, two, "-o", tmp_path / "d.csv", "--json", expect=1)
    found = json.loads(done.stdout)
    assert found["only_a"] == ["k000", "k001", "k002"]
    assert found["only_b"] == ["k040", "k041"]
    assert found["changed"] == {
        "image": ["k005"],
        "label": ["k006", "k007"],
        "score": ["k008"],
        "note": ["k007"],
    }
    assert found["same"] == ROWS - 3 - 4
    with (tmp_path / "d.csv").open() as file:
        rows = {row["key"]: row["difference"] for row in csv.DictReader(file)}
    assert rows["k007"] == "label+note"
    assert rows["k000"] == "only in A"
    assert len(rows) == 9
    assert BrowsedDataset(one, tmp_path / "d.csv").select("difference != ''").mask.sum() == 7
    text = run_packer("diff", one, two, "-o", tmp_path / "d.csv", expect=1).stdout
    assert "k005" in text
    assert text.count("packer view") == 2


def test_arrays_without_values_are_equal(tmp_path: Path) -> None:
    empty = {row: {"extra": np.empty((0, 4), np.float32)} for row in range(ROWS)}
    one, two = write(tmp_path / "a", empty), write(tmp_path / "b", {**empty, 3: {**empty[3], "label": 9}})
    assert packer.diff(one, two, progress=False).changed == {"label": ("k003",)}


def test_fields_that_only_one_has_or_that_have_another_type(tmp_path: Path) -> None:
    one = write(tmp_path / "a")
    more = {row: {"extra": 1, "score": row} for row in range(ROWS)}
    found = packer.diff(one, write(tmp_path / "b", more), progress=False)
    assert (found.fields_a, found.fields_b, found.retyped) == ((), ("extra",), ("score",))
    assert found.same == ROWS
    assert found.found


def test_shards_with_equal_digests_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = write(tmp_path / "a"), write(tmp_path / "b", {ROWS - 1: {"label": 9}})
    read: list[int] = []
    original = diff._ComparedDataset.read
    monkeypatch.setattr(
        diff._ComparedDataset,
        "read",
        lambda side, rows, names: (read.append(len(rows)), original(side, rows, names))[1],
    )
    assert packer.diff(one, two, progress=False).changed == {"label": ("k039",)}
    assert sum(read) < 2 * ROWS  # of 160: keys and values of both


def test_lossy_images_differ_by_their_pixels(tmp_path: Path) -> None:
    found = packer.diff(write(tmp_path / "a"), write(tmp_path / "b", encode="jpeg"), progress=False)
    assert len(found.changed["image"]) == ROWS


def test_wrong_arguments_are_one_line(tmp_path: Path) -> None:
    one = write(tmp_path / "a")
    for wrong in ({"out": tmp_path / "d.txt"}, {"out": one / "d.csv"}):
        with pytest.raises(UsageError):
            packer.diff(one, one, progress=False, **wrong)
    assert "none" in run_packer("diff", one, tmp_path / "none", expect=2).stderr
