"""Subsets, clips and mixtures in worker processes that are started anew, with nothing inherited."""

from collections import Counter

import numpy as np
import pytest
import torch
from support.batches import Noise
from support.crops import astronaut_crops
from support.datasets import fixed, text, write_dataset
from torch.utils.data import DataLoader

from readers import ClipDataset, Loader, MixedDataset, Subset, open_dataset
from shardspec.schema import Schema

ITEMS, FRAMES = 6, 10


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Clips of four frames of six videos, in shards whose ends cut videos."""
    root = tmp_path_factory.mktemp("videos") / "d"
    rows = [(item, frame) for item in range(ITEMS) for frame in range(FRAMES)]
    schema = Schema((text("key"), fixed("image", "|u1", 16, 16, 3), fixed("label", "<i8"), fixed("frame", "<i8")))
    columns = {
        "key": [f"{item:08d}-{frame:06d}" for item, frame in rows],
        "image": np.stack(astronaut_crops(len(rows), 16)),
        "label": np.array([item % 2 for item, _ in rows]),
        "frame": np.array([frame for _, frame in rows]),
    }
    write_dataset(root, "lmdb", schema, columns, shard_rows=17)
    return open_dataset(root).clips(4, by=None, transform=Noise())


def test_all_views_in_spawned_workers(clips):
    assert isinstance(clips, ClipDataset)
    subset = Subset(clips, np.arange(0, len(clips), 3))
    mixed = MixedDataset([clips, subset], weights=[1, 2], length=45, transform=None)
    sampler = mixed.sampler(seed=7)
    loader = DataLoader(
        mixed,
        8,
        sampler=sampler,
        num_workers=2,
        collate_fn=mixed.collate,
        multiprocessing_context="spawn",
        persistent_workers=True,
    )
    ours = Loader(mixed, 8, seed=7, workers=2)
    drawn = Counter()
    for _ in range(2):
        theirs, expected = list(loader), list(ours)
        assert len(theirs) == len(expected) == 6
        for one, other in zip(theirs, expected, strict=True):
            assert one["key"] == other["key"]
            assert one["image"].shape[1:] == (4, 3, 16, 16)
            for name in ("image", "label", "frame", "drawn"):
                assert torch.equal(one[name], other[name])
            drawn.update(one["drawn"].tolist())
    assert drawn.most_common(1)[0][1] == 1, "each sample of each epoch has randomness of its own"
    del loader
