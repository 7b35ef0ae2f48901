"""Samples of random, spread, dilated, whole and padded clips, and their sound."""

import json
import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.datasets import fixed, ragged, text, write_dataset
from support.fuzz import examples
from torch.utils.data import DataLoader

from readers import (
    BalancedBatches,
    ClipDataset,
    Loader,
    MixedDataset,
    PairBatches,
    PKBatches,
    Subset,
    open_dataset,
)
from shardspec.schema import Schema

SOUND = 4
"""Samples of sound of a frame."""

TRACKS = {(0, 0): range(20), (0, 1): [*range(6), *range(9, 16)], (1, 0): range(11), (2, 0): range(3)}
"""Positions at which each track, (item, track), has a face: the second one has a gap, and the last one is short."""


def write_footage(root, audio):
    """Write tracks of videos resampled to a higher rate, so that frames come twice, in the order of the videos."""
    rows = sorted((item, place, track) for (item, track), places in TRACKS.items() for place in places)
    item, place, track = np.array(rows).T
    schema = Schema(
        (
            text("key"),
            fixed("image", "|u1", 8, 8, 3),
            *(fixed(name, "<i8") for name in ("label", "frame", "frame_position", "track")),
            fixed("fake", "|b1"),
            audio,
        )
    )
    number = Counter()
    columns = {
        "key": [f"{i:08d}-{number.update([i]) or number[i]:06d}" for i, _, _ in rows],
        "image": np.broadcast_to(np.arange(len(rows), dtype=np.uint8)[:, None, None, None], (len(rows), 8, 8, 3)),
        "label": item % 2,
        "frame": place // 2,
        "frame_position": place,
        "track": track,
        "fake": (place > 8) & (item == 0),
        "audio": (place[:, None] * SOUND + np.arange(SOUND)).astype(np.int16),
    }
    if not audio.is_fixed:
        columns["audio"] = [np.full(2 + p % 2, p, np.int16) for p in place.tolist()]
    write_dataset(root, "npy", schema, columns, shard_rows=16)
    return root


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_footage(tmp_path_factory.mktemp("footage") / "d", fixed("audio", "<i2", SOUND))


@pytest.fixture(scope="module")
def dataset(path):
    return open_dataset(path)


def places_of(clips, rows=None):
    """The positions in time of each clip's samples, by (item, track)."""
    place, track = (np.asarray(clips.base.column(name)) for name in ("frame_position", "track"))
    item = clips.base.item_numbers()
    found = {}
    for chosen in clips.rows if rows is None else rows:
        assert len(set(zip(item[chosen], track[chosen], strict=True))) == 1
        found.setdefault((int(item[chosen[0]]), int(track[chosen[0]])), []).append(place[chosen].tolist())
    return found


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"length": 3, "dilation": 3, "stride": 5}, {(0, 0): [[0, 3, 6], [5, 8, 11], [10, 13, 16]], (0, 1): [[9, 12, 15]], (1, 0): [[0, 3, 6]]}),
        ({"length": 9, "stride": None}, {(0, 0): [[*range(9)]], (1, 0): [[*range(9)]]}),
        ({"length": 9, "stride": None, "start": "middle"}, {(0, 0): [[*range(5, 14)]], (1, 0): [[*range(1, 10)]]}),
        ({"length": 5, "stride": 4, "start": "middle"}, {(0, 0): [[*range(p, p + 5)] for p in (1, 5, 9, 13)], (0, 1): [[*range(5)], [*range(10, 15)]], (1, 0): [[*range(1, 6)], [*range(5, 10)]]}),
        ({"length": 4, "dilation": "spread"}, {(0, 0): [[0, 5, 10, 15]], (0, 1): [[0, 3, 9, 12]], (1, 0): [[0, 2, 5, 8]]}),
        ({"length": 4, "dilation": "spread", "start": "middle"}, {(0, 0): [[2, 7, 12, 17]], (0, 1): [[1, 4, 11, 14]], (1, 0): [[1, 4, 6, 9]]}),
        ({"length": 4, "dilation": "spread", "max_step": 1}, {(0, 0): [[0, 5, 10, 15]], (0, 1): [[0, 1, 3, 4], [9, 10, 12, 14]], (1, 0): [[0, 2, 5, 8]]}),
        ({"length": None}, {track: [[*places]] for track, places in TRACKS.items()}),
        ({"length": None, "max_step": 1}, {track: [[*p] for p in ([places[:6], places[6:]] if track == (0, 1) else [places])] for track, places in TRACKS.items()}),
        ({"length": 7, "stride": None, "collate": "mirror"}, {(0, 0): [[*range(7)]], (0, 1): [[*range(9, 16)]], (1, 0): [[*range(7)]], (2, 0): [[0, 1, 2, 1, 0, 1, 2]]}),
        ({"length": 5, "dilation": "spread", "collate": "mirror"}, {(0, 0): [[0, 4, 8, 12, 16]], (0, 1): [[0, 2, 5, 10, 13]], (1, 0): [[0, 2, 4, 6, 8]], (2, 0): [[0, 1, 2, 1, 0]]}),
    ],
)  # fmt: skip
def test_the_samples_of_clips(dataset, arguments, expected):
    assert places_of(dataset.clips(**arguments)) == expected


