"""Labels that mean other classes at reading: every view, loader and process gives the same new numbers."""

import pickle

import numpy as np
import pytest
import torch
from support.datasets import fixed, text, values_for, write_dataset
from support.errors import raises
from torch.utils.data import DataLoader

from readers import Loader, MixedDataset, class_balanced_weights, open_dataset
from shardspec.errors import UsageError
from shardspec.schema import Schema

METHODS = ("deepfakes", "face2face", "original", "swap")
BINARY = {"original": "real", "deepfakes": "fake", "face2face": "fake", "swap": "fake"}
ROWS = 24


def write(path, classes=METHODS, labels=None, dtype="<i8"):
    label = fixed("label", dtype, classes=classes)
    schema = Schema((text("key"), text("source"), label, fixed("frame", "<i8"), fixed("score", "<f4")))
    labels = np.arange(ROWS) // 2 % 4 if labels is None else np.asarray(labels)
    columns = values_for(schema, len(labels))
    columns |= {
        "key": [f"{row // 2:08d}-{row % 2:06d}" for row in range(len(labels))],
        "label": labels.astype(dtype),
        "frame": np.arange(len(labels)),
    }
    columns["source"] = [f"{row // 2}.mp4" for row in range(len(labels))]
    write_dataset(path, "npy", schema, columns, shard_rows=7)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("methods") / "packed")


def seen(dataset):
    """Label by key, as the threads of a Loader give them."""
    batches = list(Loader(dataset, 5, seed=3))
    return {key: label for batch in batches for key, label in zip(batch["key"], batch["label"].tolist(), strict=True)}


def test_map_labels_applies_to_columns_samples_and_clips(path):
    ds = open_dataset(path)
    binary = ds.map_labels(BINARY)
    assert binary.classes == ("real", "fake")
    expected = np.where(ds.column("label") == 2, 0, 1)
    assert binary.column("label").tolist() == expected.tolist()
    assert binary.column("label").dtype == ds.column("label").dtype
    assert ds.column("label").max() == 3  # the base is as it was
    by_key = dict(zip(ds.column("key"), expected.tolist(), strict=True))
    assert seen(binary) == by_key
    assert [int(sample["label"]) for sample in binary] == expected.tolist()
    assert binary.read_batch([5, 4, 0])["label"].tolist() == expected[[5, 4, 0]].tolist()
    found = {
        key: label
        for batch in DataLoader(binary, 5, num_workers=2, collate_fn=binary.collate)
        for key, label in zip(batch["key"], batch["label"].tolist(), strict=True)
    }
    assert found == by_key
    again = pickle.loads(pickle.dumps(binary))
    assert again.column("label").tolist() == expected.tolist()
    assert seen(again) == by_key
    real = binary.where(lambda label: label == 0, ["label"])
    assert real.rows.tolist() == np.flatnonzero(expected == 0).tolist()
    assert seen(real) == {key: 0 for key, label in by_key.items() if label == 0}
    assert real.classes == ("real", "fake")
    weights = class_balanced_weights(binary.column("label"))
    assert weights[expected == 0].sum() == pytest.approx(weights[expected == 1].sum())
    clips = binary.clips(2, by=None, max_step=1)
    assert clips.classes == ("real", "fake")
    assert set(clips.column("label").tolist()) == {0, 1}
    assert all(clip["label"] == by_key[clip["key"]] for clip in clips)
    mixed = MixedDataset([binary, ds.subset(range(8)).map_labels(BINARY)])
    assert mixed.classes == ("real", "fake")
    assert all(sample["label"] == by_key[sample["key"]] for sample in mixed)
    train, val = binary.split([0.5, 0.5], by="source", stratify="label")
    assert [np.bincount(part.column("label")).tolist() for part in (train, val)] == [[2, 10], [4, 8]]
    assert repr(binary) == f"Relabelled: 24 samples, classes 'real', 'fake', of {ds!r}"


