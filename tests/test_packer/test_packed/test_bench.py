"""`packer bench`: what is counted on each side, and what it comes to."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.builds import write_images
from support.command import file_of, run_packer
from support.errors import raises

from packer import BenchReport, bench, build, convert
from packer.packed.bench.report import Run, Side
from shardspec.errors import BuildError, UsageError
from shardspec.layout import Layout

QUICK = ("--seconds", 0.05, "--runs", 2, "--workers", 1, "--batch-size", 16)

SIDE_KEYS = {
    "samples_per_s": float,
    "rates": list,
    "cpu_s_per_sample": float,
    "memory_bytes": int,
    "file_bytes_per_sample": float,
    "epoch_s": float,
    "epoch_cpu_s": float,
}


def test_companions_of_the_items_are_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them the raw side would have less to do, and the source would not be that of the build."""
    write_images(tmp_path / "in", ["face.png", "mask.png"])
    (tmp_path / "in" / "table.csv").write_text("path,mask\nface.png,mask.png\n")
    (tmp_path / "boxes.json").write_text(json.dumps({"face.png": {"0": [[0, 0, 24, 24]]}}))
    monkeypatch.chdir(tmp_path)  # the dataset knows the file with the boxes by its name
    how: dict[str, Any] = {"preset": "faces", "boxes": "boxes.json", "min_face": 20, "also": "mask", "size": 16}
    build("in/table.csv", "out", progress=False, workers=1, **how)
    found = bench("in/table.csv", "out", workers=1, batch_size=1, runs=1, seconds=0.01)
    assert (found.same_source, found.measured_items) == (True, 1)


def test_the_command_prints_json(mixed: Path, reference: Path) -> None:
    done = run_packer("bench", mixed, reference, *QUICK, "--json", process=True)
    document = json.loads(done.stdout)
    samples = Layout(reference).load().samples
    assert (document["samples"], document["runs"], document["workers"]) == (samples, 2, 1)
    assert document["same_source"] is True
    assert 1 <= document["measured_items"] <= document["items"]
    for side in (document["raw"], document["read"]):
        assert set(side) == set(SIDE_KEYS)
        assert all(isinstance(side[name], kinds) for name, kinds in SIDE_KEYS.items())
        assert len(side["rates"]) == 2
        assert side["epoch_s"] == pytest.approx(samples / side["samples_per_s"])
        assert side["epoch_cpu_s"] == pytest.approx(samples * side["cpu_s_per_sample"])
    stored = sum(shard.bytes for shard in Layout(reference).load().shards)
    assert document["read"]["file_bytes_per_sample"] == pytest.approx(stored / samples)
    assert document["pack_s_recorded"] is True
    assert document["pack_s"] == Layout(reference).load().wall_clock["seconds"]


def test_the_command_prints_a_table_and_says_that_the_source_has_changed(tmp_path: Path) -> None:
    source = write_images(tmp_path / "source", ["a.jpg", "b.png"])
    run_packer("build", source, tmp_path / "out", "--quiet")
    write_images(source, ["c.jpg"])
    table = run_packer("bench", source, tmp_path / "out", *QUICK).stdout
    assert "raw" in table.splitlines()[0]
    assert "packed (lmdb)" in table.splitlines()[0]
    for row in ("samples/s", "CPU ms per sample", "memory, MB", "file bytes per sample", "epoch of 2, s"):
        assert row in table
    assert "Packing took" in table
    assert "not, file by file, what the dataset was built from" in table


def test_a_converted_dataset_is_compared_with_what_it_was_built_from(tmp_path: Path) -> None:
    """Through several conversions, of format, shard size and order; only the time of packing is not handed on."""
    source = write_images(tmp_path / "source", ["a.jpg", "b.png", "c.jpg"])
    build(source, tmp_path / "out", progress=False, engine="inline", shard_size=1000)
    convert(tmp_path / "out", tmp_path / "npy", format="npy", shard_size=2000, progress=False, engine="inline")
    convert(tmp_path / "npy", tmp_path / "hdf5", format="hdf5", shuffle=3, progress=False, engine="inline")
    for name in ("npy", "hdf5"):
        found = bench(source, tmp_path / name, workers=1, batch_size=1, runs=1, seconds=0.01)
        assert (found.same_source, found.recorded_pack_s) == (True, None)
        assert "estimated as one raw epoch" in found.describe()
        assert "not, file by file" not in found.describe()
    write_images(source, ["d.jpg"])
    assert not bench(source, tmp_path / "hdf5", workers=1, batch_size=1, runs=1, seconds=0.01).same_source


