"""Batches on their way to the device."""

import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from support.batches import keys_of

from readers import Loader, open_dataset


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
