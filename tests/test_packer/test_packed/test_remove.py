"""``packer remove``: no byte of the removed samples is left, and the old dataset or the new one can always be read."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command import REPOSITORY, environment, run_packer
from support.errors import raises
from support.fuzz import SEED
from support.media import scene, write_image, write_video
from support.packed import check_whole, encoded_values, read_samples
from support.stores import StoreServer

import packer
from packer.workspace.durable import write_record
from readers import open_dataset
from shardspec.errors import DatasetChangedError, ShardspecError, UsageError
from shardspec.formats import FORMATS
from shardspec.layout import Layout

HOW: dict[str, Any] = {
    "label_from": "folder",
    "size": 24,
    "every": 1,
    "encode": "png",
    "shard_size": 20_000,
    "engine": "inline",
    "progress": False,
}
JANE = "source == 'b/jane-roe.png' or source == 'a/jane-roe.mp4'"
NAMES = [f"{'ab'[number % 2]}/{number}.png" for number in range(8)] + ["b/jane-roe.png"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Images and videos, one of each with a name that is not to be found afterwards."""
    root = tmp_path / "source"
    for number, name in enumerate(NAMES):
        write_image(root / name, scene(number, (30, 24)))
    for number, name in enumerate(("a/jane-roe.mp4", "b/other.mp4")):
        write_video(root / name, size=(48, 36), frames=5, number=20 + number)
    return root


def build(source: Path, out: Path, **more: Any) -> None:
    packer.build(source, out, **{**HOW, **more})


def with_columns(out: Path) -> None:
    """Columns of which each value of Jane's is found by its bytes."""
    keys, sources = open_dataset(out).column("key"), open_dataset(out).column("source")
    secret = [f"secret-of-{name}-{key}" for key, name in zip(keys, sources, strict=True)]
    vectors = np.frombuffer("".join(f"{text:<64.64}" for text in secret).encode(), "<f8").reshape(len(keys), 8)
    packer.add(out, {"key": keys, "note": secret, "vector": vectors}, progress=False)


def needles_of(out: Path, where: str) -> list[bytes]:
    """Bytes of the samples that an expression selects: images, names, and values of columns."""
    part = open_dataset(out).where(where)
    images, keys = encoded_values(out, "image"), part.column("key")
    found = [images[key] for key in keys] + [str(key).encode() for key in keys]
    found += [name.encode() for name in {str(name).rpartition("/")[2] for name in part.column("source")}]
    if "note" in open_dataset(out).schema:
        found += [f"secret-of-{name}".encode() for name in part.column("source")]
    return found