def test_random_clips_take_every_place_and_differ_by_epoch_copy_and_seed(dataset):
    clips = dataset.clips(5, stride=None, start="random")
    assert len(clips) == 3  # one of each track that is long enough
    assert clips.column("label").tolist() == [0, 0, 1]
    loader = Loader(clips, 3, shuffle=False, seed=5, workers=1)
    drawn = [batch["frame_position"] for _ in range(60) for batch in loader]
    starts = [set(torch.stack(drawn)[:, clip, 0].tolist()) for clip in range(3)]
    assert starts == [{*range(16)}, {0, 1, 9, 10, 11}, {*range(7)}]
    assert all(int(clip[i + 1] - clip[i]) == 1 for batch in drawn for clip in batch for i in range(4))
    (copies,) = Loader(clips.subset([0] * 12), 12, shuffle=False)
    assert len(set(copies["frame_position"][:, 0].tolist())) > 3
    assert torch.equal(
        copies["audio"], copies["frame_position"].repeat_interleave(SOUND, 1) * SOUND + torch.arange(20) % SOUND
    )

    def spread(epoch, seed):
        chosen = Loader(dataset.clips(4, dilation="spread", start="random"), 3, shuffle=False, seed=seed)
        chosen.set_epoch(epoch)
        return next(iter(chosen))["frame_position"]

    for seed, epoch in [(0, 0), (0, 1), (1, 0)]:
        for k, place in enumerate(spread(epoch, seed)[0].tolist()):
            assert 5 * k <= place < 5 * k + 5
    assert not torch.equal(spread(0, 0), spread(1, 0))
    assert not torch.equal(spread(0, 0), spread(0, 1))


def identity(batch):
    """Key and frames of each clip of a batch."""
    return [(key, tuple(frames.tolist())) for key, frames in zip(batch["key"], batch["frame_position"], strict=True)]


