"""Permutations, blocks and orders."""

import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fuzz import examples

from readers.order.order import Blocks, MixtureShares, Order, RankShare
from readers.seeding import Permutation


def sequence(order: Order, epoch: int, cut: RankShare | None = None, consumed: int = 0) -> list[int]:
    cut = RankShare() if cut is None else cut
    length = cut.length(len(order), consumed)
    return order.epoch(epoch).at(cut.positions(0, length, consumed)).rows.tolist()


def blocks_of(*pairs: tuple[int, int]) -> Blocks:
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return Blocks(table[:, 0], table[:, 1])


def shares_of(
    sizes: list[int], quotas: list[int], seed: int = 4, within: dict[int, MixtureShares] | None = None
) -> MixtureShares:
    parts = tuple((within or {}).get(number) for number in range(len(sizes)))
    return MixtureShares(np.array(sizes), np.array(quotas), seed, parts)


def orders(samples: int, seed: int = 0) -> list[Order]:
    return [
        Order(samples, "full", seed),
        Order(samples, "blocks", seed, blocks=Blocks.even(samples, 7), window=3),
        Order(samples, False, seed),
        Order(samples, "full", seed, weights=np.arange(1.0, samples + 1)),
        Order(samples, "full", seed, shares=shares_of([samples - 30, 30], [30, samples - 30])),
    ]


@examples(50)
@given(n=st.integers(0, 700), key=st.integers(0, 2**64 - 1))
def test_the_permutation_has_every_row_once(n, key):
    assert sorted(Permutation(n, key)(np.arange(n)).tolist()) == list(range(n))


def test_small_permutations_are_equally_frequent():
    # Chi-square over all n! permutations; the bound is six standard deviations, and the keys are fixed.
    n = 3
    draws, kinds = 40 * math.factorial(n), math.factorial(n)
    counts = Counter(tuple(Permutation(n, key, 7)(np.arange(n)).tolist()) for key in range(draws))
    chi_square = sum((counts.get(k, 0) - 40) ** 2 / 40 for k in counts) + (kinds - len(counts)) * 40
    assert chi_square < (kinds - 1) + 6 * math.sqrt(2 * (kinds - 1))


def test_every_value_comes_to_every_place_equally_often():
    n, draws = 31, 1000
    table = np.zeros((n, n))
    for key in range(draws):
        table[np.arange(n), Permutation(n, key)(np.arange(n))] += 1
    chi_square = ((table - draws / n) ** 2 / (draws / n)).sum()
    freedom = (n - 1) ** 2
    assert abs(chi_square - freedom) < 6 * math.sqrt(2 * freedom)


def test_golden_orders():
    # Written by hand from a run; a change here changes what everybody's seed means.
    full = Order(1000, "full", seed=3).epoch(2).at(np.arange(8)).rows.tolist()
    blocks = (
        Order(1000, "blocks", seed=3, blocks=Blocks.even(1000, 16), window=4).epoch(2).at(np.arange(8)).rows.tolist()
    )
    weighted = Order(1000, seed=3, weights=np.ones(1000)).epoch(2).at(np.arange(8)).rows.tolist()
    assert full == [748, 241, 101, 517, 798, 712, 174, 374]
    assert blocks == [785, 938, 929, 786, 436, 498, 799, 507]
    assert weighted == [397, 510, 680, 18, 238, 202, 519, 329]