def files_with(out: Path, needles: list[bytes]) -> list[str]:
    """The files below a folder with any of these bytes, in their names or contents."""
    files = [path for path in out.rglob("*") if path.is_file()]
    return [
        str(path.relative_to(out))
        for path in files
        if any(needle in path.read_bytes() or needle in os.fsencode(path.name) for needle in needles)
    ]


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_no_byte_of_a_removed_sample_is_left_in_any_file(format: str, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "ds"
    build(source, out, format=format)
    with_columns(out)
    if format == "lmdb":
        packer.compute(out, "digest", progress=False)
    needles = needles_of(out, JANE)
    before = {sample["key"]: sample for sample in read_samples(out) if "jane" not in sample["source"]}
    columns = open_dataset(out).where(f"not ({JANE})").column("vector")
    assert len(files_with(out, needles)) > 3
    result = packer.remove(out, where=JANE, because="asked for", progress=False)
    assert (result.removed, result.manifest.samples) == (6, 13)
    assert files_with(out, needles) == []
    check_whole(out)
    assert not (out / ".build").exists()
    after = {sample["key"]: sample for sample in read_samples(out)}
    assert after.keys() == before.keys()
    for key, sample in after.items():
        np.testing.assert_array_equal(sample["image"], before[key]["image"])
    np.testing.assert_array_equal(open_dataset(out).column("vector"), columns)
    assert [one.field for one in Layout(out).load().columns if one.computed] == ["digest"] * (format == "lmdb")


def test_the_history_says_how_many_and_why(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "ds")
    run_packer("remove", tmp_path / "ds", "--where", JANE, "--because", "a request of May")
    last = Layout(tmp_path / "ds").load().generations[-1]
    assert (last.kind, last.recipe, last.shards) == ("remove", {"removed": 6, "because": "a request of May"}, ())
    shown = json.loads(run_packer("inspect", tmp_path / "ds", "--json").stdout)
    assert [(one["kind"], one["removed"]) for one in shown["history"]] == [("build", 0), ("remove", 6)]
    assert (shown["samples"], shown["items"], shown["recipe"]["size"]) == (13, 9, 24)
    assert "a request of May" in run_packer("inspect", tmp_path / "ds", "--history").stdout
    packer.convert(tmp_path / "ds", tmp_path / "made", format="npy", workers=1, engine="inline", progress=False)
    assert [(one.kind, one.removed, one.because) for one in packer.inspect(tmp_path / "made").history] == [
        ("build", 0, ""),
        ("remove", 6, "a request of May"),
    ]


def test_the_dataset_is_named_as_given(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(source, tmp_path / "ds")
    monkeypatch.chdir(tmp_path)
    done = packer.remove("ds", where=JANE, dry_run=True, progress=False)
    assert done.path == Path("ds")
    assert done.describe().startswith("ds: ")


def test_an_update_does_not_bring_removed_samples_back(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "ds"
    build(source, out)
    needles = needles_of(out, JANE)
    packer.remove(out, where=f"{JANE} or source == 'b/other.mp4' and frame == 2", progress=False)
    names = {path for path in source.rglob("*") if "jane" in path.name or path.suffix == ".mp4"}
    for path in names:  # as after a copy that does not keep times
        os.utime(path, (1e9, 1e9))
    write_image(source / "a" / "new.png", scene(40, (30, 24)))
    done = run_packer(
        "build", source, out, "--update", "--changed", "replace", "--gone", "drop",
        *("--label-from", "folder", "--size", "24", "--every", "1", "--encode", "png", "--shard-size", "20kB"),
    )  # fmt: skip
    assert re.search(r"3 items not packed", done.stdout + done.stderr)
    assert files_with(out, needles) == []
    check_whole(out)
    found = [(sample["source"], sample["frame"]) for sample in read_samples(out)]
    assert ("a/new.png", 0) in found
    assert [frame for name, frame in found if name == "b/other.mp4"] == [0, 1, 3, 4]
    (source / "b" / "other.mp4").unlink()
    build(source, out, update=True, gone="drop")
    assert "b/other.mp4" not in {sample["source"] for sample in read_samples(out)}
    check_whole(out)


def test_datasets_made_from_others_lose_the_samples_and_the_names(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "ds")
    packer.split(tmp_path / "ds", tmp_path / "parts", by="source", ratios={"a": 0.7, "b": 0.3}, progress=False)
    packer.merge([tmp_path / "parts" / "b", tmp_path / "parts" / "a"], tmp_path / "whole", progress=False)
    packer.convert(tmp_path / "whole", tmp_path / "other", format="npy", progress=False)
    packer.copy(tmp_path / "whole", tmp_path / "part", where="source != 'a/0.png'", progress=False)
    packer.remove(tmp_path / "ds", where=JANE, progress=False)
    build(source, tmp_path / "small", limit=4)
    packer.merge([tmp_path / "ds", tmp_path / "small"], tmp_path / "again", progress=False)
    assert check_whole(tmp_path / "again").generations[1].kind == "remove"
    for name, left in (("whole", 13), ("other", 13), ("part", 12)):
        needles = needles_of(tmp_path / name, JANE)
        packer.remove(tmp_path / name, where=JANE, progress=False)
        assert files_with(tmp_path / name, needles) == []
        assert check_whole(tmp_path / name).samples == left
    with raises(ShardspecError):  # it would not be the same copy
        packer.copy(tmp_path / "whole", tmp_path / "part", where="source != 'a/0.png'", progress=False)


def test_samples_of_a_writer_are_removed(tmp_path: Path) -> None:
    with packer.Writer(tmp_path / "ds") as writer:
        for number in range(5):
            writer.write(image=np.full((8, 8, 3), 40 * number, np.uint8), person=f"person-{number}")
    packer.remove(tmp_path / "ds", where="person == 'person-3'", progress=False)
    assert files_with(tmp_path / "ds", [b"person-3"]) == []
    assert packer.verify(tmp_path / "ds", deep=True, progress=False).ok
    counts = Layout(tmp_path / "ds").load().generations[0].counts
    assert (counts.items, counts.packed_items, counts.samples) == (4, 4, 4)


def test_one_sample_after_another_is_removed(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "ds"
    build(source, out)
    build(source, tmp_path / "base")
    for name in NAMES[2:5]:
        assert packer.remove(out, where=f"source == '{name}'", progress=False).removed == 1
        check_whole(out)
    assert packer.remove(out, where="frame > 100", progress=False).removed == 0
    kinds = [one.kind for one in Layout(out).load().generations]
    assert kinds == ["build", "remove", "remove", "remove"]
    assert packer.remove(out, where="frame == 0", dry_run=True, progress=False).removed == 8
    assert check_whole(out).samples == 16
    with raises(UsageError, option="where"):
        packer.remove(out, where="frame >= 0", progress=False)
    assert packer.build(source, tmp_path / "base", **HOW).found_finished
    with raises(UsageError):  # the build no longer made it
        packer.build(source, out, **HOW)


def test_open_readers_see_the_old_dataset_or_say_that_it_changed(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "ds")
    opened, other = open_dataset(tmp_path / "ds"), open_dataset(tmp_path / "ds")
    before = [opened[row]["image"] for row in range(len(opened))]
    packer.remove(tmp_path / "ds", where=JANE, progress=False)
    for row, image in enumerate(before):
        np.testing.assert_array_equal(opened[row]["image"], image)
    with raises(DatasetChangedError):
        for row in range(len(other)):
            other[row]
    assert len(open_dataset(tmp_path / "ds")) == 13


def test_an_unfinished_update_is_not_thrown_away(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "ds")
    (tmp_path / "ds" / ".build").mkdir()
    write_record(tmp_path / "ds" / ".build" / "plan.json", {"kind": "build"})
    with raises(UsageError, found="an unfinished build in its folder"):
        packer.remove(tmp_path / "ds", where=JANE, progress=False)


def test_objects_of_removed_samples_are_deleted_in_a_store(here: StoreServer, source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "ds")
    with_columns(tmp_path / "ds")
    needles, url = needles_of(tmp_path / "ds", JANE), here.url("people")
    packer.copy(tmp_path / "ds", url, progress=False)
    assert packer.remove(url, where=JANE, dry_run=True, progress=False).removed == 6
    here.fail({"match": r"DELETE|POST /[^/]+/?$", "kind": "403", "times": 1000})
    with raises(ShardspecError):
        packer.remove(url, where=JANE, progress=False)
    here.fail()
    packer.remove(url, where=JANE, progress=False)
    packer.copy(url, tmp_path / "back", progress=False)
    assert check_whole(tmp_path / "back").samples == 13
    assert files_with(tmp_path / "back", needles) == []
    listed = {entry.name for entry in Layout(tmp_path / "back").load().entries}
    assert here.objects("people").keys() == {*listed, "manifest.json"}


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_any_operation_the_dataset_is_the_old_or_the_new_one(step: int, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "ds"
    build(source, out)
    with_columns(out)
    needles = needles_of(out, JANE)
    (tmp_path / "rounds").mkdir()
    script = REPOSITORY / "tests" / "support" / "remove_crashes.py"
    done = subprocess.run(
        [sys.executable, script, out, tmp_path / "rounds", str(SEED % step), str(step), JANE],
        env=environment(python_path=REPOSITORY / "tests"),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    old = Layout(out).load().digest
    packer.remove(out, where=JANE, because="asked for", progress=False)
    new = Layout(out).load().digest
    assert files_with(out, needles) == []
    digests = [line["digest"] for line in rounds]
    switch = digests.index(new)
    assert digests == [old] * switch + [new] * (len(rounds) - switch)
    assert step > 1 or 0 < switch < len(rounds) - 1
    for line in rounds:
        assert line["problems"] == line["end_problems"] == []
        assert line["end"] == new
        assert line["files"] == rounds[-1]["files"], line["operation"]
