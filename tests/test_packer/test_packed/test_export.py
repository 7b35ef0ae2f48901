"""``packer export``: plain files that other programs open, and that a build takes in again."""

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from support.builds import QUIET
from support.command import environment, file_of, run_packer, start_packer
from support.datasets import every_kind_schema, face_schema, fixed, picture, text, values_for, write_dataset
from support.errors import raises
from support.hooks import before_each
from support.media import scene, write_image, write_video
from support.packed_files import face_columns, read_all, write_faces
from support.processes import wait_for

from packer import build, export
from packer.cli import main
from packer.packed.export.names import safe_name
from shardspec.errors import ShardCorruptError, UsageError
from shardspec.schema import Schema

CLASSES = ("real", "fake")


def rows_of(root: Path) -> list[dict[str, str]]:
    with (root / "table.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("codec", ["jpeg", "png", "webp", None])
def test_images_are_the_stored_bytes_in_class_folders(tmp_path: Path, codec: str | None) -> None:
    write_faces(tmp_path / "in", codec=codec)
    result = export(tmp_path / "in", tmp_path / "out", progress=False)
    assert (result.samples, result.images) == (12, 12)
    columns, stored = face_columns(12, codec=codec), read_all(tmp_path / "in")
    suffix = {"jpeg": "jpg", None: "png"}.get(codec, codec)
    for row, line in enumerate(rows_of(tmp_path / "out")):
        name = CLASSES[columns["label"][row]]
        assert line["path"] == f"{name}/{columns['key'][row]}.{suffix}"
        assert line["label"] == name
        data = (tmp_path / "out" / line["path"]).read_bytes()
        if codec is not None:
            assert data == stored["image"][row]
        with Image.open(io.BytesIO(data)) as image:
            assert image.size == (32, 32)
            if codec in (None, "png"):
                assert np.array_equal(np.asarray(image), columns["image"][row])
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out"}


def test_every_other_field_is_in_the_table_exactly(tmp_path: Path) -> None:
    write_faces(tmp_path / "in")
    export(tmp_path / "in", tmp_path / "out", progress=False)
    columns = face_columns(12)
    for row, line in enumerate(rows_of(tmp_path / "out")):
        assert line["packed_source"] == columns["source"][row]
        assert int(line["packed_frame"]) == columns["frame"][row]
        assert int(line["packed_landmarks_valid"]) == columns["landmarks_valid"][row]
        assert np.float32(line["packed_score"]) == columns["score"][row]
        for name in ("landmarks", "hull", "regions", "box", "matrix"):
            assert np.array_equal(np.array(json.loads(line[f"packed_{name}"]), np.float32), columns[name][row])


@pytest.mark.parametrize("table", ["csv", "jsonl", "parquet"])
def test_an_exported_table_can_be_built_again(tmp_path: Path, table: str) -> None:
    write_faces(tmp_path / "in", codec="jpeg")
    path = export(tmp_path / "in", tmp_path / "out", table=table, progress=False).table
    made = build(path, tmp_path / "again", **QUIET).manifest
    here, there = read_all(tmp_path / "in"), read_all(tmp_path / "again")
    assert there["image"] == here["image"]
    assert made.schema["label"].classes == ("fake", "real")
    assert [made.schema["label"].classes[label] for label in there["label"]] == [CLASSES[n] for n in here["label"]]
    assert there["packed_key"] == here["key"]
    assert there["packed_time"].tolist() == here["time"].tolist()
    assert [json.loads(value) for value in there["packed_hull"]] == here["hull"].tolist()
    export(tmp_path / "again", tmp_path / "twice", table=table, progress=False)
    assert build(tmp_path / "twice" / f"table.{table}", tmp_path / "third", **QUIET).manifest.samples == 12


@pytest.mark.parametrize("table", ["csv", "jsonl", "parquet"])
def test_no_class_becomes_none_when_the_table_is_built(tmp_path: Path, table: str) -> None:
    rows = [{"image": np.full((4, 4, 3), level, np.uint8), "label": label} for level, label in enumerate([1, -1, 0])]
    build(rows, tmp_path / "in", classes=["real", "fake"], **QUIET)
    path = export(tmp_path / "in", tmp_path / "out", table=table, progress=False).table
    made = build(path, tmp_path / "again", max_rejects=1.0, **QUIET)
    assert made.manifest.schema["label"].classes == ("fake", "real")
    assert read_all(tmp_path / "again")["packed_key"] == [b"00000000-000000", b"00000002-000000"]
    (reject,) = file_of(tmp_path / "again", "rejects.jsonl").read_text().splitlines()
    assert "expected a label in column 'label', found none" in json.loads(reject)["reason"]
    assert build(path, tmp_path / "whole", label_from="none", **QUIET).counts.samples == 3


def test_all_kinds_of_fields_can_be_exported(tmp_path: Path) -> None:
    schema = every_kind_schema()
    columns = values_for(schema, 9)
    write_dataset(tmp_path / "in", "npy", schema, columns)
    for table in ("csv", "jsonl", "parquet"):
        result = export(tmp_path / "in", tmp_path / table, table=table, progress=False)
        assert result.images == 27
    lines = [json.loads(line) for line in (tmp_path / "jsonl" / "table.jsonl").read_text().splitlines()]
    for row, line in enumerate(lines):
        assert line["note"] == columns["note"][row]
        assert json.loads(line["document"]) == columns["document"][row]
        assert line["scalar_b1"] is bool(columns["scalar_b1"][row])
        assert line["scalar_i8"] == columns["scalar_i8"][row]
        for name in ("photo_path", "photo_raw_path", "path"):
            assert (tmp_path / "jsonl" / line[name]).is_file()
        with Image.open(tmp_path / "jsonl" / line["photo_raw_path"]) as image:
            assert np.array_equal(np.asarray(image), columns["photo_raw"][row])
    table = pq.read_table(tmp_path / "parquet" / "table.parquet")
    for letter in ("i1", "u8", "f2", "f4"):
        assert table[f"scalar_{letter}"].to_numpy().tobytes() == columns[f"scalar_{letter}"].tobytes()


def test_names_that_no_file_may_have_are_changed_and_stay_apart(tmp_path: Path) -> None:
    label = fixed("label", "<i8", classes=("a/b", "a_b", "A_B", ".hidden", ""))
    schema = Schema((text("key"), picture("image", "png"), label))
    keys = ["../../evil", "..\\..\\evil", "plain", "x" * 300, "nul\0"]
    images = [face_columns(1)["image"][0]] * 5
    write_dataset(tmp_path / "in", "npy", schema, {"key": keys, "image": images, "label": np.arange(5)})
    export(tmp_path / "in", tmp_path / "out" / "deep", progress=False)
    paths = [line["path"] for line in rows_of(tmp_path / "out" / "deep")]
    assert len({path.lower() for path in paths}) == 5
    assert paths[2] == "A_B.class-2/plain.png"
    assert len({path.split("/")[0].lower() for path in paths}) == 5
    for path in paths:
        assert (tmp_path / "out" / "deep" / path).resolve().is_relative_to(tmp_path / "out" / "deep")
        assert len(path.split("/")) == 2
        assert not any(part.startswith(".") for part in path.split("/"))
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["deep"]
    assert safe_name("ünï 人") == "ünï 人"
    result = build(tmp_path / "out" / "deep" / "table.csv", tmp_path / "again", label_from="none", **QUIET)
    assert result.counts.packed_items == 5


@pytest.mark.parametrize(
    ("classes", "folders"),
    [
        (("a.class-2", "A", "a"), ("a.class-2", "A", "a.class-3")),
        (("a.class-2", "a.class-3", "a", "A"), ("a.class-2", "a.class-3", "a", "A.class-4")),
    ],
)
def test_a_class_named_like_the_folder_of_another_gets_a_separate_folder(
    tmp_path: Path, classes: tuple[str, ...], folders: tuple[str, ...]
) -> None:
    schema = Schema((text("key"), picture("image", "png"), fixed("label", "<i8", classes=classes)))
    images = [face_columns(1)["image"][0]] * len(classes)
    keys = [f"k{place}" for place in range(len(classes))]
    write_dataset(tmp_path / "in", "npy", schema, {"key": keys, "image": images, "label": np.arange(len(classes))})
    export(tmp_path / "in", tmp_path / "out", progress=False)
    lines = rows_of(tmp_path / "out")
    assert tuple(line["path"].split("/")[0] for line in lines) == folders
    assert tuple(line["label"] for line in lines) == classes


def test_nothing_of_the_users_is_overwritten_and_nothing_is_left_half_done(tmp_path: Path) -> None:
    manifest = write_faces(tmp_path / "in")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    for out in (tmp_path / "full", tmp_path / "full" / "mine.txt"):
        with pytest.raises(UsageError, match="new or empty folder"):
            export(tmp_path / "in", out, progress=False)
    for out, found in (("in/out", "one inside"), ("in", "the dataset itself")):
        with pytest.raises(UsageError, match=f"found {found}"):
            export(tmp_path / "in", tmp_path / out, progress=False)
    path = tmp_path / "in" / manifest.shards[-1].files[0].name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ShardCorruptError):
        export(tmp_path / "in", tmp_path / "out", progress=False)
    assert {p.name for p in tmp_path.iterdir()} == {"in", "full"}
    data[-1] ^= 1
    path.write_bytes(data)
    (tmp_path / ".out.exporting").mkdir()
    (tmp_path / ".out.exporting" / "table.csv").write_text("cut off")
    (tmp_path / "out").mkdir()
    export(tmp_path / "in", tmp_path / "out", progress=False)
    assert len(rows_of(tmp_path / "out")) == 12
    assert not (tmp_path / ".out.exporting").exists()


