"""Samples that were read as one batch, and what a caller may do to them on the way to `collate`."""

import numpy as np
import pytest
import torch
from support.batches import keys_of
from support.crops import astronaut_crops, keys
from support.datasets import fixed, text, write_dataset
from torch.utils.data import DataLoader

from readers import Loader, open_dataset
from shardspec.schema import Field, NamedConfig, Schema


def changed(samples):
    for sample in samples:
        sample["label"] = sample["label"] + 10


def added(samples):
    for sample in samples:
        sample["more"] = 1


def renamed(samples):
    for sample in samples:
        sample["class"] = sample.pop("label")


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_changed_before_collate_are_taken_as_they_are(raw_path, workers):
    dataset = open_dataset(raw_path)
    collate = dataset.collate
    plain = next(iter(DataLoader(dataset, 6, collate_fn=collate)))

    def batch(change):
        def changing(samples):
            found = change(samples)
            return collate(samples if found is None else found)

        return next(iter(DataLoader(dataset, 6, collate_fn=changing, num_workers=workers)))

    assert batch(changed)["label"].tolist() == [10, 11, 12, 10, 11, 12]
    assert batch(added)["more"].tolist() == [1] * 6
    assert set(batch(renamed)) == {"key", "image", "class", "landmarks"}
    assert batch(lambda samples: samples.reverse())["key"] == keys(6)[::-1]
    assert batch(lambda samples: samples.pop() and None)["key"] == keys(5)
    assert batch(lambda samples: samples[2:4])["key"] == keys(4)[2:]
    for name in ("image", "landmarks"):
        assert torch.equal(batch(changed)[name], plain[name])


def test_pictures_of_varying_size_in_clips_are_tensors_as_elsewhere(tmp_path):
    sizes = [16 + i % 2 for i in range(8)]
    image = Field("image", "bytes", "|u1", (None, None, 3), NamedConfig("png"))
    schema = Schema((text("key"), fixed("frame", "<i8"), image))
    pictures = [astronaut_crops(1, size)[0] for size in sizes]
    columns = {"key": [f"00000000-{i:06d}" for i in range(8)], "frame": np.arange(8), "image": pictures}
    write_dataset(tmp_path / "d", "npy", schema, columns)
    clips = open_dataset(tmp_path / "d").clips(4, stride=4, by=None)
    for dataset in (clips, clips.with_transform(lambda sample: sample)):
        (batch,) = Loader(dataset, 2, shuffle=False)
        assert keys_of([batch]) == [columns["key"][0], columns["key"][4]]
        for clip, expected in zip(batch["image"], (pictures[:4], pictures[4:]), strict=True):
            assert [np.array_equal(a.permute(1, 2, 0), b) for a, b in zip(clip, expected, strict=True)] == [True] * 4