@pytest.mark.parametrize("order", orders(101), ids=["full", "blocks", "none", "weighted", "shares"])
@pytest.mark.parametrize("world_size", range(1, 9))
def test_ranks_together_give_the_sequence_of_one(order, world_size):
    whole = sequence(order, 5)
    parts = [sequence(order, 5, RankShare(rank, world_size)) for rank in range(world_size)]
    assert len({len(part) for part in parts}) == 1
    woven = [row for step in zip(*parts, strict=True) for row in step]
    assert woven[:101] == whole
    assert woven[101:] == whole[: len(woven) - 101]
    assert len(woven) - 101 < world_size
    dropped = [sequence(order, 5, RankShare(rank, world_size, drop=True)) for rank in range(world_size)]
    assert [row for step in zip(*dropped, strict=True) for row in step] == whole[: 101 // world_size * world_size]


@examples(50)
@given(
    shards=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 13)), min_size=1, max_size=8),
    window=st.integers(1, 20),
    seed=st.integers(0, 5),
)
def test_blocks_visit_every_row_once_window_by_window(shards, window, seed):
    blocks = blocks_of(*shards)
    starts, stops = blocks.bounds(np.arange(len(blocks)))
    assert starts.tolist() == [0, *stops[:-1].tolist()]
    rows = sequence(Order(blocks.rows, "blocks", seed, blocks=blocks, window=window), 0)
    assert sorted(rows) == list(range(blocks.rows))
    block_of = np.searchsorted(stops, rows, side="right")
    first_seen = list(dict.fromkeys(block_of.tolist()))
    done = 0
    for number in range(0, len(first_seen), window):
        together = set(first_seen[number : number + window])
        size = sum(int(stops[b] - starts[b]) for b in together)
        assert set(block_of[done : done + size].tolist()) == together
        done += size


def test_blocks_read_at_any_positions_give_the_same():
    order = Order(1000, "blocks", 1, blocks=blocks_of((300, 7), (411, 64), (289, 10)), window=3)
    whole = order.epoch(0).at(np.arange(1000)).rows
    positions = np.random.default_rng(0).permutation(1000)
    reader = order.epoch(0)
    assert np.concatenate([reader.at(p).rows for p in np.split(positions, 10)]).tolist() == whole[positions].tolist()


def test_weights_set_the_frequencies():
    weights = np.array([1.0, 0.0, 3.0, 6.0, 0.0])
    order = Order(5, weights=weights, draws=20_000)
    picks = order.epoch(0).at(np.arange(20_000))
    counts = np.bincount(picks.rows, minlength=5)
    assert counts[1] == 0
    assert counts[4] == 0
    expected = weights / weights.sum() * 20_000
    assert (np.abs(counts - expected) <= 6 * np.sqrt(expected)).all()
    assert len(np.unique(picks.seeds)) == 20_000


def test_shares_are_exact_and_no_row_repeats_before_all_were_read():
    """Rows 0 to 29 of one dataset, then those of a mixture of 20 and 10 rows, which takes 3 of 4 from its second."""
    inner = shares_of([20, 10], [10, 30])
    order = Order(60, shares=shares_of([30, 30], [20, 20], within={1: inner}))
    epochs = [order.epoch(epoch).at(np.arange(40)) for epoch in range(6)]
    seen = np.zeros(60, np.int64)
    for picks in epochs:
        assert np.count_nonzero(picks.rows < 30) == 20
        assert len({*zip(picks.rows.tolist(), picks.seeds.tolist(), strict=True)}) == 40, "copies have equal draws"
        seen += np.bincount(picks.rows, minlength=60)
        assert np.ptp(seen[:30]) <= 1
    assert set(seen[:30]) == {4}
    assert seen[30:50].sum() == 30
    assert seen[50:].sum() == 90
    for rows in (seen[30:50], seen[50:]):
        assert np.ptp(rows) <= 1
    both = np.concatenate([epochs[2].rows, epochs[3].rows])
    assert sorted(both[both < 30]) != sorted([*range(20), *range(20)]), "every epoch has other rows"


def test_order_takes_no_memory_that_grows_with_the_dataset():
    def peak(samples: int, shuffle: str) -> int:
        order = Order(samples, shuffle, blocks=Blocks.even(samples))
        tracemalloc.start()
        epoch = order.epoch(0)
        epoch.at(np.arange(256))
        epoch.at(np.arange(samples // 2, samples // 2 + 256))
        epoch.at(np.arange(samples - 256, samples))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    for shuffle in ("full", "blocks"):
        assert peak(30_000_000, shuffle) < 4_000_000


def test_nothing_to_sample():
    for order in (Order(0), Order(0, "blocks", blocks=Blocks.even(0))):
        assert sequence(order, 0) == []
        assert sequence(order, 0, RankShare(1, 3)) == []
