"""The Loader's memory: nothing that is referred to is overwritten, what is not is used again."""

import numpy as np
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
