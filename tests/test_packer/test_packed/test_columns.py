"""``packer add`` and ``packer drop-field``: fields beside the shards, read like any other."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.command import REPOSITORY, environment, run_packer
from support.datasets import face_schema, manifest_document, text, write_dataset
from support.errors import raises
from support.fuzz import SEED
from support.hooks import before_each
from support.packed import fingerprints
from support.packed_files import face_columns

import packer
from packer.assembly import columns as column_files
from readers import Loader, open_dataset
from shardspec.errors import DatasetChangedError, DatasetError, ManifestError, ShardMissingError, UsageError
from shardspec.formats import FORMATS
from shardspec.layout import Layout
from shardspec.schema import Schema

ROWS = 23
QUIET: dict[str, Any] = {"progress": False}
REPACK: dict[str, Any] = {"engine": "inline", "progress": False}


def without_score(root: Path, format: str = "npy", rows: int = ROWS, **more: Any) -> list[str]:
    """A dataset of several shards with no field ``score``; its keys."""
    schema = Schema(tuple(field for field in face_schema(codec="jpeg") if field.name != "score"))
    columns = face_columns(rows, codec="jpeg", **more)
    write_dataset(root, format, schema, {name: columns[name] for name in schema.names}, shard_rows=7)
    return list(columns["key"])


def table_of(keys: list[str]) -> dict[str, Any]:
    """A table of every kind of column, in another order than the dataset's."""
    order = np.random.default_rng(5).permutation(len(keys))
    return {
        "key": [keys[row] for row in order],
        "score": (order / 10).astype("<f4"),
        "guess": [f"gess ü {row}" for row in order],
        "embedding": np.stack([np.full(6, row, "<f2") for row in order]),
        "points": [np.arange(2 * (row % 3), dtype="<i4").reshape(-1, 2) for row in order],
        "details": [{"row": int(row)} for row in order],
        "sure": order % 2 == 0,
        "blob": [bytes([row]) * (row % 4) for row in order],
    }


def check_table(dataset: Any, rows: range | list[int] = range(ROWS)) -> None:
    """The values of `table_of`, sample by sample."""
    for place, row in enumerate(rows):
        sample = dataset[place]
        assert sample["score"].dtype == np.float32
        assert sample["score"] == np.float32(row / 10)
        assert sample["guess"] == f"gess ü {row}"
        assert sample["embedding"].tolist() == [row] * 6
        assert sample["embedding"].dtype == np.float16
        assert sample["points"].shape == (row % 3, 2)
        assert sample["points"].ravel().tolist() == list(range(2 * (row % 3)))
        assert sample["details"] == {"row": row}
        assert bool(sample["sure"]) is (row % 2 == 0)
        assert sample["blob"] == bytes([row]) * (row % 4)
        assert sample["frame"] == row * 10


@pytest.mark.parametrize("format", FORMATS)
def test_added_fields_are_read_like_any_other(format: str, tmp_path: Path) -> None:
    keys = without_score(tmp_path / "ds", format)
    before = fingerprints(tmp_path / "ds")
    result = packer.add(tmp_path / "ds", table_of(keys), **QUIET)
    assert set(result.added) == set(table_of(keys)) - {"key"}
    assert result.rows == ROWS
    after = fingerprints(tmp_path / "ds")
    assert {name: after[name] for name in before if name != "manifest.json"} == {
        name: digest for name, digest in before.items() if name != "manifest.json"
    }
    ds = open_dataset(tmp_path / "ds", verify="digest")
    check_table(ds)
    assert np.array_equal(ds.column("score"), (np.arange(ROWS) / 10).astype("<f4"))
    assert ds.column("guess")[3] == "gess ü 3"
    assert len(ds.where(lambda score: score >= 1, ["score"])) == ROWS - 10
    assert len(ds.where(lambda guess: guess == "gess ü 4", ["guess"])) == 1
    assert packer.verify(tmp_path / "ds", deep=True, progress=False).problems == ()
    one = open_dataset(tmp_path / "ds", fields=["embedding", "key"])
    batches = list(Loader(one, batch_size=4, shuffle="full", seed=3, workers=2))
    found = {
        key: row[0] for batch in batches for key, row in zip(batch["key"], batch["embedding"].tolist(), strict=True)
    }
    assert found == {key: float(row) for row, key in enumerate(keys)}
    # Removed again, the dataset is byte for byte what it was.
    assert packer.drop_field(tmp_path / "ds", list(result.added)).dropped == tuple(sorted(result.added))
    assert fingerprints(tmp_path / "ds") == before