def test_an_interrupted_export_leaves_nothing_and_says_how_to_go_on(tmp_path: Path) -> None:
    write_faces(tmp_path / "in", codec="jpeg")
    deed = "os.kill(os.getpid(), signal.SIGINT)"
    condition = "str(arguments[0]).endswith('/00000001-000000.jpg')"
    env = environment(python_path=before_each(tmp_path / "hooks", "packer", "open", condition, deed))
    call = ("export", tmp_path / "in", tmp_path / "out", "--quiet")
    reported = run_packer(*call, env=env, expect=130).stderr
    assert reported.startswith("packer: interrupted: run the same command again to start over (nothing was kept) (")
    assert f"(packer export {tmp_path}/in {tmp_path}/out --quiet)" in reported
    assert {path.name for path in tmp_path.iterdir()} == {"in", "hooks"}
    run_packer(*call)
    assert len(rows_of(tmp_path / "out")) == 12


def test_a_second_export_into_the_same_folder_is_refused(tmp_path: Path) -> None:
    write_faces(tmp_path / "in", codec="jpeg")
    first_image = "str(arguments[0]).endswith('/00000001-000000.jpg')"
    waiting = f"import time\nwhile not os.path.exists({str(tmp_path / 'go')!r}):\n    time.sleep(0.01)"
    hooks = before_each(tmp_path / "hooks", "packer", "open", first_image, waiting)
    call = ("export", tmp_path / "in", tmp_path / "out", "--quiet")
    first = start_packer(*call, env=environment(python_path=hooks))
    try:
        wait_for("the first image", lambda: any(tmp_path.glob(".out.exporting/**/00000000-000000.jpg")))
        refused = run_packer(*call, expect=1)
    finally:
        (tmp_path / "go").touch()
        output, error = first.communicate(timeout=60)
    assert f"{tmp_path}/out: another build is at work in this folder (process {first.pid} on " in refused.stderr
    assert first.returncode == 0, output + error
    assert len(rows_of(tmp_path / "out")) == len(list((tmp_path / "out").glob("*/*.jpg"))) == 12
    assert not (tmp_path / ".out.exporting").exists()


