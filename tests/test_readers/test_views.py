"""Subsets, splits, mixtures, clips, weighted draws."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from support.batches import Noise, keys_of
from support.crops import astronaut_crops, keys, write_crops
from support.datasets import fixed, text, values_for, write_dataset
from torch.utils.data import DataLoader

from readers import Loader, MixedDataset, RandomResizedCrop, Subset, class_balanced_weights, open_dataset
from readers.blocks import Blocks
from readers.shards import ShardPool
from shardspec.errors import UsageError
from shardspec.schema import Schema


def pairs(batches, name="drawn"):
    return [pair for batch in batches for pair in zip(batch["key"], batch[name].tolist(), strict=True)]


# Subsets.


def test_a_subset_reads_its_rows_and_keeps_their_randomness(raw_path):
    dataset = open_dataset(raw_path, transform=Noise())
    rows = [50, 3, 17, 4]
    subset = dataset.subset(rows)
    assert len(subset) == 4
    assert [subset[i]["key"] for i in range(-4, 4)] == [dataset[r]["key"] for r in rows * 2]
    assert subset.column("label").tolist() == [r % 3 for r in rows]
    assert subset.classes == ("a", "b", "c")
    whole = dict(pairs(Loader(dataset, 9, seed=2)))
    part = dict(pairs(Loader(subset, 2, seed=2)))
    assert part == {key: whole[key] for key in part}
    nested = Subset(Subset(dataset, np.arange(10, 30)), [0, 5], transform=lambda sample: {"key": sample["key"]})
    assert [nested[i]["key"] for i in range(2)] == [dataset[10]["key"], dataset[15]["key"]]


def test_blocks_of_a_subset(tmp_path):
    path = write_crops(tmp_path / "d", "npy", None, count=600, size=8, shard_rows=300)
    subset = open_dataset(path, fields=["key"]).subset(np.arange(0, 600, 3))
    found = keys_of(Loader(subset, 10, shuffle="blocks", window=1))
    assert sorted(found) == [subset[i]["key"] for i in range(200)]
    shards = [int(key[:8]) // 300 for key in found]
    assert len([1 for a, b in pairwise(shards) if a != b]) < 10
    with pytest.raises(UsageError, match="needs a dataset with blocks"):
        Loader(subset.base.subset([3, 1]), 2, shuffle="blocks")


def test_blocks_of_a_sparse_subset_have_as_many_rows_as_others(raw_path):
    dataset = open_dataset(raw_path, fields=["key"])
    dataset._blocks = Blocks.even(60, 10)
    sparse = dataset.subset(np.arange(0, 60, 4)).blocks
    starts, stops = sparse.bounds(np.arange(len(sparse)))
    assert (stops - starts).tolist() == [10, 5]
    assert starts.tolist() == [0, 10]
    assert len(dataset.subset(np.arange(10, 40)).blocks) == 3
    assert len(dataset.subset([]).blocks) == 0


def test_predicates_touch_no_pictures(raw_path, monkeypatch):
    dataset = open_dataset(raw_path)
    monkeypatch.setattr(ShardPool, "read", lambda *arguments: pytest.fail("a shard was read"))
    subset = dataset.where(lambda label: label == 2, ["label"])
    assert subset.rows.tolist() == list(range(2, 60, 3))
    with pytest.raises(UsageError, match="expected booleans of shape"):
        dataset.where(lambda label: label, ["label"])


def test_splits_are_disjoint_and_keep_groups_together(tmp_path):
    schema = Schema((text("key"), text("source"), fixed("label", "<i8")))
    sources = [f"video-{i // 7}.mp4" for i in range(140)]
    columns = {"key": [f"{i // 7:08d}-{i % 7:06d}" for i in range(140)], "source": sources, "label": np.arange(140) % 2}
    write_dataset(tmp_path / "d", "lmdb", schema, columns, shard_rows=50)
    dataset = open_dataset(tmp_path / "d")
    train, test = dataset.split([0.75, 0.25], seed=1)
    assert (len(train), len(test)) == (105, 35)
    assert sorted([*train.rows.tolist(), *test.rows.tolist()]) == list(range(140))
    assert dataset.split([0.75, 0.25], seed=1)[1].rows.tolist() == test.rows.tolist()
    assert dataset.split([0.75, 0.25], seed=2)[1].rows.tolist() != test.rows.tolist()
    train, test = dataset.split([0.75, 0.25], by="source")
    assert (len(train), len(test)) == (105, 35)
    assert set(train.column("source")).isdisjoint(test.column("source"))
    with pytest.raises(UsageError, match="sum of at most 1"):
        dataset.split([0.9, 0.2])


@pytest.mark.parametrize("rows", [[60], [-1], [[1, 2]], [0.5]])
def test_wrong_rows(raw_path, rows):
    with pytest.raises(UsageError, match="rows: expected"):
        open_dataset(raw_path).subset(rows)


# Weights.


def test_class_balanced_draws(raw_path):
    dataset = open_dataset(raw_path, fields=["key", "label"], transform=Noise())
    subset = dataset.subset([*range(0, 60, 3), 1, 2])  # twenty of class 0, one each of 1 and 2
    weights = class_balanced_weights(subset.column("label"))
    loader = Loader(subset, 50, weights=weights, draws=3000)
    batches = list(loader)
    counts = Counter(label for batch in batches for label in batch["label"].tolist())
    assert sum(counts.values()) == 3000
    assert all(900 < counts[label] < 1100 for label in range(3))
    drawn = pairs(batches)
    assert len(set(drawn)) == 3000, "copies of a sample were augmented alike"
    sampler = subset.sampler(weights=weights, draws=3000)
    assert pairs(DataLoader(subset, 50, sampler=sampler, collate_fn=subset.collate)) == drawn


# Mixtures.


def mixture(raw_path, jpeg_path, **arguments):
    one = open_dataset(raw_path, fields=["key", "image"])
    other = open_dataset(jpeg_path, fields=["key", "image"]).subset(range(10))
    return MixedDataset([one, other], **arguments)


def test_a_mixture_takes_exact_shares(raw_path, jpeg_path):
    mixed = mixture(raw_path, jpeg_path, weights=[1, 3], length=80, transform=Noise())
    loader = Loader(mixed, 16)
    lossless = {open_dataset(raw_path)[i]["image"].tobytes(): i for i in range(60)}
    seen = Counter()
    for _ in range(3):
        of_one, of_other, drawn = [], Counter(), set()
        for batch in loader:
            for key, image, value in zip(batch["key"], batch["image"], batch["drawn"].tolist(), strict=True):
                row = lossless.get(image.permute(1, 2, 0).contiguous().numpy().tobytes())
                if row is None:
                    of_other[key] += 1
                else:
                    of_one.append(row)
                drawn.add(value)
        assert len(of_one) == len(set(of_one)) == 20
        assert len(of_other) == 10
        assert set(of_other.values()) == {6}
        assert len(drawn) == 80
        seen.update(of_one)
    assert len(seen) == 60, "three epochs of twenty go through all sixty"


def test_a_mixture_is_the_same_at_any_number_of_threads_and_in_a_dataloader(raw_path, jpeg_path):
    mixed = mixture(raw_path, jpeg_path, transform=Noise())
    expected = pairs(Loader(mixed, 16, workers=1))
    assert len(expected) == len(mixed) == 70
    assert pairs(Loader(mixed, 5, workers=3)) == expected
    loader = DataLoader(mixed, 16, sampler=mixed.sampler(), num_workers=2, collate_fn=mixed.collate)
    assert pairs(loader) == expected


def test_wrong_mixtures(raw_path, jpeg_path):
    with pytest.raises(UsageError, match="expected the same fields in all"):
        MixedDataset([open_dataset(raw_path), open_dataset(jpeg_path, fields=["image"])])
    with pytest.raises(UsageError, match="expected one or more"):
        MixedDataset([])
    with pytest.raises(UsageError, match="expected 2 numbers"):
        mixture(raw_path, jpeg_path, weights=[1])


def test_a_mixture_has_no_columns(raw_path, jpeg_path):
    mixed = mixture(raw_path, jpeg_path)
    with pytest.raises(UsageError, match="column 'key': expected one dataset, found a mixture"):
        mixed.column("key")
    with pytest.raises(UsageError, match="length: expected 1 sample or more, found 0"):
        mixture(raw_path, jpeg_path, length=0)


def test_a_mixture_of_other_classes_is_refused(tmp_path):
    """A label is a number of its own dataset's class: 0 would be real in one and fake in the other."""
    for name in ("real", "fake"):
        label = fixed("label", "<i8", classes=(name,))
        schema = Schema((text("key"), fixed("frame", "<i8"), fixed("score", "<f4"), label))
        values = values_for(schema, 3) | {"key": keys(3)}
        write_dataset(tmp_path / name, "npy", schema, values)
    one, other = open_dataset(tmp_path / "real"), open_dataset(tmp_path / "fake")
    with pytest.raises(UsageError, match=r"same classes in all.*\('real',\).*\('fake',\) in number 1.*packer merge"):
        MixedDataset([one, other])
    assert MixedDataset([one, one]).classes == ("real",)
    with pytest.raises(UsageError, match="same classes in all"):
        MixedDataset([dataset.clips(1, by=None, once=("label",)) for dataset in (one, other)])
    without = [open_dataset(tmp_path / name, fields=["score"]) for name in ("real", "fake")]
    assert len(MixedDataset(without)) == 6


# Clips.


@pytest.fixture(scope="module")
def video_path(tmp_path_factory):
    """Two videos. In the first two tracks and a face without one, frames 0, 5, 10 ... with a gap; the second with one track."""
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


def test_clips_are_neighbours_of_one_track_and_never_cross_a_gap(video_path):
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


def test_wrong_clips(video_path, raw_path):
    with pytest.raises(UsageError, match="expected 1 sample or more"):
        open_dataset(video_path).clips(0)
    with pytest.raises(ValueError, match="there is no field 'frame'"):
        open_dataset(raw_path).clips(2)
