"""Several views of each sample in a batch."""

from itertools import islice

import numpy as np
import pytest
import torch
from support.batches import Noise, woven
from support.errors import raises

from readers import Loader, RandomResizedCrop, open_dataset
from readers.augment import HorizontalFlip
from shardspec.errors import UsageError


def darker(sample):
    return {**sample, "image": sample["image"] // 2}


def smaller(sample):
    return {**sample, "image": sample["image"][:24, :24]}


def test_views_differ_by_their_draws_and_the_first_is_the_sample(jpeg_path):
    dataset = open_dataset(
        jpeg_path, ["key", "image", "label"], decode={"image": RandomResizedCrop(24, scale=(0.1, 0.5))}
    )
    (views,) = Loader(dataset, 60, views=2, shuffle=False, seed=3)
    (plain,) = Loader(dataset, 60, shuffle=False, seed=3)
    assert views["image"].shape == (60, 2, 3, 24, 24)
    assert views["image"].flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(views["image"][:, 0], plain["image"])
    assert all(not torch.equal(first, second) for first, second in views["image"])
    assert (views["key"], views["label"].tolist()) == (plain["key"], plain["label"].tolist())


def test_views_with_separate_transforms(raw_path):
    dataset = open_dataset(raw_path, fields=["image", "landmarks", "key"])
    (batch,) = Loader(dataset, 60, views=[None, darker, HorizontalFlip(p=1.0)], shuffle=False)
    (plain,) = Loader(dataset, 60, shuffle=False)
    image = plain["image"]
    assert torch.equal(batch["image"][:, 0], image)
    assert torch.equal(batch["image"][:, 1], image // 2)
    assert torch.equal(batch["image"][:, 2], image.flip(-1))
    assert batch["landmarks"].shape == (60, 3, 5, 2)
    assert torch.equal(batch["landmarks"][:, 0], plain["landmarks"])
    assert not torch.equal(batch["landmarks"][:, 2], plain["landmarks"])


def test_draws_of_views_are_repeatable_and_apart(raw_path):
    dataset = open_dataset(raw_path, fields=["key"]).subset([3, 3, 4])

    def drawn(**arguments):
        batches = Loader(dataset, 2, views=3, sample_transform=Noise(), seed=1, **arguments)
        return {k: v for b in batches for k, v in zip(b["key"], b["drawn"].tolist(), strict=True)}, batches

    (found, loader), (again, _) = drawn(workers=1), drawn(workers=3)
    assert found == again
    loader.set_epoch(0)
    values = [value for batch in loader for value in batch["drawn"].reshape(-1).tolist()]
    assert len(set(values)) == 9
    assert "in 3 views, of Subset" in repr(loader)


class Doubled(Noise):
    """Shows twice what it drew."""

    def __call__(self, sample, rng):
        drawn = super().__call__(sample, rng)
        return {**drawn, "drawn": 2 * drawn["drawn"]}


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 1), (2, 3)])
@pytest.mark.parametrize("batched", [False, True])
def test_views_with_separate_transforms_resume_on_other_ranks(raw_path, batched, before, after):
    """In an order of one's own with repeated rows: what is drawn is what one rank draws in an epoch to its end."""
    dataset = open_dataset(raw_path, fields=["key"])
    step = 3  # rows, of a batch as of an order's

    def order(epoch):
        rows = np.random.default_rng(epoch).integers(0, 9, 36)
        return rows.reshape(-1, step) if batched else rows

    def start(ranks, state=None):
        for rank in range(ranks):
            loader = Loader(
                dataset, None if batched else step, order=order, views=[Noise(), Doubled()], seed=4, rank=rank,
                world_size=ranks, workers=2,
            )  # fmt: skip
            loader.set_epoch(1) if state is None else loader.load_state_dict(state)
            yield loader

    def take(loader, batches=None):
        iterator = iter(loader)
        found = [
            [(key, *drawn) for key, drawn in zip(batch["key"], batch["drawn"].tolist(), strict=True)]
            for batch in islice(iterator, batches)
        ]
        iterator.close()
        return (found if batched else [[sample] for batch in found for sample in batch]), loader.state_dict()

    ((whole, _),) = (take(loader) for loader in start(1))
    assert all(first != second for batch in whole for _, first, second in batch)
    assert len({drawn for batch in whole for sample in batch for drawn in sample[1:]}) == 2 * 36
    taken = [take(loader, 2) for loader in start(before)]
    assert all(state == taken[0][1] for _, state in taken)
    rest = [take(loader)[0] for loader in start(after, taken[0][1])]
    seen = woven(found for found, _ in taken) + woven(rest)
    assert seen[: len(whole)] == whole
    assert len(seen) - len(whole) < after, "repeated, so that the ranks are equally long"


def test_views_of_clips_and_images_of_any_size(raw_path):
    dataset = open_dataset(raw_path, fields=["image"], decode=None)
    (batch,) = Loader(
        dataset, 60, views=2, sample_transform=lambda s: {"image": s["image"][: 10 + int(s["image"][0, 0, 0]) % 7]}
    )
    assert isinstance(batch["image"], list)
    assert all(len(views) == 2 and views[0].shape[0] == 3 and torch.equal(*views) for views in batch["image"])


def test_views_of_other_shapes_are_refused(raw_path):
    with raises(
        UsageError, option="views", found="'image' uint8 (48, 48, 3) in the first and uint8 (24, 24, 3) in number 1"
    ):
        next(iter(Loader(open_dataset(raw_path), 4, views=[None, smaller])))
