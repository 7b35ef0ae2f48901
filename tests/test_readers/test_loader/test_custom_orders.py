"""Orders of the user's own in a Loader: functions and samplers of torch's kind, resumed, on ranks, repeated."""

import json
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.batches import Noise
from support.errors import raises
from support.fuzz import examples
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from readers import BalancedBatches, Loader, PairBatches, PKBatches, open_dataset
from shardspec.errors import UsageError


def keys(batches) -> list[list[int]]:
    return [[int(key[:8]) for key in batch["key"]] for batch in batches]


def flat(batches) -> list[int]:
    return [row for batch in keys(batches) for row in batch]


@pytest.fixture(scope="module")
def dataset(raw_path):
    return open_dataset(raw_path, fields=["key", "label"])


def rows_of(epoch: int) -> np.ndarray:
    """Another length every epoch, with repeated rows."""
    return np.random.default_rng(epoch).integers(0, 60, 23 + epoch)


def batches_of(epoch: int) -> list[list[int]]:
    rng = np.random.default_rng(epoch)
    return [rng.integers(0, 60, size).tolist() for size in rng.integers(1, 9, 7 + epoch)]


def test_a_function_gives_the_rows_of_each_epoch(dataset):
    loader = Loader(dataset, 4, order=rows_of, workers=2)
    assert (loader.order, len(loader)) == ("custom", 6)
    for epoch in range(3):
        found = flat(loader)
        assert found == rows_of(epoch).tolist()
        assert len(loader) == -(-len(found) // 4)
    loader.set_epoch(1)
    assert flat(loader) == rows_of(1).tolist()
    dropping = Loader(dataset, 4, order=rows_of, drop_last=True)
    assert flat(dropping) == rows_of(0)[:20].tolist()


def test_a_function_gives_the_batches_of_each_epoch(dataset):
    loader = Loader(dataset, order=batches_of, workers=2)
    assert len(loader) == 7
    assert loader.batch_size == max(map(len, batches_of(0)))
    assert "7 batches of up to" in repr(loader)
    for epoch in range(4):
        iterator = iter(loader)
        assert keys(iterator) == batches_of(epoch)
        assert iterator.samples == sum(map(len, batches_of(epoch)))
    loader.set_epoch(0)
    assert [list(map(int, batch)) for batch in loader.batch_sampler] == batches_of(0)
    assert len(loader.sampler) == sum(map(len, batches_of(0)))


@examples(25)
@given(
    batched=st.booleans(),
    ranks=st.integers(1, 4),
    after=st.integers(1, 4),
    stop=st.integers(0, 8),
    epoch=st.integers(0, 2),
    by_sampler=st.booleans(),
)
def test_a_resume_gives_the_rest_and_ranks_share_once(dataset, batched, ranks, after, stop, epoch, by_sampler):
    size = None if batched else 3
    order = batches_of if batched else rows_of

    def loaders(world):
        made = [Loader(dataset, size, order=order, rank=rank, world_size=world, workers=1) for rank in range(world)]
        for loader in made:
            loader.set_epoch(epoch)
        return made

    whole = order(epoch) if batched else rows_of(epoch).tolist()
    before, states = [], []
    for loader in loaders(ranks):
        taken = []
        if by_sampler:
            sampler = iter(loader.batch_sampler)
            taken = [list(map(int, batch)) for _, batch in zip(range(stop), sampler, strict=False)]
        else:
            iterator = iter(loader)
            taken = keys(batch for _, batch in zip(range(stop), iterator, strict=False))
            iterator.close()
        before.append(taken)
        states.append(json.loads(json.dumps(loader.state_dict())))
    assert all(state == states[0] for state in states)
    rest = []
    for loader in loaders(after):
        loader.load_state_dict(states[0])
        if states[0]["consumed"] == len(whole):
            continue  # the next epoch follows
        rest.append(keys(loader))
    seen = [*before, *rest]
    if batched:
        found = sorted(batch for part in seen for batch in part)
        wanted = sorted(whole)
    else:
        found = sorted(row for part in seen for batch in part for row in batch)
        wanted = sorted(whole)
    # To make the ranks equally long, a few of the first are repeated, fewer than there are ranks, before and after.
    remaining = list(found)
    for item in wanted:
        remaining.remove(item)
    assert len(remaining) <= (ranks - 1) + (after - 1)


def test_repeated_rows_draw_apart_in_an_epoch(raw_path):
    noisy = open_dataset(raw_path, fields=["key"], transform=Noise())
    drawn = {}
    for loader in (
        Loader(noisy, 2, order=lambda _: [5, 7, 5, 5, 7]),
        Loader(noisy, order=lambda _: [[5, 7], [5], [5, 7]]),
    ):
        found = [value for batch in loader for value in batch["drawn"].tolist()]
        assert len(set(found)) == 5
        drawn[loader.batch_size] = found
        loader.set_epoch(0)
        assert [value for batch in loader for value in batch["drawn"].tolist()] == found
    (alone,) = Loader(noisy, 1, order=lambda _: [5])
    assert float(alone["drawn"][0]) == found[0]


class Drawing:
    """A sampler as people write it: it draws from whatever generators there are."""

    def __init__(self, generator=None):
        self.own = np.random.default_rng(7)
        self.torchs = torch.Generator()
        self.times = 0

    def __iter__(self):
        self.times += 1
        yield int(self.own.integers(60))
        yield int(torch.randint(60, (), generator=self.torchs))
        yield int(torch.randint(60, ()))
        yield int(np.random.randint(60))  # noqa: NPY002
        yield random.randrange(60)
        yield self.times


SAMPLERS = {
    "random": lambda ds: RandomSampler(ds),
    "generator": lambda ds: RandomSampler(ds, generator=torch.Generator().manual_seed(5)),
    "replacing": lambda ds: RandomSampler(ds, replacement=True, num_samples=31),
    "weighted": lambda ds: WeightedRandomSampler(np.arange(1.0, 61), 40),
    "subset": lambda ds: SubsetRandomSampler(range(10, 30)),
    "drawing": lambda ds: Drawing(),
    "one rank": lambda ds: DistributedSampler(ds, num_replicas=1, rank=0, seed=3),
}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_torchs_samplers_are_functions_of_seed_and_epoch(dataset, kind):
    before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())  # noqa: NPY002
    epochs = {}
    for seed in (0, 0, 1):
        loader = Loader(dataset, 4, sampler=SAMPLERS[kind](dataset), seed=seed, workers=1)
        found = [flat(loader) for _ in range(3)]
        assert epochs.setdefault(seed, found) == found
        torch.manual_seed(int(torch.randint(100, ())))
        again = Loader(dataset, 4, sampler=SAMPLERS[kind](dataset), seed=seed, workers=1)
        iterator = iter(again)
        next(iterator)
        state = again.state_dict()
        iterator.close()
        resumed = Loader(dataset, 4, sampler=SAMPLERS[kind](dataset), seed=seed, workers=1)
        resumed.load_state_dict(state)
        assert flat(resumed) == found[0][4:]
        torch.set_rng_state(before[0])
    assert len({tuple(rows) for found in epochs.values() for rows in found}) == (3 if kind == "one rank" else 6)
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert random.getstate() == before[2]
    first = [flat(Loader(dataset, 4, sampler=SAMPLERS[kind](dataset), rank=rank, world_size=2)) for rank in range(2)]
    assert first[0] == epochs[0][0][::2]
    assert first[1][: len(epochs[0][0]) // 2] == epochs[0][0][1::2]


def test_a_sequential_and_a_batch_sampler(dataset):
    assert flat(Loader(dataset, 7, sampler=SequentialSampler(dataset))) == list(range(60))
    assert flat(Loader(dataset, 7, sampler=[3, 1, 2], shuffle=False)) == [3, 1, 2]
    loader = Loader(dataset, batch_sampler=BatchSampler(RandomSampler(dataset), 8, drop_last=False), seed=2)
    assert [len(batch) for batch in keys(loader)] == [8] * 7 + [4]
    loader.set_epoch(0)
    assert sorted(flat(loader)) == list(range(60))


def test_balanced_pair_and_pk_batches(dataset):
    labels = dataset.column("label")
    for batch in Loader(dataset, order=BalancedBatches(labels, 12), rank=0, world_size=2):
        assert torch.bincount(batch["label"], minlength=3).tolist() == [4, 4, 4]
    for batch in Loader(dataset, order=PKBatches(labels, p=2, k=5), rank=1, world_size=2):
        assert sorted(torch.bincount(batch["label"], minlength=3).tolist()) == [0, 5, 5]
    loader = Loader(dataset, order=PairBatches(np.arange(60) // 4, 6))
    for batch in keys(loader):
        assert all(a // 4 == b // 4 and a != b for a, b in zip(batch[::2], batch[1::2], strict=True))
    assert keys(Loader(dataset, order=PKBatches(labels, 2, 5), seed=1)) != keys(
        Loader(dataset, order=PKBatches(labels, 2, 5), seed=2)
    )


def test_shuffle_true_is_the_full_shuffle(dataset):
    assert keys(Loader(dataset, 8, shuffle=True, seed=4)) == keys(Loader(dataset, 8, shuffle="full", seed=4))
    assert json.loads(json.dumps(Loader(dataset, 8, shuffle=True).state_dict()))["shuffle"] == "full"
    assert list(dataset.sampler(shuffle=True)) == list(dataset.sampler(shuffle="full"))


def test_another_functions_state_is_refused(dataset):
    loader = Loader(dataset, 4, order=rows_of)
    next(iter(loader))
    state = loader.state_dict()
    other = Loader(dataset, 4, order=lambda epoch: rows_of(epoch)[::-1])
    with pytest.raises(
        UsageError, match=r"^state: expected the state of this order, found another; they differ in rows: "
    ):
        other.load_state_dict(state)
    with raises(UsageError, option="state", found="another; they differ in length, shuffle, rows"):
        Loader(dataset, 4, shuffle="full").load_state_dict(state)
    with raises(UsageError, option="state", found="another; they differ in length, shuffle, rows"):
        loader.load_state_dict(Loader(dataset, 4, shuffle="full").state_dict())
    with raises(UsageError, option="epoch", found="None"):
        loader.load_state_dict({})


def endless():
    while True:
        yield 1


class Endless:
    def __iter__(self):
        return endless()


@pytest.mark.parametrize("how", [{"order": lambda _: endless()}, {"sampler": Endless()}])
def test_an_epoch_without_an_end_is_refused(dataset, how):
    with raises(UsageError, option="order", expected="the rows of one epoch", found="no end after 1048576"):
        Loader(dataset, 4, **how)
