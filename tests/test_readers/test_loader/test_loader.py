"""The Loader: batches, order, resume, transforms."""

import pickle
import random
import threading
from copy import copy
from functools import partial

import numpy as np
import pytest
import torch
from support.batches import Noise, error_of, keys_of
from support.crops import keys
from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from readers import Loader, open_dataset
from readers.loader.device import as_pinned
from shardspec.errors import SchemaError, UsageError


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_are_those_of_a_dataloader(raw_path, jpeg_path, workers):
    for path in (raw_path, jpeg_path):
        dataset = open_dataset(path)
        ours = list(Loader(dataset, 16, seed=5, workers=workers))
        theirs = list(DataLoader(dataset, 16, sampler=dataset.sampler(seed=5), collate_fn=dataset.collate))
        assert len(ours) == len(theirs) == len(Loader(dataset, 16)) == 4
        for one, other in zip(ours, theirs, strict=True):
            assert one.keys() == other.keys()
            assert one["key"] == other["key"]
            for name in ("image", "label", "landmarks"):
                assert one[name].dtype == other[name].dtype
                assert torch.equal(one[name], other[name])
            assert one["image"].is_contiguous(memory_format=torch.channels_last)


def test_too_few_samples_for_a_batch_are_reported(raw_path):
    dataset = open_dataset(raw_path, fields=["key"])
    few = Loader(dataset, 40, drop_last=True, rank=1, world_size=2)
    with pytest.warns(UserWarning, match="leaves no batch of an epoch of 60 samples, .* 40 samples on each of 2 ranks"):
        assert list(few) == []
    batches = Loader(dataset, order=lambda epoch: [[0, 1], [2]], drop_last=True, rank=1, world_size=3)
    with pytest.warns(UserWarning, match="leaves no batch of an epoch of 2 batches, .* 1 batch on each of 3 ranks"):
        assert list(batches) == []


@pytest.mark.parametrize("shuffle", ["full", "blocks"])
def test_the_sequence_is_one_for_all_ranks_and_threads(raw_path, shuffle):
    dataset = open_dataset(raw_path, fields=["key"])

    def sequence(world_size, workers):
        ranks = [
            keys_of(Loader(dataset, 4, shuffle=shuffle, workers=workers, rank=rank, world_size=world_size))
            for rank in range(world_size)
        ]
        return [key for step in zip(*ranks, strict=True) for key in step]

    whole = sequence(1, 1)
    assert sorted(whole) == keys(60)
    assert whole != keys(60)
    for world_size, workers in ((1, 3), (2, 1), (4, 2), (8, 1)):
        assert sequence(world_size, workers)[:60] == whole


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (4, 1)])
def test_resume_in_the_middle_of_an_epoch(raw_path, before, after):
    dataset = open_dataset(raw_path, fields=["key"], transform=Noise())

    def rest(rank, state):
        loader = Loader(dataset, 4, seed=9, rank=rank, world_size=after)
        loader.load_state_dict(state)
        loader.set_epoch(2)  # what training loops do; it must not lose the place
        return [pair for batch in loader for pair in zip(batch["key"], batch["drawn"].tolist(), strict=True)]

    single = Loader(dataset, 4, seed=9, rank=0, world_size=1)
    single.set_epoch(2)
    whole = [pair for batch in single for pair in zip(batch["key"], batch["drawn"].tolist(), strict=True)]
    states = []
    for rank in range(before):
        loader = Loader(dataset, 6, seed=9, rank=rank, world_size=before)
        loader.set_epoch(2)
        batches = iter(loader)
        next(batches), next(batches)
        states.append(loader.state_dict())
    assert all(state == states[0] for state in states)
    consumed = 12 * before
    assert states[0]["consumed"] == consumed
    parts = [rest(rank, states[0]) for rank in range(after)]
    woven = [pair for step in zip(*parts, strict=True) for pair in step]
    assert woven[: 60 - consumed] == whole[consumed:]


