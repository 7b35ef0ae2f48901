"""The errors for invalid arguments, which come when the argument is given and not in the first batch."""

import json
import re
from collections import UserList

import numpy as np
import pytest
import torch
from support.errors import raises

from readers import CenterCrop, Loader, MixedDataset, NpyDataset, RandomResizedCrop, Resize, open_dataset
from readers.augment import BatchCrop, BatchFlip, Compose, CropJitter, HorizontalFlip, LandmarkCutout, OneOf
from readers.lightning import PackedDataModule
from shardspec.errors import NotADatasetError, UsageError


def refused(message, make):
    with pytest.raises(UsageError, match="^" + re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": "a"}, "batch_size: expected an integer, found 'a'"),
        ({"batch_size": 2.5}, "batch_size: expected an integer, found 2.5"),
        ({"batch_size": True}, "batch_size: expected an integer, found True"),
        ({"batch_size": 0}, "batch_size: expected 1 or more, found 0"),
        ({"workers": -1}, "workers: expected 1 or more, found -1"),
        ({"workers": "a"}, "workers: expected an integer, found 'a'"),
        ({"prefetch": 0}, "prefetch: expected 1 or more, found 0"),
        ({"prefetch": None, "workers": 0}, "workers: expected 1 or more, found 0"),
        ({"read_ahead": "a"}, "read_ahead: expected an integer, found 'a'"),
        ({"shuffle": "yes"}, "shuffle: expected 'full', 'blocks' or False"),
        ({"seed": "a"}, "seed: expected an integer, found 'a'"),
        ({"seed": 1.0}, "seed: expected an integer, found 1.0"),
        ({"window": "a"}, "window: expected an integer, found 'a'"),
        ({"weights": np.ones(60), "draws": "a"}, "draws: expected an integer, found 'a'"),
        ({"weights": ["a"] * 60}, "weights: expected a number for each sample: could not convert"),
        ({"draws": 5}, "draws: expected together with weights, found 5 without"),
        ({"rank": 0}, "rank, world_size: expected both or neither, found 0 and None"),
        ({"rank": "a", "world_size": 2}, "rank: expected an integer, found 'a'"),
        ({"rank": 3, "world_size": 2}, "rank: expected 0 <= rank < world_size, found rank 3 of world_size 2"),
        ({"timeout_s": "a"}, "timeout_s: expected a number, found 'a'"),
        ({"timeout_s": 0}, "timeout_s: expected seconds above 0, found 0"),
        ({"timeout_s": float("inf")}, "timeout_s: expected seconds above 0, found inf"),
        ({"sample_transform": 5}, "transform: expected a callable from sample to sample, found 5"),
        ({"batch_transform": 5}, "batch_transform: expected a callable from batch to batch, found 5"),
        ({"sample_transform": HorizontalFlip}, "transform: expected a made transform, found the class HorizontalFlip"),
        (
            {"sample_transform": [HorizontalFlip()]},
            "transform: expected one transform, found a list: write transform=r",
        ),
        (
            {"sample_transform": BatchFlip()},
            "transform: expected a transform of samples, found BatchFlip, one of batch",
        ),
        ({"batch_transform": BatchFlip}, "batch_transform: expected a made transform, found the class BatchFlip"),
        ({"batch_transform": [BatchFlip()]}, "batch_transform: expected one transform, found a list: write batch_tran"),
        ({"batch_transform": Compose([HorizontalFlip()])}, "batch_transform: expected a transform of batches, found C"),
        ({"views": [HorizontalFlip]}, "transform: expected a made transform, found the class HorizontalFlip"),
        ({"device": "gpu"}, "device: expected one that torch can use here, found 'gpu'"),
        ({"device": "cuda:99"}, "device: expected one that torch can use here, found 'cuda:99'"),
    ],
)
def test_a_loaders(raw_path, arguments, message):
    refused(message, lambda: Loader(open_dataset(raw_path), **{"batch_size": 4, **arguments}))


def test_a_device_that_is_not_there(raw_path, monkeypatch):
    dataset = open_dataset(raw_path)
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


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("num_workers", "use workers="),
        ("prefetch_factor", "use prefetch="),
        ("timeout", "use timeout_s="),
        ("generator", "seed="),
        ("collate_fn", "batch_transform="),
        ("persistent_workers", "leave it out"),
    ],
)
def test_torchs_names_lead_to_the_loaders(raw_path, name, instead):
    with pytest.raises(UsageError, match=f"^{name}: expected an argument of Loader, found one of torch's.*{instead}"):
        Loader(open_dataset(raw_path), 4, **{name: None})


def test_a_misspelt_name(raw_path):
    refused(
        "prefetsh: expected an argument of Loader, found none of that name; did you mean 'prefetch'?",
        lambda: Loader(open_dataset(raw_path), 4, prefetsh=3),
    )
    with raises(UsageError, option="unknow", found="none of that name"):
        Loader(open_dataset(raw_path), 4, unknow=3)


