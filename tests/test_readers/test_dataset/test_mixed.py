"""Mixtures: their fixed rows, their shares, and everything that chooses rows."""

from collections import Counter

import numpy as np
import pytest
import torch
from support.batches import Noise, woven
from support.crops import keys, write_crops
from support.datasets import fixed, text, values_for, write_dataset
from support.errors import raises
from torch.utils.data import DataLoader, WeightedRandomSampler
from torch.utils.data import Subset as TorchSubset

from readers import (
    BalancedBatches,
    Loader,
    MixedDataset,
    PKBatches,
    class_balanced_weights,
    open_dataset,
)
from shardspec.errors import UsageError
from shardspec.schema import Schema


def pairs(batches):
    return [pair for batch in batches for pair in zip(batch["key"], batch["drawn"].tolist(), strict=True)]


# Rows.

ROWS = 40
"""Rows of `numbered`."""


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """A mixture of 30 and 10 samples that know their row. The first dataset has a share of one in four."""
    root = tmp_path_factory.mktemp("numbered")
    parts = []
    for name, format, rows in (("one", "lmdb", range(30)), ("other", "npy", range(30, ROWS))):
        label = fixed("label", "<i8", classes=("real", "fake"))
        schema = Schema((text("key"), fixed("row", "<i8"), label, text("source"), fixed("frame", "<i8")))
        values = {"key": [f"{i // 5:08d}-{i % 5:06d}" for i in range(len(rows))], "row": np.array(rows)}
        values |= {"label": np.array([row % 10 == 3 for row in rows], np.int64), "frame": np.arange(len(rows)) % 5}
        values["source"] = [f"{name}-{i // 5}.mp4" for i in range(len(rows))]
        write_dataset(root / name, format, schema, values, shard_rows=7)
        parts.append(open_dataset(root / name, transform=Noise()))
    return MixedDataset(parts, weights=[1, 3])


def rows_read(batches):
    return [row for batch in batches for row in batch["row"].tolist()]


def test_rows_are_those_of_the_datasets_one_after_the_other(numbered):
    assert len(numbered) == ROWS
    assert [sample["row"] for sample in numbered] == list(range(ROWS))
    assert numbered[-1]["row"] == ROWS - 1
    assert numbered.column("row").tolist() == list(range(ROWS))
    assert numbered.column("source") == [numbered[row]["source"] for row in range(ROWS)]
    assert numbered.find("00000005-000004") == 29
    loader = Loader(numbered, 7, shuffle=False)
    for _ in range(2):
        assert rows_read(loader) == list(range(ROWS))
    note = numbered.describe(34)
    assert "00000000-000004" in note
    assert "dataset number 1" in note


ONLY = [3, 33, 36]
WEIGHTS = np.isin(np.arange(ROWS), ONLY).astype(float)


def by_sampler(mixed, sampler):
    return DataLoader(mixed, 8, sampler=sampler, collate_fn=mixed.collate)


@pytest.mark.parametrize(
    "read",
    [
        lambda mixed: Loader(mixed, 8, weights=WEIGHTS, draws=50),
        lambda mixed: Loader(mixed, 8, weights=WEIGHTS, draws=50, views=2),
        lambda mixed: Loader(mixed, 8, order=lambda epoch: ONLY * 5),
        lambda mixed: Loader(mixed, order=lambda epoch: [ONLY, ONLY[:2]]),
        lambda mixed: Loader(mixed, 8, sampler=WeightedRandomSampler(WEIGHTS, 50)),
        lambda mixed: Loader(mixed, batch_sampler=[ONLY, ONLY]),
        lambda mixed: Loader(mixed, order=BalancedBatches(np.where(WEIGHTS, 1, -1), 8)),
        lambda mixed: Loader(mixed.subset(ONLY), 2),
        lambda mixed: Loader(mixed.map_labels({"real": "no", "fake": "yes"}), 8, weights=WEIGHTS, draws=50),
        lambda mixed: by_sampler(mixed, mixed.sampler(weights=WEIGHTS, draws=50)),
        lambda mixed: by_sampler(mixed, WeightedRandomSampler(WEIGHTS, 50)),
        lambda mixed: DataLoader(TorchSubset(mixed, ONLY), 8, shuffle=True, collate_fn=mixed.collate),
    ],
)
def test_chosen_rows_are_read_in_every_epoch(numbered, read):
    batches = read(numbered)
    for _ in range(3):
        assert set(rows_read(batches)) == set(ONLY)


