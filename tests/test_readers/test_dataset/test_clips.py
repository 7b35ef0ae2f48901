"""Clips: neighbours of one track, read as one sample."""

from collections import Counter

import numpy as np
import pytest
import torch
from support.crops import astronaut_crops
from support.datasets import fixed, text, write_dataset
from support.media import write_video
from torch.utils.data import DataLoader

import packer
from readers import ClipDataset, Loader, RandomResizedCrop, open_dataset
from shardspec.formats import FORMATS
from shardspec.schema import Schema


@pytest.fixture(scope="module")
def video_path(tmp_path_factory):
    """Two videos. The first has two tracks, a face without one, frames 0, 5, 10 ... and a gap; the second, one."""
    rows = [(0, f, t) for f in range(0, 60, 5) for t in (0, 1) if not (t == 1 and f == 30)]
    rows += [(0, 60, -1)]
    rows += [(1, f, 0) for f in range(0, 20, 2)]
    ordinal = Counter()
    keys = []
    for item, _, _ in rows:
        keys.append(f"{item:08d}-{ordinal[item]:06d}")
        ordinal[item] += 1
    schema = Schema(
        (
            text("key"),
            fixed("image", "|u1", 16, 16, 3),
            *(fixed(n, "<i8") for n in ("label", "frame", "track")),
            fixed("box", "<f4", 4),
        )
    )
    columns = {
        "key": keys,
        "image": np.stack(astronaut_crops(len(rows), 16)),
        "label": np.array([item for item, _, _ in rows]),
        "frame": np.array([frame for _, frame, _ in rows]),
        "track": np.array([track for _, _, track in rows]),
        "box": np.random.default_rng(0).random((len(rows), 4), np.float32),
    }
    root = tmp_path_factory.mktemp("video") / "d"
    write_dataset(root, "lmdb", schema, columns, shard_rows=8)
    return root


def test_clips_are_consecutive_samples_of_one_track_without_a_gap(video_path):
    dataset = open_dataset(video_path)
    clips = dataset.clips(4)
    frame, track, label = (dataset.column(name) for name in ("frame", "track", "label"))
    found = [(label[r[0]], track[r[0]], frame[r].tolist()) for r in clips.rows]
    for rows in clips.rows:
        assert len(set(track[rows])) == len(set(label[rows])) == 1
        assert len(set(np.diff(frame[rows]))) == 1
    assert [f for item, t, f in found if (item, t) == (0, 0)] == [list(range(a, a + 20, 5)) for a in range(0, 45, 5)]
    assert [f[0] for item, t, f in found if (item, t) == (0, 1)] == [0, 5, 10, 35, 40]
    assert [f[0] for item, t, f in found if item == 1] == [0, 2, 4, 6, 8, 10, 12]
    assert len(found) == 9 + 5 + 7
    assert len(dataset.clips(4, stride=4)) == 3 + 2 + 2
    assert len(dataset.clips(4, max_step=3)) == 7
    assert len(dataset.clips(4, max_step=10)) == 9 + 8 + 7
    assert len(dataset.clips(100)) == 0


@pytest.mark.parametrize("format", FORMATS)
def test_clips_of_resampled_videos_need_no_argument(tmp_path, format):
    write_video(tmp_path / "in/a.mp4", rate=30, frames=24)
    how = {"encode": "raw", "size": 16, "engine": "inline", "progress": False, "format": format}
    packer.build(tmp_path / "in", tmp_path / "out", fps=25, **how)
    dataset = open_dataset(tmp_path / "out", fields=["image", "frame"])
    frames = [0, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 20, 21, 22, 23]
    assert dataset.column("frame").tolist() == frames
    assert dataset.clips(len(frames), by=None)[0]["frame"].tolist() == frames
    part = dataset.subset([0, 1, 2, 4, 5, 6])  # the fourth frame is left out
    assert [clip["frame"].tolist() for clip in part.clips(3, by=None)] == [[0, 2, 3], [5, 6, 8]]


@pytest.mark.parametrize("sampling", [{"frames": 17}, {"keyframes": True}, {"every": 5}])
def test_neighbours_are_sampled_one_after_the_other(tmp_path, sampling):
    write_video(tmp_path / "in/a.mp4", frames=24)
    write_video(tmp_path / "in/a.avi", frames=24)  # whose frames are counted
    packer.build(tmp_path / "in", tmp_path / "out", **sampling, encode="raw", size=16, engine="inline", progress=False)
    dataset = open_dataset(tmp_path / "out")
    count = len(dataset) // 2
    assert dataset.column("frame_position").tolist() == [*range(count), *range(count)]
    assert len(dataset.clips(count, by=None)) == 2


def test_clips_through_the_loader(video_path):
    dataset = open_dataset(video_path)
    clips = dataset.clips(4)
    batches = list(Loader(clips, 8, shuffle="blocks", workers=2))
    assert [tuple(batch["image"].shape) for batch in batches] == [
        (8, 4, 3, 16, 16),
        (8, 4, 3, 16, 16),
        (5, 4, 3, 16, 16),
    ]
    assert batches[0]["box"].shape == (8, 4, 4)
    assert batches[0]["label"].shape == (8,)
    rows_of = {dataset[int(rows[0])]["key"]: rows for rows in clips.rows}
    assert sorted(key for batch in batches for key in batch["key"]) == sorted(rows_of)
    for batch in batches:
        for key, image, box, frames in zip(batch["key"], batch["image"], batch["box"], batch["frame"], strict=True):
            rows = rows_of[key]
            assert frames.tolist() == dataset.column("frame")[rows].tolist()
            assert torch.equal(image.permute(0, 2, 3, 1), torch.from_numpy(dataset.column("image")[rows]))
            assert np.array_equal(box, dataset.column("box")[rows])
    sample = clips[0]
    assert sample["image"].shape == (4, 16, 16, 3)
    assert clips.column("label").tolist() == [dataset.column("label")[rows[0]] for rows in clips.rows]
    loader = DataLoader(clips, 8, sampler=clips.sampler(shuffle="blocks"), num_workers=1, collate_fn=clips.collate)
    for one, other in zip(loader, batches, strict=True):
        assert torch.equal(one["image"], other["image"])


