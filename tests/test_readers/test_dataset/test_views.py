"""Subsets, splits, weighted draws."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from support.batches import Noise, keys_of
from support.crops import keys, write_crops
from support.datasets import fixed, text, write_dataset
from support.errors import raises
from torch.utils.data import DataLoader

from readers import Loader, Subset, class_balanced_weights, open_dataset
from readers.formats.pool import ShardPool
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


def test_predicates_touch_no_images(raw_path, monkeypatch):
    dataset = open_dataset(raw_path)
    monkeypatch.setattr(ShardPool, "read", lambda *arguments: pytest.fail("a shard was read"))
    subset = dataset.where(lambda label: label == 2, ["label"])
    assert subset.rows.tolist() == list(range(2, 60, 3))
    with raises(UsageError, option="predicate", found="int64 of shape (60,)"):
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
    with raises(UsageError, option="fractions", found="[0.9, 0.2]"):
        dataset.split([0.9, 0.2])
    with raises(UsageError, option="fractions", found="[0.98, 0.02], which leave a part empty"):
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
    with raises(UsageError, option="by", found="none in 2 of 6, which therefore belong to no part"):
        dataset.split([0.5, 0.5], by="person")
    known = dataset.subset([0, 1, 4, 5])
    halves = known.split([0.5, 0.5], by="person", seed=3)
    assert sorted(row for half in halves for row in half.base.rows[half.rows].tolist()) == [0, 1, 4, 5]
    assert set(halves[0].column("person")).isdisjoint(halves[1].column("person"))


@pytest.mark.parametrize("valid", ["number", "text"])
def test_a_user_column_with_the_suffix_valid_is_not_a_validity_field(tmp_path, valid):
    kind = text("person_valid") if valid == "text" else fixed("person_valid", "<i8")
    columns = {
        "key": [f"{i:08d}-000000" for i in range(4)],
        "person": ["a", "b", "c", "d"],
        "person_valid": ["", "no", "yes", "no"] if valid == "text" else np.array([0, 0, 1, 0]),
    }
    write_dataset(tmp_path / "d", "npy", Schema((text("key"), text("person"), kind)), columns)
    assert [len(part) for part in open_dataset(tmp_path / "d").split([0.5, 0.5], by="person")] == [2, 2]


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