def test_parts_are_relabelled_and_relabelled_parts_are_parts(path):
    ds = open_dataset(path, fields=["key", "label"])
    original = ds.where(lambda label: label == 2, ["label"]).with_classes(["original"])
    assert set(original.column("label").tolist()) == {0}
    twice = ds.map_labels(BINARY).with_classes(["fake", "real", "unsure"])
    assert twice.classes == ("fake", "real", "unsure")
    assert twice.column("label").tolist() == np.where(ds.column("label") == 2, 1, 0).tolist()
    assert "label" not in open_dataset(path, fields=["key"]).map_labels(BINARY)[0]


def test_earlier_transforms_get_the_old_labels_and_later_ones_the_new(path):
    def note(name):
        def transform(sample):
            return {**sample, name: sample["label"]}

        return transform

    ds = open_dataset(path, fields=["label"], transform=note("before")).map_labels(BINARY).with_transform(note("after"))
    (batch,) = Loader(ds, ROWS, shuffle=False)
    assert batch["before"].tolist() == open_dataset(path).column("label").tolist()
    assert batch["after"].tolist() == batch["label"].tolist() == ds.column("label").tolist()

    def soft(sample):
        return {"label": np.eye(4, dtype=np.float32)[sample["label"]]}

    with pytest.raises(UsageError, match=r"label: expected integers, found float32 \(4,\): relabel before a transform"):
        open_dataset(path, fields=["label"], transform=soft).map_labels(BINARY).layout  # noqa: B018
    labels = open_dataset(path, fields=["label"]).map_labels(BINARY)
    assert torch.equal(next(iter(Loader(labels.with_transform(soft), 3, shuffle=False)))["label"].sum(1), torch.ones(3))


def test_numbers_get_names_and_other_numbers(tmp_path):
    ds = open_dataset(write(tmp_path / "in", None, [0, 2, 1, 2, -1]))
    assert ds.classes == ()
    named = ds.with_classes(["cat", "dog", "fox"])
    assert (named.classes, named.column("label").tolist()) == (("cat", "dog", "fox"), [0, 2, 1, 2, -1])
    assert named.map_labels({"cat": "pet", "dog": "pet", "fox": "wild"}).column("label").tolist() == [0, 1, 0, 1, -1]
    binary = ds.map_labels({0: 1, 1: 1, np.int64(2): 0})
    assert (binary.classes, binary.column("label").tolist()) == ((), [1, 0, 1, 0, -1])
    straight = ds.map_labels({0: "pet", 1: "pet", 2: "wild"})
    assert (straight.classes, straight.column("label").tolist()) == (("pet", "wild"), [0, 1, 0, 1, -1])
    for call, message in (
        (lambda: ds.with_classes(["cat", "dog"]), "a name for every label.*found 2 names and label 2"),
        (lambda: ds.map_labels({0: 1, 1: 1}), "found none for 2 samples of 2: map it too"),
        (lambda: ds.map_labels({"cat": "pet"}), "numbers as keys.*found 'cat': name them first with with_classes"),
        (lambda: ds.map_labels({0: "a", 1: "a", 2: 3}), "expected numbers or names as values, found 3"),
        (lambda: ds.map_labels({0: -2, 1: 0, 2: 0}), "expected labels of -1 or more, found -2"),
    ):
        with pytest.raises(UsageError, match=message):
            call()


def test_classes_are_checked_against_the_labels_and_their_dtype(tmp_path):
    beyond = open_dataset(write(tmp_path / "beyond", METHODS, [0, 7]))
    with raises(UsageError, option="label", expected="0 to 3, the numbers of the classes", found="0 to 7"):
        beyond.with_classes(METHODS)
    small = open_dataset(write(tmp_path / "small", METHODS, [0, 1, 2, 3], dtype="|i1"))
    many = [f"class {number}" for number in range(200)]
    with raises(UsageError, option="label", found="others"):
        small.with_classes([*many, *METHODS])
    assert small.with_classes([*METHODS, *many]).column("label").dtype == np.int8
    unsigned = open_dataset(write(tmp_path / "unsigned", None, [0, 1], dtype="|u1"))
    with raises(UsageError, option="label", found="others"):
        unsigned.map_labels({0: -1, 1: 0})
    assert unsigned.map_labels({0: 1, 1: 0}).column("label").tolist() == [1, 0]
