"""Batches on their way to the device."""

import gc
import threading
import time
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.batches import keys_of
from torchvision.transforms import v2

from readers import Loader, RandomResizedCrop, diagnose, open_dataset
from readers.augment import BatchCompose, BatchCrop, BatchCutMix, BatchFlip, BatchMixUp, HorizontalFlip, Torchvision
from readers.loader.device import move


class Fails:
    """Fails at the sample 20, but not where a few are tried first."""

    def __call__(self, sample):
        if sample["key"].startswith("00000020") and threading.current_thread().name.startswith("readers-loader"):
            raise ValueError("no")
        return sample


NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Return a function that makes an iterator copy ahead to the CPU as it does to a GPU, without streams."""

    def prepare(batches):
        stream = SimpleNamespace(wait_stream=lambda other: None)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
        monkeypatch.setattr(torch.cuda, "stream", nullcontext)
        monkeypatch.setattr("readers.loader.device._record", lambda value, stream: None)
        batches._begin()
        batches._batches._side = stream

    return prepare


@pytest.mark.parametrize(("device", "ahead"), [("cpu", False), ("cpu", True), pytest.param("cuda", True, marks=NO_GPU)])
def test_the_batches_before_a_failed_one_are_given(raw_path, as_on_a_gpu, device, ahead):
    dataset = open_dataset(raw_path, fields=["key", "label"]).subset(range(30))
    loader = Loader(dataset, 10, shuffle=False, device=device, sample_transform=Fails())
    loader.dataset._layout = loader.dataset.raw_layout
    batches = iter(loader)
    if ahead and device == "cpu":
        as_on_a_gpu(batches)
    given = [next(batches)]
    while 2 not in batches._stage._results:  # so that the error is there when the second batch is asked for
        time.sleep(0.001)
    given.append(next(batches))
    with pytest.raises(ValueError, match="no"):
        next(batches)
    assert len(keys_of(given)) == 20
    assert all(batch["label"].device.type == device for batch in given)
    assert loader.state_dict()["consumed"] == 20


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NO_GPU)])
def test_an_error_of_an_early_copy_waits_for_its_batch(raw_path, monkeypatch, as_on_a_gpu, device):
    copies = []

    def fail_at_the_third(batch, *arguments, **options):
        copies.append(keys_of([batch]))
        if len(copies) == 3:
            raise torch.OutOfMemoryError("no")
        return move(batch, *arguments, **options)

    monkeypatch.setattr("readers.loader.device.move", fail_at_the_third)
    loader = Loader(open_dataset(raw_path, fields=["key"]).subset(range(30)), 10, shuffle=False, device=device)
    batches = iter(loader)
    if device == "cpu":
        as_on_a_gpu(batches)
    given = [next(batches)]
    while 2 not in batches._stage._results:  # so that the third is copied when the second is asked for
        time.sleep(0.001)
    given.append(next(batches))
    assert len(copies) == 3
    assert keys_of(given) == copies[0] + copies[1]
    with pytest.raises(torch.OutOfMemoryError, match="no"):
        next(batches)
    assert loader.state_dict()["consumed"] == 20
    left = weakref.ref(batches._batches)
    gc.disable()
    try:
        del batches
        assert left() is None  # no cycle with the error
    finally:
        gc.enable()


def batches_of(path, **how):
    loader = Loader(open_dataset(path, fields=["image", "label"]), 8, seed=3, **how)
    return [value for batch in loader for value in (batch["image"], batch["label"])]


@pytest.mark.parametrize(
    "read",
    [
        lambda path: list(open_dataset(path, transform=HorizontalFlip())[3].values()),
        lambda path: [open_dataset(path, ["image"], decode={"image": RandomResizedCrop(16)})[3]["image"]],
        lambda path: [open_dataset(path, transform=HorizontalFlip()).read_batch([1, 2])["image"]],
        lambda path: batches_of(path, sample_transform=HorizontalFlip()),
        lambda path: [open_dataset(path, transform=Torchvision(v2.RandomCrop(16)))[3]["label"]],
        lambda path: batches_of(path, sample_transform=Torchvision(v2.RandomCrop(16))),
        lambda path: batches_of(path, batch_transform=BatchCompose([BatchFlip(), BatchCrop(16)])),
        lambda path: batches_of(path, batch_transform=BatchMixUp(3)),
        lambda path: batches_of(path, batch_transform=lambda batch: BatchCutMix(3)(BatchFlip()(batch))),
        lambda path: sorted(open_dataset(path).sampler(seed=1)),
    ],
)
def test_another_default_device_changes_nothing(raw_path, read):
    torch.manual_seed(0)
    expected = read(raw_path)
    torch.set_default_device("meta")  # its tensors cannot become numpy arrays, like those of a GPU
    try:
        torch.manual_seed(0)
        found = read(raw_path)
    finally:
        torch.set_default_device(None)
    assert len(found) == len(expected) > 0
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_diagnosis_with_another_default_device(raw_path):
    torch.set_default_device("meta")
    try:
        diagnose(Loader(open_dataset(raw_path), 8, batch_transform=BatchFlip()), lambda batch: None, batches=2)
    finally:
        torch.set_default_device(None)