def test_epochs_follow_one_another(raw_path):
    dataset = open_dataset(raw_path, fields=["key"])
    loader = Loader(dataset, 60)
    first, second = keys_of(loader), keys_of(loader)
    assert first != second
    loader.set_epoch(0)
    assert keys_of(loader) == first
    assert keys_of(loader) == second
    fresh = Loader(dataset, 60)
    fresh.set_epoch(1)
    assert keys_of(fresh) == second
    # A state of a finished epoch goes on with the next, unless the loop asks for the rest of the finished one.
    state = fresh.state_dict()
    fresh.load_state_dict(state)
    third = keys_of(fresh)
    assert sorted(third) == keys(60)
    fresh.load_state_dict(state)
    fresh.set_epoch(1)
    assert keys_of(fresh) == []
    assert keys_of(fresh) == third


def test_a_chosen_epoch_begins_at_its_beginning(raw_path):
    dataset = open_dataset(raw_path, fields=["key"])
    loader = Loader(dataset, 10)
    sampler = dataset.sampler()
    for _ in zip(range(3), loader, strict=False):
        pass
    for _ in zip(range(7), sampler, strict=False):
        pass
    for progress in (loader, sampler):
        progress.set_epoch(1)
        state = progress.state_dict()
        assert (state["epoch"], state["consumed"]) == (1, 0)


def test_a_state_after_an_epoch_with_dropped_samples_continues_with_the_next(raw_path):
    dataset = open_dataset(raw_path, fields=["key"])
    loader = Loader(dataset, 16, drop_last=True)
    first, second = keys_of(loader), keys_of(loader)
    loader.set_epoch(0)
    assert keys_of(loader) == first
    resumed = Loader(dataset, 16, drop_last=True)
    resumed.load_state_dict(loader.state_dict())
    assert keys_of(resumed) == second


def test_seeded_transforms_draw_the_same_everywhere(raw_path):
    dataset = open_dataset(raw_path, fields=["key"], transform=Noise())

    def drawn(batches):
        return {k: d for batch in batches for k, d in zip(batch["key"], batch["drawn"].tolist(), strict=True)}

    expected = drawn(Loader(dataset, 8, seed=4, workers=1))
    assert len(set(expected.values())) == 60
    assert drawn(Loader(dataset, 5, seed=4, workers=3)) == expected
    assert drawn(Loader(open_dataset(raw_path, fields=["key"]), 5, seed=4, sample_transform=Noise())) == expected
    ranks = [Loader(dataset, 5, seed=4, rank=rank, world_size=4) for rank in range(4)]
    assert drawn(batch for loader in ranks for batch in loader) == expected
    sampler = dataset.sampler(seed=4)
    loader = DataLoader(dataset, 8, sampler=sampler, num_workers=2, collate_fn=dataset.collate, persistent_workers=True)
    assert drawn(loader) == expected
    second = drawn(loader)  # the workers persist, so only the indices can carry the new epoch to them
    assert second != expected
    loader_of_two = Loader(dataset, 8, seed=4)
    loader_of_two.set_epoch(1)
    assert drawn(loader_of_two) == second
    del loader


def test_transforms_that_change_shapes_and_fields(raw_path):
    def crop(sample):
        return {"image": sample["image"][4:20, 4:20], "double": sample["label"] * 2, "name": sample["key"]}

    batches = list(Loader(open_dataset(raw_path), 16, shuffle=False, sample_transform=crop))
    assert batches[0]["image"].shape == (16, 3, 16, 16)
    assert torch.cat([b["double"] for b in batches]).tolist() == [i % 3 * 2 for i in range(60)]
    assert [name for b in batches for name in b["name"]] == keys(60)
    expected = open_dataset(raw_path)[20]["image"][4:20, 4:20]
    assert np.array_equal(batches[1]["image"][4].permute(1, 2, 0).numpy(), expected)


def test_each_thread_has_its_own_transform(raw_path):
    threads_of, met = {}, {threading.get_ident()}
    together = threading.Barrier(3)

    class Stateful:
        def __call__(self, sample):
            thread = threading.get_ident()
            threads_of.setdefault(id(self), set()).add(thread)
            if thread not in met:  # each waits in its first call until all three are in theirs
                met.add(thread)
                together.wait(60)
            return sample

    original = Stateful()
    for _ in Loader(open_dataset(raw_path), 4, workers=3, sample_transform=original):
        pass
    assert threads_of.pop(id(original)) == {threading.get_ident()}  # the samples tried first
    assert len(threads_of) == 3
    assert all(len(threads) == 1 for threads in threads_of.values())