def test_what_numpy_gives_is_taken_for_pythons(raw_path):
    loader = Loader(open_dataset(raw_path), np.int64(60), seed=np.int64(3), workers=np.int32(1))
    assert {type(value) for value in (loader.batch_size, loader.workers, loader.state_dict()["seed"])} == {int}
    assert torch.equal(next(iter(loader))["label"], next(iter(Loader(open_dataset(raw_path), 60, seed=3)))["label"])
    ordered = Loader(open_dataset(raw_path), 4, shuffle=np.bool_(False), drop_last=np.bool_(True))
    assert json.loads(json.dumps(ordered.state_dict()))["shuffle"] is False
    assert Resize(np.int64(3)) == Resize(3)
    for sides in ([3, 4], np.array([3, 4]), UserList([3, 4])):
        assert Resize(sides) == Resize((3, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CenterCrop(2.5), "size: expected an integer, found 2.5"),
        (lambda: Resize("a"), "size: expected an integer, found 'a'"),
        (lambda: Resize((3, 4.5)), "size: expected an integer, found 4.5"),
        (lambda: Resize((3, 4, 3)), "size: expected pixels, or (height, width), found (3, 4, 3)"),
        (lambda: RandomResizedCrop(0), "size: expected 1 pixel or more, found 0"),
        (lambda: RandomResizedCrop(4, scale=0.5), "scale: expected two numbers, found 0.5"),
        (lambda: RandomResizedCrop(4, ratio=(1, 2, 3)), "ratio: expected two numbers, found (1, 2, 3)"),
        (lambda: RandomResizedCrop(4, flip="a"), "flip: expected a number, found 'a'"),
        (lambda: CenterCrop(4, fraction="a"), "fraction: expected a number, found 'a'"),
    ],
)
def test_a_crops(make, message):
    refused(message, make)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"decode": {"image": 224}}, "decode: expected a plan for 'image', such as CenterCrop(224), found 224"),
        ({"decode": {"image": Resize}}, "decode: expected a plan for 'image', such as CenterCrop(224), found <class"),
        ({"decode": Resize(4)}, "decode: expected a dict such as {'image': CenterCrop(224)}, found Resize("),
        ({"path": None}, "path: expected a path, found None"),
        ({"path": ""}, "path: expected a path, found an empty text; '.' is the current folder"),
        ({"fields": 5}, "fields: expected a list of names, or None for all, found 5"),
        ({"fields": [1]}, "fields: expected a list of names, or None for all, found [1]"),
        ({"transform": 5}, "transform: expected a callable from sample to sample, found 5"),
    ],
)
def test_a_datasets(raw_path, arguments, message):
    for open_ in (open_dataset, NpyDataset):
        refused(message, lambda open_=open_: open_(**{"path": raw_path, **arguments}))


def test_a_field_that_is_misspelt(raw_path):
    with pytest.raises(
        ValueError, match=r"there is no field 'imgae': the dataset has key, image.*did you mean 'image'"
    ):
        open_dataset(raw_path, fields=["imgae"])


def test_what_was_never_packed(tmp_path):
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


@pytest.mark.parametrize("indices", [[1.5], np.arange(60) < 30, ["a"]])
def test_what_is_no_index_in_a_batch(raw_path, indices):
    """A mask would have been taken for the rows 0 and 1."""
    refused("indices: expected integers, found ", lambda: open_dataset(raw_path).read_batch(indices))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda d: d.subset([True] * len(d)),
            "rows: expected integers of shape (n,), found bool of shape (60,): a mask's",
        ),
        (lambda d: d.subset([99]), "rows: expected 0 to 59, found 99"),
        (lambda d: d.subset([3, -1, 99]), "rows: expected 0 to 59, found -1 to 99"),
        (lambda d: d.split([0.5], seed="x", by="source"), "seed: expected an integer, found 'x'"),
        (lambda d: d.split([0.5], seed=True, by="source"), "seed: expected an integer, found True"),
        (lambda d: d.folds(2, seed=1 << 64), "seed: expected 0 to 2**64 - 1, found 18446744073709551616"),
        (lambda d: d.split({"a": 0.5}), "fractions: expected a list of numbers such as [0.9, 0.1], found {'a': 0.5}"),
        (lambda d: d.split(0.5), "fractions: expected a list of numbers such as [0.9, 0.1], found 0.5"),
        (lambda d: d.split(["a"]), "fractions: expected a number, found 'a'"),
        (
            lambda d: d.split([0.5, 0.6]),
            "fractions: expected numbers above 0 with a sum of at most 1, found [0.5, 0.6]",
        ),
        (lambda d: Loader(d, 4).load_state_dict(None), "state: expected a result of state_dict(), found None"),
        (lambda d: d.sampler().load_state_dict([]), "state: expected a result of state_dict(), found []"),
    ],
)
def test_a_parts_and_a_states(raw_path, make, message):
    refused(message, lambda: make(open_dataset(raw_path)))