def test_files_of_columns_are_opened_by_numpy(tmp_path: Path) -> None:
    keys = without_score(tmp_path / "ds")
    packer.add(tmp_path / "ds", table_of(keys), **QUIET)
    document = json.loads((tmp_path / "ds" / "manifest.json").read_bytes())
    assert document["spec_version"] == 1
    files = {Path(e["name"]).name: tmp_path / "ds" / e["name"] for c in document["columns"] for e in c["files"]}
    assert np.load(files["embedding.npy"], mmap_mode="r").shape == (ROWS, 6)
    assert np.load(files["score.npy"]).tolist() == (np.arange(ROWS) / 10).astype("<f4").tolist()
    ends = np.load(files["guess.offsets.npy"])
    assert files["guess.bin"].read_bytes()[ends[4] : ends[5]].decode() == "gess ü 4"
    assert len(np.load(files["points.npy"])) == np.load(files["points.offsets.npy"])[-1]


def test_a_table_on_the_command_line(tmp_path: Path) -> None:
    keys = without_score(tmp_path / "ds", "lmdb")
    with (tmp_path / "p.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["key", "Fake Score", "note"])
        writer.writerows([key, row / 8, f"007{row}"] for row, key in enumerate(keys))
    done = run_packer("add", tmp_path / "ds", tmp_path / "p.csv", "--json", "--quiet")
    assert json.loads(done.stdout)["added"] == ["fake_score", "note"]
    assert open_dataset(tmp_path / "ds").column("fake_score").tolist() == [row / 8 for row in range(ROWS)]
    assert open_dataset(tmp_path / "ds")[2]["note"] == "0072"
    again = run_packer("add", tmp_path / "ds", tmp_path / "p.csv")
    assert "finished already" in again.stdout
    (tmp_path / "p.csv").write_text((tmp_path / "p.csv").read_text().replace("0072", "0073"))
    assert "--replace" in run_packer("add", tmp_path / "ds", tmp_path / "p.csv", expect=2).stderr
    text = run_packer("inspect", tmp_path / "ds").stdout
    assert "fake_score: fixed <f8 one value, raw, column" in text
    verified = run_packer("verify", tmp_path / "ds", "--deep")
    assert "2 columns" in verified.stdout
    samples = len(open_dataset(tmp_path / "ds"))
    assert f"decoding: {samples}/{samples} samples" in verified.stderr
    rows = [{"source": f"person{n}/vidéo {n}.mp4", "subject": n, "tags": [n, n]} for n in (2, 0, 1)]
    lines = "\n".join(json.dumps(row) for row in rows)
    (tmp_path / "v.jsonl").write_text(lines, "utf-8")
    run_packer("add", tmp_path / "ds", tmp_path / "v.jsonl", "--on", "source", "--fields", "subject,tags", "--quiet")
    ds = open_dataset(tmp_path / "ds")
    assert ds.column("subject").tolist() == [row % 3 for row in range(ROWS)]
    assert ds[4]["tags"].tolist() == [1, 1]
    wrong = run_packer("drop-field", tmp_path / "ds", "image", expect=2)
    assert "is stored in the shards" in wrong.stderr
    run_packer("drop-field", tmp_path / "ds", "subject", "tags", "note", "fake_score")
    assert not (tmp_path / "ds" / "columns").exists()


def test_a_table_with_a_row_for_each_frame_of_a_video(tmp_path: Path) -> None:
    without_score(tmp_path / "ds", "parquet")
    ds = open_dataset(tmp_path / "ds")
    rows = [
        f"{source},{frame},{frame / 8}" for source, frame in zip(ds.column("source"), ds.column("frame"), strict=True)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["source, frame, valence", *rows[::-1]]), "utf-8")
    run_packer("add", tmp_path / "ds", tmp_path / "t.csv", "--on", "source", "--on", "frame", "--quiet")
    expected = (open_dataset(tmp_path / "ds").column("frame") / 8).tolist()
    assert open_dataset(tmp_path / "ds").column("valence").tolist() == expected
    (tmp_path / "t.csv").write_text("\n".join(["video, number, arousal", *rows]), "utf-8")
    options = ("--on", "source", "--key", "video", "--on", "frame", "--key", "number", "--quiet")
    run_packer("add", tmp_path / "ds", tmp_path / "t.csv", *options)
    assert open_dataset(tmp_path / "ds").column("arousal").tolist() == expected
    packer.add(tmp_path / "ds", {"key": ds.column("key"), "place": np.arange(ROWS)}, **QUIET)
    table = {"key": ds.column("key"), "number": np.arange(ROWS), "place": np.arange(ROWS)}
    with raises(UsageError, option="on", found="'place'"):
        packer.add(tmp_path / "ds", table, on=["key", "place"], key=["key", "number"], replace=True, **QUIET)


