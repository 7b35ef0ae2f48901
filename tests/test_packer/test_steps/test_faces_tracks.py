"""Tracks in packed videos: gaps, and the choice of one track."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from support.command import file_of, read_jsonl, run_packer
from support.media import FAST_START, write_video
from support.packed import check_whole, read_samples

import packer
from shardspec.layout import Layout

LEFT = {"x0": 5, "y0": 5, "x1": 35, "y1": 40}
RIGHT = {"x0": 60, "y0": 5, "x1": 90, "y1": 40}

Row = dict[str, Any]


def build(root: Path, rows: Sequence[Row], **options: Any) -> list[tuple[int, int]]:
    """Pack the video ``in/v.mp4`` with given boxes; frame and track of every sample."""
    (root / "boxes.jsonl").write_text("".join(json.dumps({"path": "v.mp4", **row}) + "\n" for row in rows))
    how = {"preset": "faces", "size": 32, "min_face": 20, "engine": "inline", "progress": False, **options}
    packer.build(root / "in", root / "out", boxes=str(root / "boxes.jsonl"), **how)
    check_whole(root / "out")
    return [(int(sample["frame"]), int(sample["track"])) for sample in read_samples(root / "out")]


def damage(path: Path, first: int, last: int) -> None:
    """Spoil the key frames from one frame to another, so that no frame of their groups can be trusted."""
    with av.open(str(path)) as container:
        packets = [(p.pts, p.is_keyframe, p.pos, p.size) for p in container.demux(video=0) if p.size]
    stamps = sorted(pts for pts, *_ in packets if pts is not None)
    content = bytearray(path.read_bytes())
    noise = np.random.default_rng(0)
    for pts, key, position, size in packets:
        if key and pts is not None and first <= stamps.index(pts) <= last:
            content[position + 5 : position + size] = noise.bytes(size - 5)
    path.write_bytes(content)


@pytest.mark.parametrize(("last", "joined"), [(12, False), (23, False), (None, True)])
def test_a_track_ends_over_damaged_frames(tmp_path: Path, last: int | None, joined: bool) -> None:
    """Groups of twelve frames, every second sampled: six sampled frames are missing where one group is damaged."""
    path = write_video(tmp_path / "in" / "v.mp4", frames=60, container=FAST_START)
    if last is not None:
        damage(path, 12, last)
    found = build(tmp_path, [{"frame": frame, **LEFT} for frame in range(60)], every=2)
    tracks = {track for _, track in found}
    assert tracks == ({0} if joined else {0, 1})
    assert (len(found) == 30) == joined
    assert [track for _, track in found] == sorted(track for _, track in found)


def test_frames_that_a_step_has_dropped_are_not_missed(tmp_path: Path) -> None:
    write_video(tmp_path / "in" / "v.mp4", frames=24)
    rows = [{"frame": frame, **LEFT} for frame in range(24)]
    found = build(tmp_path, rows, steps=["decode", every_eighth, "faces"])
    assert found == [(0, 0), (8, 0), (16, 0)]


def every_eighth(samples: Any) -> Any:
    """Keep every eighth frame."""
    yield from (sample for sample in samples if sample["frame"] % 8 == 0)


@pytest.mark.parametrize("choose", ["track", "main"])
def test_frames_without_the_kept_track_are_reported(tmp_path: Path, choose: str) -> None:
    write_video(tmp_path / "in" / "v.mp4", frames=10)
    rows = [{"frame": frame, **RIGHT, "track": 7} for frame in (0, 1, 2, 6)]
    rows += [{"frame": frame, **LEFT, "track": 3} for frame in (3, 4, 5, 6, 7)]
    rows += [{"frame": frame, **RIGHT, "track": -1} for frame in (5, 8)]
    found = build(tmp_path, rows, choose=choose)
    assert found == [(frame, 3) for frame in (3, 4, 5, 6, 7)]
    skipped = {line["reason"]: line["frames"] for line in read_jsonl(file_of(tmp_path / "out", "rejects.jsonl"))}
    reason = "no face of track 3, which is kept"
    assert skipped == {reason: [0, 1, 2, 8], "the boxes have no entry for it": [9]}
    assert Layout(tmp_path / "out").load().generations[0].counts.frames_without_sample == 5


def test_without_any_track_all_faces_stay(tmp_path: Path) -> None:
    write_video(tmp_path / "in" / "v.mp4", frames=2)
    rows = [{"frame": frame, **box, "track": -1} for frame in (0, 1) for box in (LEFT, RIGHT)]
    assert build(tmp_path, rows, choose="track") == [(0, -1), (0, -1), (1, -1), (1, -1)]


@pytest.fixture
def walkers(tmp_path: Path) -> Path:
    """The boxes of three videos: a face that moves by a sixth of its width in each frame, one that stays, and none."""
    lines = []
    for name, step in (("moves.mp4", 5), ("stays.mp4", 0), ("empty.mp4", None)):
        write_video(tmp_path / "in" / name, size=(352, 64), frames=64)
        for frame in range(64 if step is not None else 0):
            box = {"x0": step * frame, "y0": 5, "x1": step * frame + 30, "y1": 45}
            lines.append(json.dumps({"path": name, "frame": frame, **box}) + "\n")
    boxes = tmp_path / "boxes.jsonl"
    boxes.write_text("".join(lines))
    return boxes


def pack_walkers(root: Path, boxes: Path, *options: object) -> str:
    how = (
        "--preset",
        "faces",
        "--size",
        32,
        "--min-face",
        20,
        "--max-rejects",
        "100%",
        "--engine",
        "inline",
        "--quiet",
    )
    done = run_packer("build", root / "in", root / "out", "--boxes", boxes, *how, *options)
    check_whole(root / "out")
    # The boxes of frames that are not sampled are another matter.
    return "\n".join(line for line in done.stdout.splitlines() if not line.startswith("unused boxes"))


@pytest.mark.parametrize(
    ("choose", "sampling", "closer"),
    [
        ("track", ("--frames", 8), "sample frames closer together (a larger --frames than 8), or "),
        ("main", ("--every", 9), "sample frames closer together (a smaller --every than 9), or "),
        ("main", ("--fps", 3), "sample frames closer together (a higher --fps than 3.0), or "),
        ("main", ("--keyframes",), "sample frames closer together (--every 10 in place of --keyframes), or "),
    ],
)
def test_frames_too_far_apart_for_tracks_are_reported(
    tmp_path: Path, walkers: Path, choose: str, sampling: tuple[object, ...], closer: str
) -> None:
    text = pack_walkers(tmp_path, walkers, "--choose", choose, *sampling)
    kept = [str(sample["source"]) for sample in read_samples(tmp_path / "out")]
    assert kept.count("moves.mp4") == 1
    assert kept.count("stays.mp4") > 5
    assert text.splitlines()[1:] == [
        "in 1 of 2 videos faces could not be followed from one sampled frame to the next, so --choose "
        f"{choose} kept 1 sample of {kept.count('stays.mp4')} frames with faces: {closer}choose without tracks "
        "(--choose largest)"
    ]


@pytest.mark.parametrize(
    "options",
    [
        ("--frames", 8, "--choose", "largest"),
        ("--frames", 8),
        ("--every", 2, "--choose", "main"),
        ("--choose", "track"),
    ],
)
def test_nothing_is_reported_where_no_track_is_asked_for_or_tracks_hold(
    tmp_path: Path, walkers: Path, options: tuple[object, ...]
) -> None:
    assert len(pack_walkers(tmp_path, walkers, *options).splitlines()) == 1
    samples = read_samples(tmp_path / "out")
    frames = {
        str(name): {int(s["frame"]) for s in samples if s["source"] == name} for name in ("moves.mp4", "stays.mp4")
    }
    assert frames["moves.mp4"] == frames["stays.mp4"]


def test_the_advice_differs_if_every_frame_is_sampled(tmp_path: Path, walkers: Path) -> None:
    """Five places in turn, far apart: when a face comes back, its track has ended."""
    rows = [json.loads(line) for line in walkers.read_text().splitlines()]
    for row in rows:
        row["x0"], row["x1"] = 80 * (row["frame"] % 5), 80 * (row["frame"] % 5) + 30
    walkers.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = pack_walkers(tmp_path, walkers, "--choose", "track")
    assert text.splitlines()[1:] == [
        "in 2 of 2 videos faces could not be followed from one sampled frame to the next, so --choose track "
        "kept 2 samples of 128 frames with faces: choose without tracks (--choose largest)"
    ]


def test_tracks_of_user_boxes_are_not_reported_as_broken(tmp_path: Path, walkers: Path) -> None:
    """Another person in every frame is what the boxes say, and no matter of sampling."""
    rows = [json.loads(line) for line in walkers.read_text().splitlines()]
    walkers.write_text("".join(json.dumps({**row, "track": row["frame"]}) + "\n" for row in rows))
    assert len(pack_walkers(tmp_path, walkers, "--frames", 8, "--choose", "main").splitlines()) == 1


def test_broken_tracks_are_counted_over_a_kill_and_in_json(
    tmp_path: Path, walkers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"boxes": str(walkers), "preset": "faces", "size": 32, "min_face": 20, "engine": "inline"}
    how |= {"progress": False, "max_rejects": 1.0, "frames": 8, "choose": "main"}
    whole = os.replace

    def stop_before_the_manifest(source: str | Path, target: str | Path) -> None:
        if Path(target).name == "manifest.json":
            raise KeyboardInterrupt
        whole(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop_before_the_manifest)
        with pytest.raises(KeyboardInterrupt):
            packer.build(tmp_path / "in", tmp_path / "out", **how)
    assert (tmp_path / "out" / ".build" / "assembly.json").exists()
    result = packer.build(tmp_path / "in", tmp_path / "out", **how)
    assert result.resumed
    assert result.broken_tracks is not None
    assert vars(result.broken_tracks) == {"videos": 1, "of": 2, "frames": 8, "samples": 1}
    again = packer.build(tmp_path / "in", tmp_path / "out", **how)
    assert again.broken_tracks is None
    assert "could not be followed" not in again.describe()
    more = ("--frames", 8, "--choose", "main", "--overwrite", "--json")
    assert json.loads(pack_walkers(tmp_path, walkers, *more))["broken_tracks"] == 1
