"""Subsets, splits, mixtures, weighted draws."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from support.batches import Noise, keys_of
from support.crops import keys, write_crops
from support.datasets import fixed, text, values_for, write_dataset
from torch.utils.data import DataLoader

from readers import Loader, MixedDataset, Subset, class_balanced_weights, open_dataset
from readers.formats.pool import ShardPool
from readers.order.blocks import Blocks
from shardspec.errors import UsageError
from shardspec.schema import Schema


def pairs(batches, name="drawn"):
    return [pair for batch in batches for pair in zip(batch["key"], batch[name].tolist(), strict=True)]


# Subsets.


def test_a_subset_reads_its_rows_and_keeps_their_randomness(raw_path):
    dataset = open_dataset(raw_path, transform=Noise())
    rows = [50, 3, 17, 4]
    subset = dataset.subset(rows)
    assert len(subset) == 4
    assert [subset[i]["key"] for i in range(-4, 4)] == [dataset[r]["key"] for r in rows * 2]
    assert subset.column("label").tolist() == [r % 3 for r in rows]
    assert subset.classes == ("a", "b", "c")
    whole = dict(pairs(Loader(dataset, 9, seed=2)))
    part = dict(pairs(Loader(subset, 2, seed=2)))
    assert part == {key: whole[key] for key in part}
    nested = Subset(Subset(dataset, np.arange(10, 30)), [0, 5], transform=lambda sample: {"key": sample["key"]})
    assert [nested[i]["key"] for i in range(2)] == [dataset[10]["key"], dataset[15]["key"]]


def test_blocks_of_a_subset(tmp_path):
    path = write_crops(tmp_path / "d", "npy", None, count=600, size=8, shard_rows=300)
    subset = open_dataset(path, fields=["key"]).subset(np.arange(0, 600, 3))
    found = keys_of(Loader(subset, 10, shuffle="blocks", window=1))
    assert sorted(found) == [subset[i]["key"] for i in range(200)]
    shards = [int(key[:8]) // 300 for key in found]
    assert len([1 for a, b in pairwise(shards) if a != b]) < 10
    with pytest.raises(UsageError, match="needs a dataset with blocks"):
        Loader(subset.base.subset([3, 1]), 2, shuffle="blocks")


def test_blocks_of_a_sparse_subset_have_as_many_rows_as_others(raw_path):
    dataset = open_dataset(raw_path, fields=["key"])
    dataset._blocks = Blocks.even(60, 10)
    sparse = dataset.subset(np.arange(0, 60, 4)).blocks
    starts, stops = sparse.bounds(np.arange(len(sparse)))
    assert (stops - starts).tolist() == [10, 5]
    assert starts.tolist() == [0, 10]
    assert len(dataset.subset(np.arange(10, 40)).blocks) == 3
    assert len(dataset.subset([]).blocks) == 0


def test_predicates_touch_no_pictures(raw_path, monkeypatch):
    dataset = open_dataset(raw_path)
    monkeypatch.setattr(ShardPool, "read", lambda *arguments: pytest.fail("a shard was read"))
    subset = dataset.where(lambda label: label == 2, ["label"])
    assert subset.rows.tolist() == list(range(2, 60, 3))
    with pytest.raises(UsageError, match="expected booleans of shape"):
        dataset.where(lambda label: label, ["label"])


@pytest.mark.parametrize("odd", ["", "train\0", "not utf-8 \udcff"])
def test_texts_compare_as_numbers_do(tmp_path, odd):
    schema = Schema((text("key"), text("split"), text("note", "json"), fixed("label", "<i8")))
    splits = ["train", "val", "train", "test", odd]
    columns = {"key": keys(5), "split": splits, "note": [{"n": n} for n in range(5)], "label": np.arange(5)}
    write_dataset(tmp_path / "d", "npy", schema, columns)
    dataset = open_dataset(tmp_path / "d", fields=["key"])
    for part in (dataset, dataset.subset(range(5))):

        def rows(predicate, *fields, part=part):
            return part.where(predicate, fields).rows.tolist()

        assert rows(lambda split: split == "train", "split") == [0, 2]
        assert rows(lambda split, label: (split != "test") & (label > 0), "split", "label") == [1, 2, 4]
        assert rows(lambda split: np.isin(split, ["val", "test"]), "split") == [1, 3]
        assert rows(lambda split: [value in ("val", odd) for value in split], "split") == [1, 4]
        assert rows(lambda note: [value["n"] == 3 for value in note], "note") == [3]
    assert len(dataset.subset([]).where(lambda split: split == "train", ["split"])) == 0


def test_splits_are_disjoint_and_keep_groups_together(tmp_path):
    schema = Schema((text("key"), text("source"), fixed("label", "<i8")))
    sources = [f"video-{i // 7}.mp4" for i in range(140)]
    columns = {"key": [f"{i // 7:08d}-{i % 7:06d}" for i in range(140)], "source": sources, "label": np.arange(140) % 2}
    write_dataset(tmp_path / "d", "lmdb", schema, columns, shard_rows=50)
    dataset = open_dataset(tmp_path / "d")
    train, test = dataset.split([0.75, 0.25], seed=1)
    assert (len(train), len(test)) == (105, 35)
    assert sorted([*train.rows.tolist(), *test.rows.tolist()]) == list(range(140))
    assert dataset.split([0.75, 0.25], seed=1)[1].rows.tolist() == test.rows.tolist()
    assert dataset.split([0.75, 0.25], seed=2)[1].rows.tolist() != test.rows.tolist()
    train, test = dataset.split([0.75, 0.25], by="source")
    assert (len(train), len(test)) == (105, 35)
    assert set(train.column("source")).isdisjoint(test.column("source"))
    with pytest.raises(UsageError, match="sum of at most 1"):
        dataset.split([0.9, 0.2])
    with pytest.raises(
        UsageError, match=r"expected some of the 20 values of 'source' for each part, found \[0.98, 0.02\]"
    ):
        dataset.split([0.98, 0.02], by="source")
    assert [len(part) for part in dataset.split([0.98, 0.02])] == [137, 3]


@pytest.mark.parametrize("kind", ["text", "number"])
def test_samples_without_a_value_are_in_no_group(tmp_path, kind):
    originals = ["a.mp4", "a.mp4", "", "", "c.mp4", "b.mp4"]
    person = text("person") if kind == "text" else fixed("person", "<i8")
    columns = {
        "key": [f"{i:08d}-000000" for i in range(6)],
        "person": originals if kind == "text" else np.array([1, 1, 0, 0, 3, 2]),
        "person_valid": np.array([True, True, kind == "text", False, True, True]),
    }
    write_dataset(tmp_path / "d", "npy", Schema((text("key"), person, fixed("person_valid", "|b1"))), columns)
    dataset = open_dataset(tmp_path / "d", fields=["key"])
    with pytest.raises(UsageError, match="expected a value of 'person' in every sample, found none in 2 of 6"):
        dataset.split([0.5, 0.5], by="person")
    known = dataset.subset([0, 1, 4, 5])
    halves = known.split([0.5, 0.5], by="person", seed=3)
    assert sorted(row for half in halves for row in half.base.rows[half.rows].tolist()) == [0, 1, 4, 5]
    assert set(halves[0].column("person")).isdisjoint(halves[1].column("person"))


@pytest.mark.parametrize("valid", ["number", "text"])
def test_a_users_own_column_of_that_name_is_no_validity(tmp_path, valid):
    kind = text("person_valid") if valid == "text" else fixed("person_valid", "<i8")
    columns = {
        "key": [f"{i:08d}-000000" for i in range(4)],
        "person": ["a", "b", "c", "d"],
        "person_valid": ["", "no", "yes", "no"] if valid == "text" else np.array([0, 0, 1, 0]),
    }
    write_dataset(tmp_path / "d", "npy", Schema((text("key"), text("person"), kind)), columns)
    assert [len(part) for part in open_dataset(tmp_path / "d").split([0.5, 0.5], by="person")] == [2, 2]


def test_parts_of_parts(raw_path):
    dataset = open_dataset(raw_path)
    part = dataset.subset(np.arange(0, 60, 2)).where(lambda label: label == 2, ["label"]).subset([3, 0])
    rows = [row for row in range(0, 60, 2) if dataset.column("label")[row] == 2]
    assert [part[i]["key"] for i in range(2)] == [dataset[rows[i]]["key"] for i in (3, 0)]


@pytest.mark.parametrize("rows", [[60], [-1], [[1, 2]], [0.5]])
def test_wrong_rows(raw_path, rows):
    with pytest.raises(UsageError, match="rows: expected"):
        open_dataset(raw_path).subset(rows)


# Weights.


def test_class_balanced_draws(raw_path):
    dataset = open_dataset(raw_path, fields=["key", "label"], transform=Noise())
    subset = dataset.subset([*range(0, 60, 3), 1, 2])  # twenty of class 0, one each of 1 and 2
    weights = class_balanced_weights(subset.column("label"))
    loader = Loader(subset, 50, weights=weights, draws=3000)
    batches = list(loader)
    counts = Counter(label for batch in batches for label in batch["label"].tolist())
    assert sum(counts.values()) == 3000
    assert all(900 < counts[label] < 1100 for label in range(3))
    drawn = pairs(batches)
    assert len(set(drawn)) == 3000, "copies of a sample were augmented alike"
    sampler = subset.sampler(weights=weights, draws=3000)
    assert pairs(DataLoader(subset, 50, sampler=sampler, collate_fn=subset.collate)) == drawn


# Mixtures.


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


def test_wrong_mixtures(raw_path, jpeg_path):
    with pytest.raises(UsageError, match="expected the same fields in all"):
        MixedDataset([open_dataset(raw_path), open_dataset(jpeg_path, fields=["image"])])
    with pytest.raises(UsageError, match="expected one or more"):
        MixedDataset([])
    with pytest.raises(UsageError, match="expected 2 numbers"):
        mixture(raw_path, jpeg_path, weights=[1])


def test_a_mixture_has_no_columns(raw_path, jpeg_path):
    mixed = mixture(raw_path, jpeg_path)
    with pytest.raises(UsageError, match="column 'key': expected one dataset, found a mixture"):
        mixed.column("key")
    with pytest.raises(UsageError, match="length: expected 1 sample or more, found 0"):
        mixture(raw_path, jpeg_path, length=0)


def test_a_mixture_of_other_classes_is_refused(tmp_path):
    """A label is a number of its own dataset's class: 0 would be real in one and fake in the other."""
    for name in ("real", "fake"):
        label = fixed("label", "<i8", classes=(name,))
        schema = Schema((text("key"), fixed("frame", "<i8"), fixed("score", "<f4"), label))
        values = values_for(schema, 3) | {"key": keys(3)}
        write_dataset(tmp_path / name, "npy", schema, values)
    one, other = open_dataset(tmp_path / "real"), open_dataset(tmp_path / "fake")
    message = r"same classes in all.* label 0 as 'real' in the first .*, and as 'fake' in number 1.*map_labels"
    with pytest.raises(UsageError, match=message):
        MixedDataset([one, other])
    assert MixedDataset([one, one]).classes == ("real",)
    with pytest.raises(UsageError, match="same classes in all"):
        MixedDataset([dataset.clips(1, by=None, once=("label",)) for dataset in (one, other)])
    without = [open_dataset(tmp_path / name, fields=["score"]) for name in ("real", "fake")]
    assert len(MixedDataset(without)) == 6


