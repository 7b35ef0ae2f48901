"""``packer rejects``: reasons summed up, and the list of rejected items."""

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.builds import write_images
from support.command import run_packer, run_unprivileged
from support.errors import raises

import packer
from shardspec.errors import BuildError, TooManyRejectsError


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
    plan = tmp_path / "begun" / ".build" / "plan.json"
    earlier = json.loads(plan.read_text())
    del earlier["sha256"]
    for text, found in (
        ("[]", "a damaged one"),
        (json.dumps(earlier), "one without a checksum: damaged, or made by an earlier version"),
    ):
        plan.write_text(text)
        with raises(BuildError, place=str(plan), found=found):
            packer.rejects(tmp_path / "begun")


def test_the_list_names_items_steps_and_reasons(source: Path, tmp_path: Path) -> None:
    odd = os.fsdecode(b"\xff.png")
    (source / odd).write_bytes(b"")
    build(source, tmp_path / "out")
    for name in ("list.csv", "list.jsonl"):
        done = run_packer("rejects", tmp_path / "out", "-o", tmp_path / name, "--json")
        assert json.loads(done.stdout)["table"] == str(tmp_path / name)
    with (tmp_path / "list.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "list.jsonl").read_text("ascii").splitlines()]
    assert [line["item"] for line in lines] == ["a/00.png", "a/02.png", "a/04.png", "b/01.png", "b/03.png", odd]
    assert [list(line) for line in lines] == [["item", "step", "reason"]] * 6
    assert [row["item"] for row in rows] == [*(line["item"] for line in lines[:5]), r"\udcff.png"]
    assert [row["reason"] for row in rows[:5]] == [line["reason"] for line in lines[:5]]


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
