"""Batches on their way to the device."""

import gc
import threading
import time
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from support.batches import keys_of

from readers import Loader, open_dataset
from readers.loader.device import OneAhead
from readers.loader.threads import ReadStage


def test_an_error_in_what_is_made_ahead_waits_for_its_turn():
    failed = threading.Event()

    def work(number):
        if number == 1:
            failed.set()
            raise ValueError("no")
        return number

    stage = ReadStage(work, 3, 1, 2, 60, str)
    copies = OneAhead()
    copies.begin(stage.__next__)
    failed.wait()
    good = copies.take(stage.__next__)
    copies.begin(stage.__next__)
    assert good == 0
    with pytest.raises(ValueError, match="no"):
        copies.take(stage.__next__)


def test_what_is_made_ahead_comes_once_and_in_order():
    numbers = iter(range(4))
    copies = OneAhead()
    found = [copies.take(numbers.__next__)]
    copies.begin(numbers.__next__)
    found += [copies.take(numbers.__next__), copies.take(numbers.__next__), copies.take(numbers.__next__)]
    assert found == [0, 1, 2, 3]
    copies.begin(numbers.__next__)
    with pytest.raises(StopIteration):
        copies.take(numbers.__next__)


def test_the_end_of_an_epoch_leaves_no_cycle():
    numbers = iter(range(0))
    copies = OneAhead()

    def make():
        return next(numbers)

    copies.begin(make)
    with pytest.raises(StopIteration):
        copies.take(make)
    left = weakref.ref(copies)
    gc.disable()
    try:
        del copies
        assert left() is None
    finally:
        gc.enable()


class Fails:
    """Fails at the sample 20, but not where a few are tried first."""

    def __call__(self, sample):
        if sample["key"].startswith("00000020") and threading.current_thread().name.startswith("readers-loader"):
            raise ValueError("no")
        return sample


NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize(("device", "ahead"), [("cpu", False), ("cpu", True), pytest.param("cuda", True, marks=NO_GPU)])
def test_the_batches_before_a_failed_one_are_given(raw_path, monkeypatch, device, ahead):
    dataset = open_dataset(raw_path, fields=["key", "label"]).subset(range(30))
    loader = Loader(dataset, 10, shuffle=False, device=device, sample_transform=Fails())
    loader.dataset._layout = loader.dataset.raw_layout
    batches = iter(loader)
    if ahead and device == "cpu":  # the way that copies take on a GPU, without its streams
        stream = SimpleNamespace(wait_stream=lambda other: None)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
        monkeypatch.setattr(torch.cuda, "stream", nullcontext)
        monkeypatch.setattr("readers.loader.device._record", lambda value, stream: None)
        batches._begin()
        batches._batches._side = stream
    given = [next(batches)]
    while 2 not in batches._stage._results:  # so that the error is there when the second batch is asked for
        time.sleep(0.001)
    given.append(next(batches))
    with pytest.raises(ValueError, match="no"):
        next(batches)
    assert len(keys_of(given)) == 20
    assert all(batch["label"].device.type == device for batch in given)
    assert loader.state_dict()["consumed"] == 20