def test_many_classes_make_a_short_message(tmp_path):
    names = tuple(f"class {i:04d} {'with a long name ' * 8}" for i in range(500))
    for name, classes in (("all", names), ("few", names[:-1])):
        schema = Schema((text("key"), fixed("label", "<i8", classes=classes)))
        write_dataset(tmp_path / name, "npy", schema, {"key": keys(3), "label": np.arange(3)})
    everything, few = open_dataset(tmp_path / "all"), open_dataset(tmp_path / "few")
    for call in (lambda: MixedDataset([everything, few]), lambda: everything + few.subset([0])):
        with pytest.raises(
            UsageError, match=r"label 499 as '.*' in the first \(of 500\).*as no class in .* \(of 499\)"
        ) as raised:
            call()
        assert len(str(raised.value)) < 400
    assert len(everything + everything.subset([0])) == 4


def test_many_fields_make_a_short_message(tmp_path):
    for name, dtype in (("one", "<f4"), ("other", "<i8")):
        schema = Schema((text("key"), *(fixed(f"number_{i}", dtype) for i in range(200))))
        columns = {"key": keys(2)} | {f"number_{i}": np.zeros(2, dtype) for i in range(200)}
        write_dataset(tmp_path / name, "npy", schema, columns)
    with pytest.raises(UsageError, match=r"'number_0' float32 \(\) in the first.*; and 196 more: choose") as raised:
        MixedDataset([open_dataset(tmp_path / "one"), open_dataset(tmp_path / "other")])
    assert len(str(raised.value)) < 600