def test_classes_are_balanced_over_a_mixture(numbered):
    labels = numbered.column("label")
    assert labels.tolist() == [int(row in (3, 13, 23, 33)) for row in range(ROWS)]
    weights = class_balanced_weights(labels)
    drawn = rows_read(Loader(numbered, 50, weights=weights, draws=4000))
    assert 0.45 < np.mean(labels[drawn]) < 0.55
    for batch in Loader(numbered, order=BalancedBatches(labels, 10)):
        assert batch["label"].sum() == 5
    for batch in Loader(numbered, order=PKBatches(numbered.column("source"), p=2, k=5)):
        assert {len({row // 5 for row in part}) for part in batch["row"].reshape(2, 5).tolist()} == {1}


def test_parts_of_a_mixture(numbered):
    assert numbered.where("label == 'fake'").rows.tolist() == [3, 13, 23, 33]
    assert numbered.where("row > 27 and source != 'other-0.mp4'").rows.tolist() == [28, 29, *range(35, 40)]
    part = numbered.subset([35, 2, 2])
    assert part.column("row").tolist() == [35, 2, 2]
    assert sorted(rows_read(Loader(part, 2))) == [2, 2, 35]
    train, val = numbered.split([0.75, 0.25], by="source", seed=1)
    assert sorted([*train.column("row"), *val.column("row")]) == list(range(ROWS))
    assert set(train.column("source")).isdisjoint(val.column("source"))
    assert sorted(rows_read(Loader(train, 4))) == train.rows.tolist(), "an epoch of a part has every row once"


def test_a_clip_is_of_one_dataset(numbered):
    """The items of both datasets have the numbers 0 and 1. The datasets' transforms draw once for a clip."""
    expected = [[row + i for i in range(4)] for row in range(ROWS) if row % 5 < 2]
    for base in (numbered, numbered.subset(np.random.default_rng(0).permutation(ROWS))):
        clips = base.clips(4, by=None, once=("key",))
        batches = list(Loader(clips, 5))
        assert sorted(row for batch in batches for row in batch["row"].tolist()) == expected
        drawn = torch.cat([batch["drawn"] for batch in batches])
        assert (drawn == drawn[:, :1]).all()
        assert len(drawn[:, 0].unique()) == len(expected)


def test_equal_rows_of_two_datasets_draw_apart_at_any_depth(numbered):
    whole = open_dataset(numbered.datasets[0].path, fields=["key"], transform=Noise())
    two = MixedDataset([whole, whole])
    four = MixedDataset([two, two])
    (batch,) = Loader(four, 120, shuffle=False)
    assert len(set(batch["drawn"].tolist())) == 120


def test_the_shares_of_a_mixture_stay_in_views_and_mixtures_of_it(numbered):
    def share(batches):
        return np.mean(np.array(rows_read(batches)) < 30)

    assert share(Loader(numbered, 8)) == share(Loader(numbered, 8, views=2)) == 0.25
    assert share(Loader(numbered.map_labels({"real": "no", "fake": "yes"}), 8)) == 0.25
    assert share(Loader(MixedDataset([numbered, numbered]), 8)) == 0.25
    assert len(Loader(MixedDataset(numbered.datasets, length=9), 3, weights=WEIGHTS)) == 3


@pytest.mark.parametrize("arguments", [{}, {"weights": WEIGHTS + 0.1}, {"order": lambda epoch: [*range(30, 40)] * 4}])
def test_a_resume_at_another_number_of_ranks_and_workers_is_exact(numbered, arguments):
    def rank(number, ranks, **more):
        return Loader(numbered, 3, seed=2, rank=number, world_size=ranks, **arguments, **more)

    first = rank(0, 1, workers=1)
    first.set_epoch(1)
    whole = pairs(first)
    before = [rank(number, 2, workers=2) for number in range(2)]
    for loader in before:
        loader.set_epoch(1)
    iterators = [iter(loader) for loader in before]
    taken = [pairs([next(iterator), next(iterator)]) for iterator in iterators]
    assert woven(taken) == whole[:12]
    after = [rank(number, 4, workers=1) for number in range(4)]
    for loader in after:
        loader.load_state_dict(before[0].state_dict())
    assert woven(map(pairs, after)) == whole[12:]


def test_columns_that_differ_are_refused(tmp_path):
    for name, schema, values in (
        ("one", fixed("score", "<f4"), np.ones(3, np.float32)),
        ("other", text("score"), ["a", "b", "c"]),
        ("third", fixed("score", "<f8"), np.arange(3.0)),
    ):
        write_dataset(tmp_path / name, "npy", Schema((text("key"), schema)), {"key": keys(3), "score": values})
    one, other, third = (open_dataset(tmp_path / name, fields=["key"]) for name in ("one", "other", "third"))
    message = (
        r"column 'score': expected values of one kind.*found floats \(\) in datasets\[0\], texts .* in datasets\[1\]"
    )
    with pytest.raises(UsageError, match=message):
        MixedDataset([one, other]).column("score")
    assert MixedDataset([one, third]).column("score").tolist() == [1, 1, 1, 0, 1, 2]
    assert MixedDataset([one, third]).small_fields == ("key", "score")
    with pytest.raises(UsageError, match="join the datasets before you mix them"):
        MixedDataset([one, third]).join({"key": keys(3), "n": [1, 2, 3]})


# Shares.


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


def test_a_mixture_of_other_classes_is_refused(tmp_path):
    """A label is a number of its own dataset's class: 0 would be real in one and fake in the other."""
    for name in ("real", "fake"):
        label = fixed("label", "<i8", classes=(name,))
        schema = Schema((text("key"), fixed("frame", "<i8"), fixed("score", "<f4"), label))
        values = values_for(schema, 3) | {"key": keys(3)}
        write_dataset(tmp_path / name, "npy", schema, values)
    one, other = open_dataset(tmp_path / "real"), open_dataset(tmp_path / "fake")
    message = r"same classes in all.* label 0 as 'real' in datasets\[0\] .*, and as 'fake' in datasets\[1\].*map_labels"
    with pytest.raises(UsageError, match=message):
        MixedDataset([one, other])
    assert MixedDataset([one, one]).classes == ("real",)
    with pytest.raises(UsageError, match="same classes in all"):
        MixedDataset([dataset.clips(1, by=None, once=("label",)) for dataset in (one, other)])
    without = MixedDataset([open_dataset(tmp_path / name, fields=["score"]) for name in ("real", "fake")])
    assert len(without) == 6
    for read in (lambda: without.column("label"), lambda: without.where("label == 'real'")):
        with pytest.raises(UsageError, match="same classes in all"):
            read()


def test_many_classes_make_a_short_message(tmp_path):
    names = tuple(f"class {i:04d} {'with a long name ' * 8}" for i in range(500))
    for name, classes in (("all", names), ("few", names[:-1])):
        schema = Schema((text("key"), fixed("label", "<i8", classes=classes)))
        write_dataset(tmp_path / name, "npy", schema, {"key": keys(3), "label": np.arange(3)})
    everything, few = open_dataset(tmp_path / "all"), open_dataset(tmp_path / "few")
    for call in (lambda: MixedDataset([everything, few]), lambda: everything + few.subset([0])):
        with pytest.raises(
            UsageError, match=r"label 499 as '.*' in .* \(of 500\).*as no class in .* \(of 499\)"
        ) as raised:
            call()
        assert len(str(raised.value)) < 400
    assert len(everything + everything.subset([0])) == 4


def test_many_fields_make_a_short_message(tmp_path):
    for name, dtype in (("one", "<f4"), ("other", "<i8")):
        schema = Schema((text("key"), *(fixed(f"number_{i}", dtype) for i in range(200))))
        columns = {"key": keys(2)} | {f"number_{i}": np.zeros(2, dtype) for i in range(200)}
        write_dataset(tmp_path / name, "npy", schema, columns)
    with pytest.raises(UsageError, match=r"'number_0' float32 \(\) in datasets\[0\].*; and 196 more: choose") as raised:
        MixedDataset([open_dataset(tmp_path / "one"), open_dataset(tmp_path / "other")])
    assert len(str(raised.value)) < 600


def test_a_share_of_less_than_a_sample_is_refused(raw_path, jpeg_path):
    with raises(UsageError, option="weights", found="0.2 samples of datasets[1]"):
        mixture(raw_path, jpeg_path, weights=[499, 1], length=100)
    sparse = mixture(raw_path, jpeg_path, weights=[99, 1], length=100)
    for epoch in range(3):
        assert sparse.order(seed=1).epoch(epoch).at(np.arange(100)).rows.max() >= 60  # the first dataset has 60 rows
    assert mixture(raw_path, jpeg_path, weights=[1, 0], length=100).shares.quotas.tolist() == [100, 0]
    halves = [open_dataset(raw_path, fields=["key"])] * 3
    for weights, length, quotas in (
        ([3, 2, 3], 4, [2, 1, 1]),
        ([0.25, 0.1, 0.45], 8, [3, 1, 4]),  # 2.5, 1 and 4.5
        ([2.5, 2.5, 5.0], 7, [2, 2, 3]),
        ([1 / 49, 48 / 49, 0], 49, [1, 48, 0]),  # these add up to more than 1
        ([6, 2.6, 1.4], 10, [6, 3, 1]),
    ):
        assert MixedDataset(halves, weights=weights, length=length).shares.quotas.tolist() == quotas
    for weights in ([0.9, 0.9, 1.2], [1.6, 0.7, 0.7]):  # each of them would be rounded to a whole sample
        with raises(UsageError, option="weights"):
            MixedDataset(halves, weights=weights, length=3)


def test_a_state_of_another_mixture_is_refused(raw_path, jpeg_path):
    def loader(views=lambda mixed: mixed, **arguments):
        return Loader(views(mixture(raw_path, jpeg_path, **arguments)), 16)

    one = loader(weights=[1, 3])
    next(iter(one))
    state = one.state_dict()
    loader(weights=[2, 6]).load_state_dict(state)  # the same shares
    for other in (
        loader(weights=[1, 2]),
        loader(weights=[1, 3], seed=1),
        loader(lambda mixed: MixedDataset([mixed.datasets[0].subset(range(59)), mixed], length=70)),
        loader(lambda mixed: MixedDataset([mixed.datasets[0].subset(range(50)), *[mixed.datasets[1]] * 2], [2, 3, 3])),
    ):
        with raises(UsageError, option="state", found="another; they differ in rows"):
            other.load_state_dict(state)
    del state["rows"]
    with raises(UsageError, option="state", found="one of an earlier version, without rows"):
        one.load_state_dict(state)


def test_a_state_of_other_weights_or_blocks_is_refused(tmp_path):
    one, other = (write_crops(tmp_path / f"{rows}", "npy", None, 60, 8, rows) for rows in (10, 20))
    weights = np.arange(60.0)
    for saved, alike, differs in (
        ((one, {"weights": weights}), (other, {"weights": weights.tolist()}), (one, {"weights": weights[::-1]})),
        ((one, {"shuffle": "blocks"}), (one, {"shuffle": "blocks"}), (other, {"shuffle": "blocks"})),
        ((one, {"shuffle": "full"}), (other, {"shuffle": "full"}), (other, {"weights": weights})),
    ):
        made = [Loader(open_dataset(path), 8, **how) for path, how in (saved, alike, differs)]
        made[1].load_state_dict(made[0].state_dict())
        with pytest.raises(UsageError, match=r"they differ in .*rows"):
            made[2].load_state_dict(made[0].state_dict())


def test_weights_whose_sum_overflows_draw_as_others(raw_path):
    dataset, weights = open_dataset(raw_path, fields=["key"]), np.arange(60.0)
    drawn = dataset.order(weights=weights, draws=1000).epoch(0).at(np.arange(1000)).rows
    for factor in (2.0**1018, 2.0**-1070):
        scaled = dataset.order(weights=weights * factor, draws=1000).epoch(0).at(np.arange(1000)).rows
        np.testing.assert_array_equal(scaled, drawn)