def test_a_parquet_table_keeps_its_dtypes(tmp_path: Path) -> None:
    keys = without_score(tmp_path / "ds")
    table = pa.table(
        {
            "id": pa.array(keys),
            "score": pa.array(np.arange(ROWS), pa.float32()),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(ROWS * 3), pa.float32()), 3),
            "many": pa.array([[1] * (row % 3) for row in range(ROWS)], pa.list_(pa.int16())),
            "boxes": pa.array([[[row, 1, 2, 3]] * (row % 3) for row in range(ROWS)], pa.list_(pa.list_(pa.float32()))),
            "word": pa.array([str(row) for row in range(ROWS)]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    run_packer("add", tmp_path / "ds", tmp_path / "t.parquet", "--key", "id", "--quiet")
    schema = Layout(tmp_path / "ds").load().schema
    assert [(schema[n].kind, schema[n].dtype) for n in ("score", "vector", "many", "boxes", "word")] == [
        ("fixed", "<f4"), ("fixed", "<f4"), ("ragged", "<i2"), ("ragged", "<f4"), ("text", "|u1")
    ]  # fmt: skip
    assert [box.shape for box in open_dataset(tmp_path / "ds").column("boxes")[:3]] == [(0, 4), (1, 4), (2, 4)]
    sample = open_dataset(tmp_path / "ds")[5]
    assert (sample["vector"].tolist(), sample["many"].tolist(), sample["word"]) == ([15, 16, 17], [1, 1], "5")


def test_missing_and_unknown_keys_are_counted_and_named(tmp_path: Path) -> None:
    keys = without_score(tmp_path / "ds")
    part = {"key": [*keys[:-2], "nobody", "no one"], "score": np.arange(ROWS, dtype=float)}
    part["score"][4] = np.nan
    before = fingerprints(tmp_path / "ds")
    with pytest.raises(UsageError, match=r"found 2 of 23 that it has not \('nobody', 'no one'\).*allow_unknown"):
        packer.add(tmp_path / "ds", part, **QUIET)
    with pytest.raises(UsageError, match=f"none for 3 .*{keys[4]}.*{keys[-1]}.*score_valid.*allow_missing"):
        packer.add(tmp_path / "ds", part, allow_unknown=True, **QUIET)
    assert fingerprints(tmp_path / "ds") == before
    result = packer.add(tmp_path / "ds", part, allow_unknown=True, allow_missing=True, **QUIET)
    assert (result.rows, result.missing, result.unknown) == (ROWS - 2, {"score": 3}, 2)
    assert "3 samples without score" in result.describe()
    ds = open_dataset(tmp_path / "ds")
    lacking = [4, ROWS - 2, ROWS - 1]
    assert np.flatnonzero(~ds.column("score_valid")).tolist() == lacking
    assert ds.column("score").data[lacking].tolist() == [0, 0, 0]
    whole = {"key": keys, "score": np.ones(ROWS)}
    replaced = packer.add(tmp_path / "ds", whole, replace=True, **QUIET)
    assert (replaced.replaced, replaced.dropped) == (("score",), ("score_valid",))
    assert Layout(tmp_path / "ds").load().shard_schema.names == tuple(
        name for name in Layout(tmp_path / "ds").load().schema.names if name != "score"
    )
    assert open_dataset(tmp_path / "ds").column("score").tolist() == [1] * ROWS


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl", "t.parquet"])
def test_a_table_without_rows_is_reported(name: str, tmp_path: Path) -> None:
    keys = without_score(tmp_path / "ds")
    table = tmp_path / name
    if name == "t.parquet":
        pq.write_table(pa.table({"key": pa.array([], pa.string()), "x": pa.array([], pa.int64())}), table)
    else:
        table.write_text("" if name == "t.jsonl" else f"key{',' if name == 't.csv' else chr(9)}x\n")
    done = run_packer("add", tmp_path / "ds", table, expect=2)
    assert f"{name}: expected a row for each key, found no rows" in done.stderr
    assert open_dataset(tmp_path / "ds").column("key") == keys


def test_classes_of_a_label_column(tmp_path: Path) -> None:
    schema = Schema(tuple(field for field in face_schema() if field.name not in ("score", "label")))
    columns = face_columns(5)
    write_dataset(tmp_path / "ds", "npy", schema, {name: columns[name] for name in schema.names})
    labels = {"key": columns["key"], "label": ["real", "fake", None, "fake", "real"]}
    packer.add(tmp_path / "ds", labels, allow_missing=True, **QUIET)
    ds = open_dataset(tmp_path / "ds")
    assert ds.classes == ("fake", "real")
    assert ds.column("label").data.tolist() == [1, 0, -1, 0, 1]
    assert ds.column("label_valid").tolist() == [True, True, False, True, True]


@pytest.mark.parametrize("allowed", [[2, 0, None, 7, 2], np.ma.array([2, 0, 5, 7, 2], "<i2", mask=[0, 0, 1, 0, 0])])
def test_a_missing_label_without_classes_is_not_a_class(tmp_path: Path, allowed: Any) -> None:
    schema = Schema((text("key"),))
    write_dataset(tmp_path / "ds", "npy", schema, {"key": [*"abcdef"]})
    packer.add(tmp_path / "ds", {"key": [*"abcde"], "label": allowed}, allow_missing=True, **QUIET)
    ds = open_dataset(tmp_path / "ds")
    assert [int(one["label"]) for one in ds] == [2, 0, -1, 7, 2, -1]
    assert ds.column("label").tolist() == [2, 0, None, 7, 2, None]


def test_unsigned_labels_cannot_be_missing(tmp_path: Path) -> None:
    write_dataset(tmp_path / "ds", "npy", Schema((text("key"),)), {"key": ["a", "b"]})
    with pytest.raises(UsageError, match="convert them to signed integers"):
        packer.add(tmp_path / "ds", {"key": ["a"], "label": np.ones(1, np.uint8)}, allow_missing=True, **QUIET)


def test_jobs_over_a_dataset_carry_its_columns(tmp_path: Path) -> None:
    keys = without_score(tmp_path / "ds", "parquet")
    packer.add(tmp_path / "ds", table_of(keys), **QUIET)
    for format in ("npy", "hdf5"):
        out = tmp_path / f"to-{format}"
        manifest = packer.convert(tmp_path / "ds", out, format=format, shard_size=9_000, **REPACK).manifest
        assert (manifest.columns, len(manifest.shards) > 1) == ((), True)
        check_table(open_dataset(out))
        assert packer.verify(out, deep=True, progress=False).ok
    parts = packer.split(
        tmp_path / "ds", tmp_path / "parts", by="source", ratios="a=0.34,b=0.33,c=0.33", **REPACK
    ).parts
    for part in parts:
        ds = open_dataset(part.result.path)
        check_table(ds, [keys.index(key) for key in ds.column("key")])
    into = packer.split(tmp_path / "ds", tmp_path / "into", into="sure", **REPACK).parts
    assert sorted(part.samples for part in into) == [11, 12]
    merged = packer.merge([part.result.path for part in parts], tmp_path / "merged", **REPACK).manifest
    ds = open_dataset(tmp_path / "merged")
    check_table(ds, [keys.index(key) for key in ds.column("key")])
    assert merged.samples == ROWS
    packer.build(tmp_path / "ds", tmp_path / "built", size=16, engine="inline", progress=False)
    assert open_dataset(tmp_path / "built").column("sure").tolist() == [row % 2 == 0 for row in range(ROWS)]
    packer.export(tmp_path / "ds", tmp_path / "export", progress=False, table="jsonl")
    lines = [json.loads(line) for line in (tmp_path / "export" / "table.jsonl").read_text("utf-8").splitlines()]
    assert [line["guess"] for line in lines] == [f"gess ü {row}" for row in range(ROWS)]
    sheet = packer.preview(tmp_path / "ds", tmp_path / "sheet.png", progress=False)
    assert len(sheet.rows) == ROWS


def test_two_datasets_with_columns_are_merged_whatever_came_first(tmp_path: Path) -> None:
    for name, order in (("a", ("x", "y")), ("b", ("y", "x"))):
        keys = without_score(tmp_path / name)
        for field in order:
            packer.add(tmp_path / name, {"key": keys, field: np.arange(ROWS)}, **QUIET)
    assert Layout(tmp_path / "a").load().digest == Layout(tmp_path / "b").load().digest
    packer.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", **REPACK)
    assert open_dataset(tmp_path / "out").column("y").tolist() == [*range(ROWS)] * 2


def test_open_readers_continue_or_report_that_the_dataset_changed(tmp_path: Path) -> None:
    keys = without_score(tmp_path / "ds", "lmdb")
    old = open_dataset(tmp_path / "ds")
    packer.add(tmp_path / "ds", {"key": keys, "x": np.arange(ROWS), "y": np.arange(ROWS)}, **QUIET)
    assert "x" not in old[20]
    begun, late = open_dataset(tmp_path / "ds"), open_dataset(tmp_path / "ds")
    assert [int(sample["x"]) for sample in begun] == list(range(ROWS))
    packer.add(tmp_path / "ds", {"key": keys, "x": np.arange(ROWS) + 100}, replace=True, **QUIET)
    assert begun[3]["x"] == 3
    with raises(DatasetChangedError, expected="the dataset that was opened", found="another in its place"):
        late[3]
    assert open_dataset(tmp_path / "ds")[3]["x"] == 103
    assert old[22]["frame"] == 220


def test_a_damaged_column_is_found_and_replaced(tmp_path: Path) -> None:
    keys = without_score(tmp_path / "ds")
    table = {"key": keys, "x": np.arange(ROWS), "text": keys}
    column = next(c for c in packer.add(tmp_path / "ds", table, **QUIET).manifest.columns if c.field == "x")
    path = tmp_path / "ds" / column.files[0].name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    report = packer.verify(tmp_path / "ds", deep=True, progress=False)
    assert len(report.problems) == 1
    assert str(path) in report.problems[0]
    with raises(DatasetError, found="a8ec159685f674ffb9941c200064e63969da5a0207adacd3024acff56115af0b"):
        packer.convert(tmp_path / "ds", tmp_path / "out", format="npy", **REPACK)
    with raises(DatasetError, found="a8ec159685f674ffb9941c200064e63969da5a0207adacd3024acff56115af0b"):
        open_dataset(tmp_path / "ds", verify="digest")[0]
    packer.add(tmp_path / "ds", table, replace=True, **QUIET)
    assert packer.verify(tmp_path / "ds", deep=True, progress=False).ok
    path.unlink()
    with pytest.raises(ShardMissingError, match=r"x\.npy"):
        open_dataset(tmp_path / "ds")
    packer.drop_field(tmp_path / "ds", "x")
    assert packer.verify(tmp_path / "ds", deep=True, progress=False).ok


def craft(root: Path, change: Any) -> None:
    """Change the manifest of a dataset with one text column and one of numbers."""
    path = root / "manifest.json"
    document = manifest_document(root)
    change(document, {column["field"]: column for column in document["columns"]})
    path.write_text(json.dumps(document), "utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d, c: d.update(columns=[]), "columns"),
        (lambda d, c: c["x"].update(samples=ROWS + 1), "those of all shards, 23, found 24"),
        (lambda d, c: c["x"].update(samples=-1), "expected 0 or more"),
        (lambda d, c: c["x"].update(field="nothing"), "a field of the schema"),
        (lambda d, c: c["x"].update(field="text"), "every field once"),
        (lambda d, c: c["x"].update(field="frame"), "expected columns/"),
        (lambda d, c: c["x"].update(name="../x"), "expected a folder in columns"),
        (lambda d, c: c["x"].update(name="columns/a/b"), "expected a folder in columns"),
        (lambda d, c: c["x"].update(name="columns/.."), "expected a folder in columns"),
        (lambda d, c: c["x"].update(files=[]), "files: expected"),
        (lambda d, c: c["text"]["files"].pop(), "files: expected"),
        (lambda d, c: c["x"]["files"][0].update(name="shard-00000/key.bin"), "expected"),
        (lambda d, c: c["x"]["files"][0].update(bytes=8), "bytes of 23 values"),
        (lambda d, c: c["text"]["files"][1].update(bytes=8), "bytes of 23 values"),
        (lambda d, c: d["columns"].append(dict(c["x"])), "once"),
        (lambda d, c: c["x"].update(more=1), "unknown key"),
    ],
)
def test_a_crafted_manifest_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    keys = without_score(tmp_path / "ds")
    packer.add(tmp_path / "ds", {"key": keys, "x": np.arange(ROWS), "text": keys}, **QUIET)
    craft(tmp_path / "ds", change)
    with pytest.raises(ManifestError, match=message):
        open_dataset(tmp_path / "ds")
    run_packer("inspect", tmp_path / "ds", expect=1)