@examples(20)
@given(
    ranks=st.integers(1, 4),
    after=st.integers(1, 4),
    stop=st.integers(0, 4),
    epoch=st.integers(0, 2),
    how=st.sampled_from([{"length": 4, "start": "random", "stride": 3}, {"length": None}, {"length": 3, "dilation": "spread", "start": "random"}]),
    shuffle=st.sampled_from(["full", "blocks"]),
)  # fmt: skip
def test_clips_depend_on_seed_epoch_and_row_alone(dataset, ranks, after, stop, epoch, how, shuffle):
    """At any number of ranks, before and after a resume, the same clips with the same draws come."""
    clips = dataset.clips(**how)

    def loaders(world):
        made = [
            Loader(clips, 2, shuffle=shuffle, seed=3, rank=rank, world_size=world, workers=1) for rank in range(world)
        ]
        for loader in made:
            loader.set_epoch(epoch)
        return made

    (alone,) = loaders(1)
    wanted = [clip for batch in alone for clip in identity(batch)]
    assert len(wanted) == len(clips)
    seen, states = [], []
    for loader in loaders(ranks):
        iterator = iter(loader)
        seen += [clip for _, batch in zip(range(stop), iterator, strict=False) for clip in identity(batch)]
        iterator.close()
        states.append(json.loads(json.dumps(loader.state_dict())))
    assert all(state == states[0] for state in states)
    if states[0]["consumed"] < len(clips):
        for loader in loaders(after):
            loader.load_state_dict(states[0])
            seen += [clip for batch in loader for clip in identity(batch)]
    assert set(seen) == set(wanted)
    assert len(seen) - len(wanted) <= (ranks - 1) + (after - 1)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "how",
    [
        {"length": 4, "start": "random", "stride": 2, "collate": "pad"},
        {"length": None, "collate": "pad"},
        {"length": None, "collate": "mirror", "max_step": 1},
        {"length": None},
        {"length": 3, "dilation": "spread", "start": "random", "once": ["key", "label", "audio"]},
    ],
)
def test_torchs_data_loader_gives_the_same_batches(path, how, workers):
    clips = ClipDataset(open_dataset(path), **how)
    loader = DataLoader(clips, 3, sampler=clips.sampler(seed=3), num_workers=workers, collate_fn=clips.collate)
    for one, other in zip(loader, Loader(clips, 3, seed=3), strict=True):
        assert one.keys() == other.keys()
        for name in one:
            if isinstance(one[name], torch.Tensor):
                assert torch.equal(one[name], other[name]), name
            else:
                pairs = zip(one[name], other[name], strict=True)
                assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else str(a) == str(b) for a, b in pairs), (
                    name
                )


def test_whole_tracks_come_as_lists_or_padded(dataset):
    sizes = [len(places) for places in TRACKS.values()]
    (lists,) = Loader(dataset.clips(None), 4, shuffle=False)
    assert [tuple(image.shape) for image in lists["image"]] == [(size, 3, 8, 8) for size in sizes]
    assert [tuple(sound.shape) for sound in lists["audio"]] == [(size * SOUND,) for size in sizes]
    assert lists["label"].tolist() == [0, 0, 1, 0]
    assert "frame_valid" not in lists
    for collate in ("pad", "mirror"):
        (batch,) = Loader(dataset.clips(None, collate=collate), 4, shuffle=False)
        assert batch["image"].shape == (4, 20, 3, 8, 8)
        assert batch["image"][0].is_contiguous(memory_format=torch.channels_last)
        assert batch["fake"].dtype == batch["frame_valid"].dtype == torch.bool
        assert batch["frame_valid"].sum(1).tolist() == sizes
        for i, size in enumerate(sizes):
            assert batch["frame_valid"][i, :size].all()
            assert torch.equal(batch["image"][i, :size], lists["image"][i])
            assert torch.equal(batch["audio"][i, : size * SOUND], lists["audio"][i])
            assert not batch["audio"][i, size * SOUND :].any()
        rest = batch["frame_position"][3, 3:].tolist()
        assert rest == ([0] * 17 if collate == "pad" else ([1, 0, 1, 2] * 5)[:17])


def test_a_track_that_is_too_short_is_padded_to_the_length(dataset):
    assert dataset.clips(5, stride=None).videos_without == 1
    for collate, expected in {"pad": [0, 1, 2, 0, 0], "mirror": [0, 1, 2, 1, 0]}.items():
        clips = dataset.clips(5, stride=None, collate=collate)
        assert clips.videos_without == 0
        (batch,) = Loader(clips, 9, shuffle=False)
        assert batch["frame_position"][-1].tolist() == expected
        assert batch["frame_valid"].tolist() == [[True] * 5] * 3 + [[True] * 3 + [False] * 2]
        assert batch["audio"][-1].tolist() == [*range(12), *[0] * 8]
        assert batch["label"].tolist() == [0, 0, 1, 0]


