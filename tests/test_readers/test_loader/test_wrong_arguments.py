"""The errors for invalid arguments, which come when the argument is given and not in the first batch."""

import json
import re
from collections import UserList

import numpy as np
import pytest
import torch
from support.errors import raises

from readers import Loader, MixedDataset, NpyDataset, Resize, open_dataset
from readers.augment import Compose
from shardspec.errors import NotADatasetError, UsageError


def refused(message, make):
    with pytest.raises(UsageError, match="^" + re.escape(message)):
        make()


def test_a_missing_device(raw_path, monkeypatch):
    dataset = open_dataset(raw_path)
    for device in ("gpu", "cuda:99"):
        with raises(UsageError, option="device"):
            Loader(dataset, 4, device=device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for device in ("cuda", "cuda:1"):  # counted, and no context is made
        assert Loader(dataset, 4, device=device, pin_memory=False).device == torch.device(device)
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        refused(
            "device: expected one that torch can use here, found 'cuda' (", lambda: Loader(dataset, 4, device="cuda")
        )


def test_memory_is_pinned_where_there_is_a_device_to_pin_it_for(raw_path):
    dataset = open_dataset(raw_path)
    if torch.cuda.is_available():
        assert Loader(dataset, 4, pin_memory=True).pin_memory
        return
    with pytest.warns(UserWarning, match="pin_memory: expected a device that batches are copied to, found none"):
        loader = Loader(dataset, 4, pin_memory=True)
    assert not loader.pin_memory
    assert len(next(iter(loader))["image"]) == 4


def test_numpy_numbers_count_as_python_numbers(raw_path):
    loader = Loader(open_dataset(raw_path), np.int64(60), seed=np.int64(3), workers=np.int32(1))
    assert {type(value) for value in (loader.batch_size, loader.workers, loader.state_dict()["seed"])} == {int}
    assert torch.equal(next(iter(loader))["label"], next(iter(Loader(open_dataset(raw_path), 60, seed=3)))["label"])
    ordered = Loader(open_dataset(raw_path), 4, shuffle=np.bool_(False), drop_last=np.bool_(True))
    assert json.loads(json.dumps(ordered.state_dict()))["shuffle"] is False
    assert Resize(np.int64(3)) == Resize(3)
    for sides in ([3, 4], np.array([3, 4]), UserList([3, 4])):
        assert Resize(sides) == Resize((3, 4))


def test_folders_that_were_never_packed(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"an image")
    for name in ("train", "val"):
        (tmp_path / "split" / name).mkdir(parents=True)
        (tmp_path / "split" / name / "manifest.json").touch()
    for open_ in (open_dataset, NpyDataset):
        with raises(
            NotADatasetError,
            expected="a packed dataset with a manifest.json",
            found="a folder without one: pack it first ('packer build')",
        ):
            open_(tmp_path)
        with pytest.raises(NotADatasetError, match=r"found a file: give the folder that holds its manifest\.json"):
            open_(tmp_path / "a.jpg")
        with raises(
            NotADatasetError,
            expected="a packed dataset with a manifest.json",
            found="a folder that holds packed datasets (train, val): give one of them",
        ):
            open_(tmp_path / "split")


def test_split_shares_may_be_any_sequence(raw_path):
    dataset = open_dataset(raw_path)
    assert [len(part) for part in dataset.split(np.array([0.5, 0.25]))] == [30, 15]


class Forgetful:
    seeded = True

    def __call__(self, sample, rng):
        sample["label"] = rng.random()


def forgets(sample):
    sample["label"] = 1


@pytest.mark.parametrize(
    ("transform", "name"), [(forgets, "forgets"), (Forgetful(), "Forgetful"), (Compose([forgets]), "forgets")]
)
def test_a_transform_that_returns_nothing(raw_path, transform, name):
    message = f"transform: expected {name} to return the sample, found None: end it with 'return sample'"
    refused(message, lambda: next(iter(Loader(open_dataset(raw_path), 4, sample_transform=transform))))
    refused(message, lambda: open_dataset(raw_path, transform=transform)[0])


def test_a_transform_that_returns_no_dict(raw_path):
    dataset = open_dataset(raw_path, transform=lambda sample: (sample["image"], sample["label"]))
    assert len(dataset[0]) == 2  # a DataLoader's own collate_fn may want just that
    refused("transform: expected a dict of the sample's fields, found tuple", lambda: next(iter(Loader(dataset, 4))))


def test_a_batch_transform_that_returns_nothing(raw_path):
    loader = Loader(open_dataset(raw_path), 4, batch_transform=forgets)
    refused("batch_transform: expected forgets to return the batch, found None", lambda: next(iter(loader)))


def test_a_mixture_takes_any_iterable_of_datasets_but_no_dataset(raw_path):
    dataset = open_dataset(raw_path)
    refused("datasets: expected a list of datasets of readers, found NpyDataset(", lambda: MixedDataset(dataset))
    assert len(MixedDataset(d for d in (dataset, dataset))) == 2 * len(dataset)