def test_files_left_by_a_killed_export_are_removed_by_the_next(tmp_path: Path) -> None:
    write_faces(tmp_path / "in", codec="jpeg")
    hooks = before_each(tmp_path / "hooks", "packer", "open", "str(arguments[0]).endswith('/00000001-000000.jpg')")
    call = ("export", tmp_path / "in", tmp_path / "out", "--quiet")
    run_packer(*call, env=environment(python_path=hooks), expect=-9)
    assert (tmp_path / ".out.exporting").exists()
    run_packer(*call)
    assert {path.name for path in tmp_path.iterdir()} == {"in", "hooks", "out"}
    assert len(list((tmp_path / "out").glob("*/*.jpg"))) == 12


def test_a_finished_export_is_found_and_another_is_refused(tmp_path: Path) -> None:
    write_faces(tmp_path / "in")
    write_faces(tmp_path / "other", seed=1)
    call = ("export", tmp_path / "in", tmp_path / "out")
    made = run_packer(*call).stdout
    assert made == f"{tmp_path}/out: 12 samples, 12 images, table.csv\n"
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert run_packer(*call).stdout == made.replace("out: ", "out: finished already, nothing was done: ")
    for arguments, found in (
        (("export", tmp_path / "other", tmp_path / "out"), "an export of another dataset"),
        ((*call, "--table", "jsonl"), "one with --table csv --names key"),
    ):
        reported = run_packer(*arguments, expect=2).stderr
        assert f"{tmp_path}/out: expected a new or empty folder, found {found}: choose another folder" in reported
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def test_the_command_exports_a_dataset_without_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = Schema(tuple(field for field in face_schema() if field.name in ("key", "image")))
    columns = face_columns(3)
    write_dataset(tmp_path / "in", "npy", schema, {name: columns[name] for name in schema.names})
    assert main(["export", str(tmp_path / "in"), str(tmp_path / "out"), "--quiet"]) == 0
    assert "3 samples, 3 images, table.csv" in capsys.readouterr().out
    assert sorted(p.name for p in (tmp_path / "out" / "images").iterdir()) == [
        f"0000000{n}-000000.png" for n in range(3)
    ]