@pytest.mark.parametrize("hostile", ["dtype", "shape", "offsets", "falling", "pipe", "link", "huge"])
def test_hostile_files_of_columns_are_an_error(hostile: str, tmp_path: Path) -> None:
    """The manifest has the size and digest of each file, as an attacker would see to."""
    keys = without_score(tmp_path / "ds")
    packer.add(tmp_path / "ds", {"key": keys, "x": np.arange(ROWS), "text": keys}, **QUIET)
    manifest = Layout(tmp_path / "ds").load()
    files = {Path(e.name).name: tmp_path / "ds" / e.name for c in manifest.columns for e in c.files}
    numbers, offsets = files["x.npy"], files["text.offsets.npy"]
    ends = np.load(offsets)
    if hostile == "dtype":
        np.save(numbers, np.arange(ROWS, dtype="<f8"))
    elif hostile == "shape":
        np.save(numbers, np.arange(ROWS * 2, dtype="<i8"))
    elif hostile == "offsets":
        np.save(offsets, ends + 10**9)
    elif hostile == "falling":
        np.save(offsets, np.concatenate([ends[:3], ends[1:2], ends[4:]]))
    elif hostile == "pipe":
        numbers.unlink()
        os.mkfifo(numbers)
    elif hostile == "link":
        shutil.copy(numbers, tmp_path / "elsewhere.npy")
        numbers.unlink()
        numbers.symlink_to(tmp_path / "elsewhere.npy")
    else:
        numbers.write_bytes(numbers.read_bytes().replace(b"(23,)", b"(9" + b"9" * 2 + b"9)"))

    def follow(document: Any, columns: Any) -> None:
        for column in columns.values():
            for entry in column["files"]:
                path = tmp_path / "ds" / entry["name"]
                if path.is_file():
                    entry.update(bytes=path.stat().st_size, sha256=column_files.describe_file(tmp_path, path).sha256)

    craft(tmp_path / "ds", follow)
    with pytest.raises(DatasetError):
        open_dataset(tmp_path / "ds")[0]
    assert not packer.verify(tmp_path / "ds", deep=True, progress=False).ok


