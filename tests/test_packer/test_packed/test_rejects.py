"""``packer rejects``: reasons summed up, and the table of those to try again."""

import json
import os
import shlex
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.builds import write_images
from support.command import run_packer, run_unprivileged
from support.media import photograph, scene, write_image

import packer
from packer.cli import main
from readers import open_dataset
from shardspec.errors import TooManyRejectsError, UsageError
from shardspec.layout import Layout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Eight images in two folders, of which five cannot be read, for three reasons."""
    root = write_images(tmp_path / "source", [f"{'ab'[n % 2]}/{n:02d}.png" for n in range(8)])
    for name in ("a/00.png", "b/01.png", "a/02.png"):
        (root / name).write_bytes(f"not an image {name}".encode())
    (root / "b" / "03.png").write_bytes(b"")
    whole = (root / "a" / "04.png").read_bytes()
    (root / "a" / "04.png").write_bytes(whole[:200])
    return root


def build(source: Path, out: Path, **options: object) -> packer.BuildResult:
    return packer.build(
        source, out, **{"size": 16, "engine": "inline", "progress": False, "max_rejects": "100%", **options}
    )


def test_reasons_that_differ_in_names_alone_are_one(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "out")
    report = packer.rejects(tmp_path / "out")
    assert (report.items, report.rejected, report.finished) == (8, 5, True)
    first, *others = report.kinds
    assert first.items == 3
    assert [example.item for example in first.examples] == ["a/00.png", "a/02.png", "b/01.png"]
    assert [kind.items for kind in others] == [1, 1]
    shown = report.describe()
    assert "5 of 8 items rejected" in shown
    assert "3 items, decode" in shown


def test_the_table_packs_what_was_repaired(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "out", label_from="folder")
    for name in ("a/00.png", "b/01.png", "a/02.png", "b/03.png", "a/04.png"):
        write_image(source / name, scene(1, (24, 18)))
    for table in ("retry.csv", "retry.jsonl"):
        done = run_packer("rejects", tmp_path / "out", "-o", tmp_path / table, "--json")
        assert json.loads(done.stdout)["table"] == str(tmp_path / table)
        out = tmp_path / f"{table}.out"
        run_packer("build", tmp_path / table, out, "--root", source, "--size", 16, "--engine", "inline", "--quiet")
        manifest = Layout(out).load()
        assert manifest.samples == 5
        assert manifest.schema["label"].classes == ("a", "b")


def test_a_build_that_packed_nothing_and_one_that_is_unfinished(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.png").write_bytes(b"")
    with pytest.raises(TooManyRejectsError):
        build(tmp_path / "bad", tmp_path / "none")
    report = packer.rejects(tmp_path / "none")
    assert (report.items, report.rejected, report.finished) == (1, 1, False)
    import packer.jobs.job as module

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "cut_into_shards", stop)
        with pytest.raises(KeyboardInterrupt):
            build(source, tmp_path / "begun")
    report = packer.rejects(tmp_path / "begun")
    assert (report.items, report.rejected, report.finished) == (8, 5, False)
    assert "not finished" in report.describe()
    (tmp_path / "begun" / ".build" / "plan.json").write_text("[]")
    report = packer.rejects(tmp_path / "begun", out=tmp_path / "table.csv")
    assert (report.items, report.finished) == (0, False), "no parts are found without a plan"


def test_the_table_of_merged_datasets_has_their_labels(source: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        build(source, tmp_path / name, label_from="folder")
    for how in ({}, {"shuffle": 1}):
        out = tmp_path / f"merged{len(how)}"
        packer.merge([tmp_path / "one", tmp_path / "two"], out, engine="inline", progress=False, **how)
        done = run_packer("rejects", out, "-o", tmp_path / "retry.csv", "--quiet")
        assert (tmp_path / "retry.csv").read_text().splitlines()[:2] == ["path,label", "a/00.png,a"]
        assert "OUT --root SOURCE --size=16 " in done.stdout
        assert f"--classes-from {out}, with the items of one source at a time" in done.stdout


def fail_on_odd(number: int) -> dict[str, int]:
    if number % 2:
        raise ValueError("odd")
    return {"number": number}


FORGED = """File,kind,split,original,id,age
fake/a.png,fake,train,real/a.png,x1,30
fake/b b.png,fake,test,real/b.png,12,
fake/c.png,real,test,real/b.png,007,4
real/a.png,a\u00e9,train,real/a.png,y,5.5
"""


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_the_printed_command_packs_the_rejected_rows_of_a_table_the_same_way(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, face in (("real/a", True), ("real/b", False), ("fake/a", True), ("fake/b b", False), ("fake/c", False)):
        write_image(tmp_path / "data" / f"{name}.png", photograph("astronaut" if face else "coffee")[:400, :500])
    (tmp_path / "data" / "all.csv").write_text(FORGED, "utf-8")
    how: dict[str, Any] = {"engine": "inline", "progress": False, "max_rejects": "100%"}
    recipe = {"preset": "faces", "size": 64, "min_score": 0.9, "margin": 0.25, "path_column": "File", "text": "split"}
    recipe |= {"label_from": "kind", "boxes_from": "original", "encode": "png", "landmarks": "5", "align": True}
    first = packer.build(tmp_path / "data" / "all.csv", tmp_path / "the out", **recipe, **how)
    retry = tmp_path / f"to retry{suffix}"
    report = packer.rejects(tmp_path / "the out", out=retry)
    assert (report.rejected, report.left_out) == (2, 0)
    if suffix == ".csv":
        assert retry.read_text("utf-8").splitlines() == [
            "File,kind,split,original,id,age",
            "fake/b b.png,fake,test,real/b.png,12,",
            "fake/c.png,real,test,real/b.png,007,4.0",
        ]
    write_image(tmp_path / "data" / "real" / "b.png", photograph("astronaut")[:400, :500])  # where the boxes come from
    words = shlex.split(report.retry)
    words = [{"OUT": str(tmp_path / "again"), "SOURCE": str(tmp_path / "data")}.get(word, word) for word in words]
    assert words[0] == "packer"
    assert main([*words[1:], "--engine", "inline", "--quiet"]) == 0
    assert "2 items" in capsys.readouterr().out
    again = open_dataset(tmp_path / "again")
    manifest = Layout(tmp_path / "again").load()
    assert manifest.schema == first.manifest.schema
    samples = [again[row] for row in range(len(again))]
    shown = ("label", "split", "original", "id", "age_valid")
    classes = again.classes
    assert classes is not None
    assert [(classes[s["label"]], *(s[name] for name in shown[1:])) for s in samples] == [
        ("fake", "test", "real/b.png", "12", False),
        ("real", "test", "real/b.png", "007", True),
    ]
    before, now = first.manifest.generations[0].recipe, manifest.generations[0].recipe
    assert {name for name in before if before[name] != now.get(name)} <= {"text", "root", "classes_from"}


def test_inputs_of_a_function_are_no_paths(tmp_path: Path) -> None:
    packer.pack(fail_on_odd, range(4), tmp_path / "out", engine="inline", max_rejects="100%", progress=False)
    done = run_packer("rejects", tmp_path / "out", "-o", tmp_path / "retry.csv", "--quiet")
    assert (tmp_path / "retry.csv").read_text().split() == ["input", "1", "3"]
    assert "to try them: packer.pack with these inputs" in done.stdout
    assert "packer build" not in done.stdout


def test_the_keys_of_an_archives_rejects_are_taken_again(source: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "some.tar", "w") as archive:
        archive.add(source / "a", "a")
    build(tmp_path / "some.tar", tmp_path / "out")
    done = run_packer("rejects", tmp_path / "out", "-o", tmp_path / "retry.csv", "--quiet")
    assert "packer build SOURCE OUT --keys" in done.stdout
    assert (tmp_path / "retry.csv").read_text().split() == ["key", "a/00.png", "a/02.png", "a/04.png"]
    with tarfile.open(tmp_path / "some.tar", "w") as archive:
        for name in ("a/00.png", "a/02.png", "a/04.png", "a/06.png"):
            write_image(source / name, scene(1, (24, 18)))
            archive.add(source / name, name)
    assert build(tmp_path / "some.tar", tmp_path / "again", keys=str(tmp_path / "retry.csv")).manifest.samples == 3


def test_samples_of_a_packed_dataset_have_no_path(source: Path, tmp_path: Path) -> None:
    def refuse(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for sample in samples:
            if sample["source"].endswith("05.png"):
                raise ValueError("no")
            yield sample

    build(source, tmp_path / "first")
    build(tmp_path / "first", tmp_path / "out", steps=["decode", refuse, "resize"])
    done = run_packer("rejects", tmp_path / "out", "-o", tmp_path / "retry.csv", "--quiet")
    assert (tmp_path / "retry.csv").read_text().split() == ["key", "00000006-000000"]
    assert "to try" not in done.stdout


def test_what_no_table_can_hold(tmp_path: Path) -> None:
    source = write_images(tmp_path / "source", ["a.png"])
    odd = os.fsdecode(b"\xff.png")
    (source / odd).write_bytes(b"")
    build(source, tmp_path / "out")
    with pytest.raises(UsageError, match=r"write retry\.jsonl"):
        packer.rejects(tmp_path / "out", out=tmp_path / "retry.csv")
    packer.rejects(tmp_path / "out", out=tmp_path / "retry.jsonl")
    write_image(source / "b.png", scene(1, (24, 18)))
    os.replace(source / "b.png", source / odd)
    assert build(tmp_path / "retry.jsonl", tmp_path / "again", root=str(source)).manifest.samples == 1


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    build(write_images(tmp_path / "source", ["train/a/0.png"]), tmp_path / "out")
    (tmp_path / "kept").mkdir(0o555)
    for command, *values in (
        ("rejects", tmp_path / "out", "-o", tmp_path / "kept" / "retry.csv"),
        ("preview", tmp_path / "out", "-o", tmp_path / "kept" / "sheet.png"),
        ("report", tmp_path / "out", "-o", tmp_path / "kept" / "report.html"),
        ("list", "imagefolder", tmp_path / "source", "-o", tmp_path / "kept" / "list.csv"),
    ):
        said = run_unprivileged(command, *values, expect=2).stderr
        assert said == f"packer {command}: {values[-1]}: cannot be written: Permission denied\n"
    assert list((tmp_path / "kept").iterdir()) == []


def test_a_reason_is_one_line_without_control_characters(source: Path, tmp_path: Path) -> None:
    def fail(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for sample in samples:
            if sample["source"] == "b/05.png":
                raise ValueError("expected\n  more, \x1b[31mfound less\n")
            yield sample

    build(source, tmp_path / "out", steps=["decode", fail, "resize"])
    report = packer.rejects(tmp_path / "out")
    assert "ValueError: expected more, \\x1b[31mfound less (" in report.describe()
    report.kinds[0].reason += "\n\x1b[2J"  # as a dataset of others may have it
    assert "\\x1b[2J\n" in report.describe()
