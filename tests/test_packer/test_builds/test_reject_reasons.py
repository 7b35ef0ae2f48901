"""Whom a reject blames, and what it says of files that are no longer what they were."""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av.error
import numpy as np
import pytest
from support.builds import write_images
from support.command import file_of, read_jsonl, run_packer
from support.media import FAST_START, cut_file, scene, write_image, write_video

import packer
from packer.steps.chain import ITEM
from shardspec.errors import BuildError, TooManyRejectsError

Sample = dict[str, Any]


def reasons(out: Path) -> dict[str, tuple[str, str]]:
    """Step and reason by item."""
    return {line["item"]: (line["step"], line["reason"]) for line in read_jsonl(file_of(out, "rejects.jsonl"))}


def test_the_step_that_gave_nothing_is_blamed_whatever_comes_behind_it(tmp_path: Path) -> None:
    write_images(tmp_path / "source", ["a.png", "b-bad.png"])
    steps = "decode,support.steps:give_nothing,support.steps:add_measures,resize"
    options = ("--steps", steps, "--size", 16, "--max-rejects", "100%", "--quiet")
    run_packer("build", tmp_path / "source", tmp_path / "out", *options)
    reported = ("support.steps:give_nothing", "gave no sample (received 1 sample)")
    assert reasons(tmp_path / "out") == {"b-bad.png": reported}


def forget_to_yield(samples: Iterator[Sample]) -> None:
    """Return nothing, since there is no ``yield``."""


def test_a_step_without_yield_is_said_to_be_one(tmp_path: Path) -> None:
    write_images(tmp_path / "source", ["a.png"])
    with pytest.raises(TooManyRejectsError):
        packer.build(
            tmp_path / "source", tmp_path / "out", steps=["decode", forget_to_yield], engine="inline", progress=False
        )
    ((step, reason),) = reasons(tmp_path / "out" / ".build").values()
    assert step.endswith("forget_to_yield")
    assert reason == "expected a generator of samples, found NoneType: does it yield?"