def test_the_frames_of_a_clip_are_cropped_alike(tmp_path):
    schema = Schema((text("key"), fixed("image", "|u1", 40, 40, 3), fixed("frame", "<i8")))
    image = astronaut_crops(1, 40)[0]
    columns = {"key": [f"00000000-{i:06d}" for i in range(6)], "image": np.stack([image] * 6), "frame": np.arange(6)}
    write_dataset(tmp_path / "d", "npy", schema, columns)
    dataset = open_dataset(tmp_path / "d", decode={"image": RandomResizedCrop(16, scale=(0.1, 0.5))})
    (batch,) = Loader(dataset.clips(3, stride=3, by=None), 2, seed=1)
    for clip in batch["image"]:
        assert torch.equal(clip[0], clip[1])
        assert torch.equal(clip[0], clip[2])
    assert not torch.equal(batch["image"][0], batch["image"][1])


def test_a_clips_transform_sees_the_whole_clip(video_path):
    def first_last(sample):
        return {"image": sample["image"][[0, -1]]}

    clips = open_dataset(video_path).clips(4, transform=first_last)
    assert next(iter(Loader(clips, 4)))["image"].shape == (4, 2, 3, 16, 16)


@pytest.fixture
def named_path(tmp_path):
    """One video of two people in turn, with names instead of tracks."""
    schema = Schema((text("key"), text("name"), *(fixed(n, "<i8") for n in ("frame", "label")), fixed("score", "<f4")))
    columns = {
        "key": [f"00000000-{i:06d}" for i in range(12)],
        "name": ["Ann", "Bö"] * 6,
        "frame": np.arange(12) // 2,
        "label": np.zeros(12, np.int64),
        "score": np.ones(12, np.float32),
    }
    write_dataset(tmp_path / "d", "npy", schema, columns)
    return tmp_path / "d"


def test_texts_distinguish_tracks(named_path):
    clips = open_dataset(named_path).clips(3, stride=3, by="name")
    assert clips.rows.tolist() == [[0, 2, 4], [6, 8, 10], [1, 3, 5], [7, 9, 11]]
    assert clips[2]["name"] == ["Bö", "Bö", "Bö"]


def test_clips_of_a_part_are_of_its_samples(video_path):
    dataset = open_dataset(video_path)
    part = dataset.where(lambda label: label == 1, ["label"])
    for clips in (part.clips(4), ClipDataset(part, 4)):
        assert len(clips) == 7
        assert {int(batch) for batch in clips.column("label")} == {1}
        (batch,) = Loader(clips, 7, shuffle=False)
        assert batch["image"].shape == (7, 4, 3, 16, 16)
        assert torch.equal(batch["frame"][0], torch.tensor([0, 2, 4, 6]))


def test_videos_without_a_clip_are_counted(video_path, caplog):
    dataset = open_dataset(video_path)
    assert "videos" not in repr(dataset.clips(4))
    assert not caplog.records
    clips = dataset.clips(11)
    assert (clips.videos, clips.videos_without, len(clips)) == (2, 1, 2)
    assert repr(clips).startswith("ClipDataset: 2 clips of 11 samples each, none from 1 of 2 videos, from LMDBDataset(")
    assert "none from 1 of 2 videos" in repr(Loader(clips, 2))
    assert [record.getMessage()[:45] for record in caplog.records] == ["1 of 2 videos have no clip of 11 samples: tak"]
    part = dataset.where(lambda label: label == 1, ["label"]).clips(11)
    assert (part.videos, part.videos_without) == (1, 1)


def test_a_dataset_of_single_images_reports_why_it_has_no_clips(tmp_path, caplog):
    """As a writer numbers its samples; with keys that say which frames are of one video, it gives clips."""
    frames = [(video, frame) for video in range(2) for frame in range(4)]
    for name, keyed in (("numbered", False), ("keyed", True)):
        with packer.Writer(tmp_path / name, progress=False) as writer:
            for video, frame in frames:
                key = {"key": f"{video:08d}-{frame:06d}"} if keyed else {}
                writer.write(source=f"{video}.mp4", frame=frame, **key)
    assert len(open_dataset(tmp_path / "numbered").clips(2, by="source")) == 0
    (record,) = caplog.records
    assert record.getMessage() == (
        "8 of 8 videos have no clip of 2 samples: every sample is a separate video, according to the number before the '-' "
        "of its key"
    )
    assert len(open_dataset(tmp_path / "keyed").clips(2, by="source")) == 6


@pytest.mark.parametrize("max_step", [None, 1])
def test_samples_of_no_group_yield_no_clips(video_path, caplog, max_step):
    dataset = open_dataset(video_path)
    (untracked,) = np.flatnonzero(np.asarray(dataset.column("track")) < 0)
    clips = dataset.subset([untracked]).clips(1, max_step=max_step)
    assert (len(clips), clips.videos, clips.videos_without) == (0, 1, 1)
    assert list(Loader(clips, 2)) == []
    assert [record.getMessage()[:44] for record in caplog.records] == ["1 of 1 videos have no clip of 1 samples: tak"]
    empty = dataset.subset([]).clips(1, by=None, max_step=max_step)
    assert (len(empty), empty.videos, empty.videos_without) == (0, 0, 0)
