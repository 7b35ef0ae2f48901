"""The sampler, with DataLoader and StatefulDataLoader, and ranks of torch.distributed."""

import json

import numpy as np
import pytest
from support.batches import keys_of, woven
from support.errors import raises
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from readers import Loader, open_dataset
from readers.seeding import SampledIndex, sample_rng
from shardspec.errors import UsageError


@pytest.fixture
def dataset(jpeg_path):
    return open_dataset(jpeg_path, fields=["key"])


def test_indices_carry_seed_and_epoch(dataset):
    sampler = dataset.sampler(seed=7)
    sampler.set_epoch(3)
    indices = list(sampler)
    assert sorted(indices) == list(range(60))
    assert all(isinstance(i, SampledIndex) and (i.seed, i.epoch) == (7, 3) for i in indices)
    assert len(sampler) == 60


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", range(1, 9))
def test_equal_lengths_on_all_ranks(dataset, world_size, drop_last):
    ranks = [list(dataset.sampler(rank=r, world_size=world_size, drop_last=drop_last)) for r in range(world_size)]
    lengths = {len(indices) for indices in ranks}
    assert lengths == {60 // world_size if drop_last else -(-60 // world_size)}
    assert lengths == {len(dataset.sampler(rank=0, world_size=world_size, drop_last=drop_last))}
    whole = list(dataset.sampler())
    together = woven(ranks)
    assert together[:60] == whole[: len(together)]


@pytest.mark.parametrize(("before", "after", "workers"), [(1, 2, 0), (2, 1, 2), (3, 4, 0)])
def test_the_loop_says_how_much_it_consumed(dataset, before, after, workers):
    whole = list(dataset.sampler(seed=1))
    sampler = dataset.sampler(seed=1, rank=0, world_size=before)
    loader = iter(DataLoader(dataset, 5, sampler=sampler, num_workers=workers, collate_fn=dataset.collate))
    next(loader), next(loader)  # the workers have asked for more than these two
    state = json.loads(json.dumps(sampler.state_dict(consumed=2 * 5 * before)))
    del loader
    ranks = []
    for rank in range(after):
        resumed = dataset.sampler(seed=1, rank=rank, world_size=after)
        resumed.load_state_dict(state)
        ranks.append(list(resumed))
    assert woven(ranks)[: 60 - 10 * before] == whole[10 * before :]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # called by torchdata
@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_dataloader_resumes_exactly(dataset, workers):
    def loader():
        return StatefulDataLoader(
            dataset, 4, sampler=dataset.sampler(seed=2), num_workers=workers, collate_fn=dataset.collate
        )

    whole = keys_of(loader())
    first = loader()
    batches = iter(first)
    taken = keys_of([next(batches) for _ in range(6)])
    state = first.state_dict()
    del batches, first
    resumed = loader()
    resumed.load_state_dict(state)
    assert taken + keys_of(resumed) == whole
    assert sorted(keys_of(resumed)) == sorted(whole), "the epoch after a resumed one is whole"


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # called by torchdata
@pytest.mark.parametrize(("batch_size", "workers"), [(4, 0), (7, 2), (None, 0)])  # 60 samples: 7 leave a smaller batch
def test_stateful_dataloader_skips_no_epoch_after_a_finished_one(dataset, workers, batch_size):
    def loader(state=None):
        made = StatefulDataLoader(dataset, batch_size, sampler=dataset.sampler(seed=2), num_workers=workers)
        if state is not None:
            made.load_state_dict(state)
        return made

    def epoch(batches):
        return [key for batch in batches for key in ([batch["key"]] if batch_size is None else batch["key"])]

    whole = loader()
    epochs = [epoch(whole) for _ in range(3)]
    first = loader()
    batches = iter(first)
    taken = epoch(next(batches) for _ in range(len(first)))
    before_the_end = first.state_dict()
    assert taken + epoch(batches) == epochs[0]
    finished = loader(first.state_dict())
    assert [epoch(finished) for _ in range(2)] == epochs[1:]
    rest = loader(before_the_end)
    assert epoch(rest) == [], "the rest of an epoch at its last batch, as with torchdata's samplers"
    again = loader(rest.state_dict())
    for resumed in (rest, again):
        assert [epoch(resumed) for _ in range(2)] == epochs[1:]


def test_iterators_made_at_once_each_count_for_themselves(dataset):
    sampler = dataset.sampler(seed=4)
    expected = list(dataset.sampler(seed=4))
    first, second = iter(sampler), iter(sampler)
    found = [next(first) for _ in range(50)]
    assert sampler.state_dict()["consumed"] == 0, "the newest has given nothing"
    other = [next(second) for _ in range(20)]
    state = sampler.state_dict()
    assert state["consumed"] == 20
    assert found + list(first) == other + list(second) == expected
    resumed = dataset.sampler(seed=4)
    resumed.load_state_dict(state)
    assert list(resumed) == expected[20:]
    iter(sampler)
    third = dataset.sampler(seed=4)
    third.set_epoch(1)
    assert list(sampler) == list(third), "the epoch behind them is the next one"


def test_an_epoch_that_cannot_be_set_costs_no_progress(dataset):
    sampler = dataset.sampler()
    sampler.load_state_dict({**sampler.state_dict(), "consumed": 20})
    with pytest.raises(UsageError):
        sampler.set_epoch(-1)
    assert list(sampler) == list(dataset.sampler())[20:]


def test_an_iterator_that_is_not_the_newest_uses_up_its_epoch(dataset):
    sampler = dataset.sampler()
    first, _ = iter(sampler), iter(sampler)
    whole = list(first)
    second = list(sampler)
    assert whole == list(dataset.sampler()) != second
    sampler.set_epoch(1)
    iter(sampler)
    assert list(sampler) == second


def test_states_of_other_orders_are_refused(dataset):
    state = dataset.sampler(seed=1).state_dict()
    for other in (
        dataset.sampler(seed=2),
        dataset.sampler(seed=1, shuffle=False),
        dataset.subset(range(9)).sampler(seed=1),
    ):
        with pytest.raises(UsageError, match="expected the state of this order, found another"):
            other.load_state_dict(state)


@pytest.mark.parametrize("make", [lambda d, **how: d.sampler(**how), lambda d, **how: Loader(d, 7, **how)])
def test_consuming_more_than_an_epoch_is_refused(dataset, make):
    """A count over several epochs, say, which would have been taken for the end of this one."""
    for consumed in (-1, 61, 120):
        with pytest.raises(UsageError, match=f"consumed: expected 0 to 60 samples of this epoch, found {consumed}"):
            make(dataset).state_dict(consumed=consumed)
    assert make(dataset).state_dict(consumed=60)["consumed"] == 60
    # Eight ranks take 64, four of them a second time.
    second = make(dataset, rank=1, world_size=8)
    assert len([*second]) in (8, 2), "samples, or batches of seven"
    assert second.state_dict(consumed=64)["consumed"] == 60
    state = make(dataset).state_dict(consumed=60)
    with raises(UsageError, option="state", found=61):
        make(dataset).load_state_dict({**state, "consumed": 61})


def test_a_samples_generator_is_philox_under_its_integers():
    expected = np.random.Generator(np.random.Philox(key=np.array([5, (3 << 40) | 17], np.uint64)))
    found = sample_rng(5, 3, 17)
    assert found.random(4).tolist() == expected.random(4).tolist()
    assert sample_rng(5, 3, 17).integers(0, 2**32, 3).tolist() == [1489391581, 358540995, 2435222496]