class Draws:
    """A transform with a generator of its own, held in some way."""

    def __init__(self, hold) -> None:
        self.held = hold

    def __call__(self, sample):
        held = self.held["in"][0] if isinstance(self.held, dict) else self.held
        number = torch.rand(1, generator=held).item() if isinstance(held, torch.Generator) else held.random()
        return {"key": sample["key"], "drawn": float(number)}


@pytest.mark.parametrize(
    "held",
    [
        np.random.default_rng(0),
        np.random.RandomState(0),
        random.Random(0),
        torch.Generator().manual_seed(0),
        {"in": [np.random.default_rng(0)]},
    ],
    ids=lambda held: type(held).__name__,
)
@pytest.mark.parametrize("wrap", [lambda draws: draws, lambda draws: draws.__call__, partial])
def test_threads_and_epochs_do_not_repeat_a_transforms_own_draws(raw_path, held, wrap):
    loader = Loader(open_dataset(raw_path), 4, workers=2, sample_transform=wrap(Draws(held)))
    drawn = [value for _ in range(2) for batch in loader for value in batch["drawn"].tolist()]
    assert len(set(drawn)) == len(drawn) == 120


def test_no_number_loses_its_fraction(raw_path):
    """The samples tried first say which dtype a number has."""
    tried = [keys(60)[row] for row in (0, 19, 39, 59)]

    def soft(low, high):
        return lambda sample: {"target": low if sample["key"] in tried else high}

    dataset = open_dataset(raw_path, fields=["key"])
    with pytest.raises(SchemaError, match=r"expected field 'target' as int64 \(\).*found float64"):
        list(Loader(dataset, 8, sample_transform=soft(0, 0.5)))
    (batch,) = Loader(dataset, 60, shuffle=False, sample_transform=soft(0.5, 1))
    assert batch["target"].tolist() == [0.5 if key in tried else 1.0 for key in keys(60)]
    (batch,) = Loader(dataset, 60, shuffle=False, sample_transform=soft(np.uint8(3), 4))
    assert (batch["target"].dtype, batch["target"].max()) == (torch.uint8, 4)
    with pytest.raises(SchemaError, match=r"expected field 'target' as uint8.*found 300"):
        list(Loader(dataset, 8, sample_transform=soft(np.uint8(3), 300)))


def test_an_epoch_begins_with_its_first_batch(raw_path):
    loader = Loader(open_dataset(raw_path), 7, seed=3)
    iter(loader), iter(loader)  # as of a library that finds out whether it can iterate
    batches = iter(loader)
    loader.set_epoch(2)
    third = keys_of(batches)
    loader = Loader(open_dataset(raw_path), 7, seed=3)
    epochs = [keys_of(loader), keys_of(loader), keys_of(loader)]
    assert third == epochs[2]
    loader.set_epoch(0)
    pairs = list(zip(loader, loader, strict=True))  # two iterators at once take an epoch each
    assert [keys_of(side) for side in zip(*pairs, strict=True)] == epochs[:2]
    assert keys_of(loader) == epochs[2]


def test_a_copy_continues_independently_from_the_same_position(raw_path):
    loader = Loader(open_dataset(raw_path), 20, seed=3)
    batches = iter(loader)
    next(batches)
    copies = [copy(loader), pickle.loads(pickle.dumps(loader))]
    state = loader.state_dict()
    list(batches)
    assert [other.state_dict() for other in copies] == [state, state]
    second = keys_of(loader)
    assert [keys_of(other) for other in copies] == [second, second]


# Batch transforms.


def test_batch_transforms(raw_path):
    class Halve(torch.nn.Module):
        def forward(self, batch):
            return {"image": batch["image"].float() / 255, "label": batch["label"]}

    batch = next(iter(Loader(open_dataset(raw_path), 16, device="cpu", batch_transform=Halve())))
    assert batch["image"].dtype == torch.float32
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert 0 < float(batch["image"].max()) <= 1


