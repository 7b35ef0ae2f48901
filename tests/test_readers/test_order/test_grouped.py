"""Balanced batches, P × K batches and pairs: what every epoch holds."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.errors import raises
from support.fuzz import examples

import packer
from readers import BalancedBatches, Loader, PairBatches, PKBatches, class_balanced_weights, open_dataset
from shardspec.errors import UsageError

few = examples(60)
labels_of = st.lists(st.integers(-1, 4), min_size=1, max_size=60).filter(lambda found: max(found) >= 0)
epochs = st.integers(0, 5)
seeds = st.integers(0, 2**64 - 1)


@few
@given(labels=labels_of, share=st.integers(1, 5), epoch=epochs, seed=seeds)
def test_every_batch_is_balanced_and_every_row_comes(labels, share, epoch, seed):
    of_row = np.array(labels)
    classes = sorted(set(labels) - {-1})
    order = BalancedBatches(labels, share * len(classes))
    batches = order(epoch, seed)
    assert batches.shape == (len(order), order.batch_size)
    for batch in batches:
        assert Counter(of_row[batch].tolist()) == dict.fromkeys(classes, share)
    times = np.bincount(batches.reshape(-1), minlength=len(labels))
    for label in classes:
        assert 1 <= times[of_row == label].min() <= times[of_row == label].max() <= times[of_row == label].min() + 1
    assert not times[of_row == -1].any()
    np.testing.assert_array_equal(batches, BalancedBatches(labels, share * len(classes))(epoch, seed))


def test_balanced_batches_without_repetition_continue_where_the_last_epoch_ended():
    labels = ["fake"] * 40 + ["real"] * 9
    order = BalancedBatches(labels, 4, repeat=False)
    assert len(order) == 4
    seen = [order(epoch, 3) for epoch in range(5)]
    for batches in seen:
        assert all(Counter(labels[row] for row in batch) == {"fake": 2, "real": 2} for batch in batches.tolist())
        assert len(np.unique(batches[:, ::2])) == len(np.unique(batches[:, 1::2])) == 8
    assert set(np.concatenate(seen)[:, ::2].reshape(-1).tolist()) == set(range(40))  # five epochs of eight


@few
@given(values=labels_of, p=st.integers(1, 4), k=st.integers(1, 5), epoch=epochs, seed=seeds)
def test_every_batch_has_p_values_with_k_rows_each(values, p, k, epoch, seed):
    of_row = np.array(values)
    p = min(p, len(set(values) - {-1}))
    order = PKBatches(values, p, k)
    batches = order(epoch, seed)
    assert batches.shape == (len(order), p * k)
    for batch in batches:
        assert Counter(of_row[batch].tolist()) == dict.fromkeys(of_row[batch[::k]].tolist(), k)
        assert len(set(of_row[batch[::k]].tolist())) == p
        for piece in batch.reshape(p, k):
            assert len(set(piece.tolist())) == min(k, np.count_nonzero(of_row == of_row[piece[0]]))
    assert set(batches.reshape(-1).tolist()) == set(np.flatnonzero(of_row >= 0).tolist())


@few
@given(
    values=st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=1, max_size=50), half=st.integers(1, 5), seed=seeds
)
def test_pairs_share_a_value_and_include_every_row_with_a_partner(values, half, seed):
    partners = [row for row, value in enumerate(values) if value and values.count(value) > 1]
    if not partners:
        with raises(UsageError, option="values", found="no pair"):
            PairBatches(values, 2 * half)
        return
    order = PairBatches(values, 2 * half)
    batches = order(1, seed)
    rows = np.concatenate(batches).tolist()
    assert len(batches) == len(order)
    assert {len(batch) for batch in batches[:-1]} <= {2 * half}
    assert set(rows) == set(partners)
    assert all(a != b and values[a] == values[b] for a, b in zip(rows[::2], rows[1::2], strict=True))
    assert len(rows) <= len(partners) + len(set(values))


@few
@given(rows=st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 1)), min_size=1, max_size=50), seed=seeds)
def test_pairs_of_two_classes_have_one_of_each(rows, seed):
    values, labels = (list(column) for column in zip(*rows, strict=True))
    partners = [i for i, (v, c) in enumerate(rows) if v >= 0 and c >= 0 and (v, 1 - c) in rows]
    if not partners:
        with pytest.raises(UsageError):
            PairBatches(values, 4, labels=labels)
        return
    order = PairBatches(values, 4, labels=labels)
    found = np.concatenate(order(0, seed)).tolist()
    assert set(found) == set(partners)
    for first, second in zip(found[::2], found[1::2], strict=True):
        assert (labels[first], labels[second]) == (0, 1)
        assert values[first] == values[second]
    assert (f"{len(rows) - len(partners)} sample" in repr(order)) == (len(partners) < len(rows))


@few
@given(
    rows=st.lists(st.tuples(st.integers(-1, 2), st.sampled_from(["", "a", "b", "c", "d"])), min_size=1, max_size=50),
    share=st.integers(1, 3),
    seed=seeds,
)
def test_an_epoch_takes_one_row_of_each_group(rows, share, seed):
    """With groups such as videos, batches are balanced over classes, and each class over its videos."""
    labels, videos = (list(column) for column in zip(*rows, strict=True))
    of_class = {label: {v for c, v in rows if (c, bool(v)) == (label, True)} for label in sorted({*labels} - {-1})}
    of_class = {label: found for label, found in of_class.items() if found}
    weights = class_balanced_weights(labels, videos)
    for label, found in of_class.items():
        for video in found:
            total = sum(weights[i] for i, row in enumerate(rows) if row == (label, video))
            assert total == pytest.approx(1 / len(found))
    assert weights.sum() == pytest.approx(len(of_class))
    if not of_class:
        return
    order = BalancedBatches(labels, share * len(of_class), groups=videos)
    assert len(order) == -(-max(map(len, of_class.values())) // share)
    met = set()
    for epoch in range(12):
        batches = order(epoch, seed)
        met.update(batches.reshape(-1).tolist())
        for place, (label, found) in enumerate(of_class.items()):
            taken = [rows[row] for row in batches.reshape(len(order) * share, -1)[:, place]]
            times = Counter(taken)
            assert set(times) == {(label, video) for video in found}
            assert max(times.values()) - min(times.values()) <= 1
    if max(Counter(rows).values()) < 3:
        assert met == {i for i, (c, v) in enumerate(rows) if c >= 0 and v}


@few
@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=60
    ),
    seed=seeds,
)
def test_pairs_at_one_place_of_each_group(rows, seed):
    """A fake and its original at the same frame, from one place of each original in an epoch."""
    originals, places, labels = (list(column) for column in zip(*rows, strict=True))
    both = {(v, p) for v, p, c in rows if v and (v, p, 1 - c) in rows}
    if not both:
        with pytest.raises(UsageError):
            PairBatches((originals, places), 2, labels=labels, groups=originals)
        return
    order = PairBatches((originals, places), 4, labels=labels, groups=originals)
    lengths, met = set(), set()
    for epoch in range(20):
        found = np.concatenate(order(epoch, seed)).tolist()
        lengths.add(len(found))
        chosen = set()
        for first, second in zip(found[::2], found[1::2], strict=True):
            assert rows[first] == (*rows[second][:2], 0)
            assert labels[second] == 1
            chosen.add(rows[first][:2])
        assert {v for v, _ in chosen} == {v for v, _ in both}
        assert len(chosen) == len({v for v, _ in both})
        met |= chosen
    assert len(lengths) == 1
    assert met == both or len(both) > 6


def test_an_order_of_a_dataset_is_that_of_its_columns(numbered_groups):
    dataset = numbered_groups
    label, person, place = (dataset.column(name) for name in ("label", "person", "place"))
    for made, expected in (
        (BalancedBatches(dataset, 4), BalancedBatches(label, 4)),
        (BalancedBatches(dataset, 6, by="person"), BalancedBatches(person, 6)),
        (BalancedBatches(dataset, 4, groups="person"), BalancedBatches(label, 4, groups=person)),
        (PKBatches(dataset, 2, 3, by="person"), PKBatches(person, 2, 3)),
        (PKBatches(dataset, 2, 3, by=("person", "label")), PKBatches((person, label), 2, 3)),
        (PairBatches(dataset, 4, by="person", labels="label"), PairBatches(person, 4, labels=label)),
        (
            PairBatches(dataset, 4, by=("person", "place"), groups="person"),
            PairBatches((person, place), 4, groups=person),
        ),
    ):
        for epoch in range(2):
            for one, other in zip(made(epoch, 7), expected(epoch, 7), strict=True):
                np.testing.assert_array_equal(one, other)


def test_an_order_of_another_part_of_the_data_is_refused(numbered_groups):
    dataset = numbered_groups
    part = dataset.subset(range(40))
    for source in (part, part.column("label")):
        with raises(UsageError, option="order", found="BalancedBatches of 40 rows"):
            Loader(dataset, order=BalancedBatches(source, 4))
    for order in (PKBatches(dataset, 2, 3, by="person"), PairBatches(dataset, 4, by="person")):
        with raises(UsageError, option="order", found=f"{type(order).__name__} of 60 rows"):
            Loader(part, order=order)
    for batch in Loader(part, order=BalancedBatches(part, 4)):
        assert batch["label"].sum() == 2
    with raises(UsageError, option="by", found="'person'"):
        PKBatches(dataset.column("label"), 2, 3, by="person")
    with raises(UsageError, option="by", found="none"):
        PairBatches(dataset, 4)
    with raises(UsageError, option="groups"):
        BalancedBatches(dataset, 4, groups=dataset.column("person"))


@pytest.fixture
def numbered_groups(tmp_path):
    numbers = np.arange(60)
    columns = {"label": numbers % 2, "person": numbers // 2 % 6, "place": numbers // 12}
    with packer.Writer(tmp_path / "groups", format="npy", fields=dict.fromkeys(columns, int)) as writer:
        for values in zip(*columns.values(), strict=True):
            writer.write(**dict(zip(columns, map(int, values), strict=True)))
    return open_dataset(tmp_path / "groups")