def test_a_link_in_place_of_the_folder_of_columns_is_not_written_through(tmp_path: Path) -> None:
    keys = without_score(tmp_path / "ds")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "ds" / "columns").symlink_to(tmp_path / "elsewhere")
    with raises(DatasetError, expected="a folder of the dataset", found="a link"):
        packer.add(tmp_path / "ds", {"key": keys, "x": np.arange(ROWS)}, **QUIET)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_an_unfinished_build_that_is_to_replace_the_dataset_goes_first(tmp_path: Path) -> None:
    keys = without_score(tmp_path / "ds")
    unfinished = tmp_path / "ds" / ".build"
    unfinished.mkdir()
    (unfinished / "plan.json").write_text("{}")
    with raises(UsageError, expected="a dataset at rest", found="an unfinished build in its folder"):
        packer.add(tmp_path / "ds", {"key": keys, "x": np.arange(ROWS)}, **QUIET)
    assert (unfinished / "plan.json").exists()


def test_a_full_disk_leaves_the_dataset_as_it_was(tmp_path: Path) -> None:
    keys = without_score(tmp_path / "ds")
    before = fingerprints(tmp_path / "ds")
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"key": key, "x": 1}) + "\n" for key in keys))
    condition = "'columns/x' in os.fsdecode(arguments[1])"
    deed = "raise OSError(28, 'No space left on device')"
    env = environment(python_path=before_each(tmp_path / "hooks", "packer", "os.rename", condition, deed))
    done = run_packer("add", tmp_path / "ds", tmp_path / "t.jsonl", env=env, expect=1)
    assert "No space left on device" in done.stderr
    assert fingerprints(tmp_path / "ds") == before