def test_sound_of_varying_length_is_joined(tmp_path):
    """As at 29.97 frames per second, of which some have a sample of sound more than others."""
    dataset = open_dataset(write_footage(tmp_path / "d", ragged("audio", "<i2")))
    for length in (7, None):
        (lists,) = Loader(dataset.clips(length, stride=None), 4, shuffle=False)
        (padded,) = Loader(dataset.clips(length, stride=None, collate="pad"), 4, shuffle=False)
        for i, places in enumerate(lists["frame_position"]):
            expected = [p for p in places.tolist() for _ in range(2 + p % 2)]
            assert lists["audio"][i].tolist() == expected
            assert padded["audio"][i].tolist() == expected + [0] * (padded["audio"].shape[1] - len(expected))
        assert padded["audio"][3].tolist()[:9] == [0, 0, 1, 1, 1, 2, 2, 0, 0]


def test_a_transform_may_keep_or_change_the_lengths(dataset):
    """Stacked if all clips then have one length, padded as before otherwise."""

    def first_three(sample):
        return {**sample, "image": sample["image"][:3], "frame_valid": sample["frame_valid"][:3]}

    def halved(sample):
        return {**sample, "image": (sample["image"][:, ::2, ::2] / 255).astype(np.float32)}

    (batch,) = Loader(dataset.clips(None, collate="pad", transform=first_three), 4, shuffle=False)
    assert batch["image"].shape == (4, 3, 3, 8, 8)
    assert batch["frame_valid"].all()
    assert batch["audio"].shape == (4, 80)
    (batch,) = Loader(dataset.clips(None, collate="pad", transform=halved), 4, shuffle=False)
    assert batch["image"].shape == (4, 20, 3, 4, 4)
    assert not batch["image"][3, 3:].any()
    views = Loader(dataset.clips(None, collate="pad"), 4, shuffle=False, views=2)
    assert [len(image) for image in next(iter(views))["image"]] == [2] * 4


def test_labels_of_frames_tell_which_clips_are_forged(dataset):
    clips = dataset.clips(4, stride=4)
    forged = dataset.column("fake")[clips.rows].any(axis=1)
    assert 0 < forged.sum() < len(clips)
    (batch,) = Loader(clips, len(clips), shuffle=False)
    assert batch["fake"].shape == (len(clips), 4)
    assert batch["fake"].any(1).tolist() == forged.tolist()
    assert {*clips.subset(np.flatnonzero(forged)).column("track").tolist()} == {0, 1}


def test_pairs_people_and_balanced_batches_of_clips(dataset):
    clips = dataset.clips(5)
    place, track, label = (clips.column(name) for name in ("frame_position", "track", "label"))
    item = clips.item_numbers()
    # the two tracks of item 0 serve as a video and its forgery
    order = PairBatches((item, place), 2, labels=track, groups=item)
    met = set()
    for _ in range(30):
        (batch,) = Loader(clips, order=order, seed=len(met))
        assert batch["track"].tolist() == [0, 1]
        assert torch.equal(*batch["frame_position"])
        met.add(batch["frame_position"][0, 0].item())
    assert met <= {0, 1, 9, 10, 11}
    assert len(met) > 2

    random = dataset.clips(5, stride=None, start="random")
    for batch in Loader(random, order=PKBatches(random.item_numbers(), p=2, k=6)):
        assert sorted(batch["label"].tolist()) == [0] * 6 + [1] * 6
        assert len({*identity(batch)}) > 7  # copies of a clip begin at different places
    order = BalancedBatches(label, 2, groups=[f"{i}, {t}" for i, t in zip(item, track, strict=True)])
    assert [sorted(batch["label"].tolist()) for batch in Loader(clips, order=order)] == [[0, 1]] * 2


def test_random_clips_in_parts_and_mixtures(dataset):
    clips = dataset.clips(5, stride=None, start="random")
    mixed = MixedDataset([clips, Subset(clips, [2, 0])], length=12)
    loader, other = Loader(mixed, 6, seed=1), Loader(pickle.loads(pickle.dumps(mixed)), 6, seed=1)
    drawn = [clip for _ in range(3) for batch in loader for clip in identity(batch)]
    assert len(set(drawn)) > 12
    assert [clip for _ in range(3) for batch in other for clip in identity(batch)] == drawn, "as in spawned workers"
    assert len({clips[0]["frame_position"][0] for _ in range(40)}) > 5
    torch.manual_seed(0)
    first = clips[0]["frame_position"].tolist()
    torch.manual_seed(0)
    assert clips[0]["frame_position"].tolist() == first
