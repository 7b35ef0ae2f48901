"""Tracks in packed videos: gaps, and the choice of one track."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from support.command import read_jsonl
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
def test_frames_without_the_kept_track_are_told(tmp_path: Path, choose: str) -> None:
    write_video(tmp_path / "in" / "v.mp4", frames=10)
    rows = [{"frame": frame, **RIGHT, "track": 7} for frame in (0, 1, 2, 6)]
    rows += [{"frame": frame, **LEFT, "track": 3} for frame in (3, 4, 5, 6, 7)]
    rows += [{"frame": frame, **RIGHT, "track": -1} for frame in (5, 8)]
    found = build(tmp_path, rows, choose=choose)
    assert found == [(frame, 3) for frame in (3, 4, 5, 6, 7)]
    skipped = {line["reason"]: line["frames"] for line in read_jsonl(Layout(tmp_path / "out").rejects)}
    assert skipped == {"no face of the track that is kept": [0, 1, 2, 8], "no box is given for it": [9]}
    assert Layout(tmp_path / "out").load().generations[0].counts.frames_without_sample == 5


def test_without_any_track_all_faces_stay(tmp_path: Path) -> None:
    write_video(tmp_path / "in" / "v.mp4", frames=2)
    rows = [{"frame": frame, **box, "track": -1} for frame in (0, 1) for box in (LEFT, RIGHT)]
    assert build(tmp_path, rows, choose="track") == [(0, -1), (0, -1), (1, -1), (1, -1)]