def test_seeded_batch_transforms_get_a_number_per_sample(raw_path):
    class Seeds:
        seeded = True

        def __call__(self, batch, seeds):
            assert seeds.dtype == torch.int64
            return {**batch, "seed": seeds}

    dataset = open_dataset(raw_path, fields=["key"])

    def seeds(epoch, **arguments):
        loader = Loader(dataset, seed=3, batch_transform=Seeds(), **arguments)
        loader.set_epoch(epoch)
        return {k: s for batch in loader for k, s in zip(batch["key"], batch["seed"].tolist(), strict=True)}

    one = seeds(0, batch_size=7)
    assert len(set(one.values())) == 60
    assert seeds(0, batch_size=16, workers=3) == one
    assert set(seeds(1, batch_size=7).values()).isdisjoint(one.values())


class Seeds:
    """A batch transform that shows the seeds that it gets."""

    seeded = True

    def __call__(self, batch, seeds):
        return {**batch, "image": batch["image"] / 2, "seeds": seeds}


class Skip:
    """The batch sampler's wrapper of accelerate's ``skip_first_batches``, by which Hugging Face's Trainer resumes."""

    def __init__(self, batch_sampler, skipped):
        self.batch_sampler, self.skipped = batch_sampler, skipped

    def __iter__(self):
        return (indices for number, indices in enumerate(self.batch_sampler) if number >= self.skipped)


def resumed(loader, skipped):
    """A DataLoader as ``skip_first_batches`` makes it: with torch's defaults for all missing attributes but one."""
    assert not isinstance(loader.sampler, BatchSampler)
    names = {"num_workers": 0, "collate_fn": None, "pin_memory": False, "timeout": 0, "prefetch_factor": 2}
    how = {name: getattr(loader, name, default) for name, default in names.items()}
    return DataLoader(loader.dataset, batch_sampler=Skip(loader.batch_sampler, skipped), **how)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("transform", [None, Seeds()])
def test_a_loader_has_the_attributes_of_a_dataloader(raw_path, drop_last, transform):
    how = {"batch_transform": transform, "device": "cpu", "drop_last": drop_last, "rank": 1, "world_size": 2}
    loader = Loader(open_dataset(raw_path, transform=Noise()), 8, seed=3, workers=2, **how)
    loader.set_epoch(4)
    expected, following = list(loader), list(loader)
    again = resumed(loader, 2)
    again.batch_sampler.batch_sampler.set_epoch(4)
    found = list(again)
    assert keys_of(found) == keys_of(expected[2:])
    for one, other in zip(found, expected[2:], strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            assert torch.equal(one[name], value) if isinstance(value, torch.Tensor) else one[name] == value
        assert one["image"].is_contiguous(memory_format=torch.channels_last)
    assert keys_of(loader) == keys_of(following)
    loader.set_epoch(4)
    indices = list(loader.batch_sampler)
    loader.set_epoch(4)
    assert list(loader.sampler) == [index for batch in indices for index in batch]
    assert len(loader.sampler) == sum(map(len, indices))
    assert len(loader.batch_sampler) == len(indices) == len(loader)


def test_batches_of_a_rank_are_not_divided_again(raw_path):
    """What accelerate's ``prepare_data_loader`` shares out, it asks for the size of its batches."""
    dataset = open_dataset(raw_path, fields=["key"])
    alone = Loader(dataset, 8, drop_last=True)
    assert (alone.batch_sampler.batch_size, alone.batch_sampler.drop_last) == (8, True)
    with pytest.raises(UsageError, match=r"its batches are already this rank's share.*leave it out of prepare_data_lo"):
        getattr(Loader(dataset, 8, rank=0, world_size=2).batch_sampler, "batch_size", None)


def test_batches_on_a_device_are_not_made_in_worker_processes(raw_path):
    loader = Loader(open_dataset(raw_path, fields=["image"]), 8, device="cpu")
    workers = DataLoader(
        loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn, num_workers=1
    )
    with pytest.raises(UsageError, match="expected a DataLoader without worker processes"):
        raise error_of(workers)


def test_a_batch_that_may_be_on_the_device_is_not_pinned():
    batch = as_pinned({"image": torch.zeros(2)})
    assert pin_memory(batch) is batch
