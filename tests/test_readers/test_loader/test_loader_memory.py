"""The Loader's memory: nothing that is referred to is overwritten, what is not is used again."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.crops import write_crops

from readers import Loader, open_dataset


def test_no_batch_that_is_referred_to_is_overwritten(tmp_path):
    path = write_crops(tmp_path / "d", "npy", None, count=200, size=64)
    dataset = open_dataset(path)
    loader = Loader(dataset, 8, workers=3)
    rng = np.random.default_rng(0)
    kinds = [
        lambda image: image,
        lambda image: image[3],
        lambda image: image.numpy(),
        lambda image: image.numpy()[1:, :, ::2],
        lambda image: image.permute(0, 2, 3, 1).reshape(-1)[100:],
        lambda image: image.untyped_storage(),
        lambda image: np.asarray(memoryview(image.permute(0, 2, 3, 1).numpy())),
        lambda image: torch.from_dlpack(image),
        lambda image: image.data_ptr() and image.view(torch.int8)[0],
        lambda image: image.unfold(2, 8, 8)[0, 0],
    ]

    def bytes_of(view):
        if isinstance(view, torch.UntypedStorage):
            return torch.empty(0, dtype=torch.uint8).set_(view).numpy().tobytes()
        return (view if isinstance(view, np.ndarray) else view.numpy()).tobytes()

    kept = []
    reused = set()
    for _ in range(3):
        for batch in loader:
            reused.add(batch["image"].data_ptr())
            view = kinds[int(rng.integers(len(kinds)))](batch["image"])
            del batch
            if rng.random() < 0.5:
                kept.append((view, bytes_of(view)))
            if len(kept) > 25:
                kept.pop(int(rng.integers(len(kept))))
            del view
        for view, expected in kept:
            assert bytes_of(view) == expected
            del view
    assert len(reused) < 70, "memory was never used again"


def test_batches_that_are_dropped_use_few_buffers(raw_path):
    loader = Loader(open_dataset(raw_path, fields=["image"]), 16, workers=2, prefetch=3)
    addresses = {batch["image"].data_ptr() for _ in range(20) for batch in loader}
    assert len(addresses) <= 3 + 2 + 1  # the loop's own variable holds one more while the next is taken


_TWENTY_EPOCHS = """
import sys
import torch
from readers import Loader, open_dataset
def anonymous_bytes():
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
loader = Loader(open_dataset(sys.argv[1]), 64, workers=2, prefetch=3)
epochs = []
for epoch in range(20):
    for batch in loader:
        pass
    epochs.append(anonymous_bytes())
print(epochs[-1] - epochs[2])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's account of memory")
def test_memory_is_flat_over_twenty_epochs(tmp_path):
    path = write_crops(tmp_path / "d", "npy", None, count=400, size=128, shard_rows=150)  # 3 MB a batch, 20 MB an epoch
    run = subprocess.run([sys.executable, "-c", _TWENTY_EPOCHS, str(path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 12_000_000


def test_bytes_decoded_per_epoch_are_those_of_the_epoch(jpeg_path, monkeypatch):
    dataset = open_dataset(jpeg_path, fields=["image"])
    codec = dataset._decoding._codecs["image"]
    decode, count = codec.decode, []
    monkeypatch.setattr(codec, "decode", lambda data, out=None: (count.append(1), decode(data, out))[1])
    loader = Loader(dataset, 16, workers=2)
    for epoch in range(1, 4):
        for _ in loader:
            pass
        assert len(count) == 60 * epoch
