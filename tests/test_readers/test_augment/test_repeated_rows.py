"""Rows that come several times in an epoch: copies are augmented apart, and the same everywhere."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from support.batches import Noise
from support.datasets import fixed, text, write_dataset
from torch.utils.data import DataLoader, Sampler

from readers import Loader, RandomResizedCrop, Subset, open_dataset
from readers.order.sampler import OrderSampler
from readers.seeding import SampledIndex
from shardspec.schema import Schema

ROWS = [5, 7, 5, 5, 9, 7]


def drawn(batches) -> list[tuple[str, float]]:
    return [pair for batch in batches for pair in zip(batch["key"], batch["drawn"].tolist(), strict=True)]


def collated(dataset, sampler, workers=0, size=6):
    return DataLoader(dataset, size, sampler=sampler, num_workers=workers, collate_fn=dataset.collate)


class Repeated(Sampler[int]):
    """Every row of another sampler three times, as somebody would write it; `said` says which copy an index is."""

    def __init__(self, sampler: OrderSampler, said: bool) -> None:
        self.sampler, self.said = sampler, said

    def __len__(self) -> int:
        return 3 * len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        for index in self.sampler:
            assert isinstance(index, SampledIndex)
            for copy in range(3):
                yield index.again(copy) if self.said else index


@pytest.fixture
def stills(tmp_path):
    """A video of one image, so that crops differ by their draws alone."""
    schema = Schema((text("key"), fixed("image", "|u1", 40, 40, 3), fixed("frame", "<i8")))
    images = np.stack([np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)] * 6)
    columns = {"key": [f"00000000-{i:06d}" for i in range(6)], "image": images, "frame": np.arange(6)}
    write_dataset(tmp_path / "d", "npy", schema, columns)
    return open_dataset(tmp_path / "d", decode={"image": RandomResizedCrop(16, scale=(0.1, 0.5))})


def test_equal_rows_of_a_part_are_cropped_apart(stills):
    (batch,) = Loader(stills.subset([5, 5, 5]), 3, shuffle=False, seed=1)
    assert len({tuple(image.flatten().tolist()) for image in batch["image"]}) == 3
    (alone,) = Loader(stills.subset([5]), 3, shuffle=False, seed=1)
    assert torch.equal(batch["image"][0], alone["image"][0])


def test_batch_transforms_get_a_seed_for_each_of_equal_rows(raw_path):
    class Seeds:
        seeded = True

        def __call__(self, batch, seeds):
            return {"seed": seeds}

    dataset = open_dataset(raw_path, fields=["label"])
    (whole,) = Loader(dataset, 60, shuffle=False, batch_transform=Seeds())
    (batch,) = Loader(dataset.subset(ROWS), 6, shuffle=False, batch_transform=Seeds())
    assert len(set(batch["seed"].tolist())) == len(ROWS)
    assert batch["seed"][[0, 1, 4]].tolist() == whole["seed"][[5, 7, 9]].tolist()


def test_the_first_of_equal_rows_draws_as_a_row_that_comes_once(raw_path):
    dataset = open_dataset(raw_path, transform=Noise(), fields=["key"])
    once = dict(drawn(Loader(dataset, 8, seed=4)))
    found = drawn(Loader(dataset.subset(ROWS), 6, shuffle=False, seed=4))
    assert len({value for _, value in found}) == len(ROWS)
    assert [value == once[key] for key, value in found] == [True, True, False, False, True, False]


@pytest.mark.parametrize("shuffle", [False, "full"])
def test_copies_are_the_same_at_any_number_of_workers_and_ranks_and_after_a_resume(raw_path, shuffle):
    part = open_dataset(raw_path, transform=Noise(), fields=["key"]).subset(ROWS * 2)
    how = {"shuffle": shuffle, "seed": 3}
    expected = drawn(Loader(part, 5, workers=1, **how))
    assert len({value for _, value in expected}) == len(part)
    assert drawn(Loader(part, 1, workers=4, **how)) == expected
    for workers in (0, 2):
        assert drawn(collated(part, part.sampler(**how), workers, size=4)) == expected
    ranks = [drawn(Loader(part, 2, rank=rank, world_size=2, **how)) for rank in (0, 1)]
    assert [pair for step in zip(*ranks, strict=True) for pair in step] == expected
    loader = Loader(part, 2, **how)
    iterator = iter(loader)
    begun = drawn([next(iterator), next(iterator)])
    other = Loader(part, 5, **how)
    other.load_state_dict(loader.state_dict())
    iterator.close()
    assert begun + drawn(other) == expected
    assert {value for _, value in drawn(other)}.isdisjoint(value for _, value in expected)


def test_parts_of_parts_draw_apart(raw_path):
    dataset = open_dataset(raw_path, transform=Noise(), fields=["key"])
    nested = Subset(Subset(dataset, [5, 5, 5]), [0, 1, 2, 2, 1, 0, 1])
    found = drawn(Loader(nested, 7, shuffle=False))
    assert {key for key, _ in found} == {dataset[5]["key"]}
    assert len({value for _, value in found}) == 7
    found = drawn(collated(nested, Repeated(nested.sampler(shuffle=False), said=True), size=5))
    assert len({value for _, value in found}) == 21


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("said", [True, False])
def test_a_sampler_may_repeat_rows(raw_path, workers, said):
    dataset = open_dataset(raw_path, transform=Noise(), fields=["key"])
    once = dict(drawn(collated(dataset, dataset.sampler(seed=2))))
    found = drawn(collated(dataset, Repeated(dataset.sampler(seed=2), said), workers))
    assert len({value for _, value in found}) == 3 * len(dataset)
    assert [value for _, value in found[::3]] == [once[key] for key, _ in found[::3]]
    if said:  # which then holds wherever a batch ends
        assert drawn(collated(dataset, Repeated(dataset.sampler(seed=2), said), workers, size=4)) == found


def test_equal_clips_are_cropped_apart_and_each_alike_within(stills):
    clips = stills.clips(2, stride=2, by=None)
    (batch,) = Loader(Subset(clips, [2, 2]), 2, shuffle=False)
    for clip in batch["image"]:
        assert torch.equal(clip[0], clip[1])
    assert not torch.equal(batch["image"][0], batch["image"][1])


def test_a_clip_with_a_row_that_came_before_is_cropped_alike_within(stills):
    clips = stills.subset([0, 0, 1, 1]).clips(2, by=None)
    assert clips.rows.tolist() == [[1, 2]]  # a second copy, then a first one
    (batch,) = Loader(clips, 1, shuffle=False)
    assert torch.equal(batch["image"][0, 0], batch["image"][0, 1])
