"""`--intervals`: columns of [start, end] in seconds become a truth value of each frame."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command import run_packer
from support.errors import raises
from support.media import write_image
from support.video_files import stripes, write_numbered

import packer
from readers import open_dataset
from shardspec.errors import TooManyRejectsError, UsageError

FRAMES = 10  # at 25 frames per second


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for name in ("a", "b", "c"):
        write_numbered(folder / f"{name}.mp4", frames=FRAMES)
    for number in range(FRAMES):
        write_image(folder / f"frames/{number}.png", stripes(number))
    return folder


def marked(dataset: Path, field: str = "fake") -> dict[str, list[int]]:
    """The frames of each item that the field marks."""
    found: dict[str, list[int]] = {}
    for sample in open_dataset(dataset, fields=["source", "frame", field]):
        frames = found.setdefault(str(sample["source"]), [])
        assert sample[field].dtype == bool
        if sample[field]:
            frames.append(int(sample["frame"]))
    return found


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows as the table that the suffix says; lists in a CSV file are JSON."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        cells = [
            ",".join('"' + str(json.dumps(v) if isinstance(v, list) else v or "") + '"' for v in row.values())
            for row in rows
        ]
        path.write_text("\n".join([",".join(rows[0]), *cells]) + "\n")
    return path


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_frame_is_marked_if_its_time_lies_in_an_interval(videos: Path, tmp_path: Path, suffix: str) -> None:
    rows = [
        # The start belongs to an interval, the end does not, and a time between two frames marks the second of them.
        {"path": "a.mp4", "fake": [[0.08, 0.16], [0.21, 0.33], [0.04, 0.04]], "Heard fake": [[0, 0.45]]},
        {"path": "b.mp4", "fake": [], "Heard fake": None},
        {"path": "frames", "fake": [[0.36, 0.4]], "Heard fake": []},
    ]
    table = write_table(tmp_path / f"t.{suffix}", rows)
    options = ["--root", videos, "--frame-folders", "25", "--size", "32", "--engine", "inline", "--quiet"]
    run_packer("build", table, tmp_path / "out", "--intervals", "fake", "--intervals", "Heard fake", *options)
    assert marked(tmp_path / "out") == {"a.mp4": [2, 3, 6, 7, 8], "b.mp4": [], "frames": [9]}
    assert marked(tmp_path / "out", "heard_fake") == {"a.mp4": list(range(FRAMES)), "b.mp4": [], "frames": []}
    ds = open_dataset(tmp_path / "out")
    assert {str(s["source"]) for s in ds if not s["heard_fake_valid"]} == {"b.mp4"}
    assert "fake_valid" not in ds.schema
    clip = ds.clips(FRAMES, by=None)[0]
    assert clip["fake"].tolist() == [number in (2, 3, 6, 7, 8) for number in range(FRAMES)]


@pytest.mark.parametrize("value", [None, []], ids=["missing", "empty"])
def test_a_column_without_any_interval(videos: Path, tmp_path: Path, value: Any) -> None:
    rows = [{"path": "a.mp4", "fake": value}, {"path": "b.mp4", "fake": value}]
    options: dict[str, Any] = {"root": videos, "intervals": "fake", "size": 32, "engine": "inline", "progress": False}
    packer.build(rows, tmp_path / "out", every=5, **options)
    assert marked(tmp_path / "out") == {"a.mp4": [], "b.mp4": []}
    assert ("fake_valid" in open_dataset(tmp_path / "out").schema) == (value is None)
    if value == []:  # and intervals of new items are of the same type
        packer.build([*rows, {"path": "c.mp4", "fake": [[0, 1e-9]]}], tmp_path / "out", every=5, update=True, **options)
        assert marked(tmp_path / "out")["c.mp4"] == [0]


@pytest.mark.parametrize(
    "value",
    [
        [[1, 0]],
        [0, 1],
        [[0, 1, 2]],
        [[0, float("nan")]],
        [[0, None]],
        [["0", "1"]],
        [[True, True]],
        {"0": 1},
        3.5,
        "0-1",
        "[[0, 1]",
        "[[0, Infinity]]",
        "[" * 100_000,
    ],
    ids=str,
)
def test_invalid_intervals_end_the_build_before_packing(videos: Path, tmp_path: Path, value: Any) -> None:
    rows = [{"path": "a.mp4", "fake": []}, {"path": "b.mp4", "fake": value}]
    with raises(UsageError, expected="[[start, end], …] in seconds, start <= end (--intervals fake)") as caught:
        packer.build(rows, tmp_path / "out", root=videos, intervals="fake", engine="inline", progress=False)
    assert caught.value.place == "column 'fake', row 1 (counted from 0)"


def test_intervals_that_are_not_in_seconds_reject_their_item(videos: Path, tmp_path: Path) -> None:
    rows = [
        {"path": "a.mp4", "fake": [[0, 0.9]]},  # rounded, or of the sound, which is longer
        {"path": "b.mp4", "fake": [[0.1, 0.2], [2, 5]]},
        {"path": "frames", "fake": [[2, 5]]},
    ]
    options: dict[str, Any] = {"root": videos, "intervals": "fake", "frame_folders": 25, "size": 32}
    packer.build(rows, tmp_path / "out", max_rejects=0.9, engine="inline", progress=False, **options)
    assert marked(tmp_path / "out") == {"a.mp4": list(range(FRAMES))}
    reasons = packer.rejects(tmp_path / "out").kinds
    assert [example for one in reasons for example in one.examples] == [
        (name, "intervals fake: expected times in seconds within the video, which lasts 0.400 s, found 5")
        for name in ("b.mp4", "frames")
    ]
    with pytest.raises(TooManyRejectsError):
        packer.build(rows[1:], tmp_path / "none", engine="inline", progress=False, **options)


def test_intervals_of_sources_and_steps_that_have_none(videos: Path, tmp_path: Path) -> None:
    rows = [{"path": "a.mp4", "fake": []}]
    how: dict[str, Any] = {"root": videos, "engine": "inline", "progress": False}
    with raises(UsageError, option="intervals", found="'fakes'; did you mean 'fake'?"):
        packer.build(rows, tmp_path / "out", intervals="fakes", **how)
    with raises(UsageError, option="intervals", expected="one option for column 'fake'", found="text as well"):
        packer.build(rows, tmp_path / "out", intervals="fake", text="fake", **how)
    with pytest.raises(UsageError, match="read only by the step 'decode'"):
        packer.build(rows, tmp_path / "out", intervals="fake", steps="some:step", **how)
    rows = [{"path": "frames/3.png", "fake": [[0, 1]]}, {"path": "frames/4.png", "fake": [[1, 2]]}]
    packer.build(rows, tmp_path / "images", intervals="fake", **how)
    assert marked(tmp_path / "images") == {"frames/3.png": [0], "frames/4.png": []}