def ask_for_more(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Take the next of nothing."""
    for sample in samples:
        yield next(iter(())) if sample["source"] == "b.png" else sample


def test_a_step_that_raises_stop_iteration_says_where(tmp_path: Path) -> None:
    source, steps = write_images(tmp_path / "source", ["a.png", "b.png"]), ["decode", ask_for_more, "resize"]
    packer.build(source, tmp_path / "out", steps=steps, size=16, engine="inline", progress=False, max_rejects="100%")
    ((item, (_, reason)),) = reasons(tmp_path / "out").items()
    line = ask_for_more.__code__.co_firstlineno + 3
    assert (item, reason) == (
        "b.png",
        f"RuntimeError: generator raised StopIteration (test_reject_reasons.py, line {line})",
    )


def skip_first(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Leave out the first frame, and say so."""
    for sample in samples:
        if sample["frame"]:
            yield sample
        else:
            sample["_report"].skip(0, "the first")


def drop_all(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Leave out every frame, and say nothing."""
    yield from (sample for sample in samples if sample["frame"] < 0)


def skip_all(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Leave out every frame, and say so."""
    for sample in samples:
        sample["_report"].skip(sample["frame"], "not wanted")
        yield from ()


def ask_for_none(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Give nothing, and leave the steps before unread."""
    yield from ()


@pytest.mark.parametrize(
    ("steps", "reported"),
    [
        ([drop_all, ask_for_none], r"test_reject_reasons\.ask_for_none: gave no sample \(received 0 samples\)"),
        ([skip_first, drop_all], r"test_reject_reasons\.drop_all: gave no sample \(received 3 samples\), the first \(1 frame\)"),
        ([skip_all, drop_all], r"test_reject_reasons\.skip_all: not wanted \(4 frames\) \(all reasons"),
    ],
)  # fmt: skip
def test_what_was_skipped_before_is_not_taken_for_the_whole_reason(
    tmp_path: Path, steps: list[Any], reported: str
) -> None:
    write_video(tmp_path / "source" / "a.mp4", frames=4)
    with pytest.raises(TooManyRejectsError, match=reported):
        packer.build(tmp_path / "source", tmp_path / "out", steps=["decode", *steps], progress=False)


def cut_off(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Something else writes into an image, or takes it away, before it is read."""
    for sample in samples:
        if "cut" in sample["source"]:
            sample[ITEM].location().write_bytes(b"")
        if "gone" in sample["source"]:
            sample[ITEM].location().unlink()
        if "bad" in sample["source"]:
            raise ValueError("no")
        yield sample


def test_a_file_that_has_changed_since_the_plan_is_named(tmp_path: Path) -> None:
    source = write_images(tmp_path / "source", ["a.png", "bad.png", "cut.png", "gone.png"])
    packer.build(source, tmp_path / "out", steps=[cut_off, "decode"], progress=False, max_rejects=1)
    found = reasons(tmp_path / "out")
    assert "planned" not in found["bad.png"][1]
    assert found["cut.png"] == (
        "decode", "expected an image, found an empty file; 'cut.png' has changed since the build was planned"
    )  # fmt: skip
    assert found["gone.png"][1].endswith("; 'gone.png' existed when the build was planned")


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--size", 16)])
@pytest.mark.parametrize("table", [False, True])
def test_steps_that_leave_the_files_unread_are_a_wrong_call(tmp_path: Path, table: bool, more: tuple[Any, ...]) -> None:
    source = write_images(tmp_path / "source", ["a.png", "b.png"])
    (source / "table.csv").write_text("path\na.png\nb.png\n")
    chosen = source / "table.csv" if table else source
    done = run_packer("build", chosen, tmp_path / "out", "--steps", "resize", *more, expect=2)
    assert "steps: expected decode or a custom step first, to read the files, found 'resize'" in done.stderr
    assert "--steps decode,resize" in done.stderr
    assert not (tmp_path / "out").exists()


def test_images_that_a_source_brings_need_no_decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's rows and packed datasets have them; for a file among the rows, the reason says what it lacks."""
    write_images(tmp_path, ["a.png"])
    monkeypatch.chdir(tmp_path)
    image = np.full((24, 30, 3), 90, np.uint8)
    rows: list[dict[str, Any]] = [{"image": image}, {"path": "a.png"}]
    how: dict[str, Any] = {"progress": False, "engine": "inline", "max_rejects": 1.0}
    packer.build(rows, "rows", steps=["resize"], size=16, **how)
    reported = "expected an image, found none: begin the steps with decode, which reads it"
    assert reasons(tmp_path / "rows") == {"a.png": ("resize", reported)}
    made = packer.build("rows", "again", steps=["resize"], size=8, **how)
    assert (made.counts.samples, made.manifest.schema["image"].shape[0]) == (1, 8)
    (tmp_path / "boxes.json").write_text(json.dumps({"row-00000000": {"0": [[0, 0, 24, 24]]}}))
    faces: dict[str, Any] = {"preset": "faces", "boxes": "boxes.json", "min_face": 20, "size": 16, "steps": ["faces"]}
    assert packer.build(rows, "faces", **faces, **how).counts.samples == 1
    assert reasons(tmp_path / "faces") == {"a.png": ("faces", reported)}


def replace_next(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Something else writes another good image over the next one, and, once it is read, over this one."""
    for sample in samples:
        path = sample[ITEM].location()
        if path.name in ("b.png", "c.png"):
            write_image(path.with_name("c.png"), scene(9, (24, 18)))
        yield sample


def test_a_file_that_was_replaced_by_a_good_one_is_not_packed(tmp_path: Path) -> None:
    source = write_images(tmp_path / "source", ["a.png", "b.png", "c.png"])
    packer.build(source, tmp_path / "out", steps=["decode", replace_next], progress=False, max_rejects=1)
    assert reasons(tmp_path / "out") == {"c.png": ("source", "'c.png' has changed since the build was planned")}


def test_damage_is_reported_of_a_video_without_any_sample(tmp_path: Path) -> None:
    path = tmp_path / "source" / "grey.mp4"
    write_video(path, frames=30, container=FAST_START)
    cut_file(path, 0.6)
    write_images(tmp_path / "source", ["a.png"])
    steps = ["decode", videos_have_none]
    packer.build(tmp_path / "source", tmp_path / "out", steps=steps, progress=False, max_rejects=1)
    step, reason = reasons(tmp_path / "out")["grey.mp4"]
    assert step.endswith("videos_have_none")
    assert "gave no sample" in reason
    assert "cut off or damaged" in reason


def videos_have_none(samples: Iterator[Sample]) -> Iterator[Sample]:
    for sample in samples:
        if not sample["source"].endswith(".mp4"):
            yield sample


def fail(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Fail over every sample."""
    for sample in samples:
        yield {**sample, "ratio": 1 / (sample["frame"] * 0)}


def test_an_unexpected_error_names_the_users_line_and_none_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reasons of rejects are digested, so a line of ours that moves must not change them."""
    write_images(tmp_path / "source", ["a.png"])
    with pytest.raises(TooManyRejectsError, match=r"fail: ZeroDivisionError: .* \(test_reject_reasons\.py, line \d+\)"):
        packer.build(tmp_path / "source", tmp_path / "own", steps=["decode", fail], progress=False)

    def broken(*_: object) -> None:
        raise KeyError("of a library")

    monkeypatch.setattr("packer.steps.decode.read_image", broken)
    with pytest.raises(TooManyRejectsError, match=r"decode: KeyError: 'of a library' \(all reasons"):
        packer.build(tmp_path / "source", tmp_path / "ours", engine="inline", progress=False)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("wraps", [False, True])
def test_a_full_disk_in_a_step_stops_the_build_and_a_resume_packs_the_item(
    tmp_path: Path, code: int, wraps: bool
) -> None:
    write_images(tmp_path / "source", ["a.png", "b-bad.png", "c.png"])
    full = [OSError(code, os.strerror(code), "/scratch/frames.raw")]

    def write_frames(samples: Iterator[Sample]) -> Iterator[Sample]:
        for sample in samples:
            if "bad" in sample["source"] and full:
                if wraps:
                    raise ValueError("the tool failed") from full[0]
                raise full[0]
            yield sample

    def build() -> Any:
        return packer.build(
            tmp_path / "source", tmp_path / "out", steps=["decode", write_frames], engine="inline", progress=False
        )

    with pytest.raises(BuildError, match=rf"^/scratch/frames\.raw: cannot be written: {os.strerror(code)}"):
        build()
    full.clear()
    result = build()
    assert result.resumed
    assert (result.counts.packed_items, result.counts.rejected_items) == (3, 0)


def test_a_decoder_without_space_is_no_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "source", ["a.png"])
    write_video(tmp_path / "source" / "b.mp4", frames=3)

    def lack(*_: object, **_options: object) -> None:
        raise av.error.OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("packer.steps.decode.open_reader", lack)
    packer.build(tmp_path / "source", tmp_path / "out", engine="inline", progress=False, max_rejects=1)
    assert list(reasons(tmp_path / "out")) == ["b.mp4"]