@pytest.mark.parametrize(
    ("kind", "step"),
    [("add", 12), ("drop", 9), *(pytest.param(kind, 1, marks=pytest.mark.slow) for kind in ("add", "drop"))],
)
def test_killed_at_any_operation_the_dataset_is_the_old_or_the_new_one(kind: str, step: int, tmp_path: Path) -> None:
    keys = without_score(tmp_path / "ds", rows=3)
    packer.add(tmp_path / "ds", {"key": keys, "x": [1, 2, 3]}, **QUIET)
    script = REPOSITORY / "tests" / "support" / "column_crashes.py"
    (tmp_path / "rounds").mkdir()
    done = subprocess.run(
        [sys.executable, script, tmp_path / "ds", tmp_path / "rounds", kind, str(SEED % step), str(step)],
        env=environment(python_path=REPOSITORY / "tests"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    old, new = Layout(tmp_path / "ds").load().digest, rounds[-1]["digest"]
    digests = [line["digest"] for line in rounds]
    switch = digests.index(new)
    assert digests == [old] * switch + [new] * (len(rounds) - switch)
    assert step > 1 or 0 < switch < len(rounds)
    for line in rounds:
        assert line["problems"] == line["end_problems"] == []
        assert line["end"] == new
        assert line["files"] == rounds[-1]["files"], line["operation"]


def test_files_left_by_a_killed_call_do_not_stop_a_build(tmp_path: Path) -> None:
    keys = without_score(tmp_path / "ds")
    packer.add(tmp_path / "ds", {"key": keys, "x": np.arange(ROWS)}, **QUIET)
    left = tmp_path / "ds" / "columns" / "y-0123456789abcdef"
    shutil.copytree(next((tmp_path / "ds" / "columns").iterdir()), left)
    without_score(tmp_path / "other", rows=3)
    packer.convert(tmp_path / "other", tmp_path / "ds", format="lmdb", overwrite=True, **REPACK)
    assert not (tmp_path / "ds" / "columns").exists()
    assert packer.verify(tmp_path / "ds", deep=True, progress=False).unlisted == ()


values = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=ROWS, max_size=ROWS),
    st.lists(st.booleans(), min_size=ROWS, max_size=ROWS),
    st.lists(st.text(max_size=5), min_size=ROWS, max_size=ROWS),
    st.lists(st.lists(st.floats(width=64), max_size=3), min_size=ROWS, max_size=ROWS),
    arrays(np.float32, st.tuples(st.just(ROWS), st.integers(0, 3))),
    arrays(np.uint8, st.tuples(st.just(ROWS), st.integers(0, 2), st.integers(1, 2))),
)
steps = st.one_of(
    st.tuples(st.just("add"), st.sampled_from("abc"), values),
    st.tuples(st.just("replace"), st.sampled_from("abc"), values),
    st.tuples(st.just("drop"), st.sampled_from("abc"), st.none()),
)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(steps, min_size=1, max_size=6), format=st.sampled_from(sorted(FORMATS)))
def test_any_history_of_columns_matches_a_model(history: Any, format: str, tmp_path: Path) -> None:
    root = tmp_path / "ds"
    shutil.rmtree(root, ignore_errors=True)
    keys = without_score(root, format)
    plain = fingerprints(root)
    model: dict[str, Any] = {}
    for what, name, column in history:
        if what == "drop":
            if name in model:
                packer.drop_field(root, name)
                del model[name]
            else:
                with pytest.raises(UsageError):
                    packer.drop_field(root, name)
            continue
        if what == "add" and name in model:
            with pytest.raises(UsageError):
                packer.add(root, {"key": keys, name: column}, **QUIET)
            continue
        packer.add(root, {"key": keys, name: column}, replace=True, **QUIET)
        model[name] = column
    ds = open_dataset(root)
    assert set(ds.schema.names) - set(without := Layout(root).load().shard_schema.names) == set(model)
    assert packer.verify(root, deep=True, progress=False).problems == ()
    rows = np.random.default_rng(0).permutation(ROWS)
    batch = ds.read_batch(rows)
    for name, column in model.items():
        for place, row in enumerate(rows.tolist()):
            np.testing.assert_array_equal(np.asarray(batch[name][place]), np.asarray(column[row]))
    assert len(without) == len(ds.schema) - len(model)
    if not model:
        assert fingerprints(root) == plain


