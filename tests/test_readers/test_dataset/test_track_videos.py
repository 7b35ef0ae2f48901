"""Datasets whose samples are tracks: whole videos, a few of their frames, clips, and damage."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import raises
from support.media import write_video
from torch.utils.data import DataLoader

import packer
from readers import CenterCrop, Frames, Loader, TemporalCrop, open_dataset
from readers.augment import HorizontalFlip
from shardspec.errors import CodecError, UsageError


@pytest.fixture(scope="module")
def tracks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four videos of 12 to 15 frames, in two classes."""
    root = tmp_path_factory.mktemp("tracks")
    for number in range(4):
        write_video(root / "in" / "ab"[number % 2] / f"{number}.mp4", frames=12 + number, number=number)
    options: dict[str, Any] = {"sample": "item", "size": 24, "resize": "exact", "engine": "inline", "progress": False}
    packer.build(root / "in", root / "out", label_from="folder", format="npy", **options)
    return root / "out"


def test_whole_videos_come_as_lists(tracks: Path) -> None:
    ds = open_dataset(tracks)
    loader = Loader(ds, batch_size=4, shuffle=False, workers=2)
    (batch,) = loader
    assert [tuple(video.shape) for video in batch["video"]] == [(n, 3, 24, 24) for n in batch["frames"].tolist()]
    assert [len(times) for times in batch["time"]] == batch["frames"].tolist()
    (other,) = DataLoader(ds, batch_size=4, collate_fn=ds.collate, num_workers=1)
    assert all(map(torch.equal, batch["video"], other["video"]))


@pytest.mark.parametrize("start", ["first", "middle", "random"])
@pytest.mark.parametrize(("size", "stride"), [(1, 1), (4, 1), (4, 3), (12, 1)])
def test_temporal_crops_are_parts_of_the_videos(tracks: Path, size: int, stride: int, start: str) -> None:
    whole = open_dataset(tracks, ["video"])
    crop = open_dataset(tracks, ["video"], decode={"video": TemporalCrop(size, stride, start=start)})
    found = set()
    for epoch in range(3):
        loader = Loader(crop, batch_size=4, shuffle=False, seed=3, workers=1)
        loader.set_epoch(epoch)
        (batch,) = loader
        again = Loader(pickle.loads(pickle.dumps(crop)), batch_size=4, shuffle=False, seed=3, workers=3)
        again.set_epoch(epoch)
        assert torch.equal(batch["video"], next(iter(again))["video"])
        assert batch["video"].shape == (4, size, 3, 24, 24)
        for row, clip in enumerate(batch["video"].permute(0, 1, 3, 4, 2).numpy()):
            video = whole[row]["video"]
            span = (size - 1) * stride + 1
            places = [s for s in range(len(video) - span + 1) if np.array_equal(video[s : s + span : stride], clip)]
            assert places
            found.add((row, places[0]))
    assert (len(found) > 4) == (start == "random" and size < 12) or start == "random"


def test_a_video_that_is_too_short_is_mirrored(tracks: Path) -> None:
    whole = open_dataset(tracks, ["video"])[0]["video"]
    crop = open_dataset(tracks, ["video"], decode={"video": TemporalCrop(30)})[0]["video"]
    assert np.array_equal(crop, whole[[*range(12), *range(10, -1, -1), *range(1, 8)]])


def test_frames_are_chosen_by_number(tracks: Path) -> None:
    whole = open_dataset(tracks, ["video"])
    ds = open_dataset(tracks, ["video"], decode={"video": Frames([0, -1, 5, 5])})
    for row in range(len(ds)):
        assert np.array_equal(ds[row]["video"], whole[row]["video"][[0, -1, 5, 5]])
    with pytest.raises(CodecError, match=r"expected frames 0 to 11, found 13.*key '00000000-000000'"):
        open_dataset(tracks, ["video"], decode={"video": Frames([13])})[0]


def test_plans_that_would_misalign_fields_are_refused(tracks: Path) -> None:
    with raises(
        UsageError, option="decode", hint="leave them out by fields=, or take clips, which cut all fields: ds.clips(16)"
    ):
        open_dataset(tracks, decode={"video": TemporalCrop(4)})
    with raises(UsageError, option="decode", expected="a plan of videos for 'video', TemporalCrop or Frames"):
        open_dataset(tracks, ["video"], decode={"video": CenterCrop(8)})
    for wrong in (0, -1, 1.5, "a"):
        with pytest.raises(UsageError):
            TemporalCrop(wrong)  # type: ignore[arg-type]
    for numbers in ([], "ab", None):
        with pytest.raises(UsageError):
            Frames(numbers)  # type: ignore[arg-type]


def test_clips_of_parts_and_with_transforms(tracks: Path) -> None:
    ds = open_dataset(tracks)
    part = ds.where("label == 'b'").subset([1, 0])
    clips = part.clips(5, stride=5, by=None)
    assert [clip["image"].shape for clip in clips] == [(5, 24, 24, 3)] * len(clips)
    assert len(clips) == 2 * (15 // 5) - 1
    assert set(clips.column("label").tolist()) == {1}
    flipped = ds.clips(5, by=None, transform=HorizontalFlip(1.0))
    assert np.array_equal(flipped[3]["image"], ds.clips(5, by=None)[3]["image"][:, :, ::-1])
    changed = ds.with_transform(lambda sample: sample).subset([0])
    with raises(UsageError, option="clips", hint="give it to clips(transform=…)"):
        changed.clips(4)


def test_random_clips_are_functions_of_seed_and_epoch(tracks: Path) -> None:
    clips = open_dataset(tracks, ["video"]).clips(4, stride=None, start="random", by=None)

    def epoch(number: int, workers: int) -> list[torch.Tensor]:
        loader = Loader(clips, batch_size=2, seed=1, workers=workers)
        loader.set_epoch(number)
        return [batch["image"] for batch in loader]

    assert all(map(torch.equal, epoch(0, 1), epoch(0, 3)))
    assert not all(map(torch.equal, epoch(0, 1), epoch(1, 1)))


def test_damage_names_the_sample(tracks: Path, tmp_path: Path) -> None:
    """npy has no checksums of its own: the value finds it."""
    root = tmp_path / "damaged"
    root.mkdir()
    for path in tracks.rglob("*"):
        if path.is_file():
            target = root / path.relative_to(tracks)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    (video,) = root.rglob("video.bin")
    content = bytearray(video.read_bytes())
    content[len(content) // 2] ^= 8
    video.write_bytes(content)
    ds = open_dataset(root)
    for read in (
        lambda: [ds[row] for row in range(len(ds))],
        lambda: list(Loader(ds.clips(12, by=None), 2, workers=2)),
    ):
        with pytest.raises(CodecError, match=r"field 'video'.*key '0000000\d-000000'"):
            read()