def test_datasets_that_cannot_be_compared_are_refused(mixed: Path, reference: Path, tmp_path: Path) -> None:
    run_packer("split", reference, tmp_path / "parts", "--by", "source", "--quiet", "--engine", "inline")
    with raises(
        UsageError,
        expected="a dataset that `packer build` made",
        found="one of 'split', which has no recipe to run over raw items",
    ):
        bench(mixed, tmp_path / "parts" / "train")
    reported = (
        r"expected items that yield samples, found none among the 1 tried \('real/a.jpg', decode: expected an image"
    )
    with pytest.raises(UsageError, match=reported):
        bench(write_hollow(tmp_path / "hollow"), reference, workers=1, seconds=0.01, runs=1)
    assert "packer bench: " in run_packer("bench", mixed, tmp_path, *QUICK, expect=2).stderr


def test_the_boxes_of_the_build_are_named_again(tmp_path: Path) -> None:
    source, boxes = write_images(tmp_path / "source", ["a.png"]), tmp_path / "boxes.csv"
    boxes.write_text("path,frame,x0,y0,x1,y1\na.png,0,1,1,9,9\n")
    build(source, tmp_path / "out", preset="faces", boxes=boxes, min_face=1, size=8, engine="inline", progress=False)
    quick: dict[str, Any] = {"seconds": 0.01, "runs": 1, "workers": 1, "progress": False}
    with raises(UsageError, option="boxes", found="nothing at boxes.csv"):
        bench(source, tmp_path / "out", **quick)
    report = bench(source, tmp_path / "out", boxes=boxes, **quick)
    assert report.raw.samples_per_s > 0
    assert report.same_source
    build(source, tmp_path / "plain", size=8, engine="inline", progress=False)
    with pytest.raises(UsageError, match="built without --boxes"):
        bench(source, tmp_path / "plain", boxes=boxes, **quick)


def write_hollow(root: Path) -> Path:
    """A source of files that are no images but for their names."""
    (root / "real").mkdir(parents=True)
    (root / "real" / "a.jpg").write_bytes(b"no image")
    return root


def test_a_failing_process_reports_the_reason(tmp_path: Path) -> None:
    source = write_images(tmp_path / "source", ["a.png"])
    build(source, tmp_path / "out", engine="inline", progress=False)
    file_of(tmp_path / "out", "shard-00000.lmdb").unlink()
    with pytest.raises(BuildError, match=r"shard-00000-\w+\.lmdb: expected a file"):
        bench(source, tmp_path / "out", workers=1, runs=1, seconds=0.01, progress=False)


def test_estimated_figures() -> None:
    raw, reading = (
        Side.of_runs([Run(10, rate, 10 * cpu_s, 1000, 5) for rate, cpu_s in runs], 600)
        for runs in (((10, 0.1), (20, 0.3), (60, 0.2)), ((300, 0.001), (100, 0.001), (200, 0.001)))
    )
    assert (raw.samples_per_s, raw.cpu_s_per_sample, raw.epoch_s, raw.epoch_cpu_s) == (20, 0.2, 30, 120)
    assert raw.file_bytes_per_sample == 100
    facts: dict[str, Any] = {"workers": 2, "batch_size": 8, "seconds": 1.0, "items": 7, "measured_items": 3}
    report = BenchReport(
        "raw", "packed", "npy", True, **facts, samples=600, raw=raw, reading=reading, recorded_pack_s=54
    )
    assert report.paid_after_epochs == pytest.approx(54 / (30 - 3))
    assert report.to_json()["times_faster"] == 10
    assert "20 (10 to 60)" in report.describe()
    assert "pays off after 2 epochs" in report.describe()
    slower = replace(report, raw=reading, reading=raw, recorded_pack_s=None)
    assert slower.pack_s == 3
    assert slower.paid_after_epochs is None
    assert "estimated as one raw epoch" in slower.describe()
    assert "never pays off: reading raw is as fast" in slower.describe()