def test_shares_come_in_any_list(raw_path):
    dataset = open_dataset(raw_path)
    assert [len(part) for part in dataset.split(np.array([0.5, 0.25]))] == [30, 15]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CropJitter(scale=0.8), "CropJitter: scale: expected two numbers, found 0.8"),
        (
            lambda: CropJitter(scale=(0, 1)),
            "CropJitter: expected scales (least, largest) above 0 and at most 1, found (0",
        ),
        (lambda: CropJitter(shift="a"), "CropJitter: shift: expected a number, found 'a'"),
        (lambda: CropJitter(size=2.5), "CropJitter: size: expected an integer, found 2.5"),
        (lambda: LandmarkCutout(side=0.2), "LandmarkCutout: side: expected two numbers, found 0.2"),
        (lambda: HorizontalFlip(p="x"), "HorizontalFlip: p: expected a number, found 'x'"),
        (lambda: BatchFlip(p="x"), "BatchFlip: p: expected a number, found 'x'"),
        (lambda: BatchFlip(p=-1), "BatchFlip: expected a probability p from 0 to 1, found -1"),
        (lambda: BatchCrop("a"), "BatchCrop: size: expected an integer, found 'a'"),
        (lambda: BatchCrop(0), "BatchCrop: size: expected 1 pixel or more, found 0"),
        (lambda: BatchCrop(4, 0.5), "BatchCrop: scale: expected two numbers, found 0.5"),
        (lambda: Compose(HorizontalFlip()), "Compose: expected a list of transforms, found HorizontalFlip("),
        (lambda: OneOf(HorizontalFlip()), "OneOf: expected a list of transforms, found HorizontalFlip("),
        (lambda: OneOf([HorizontalFlip()], p="x"), "OneOf: p: expected a number, found 'x'"),
    ],
)
def test_a_transforms(make, message):
    refused(message, make)


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


def test_a_modules(raw_path):
    refused(
        "num_workers: expected an argument of PackedDataModule, found one of torch's DataLoader: use workers=",
        lambda: PackedDataModule(raw_path, batch_size=4, num_workers=2),
    )
    refused(
        "batchsize: expected an argument of PackedDataModule, found none of that name; did you mean 'batch_size'?",
        lambda: PackedDataModule(raw_path, batch_size=4, batchsize=2),
    )


def test_a_mixtures(raw_path, jpeg_path):
    dataset = open_dataset(raw_path)
    refused("datasets: expected a list of datasets of readers, found NpyDataset(", lambda: MixedDataset(dataset))
    refused("datasets: expected a list of datasets of readers, found [", lambda: MixedDataset([dataset, 5]))
    assert len(MixedDataset(d for d in (dataset, dataset))) == 2 * len(dataset)
    for several, name in ((dataset + dataset, "ConcatDataset"), ([dataset, dataset], "list")):
        remedy = (
            f"expected a dataset of readers, found {name}: to read several datasets as one, use MixedDataset([a, b])"
        )
        refused(f"dataset: {remedy}", lambda several=several: Loader(several, 8))
        refused(f"train: {remedy}", lambda several=several: PackedDataModule(several, batch_size=8))
    refused("val: expected a dataset of", lambda: PackedDataModule(dataset, dataset + dataset, batch_size=8))
    refused("weights: expected a number, found 'a'", lambda: MixedDataset([dataset], weights="a"))
    refused("length: expected an integer, found 2.5", lambda: MixedDataset([dataset], length=2.5))
    small = open_dataset(jpeg_path, fields=["key", "image", "label"], decode={"image": Resize(8)})
    refused(
        "datasets: expected the same fields in all, found 'image' uint8 (48, 48, 3) in datasets[0], "
        "uint8 (8, 8, 3) in datasets[1]; 'landmarks' float32 (5, 2) in datasets[0], missing in datasets[1]: "
        "choose fields=, decode= or transform=",
        lambda: MixedDataset([dataset, small]),
    )


def test_a_samplers_and_a_clips(raw_path, face_path):
    dataset = open_dataset(raw_path)
    refused("rank: expected 0 <= rank < world_size, found rank 3", lambda: dataset.sampler(rank=3, world_size=2))
    refused("seed: expected an integer, found 1.5", lambda: dataset.sampler(seed=1.5))
    refused("epoch: expected an integer, found 'a'", lambda: dataset.sampler().set_epoch("a"))
    for arguments in ({"length": 2.5}, {"length": 2, "stride": 2.5}, {"length": 2, "max_step": 2.5}):
        refused(
            f"{[*arguments][-1]}: expected an integer, found 2.5",
            lambda a=arguments: open_dataset(face_path).clips(**a),
        )