def test_the_same_table_again_finds_its_values_there(tmp_path: Path) -> None:
    keys = without_score(tmp_path / "ds")
    table = table_of(keys)
    packer.add(tmp_path / "ds", table, **QUIET)
    before = Layout(tmp_path / "ds").manifest.read_bytes()
    again = packer.add(tmp_path / "ds", table, **QUIET)
    assert again.found_finished
    assert (again.added, again.replaced, again.dropped) == ((), (), ())
    some = {name: table[name] for name in ("guess", "key")}
    assert packer.add(tmp_path / "ds", some, **QUIET).to_json()["found_finished"]
    for other in (
        {**some, "guess": some["guess"][::-1]},
        {**some, "further": list(range(ROWS))},
        {**some, "label": ["a"] * ROWS},
    ):
        with pytest.raises(UsageError, match="already"):
            packer.add(tmp_path / "ds", other, **QUIET)
    assert Layout(tmp_path / "ds").manifest.read_bytes() == before


def test_a_missing_value_differs_from_its_sentinel(tmp_path: Path) -> None:
    keys = without_score(tmp_path / "ds")
    some = {"key": keys[1:], "rank": list(range(1, ROWS))}
    for _ in range(2):
        result = packer.add(tmp_path / "ds", some, allow_missing=True, **QUIET)
    assert result.found_finished
    with pytest.raises(UsageError, match="already"):
        packer.add(tmp_path / "ds", {"key": keys, "rank": list(range(ROWS))}, **QUIET)