def test_everything_is_flushed_before_the_folder_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    before: list[int] = []
    out = tmp_path / "out"
    fsync, replace = os.fsync, os.replace

    def note_flush(descriptor: int) -> None:
        flushed.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def note_name(source: Any, target: Any) -> None:
        if target == out:
            before.extend(flushed)
            flushed.clear()
        replace(source, target)

    write_faces(tmp_path / "ds", 3, codec="jpeg")
    monkeypatch.setattr(os, "fsync", note_flush)
    monkeypatch.setattr(os, "replace", note_name)
    export(tmp_path / "ds", out, progress=False)
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) == 5
    assert {path.stat().st_ino for path in files} <= set(before)
    if os.name != "nt":
        assert flushed[0] == tmp_path.stat().st_ino


def test_names_of_the_source_are_kept(tmp_path: Path) -> None:
    names = ["real/b.JPG", "real/deep/b.jpeg", "fake/a.png", "fake/A.jpg", "wrong\\.jpg"]
    for number, name in enumerate(names):
        write_image(tmp_path / "photos" / name, scene(number, (24, 18)))
    write_video(tmp_path / "photos" / "clip.mp4", frames=2)
    build(tmp_path / "photos", tmp_path / "ds", **QUIET)
    result = export(tmp_path / "ds", tmp_path / "out", names="source", progress=False)
    paths = {row["packed_source"] + row["packed_frame"]: row["path"] for row in rows_of(tmp_path / "out")}
    assert paths == {
        "clip.mp40": "clip.frame-000000.jpg",
        "clip.mp41": "clip.frame-000001.jpg",
        "fake/A.jpg0": "fake/A.row-00000002.jpg",  # the next one, where upper and lower case are the same
        "fake/a.png0": "fake/a.row-00000003.jpg",
        "real/b.JPG0": "real/b.JPG",
        "real/deep/b.jpeg0": "real/deep/b.jpeg",
        "wrong\\.jpg0": "wrong_.row-00000006.jpg",
    }
    assert result.images == 7
    assert (tmp_path / "out" / "real/b.JPG").read_bytes() == read_all(tmp_path / "ds")["image"][4]
    assert export(tmp_path / "ds", tmp_path / "out", names="source", progress=False).found_finished
    with raises(UsageError, expected="a new or empty folder", found="one with --table csv --names source"):
        export(tmp_path / "ds", tmp_path / "out", progress=False)


def test_a_frame_is_not_named_like_another_file_of_the_source(tmp_path: Path) -> None:
    write_video(tmp_path / "photos" / "clip.mp4", frames=2)
    write_image(tmp_path / "photos" / "clip.frame-000001.jpg", scene(0, (24, 18)))
    build(tmp_path / "photos", tmp_path / "ds", **QUIET)
    export(tmp_path / "ds", tmp_path / "out", names="source", progress=False)
    assert [row["path"] for row in rows_of(tmp_path / "out")] == [
        "clip.frame-000001.jpg",
        "clip.frame-000000.jpg",
        "clip.row-00000002.jpg",
    ]


def test_names_of_a_source_do_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    columns = {**face_columns(3, codec="jpeg"), "source": ["../../a.jpg", "/etc/b.jpg", ".git/c.jpg"]}
    write_dataset(tmp_path / "ds", "npy", face_schema(codec="jpeg"), columns)
    export(tmp_path / "ds", tmp_path / "out", names="source", progress=False)
    paths = [row["path"] for row in rows_of(tmp_path / "out")]
    assert [path.rpartition("/")[0] for path in paths] == ["__/__", "_/etc", "_git"]
    assert all((tmp_path / "out" / path).is_file() for path in paths)
    schema = Schema(tuple(field for field in face_schema(codec="jpeg") if field.name != "source"))
    write_dataset(tmp_path / "no", "npy", schema, {name: columns[name] for name in schema.names})
    with pytest.raises(UsageError, match="names: expected a field 'source'"):
        export(tmp_path / "no", tmp_path / "nowhere", names="source", progress=False)
    assert not (tmp_path / "nowhere").exists()
