"""The arms of our readers, and torch's DataLoader over a memmap; `benchmarks.contender` runs each in a process."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.contender import Batches
from benchmarks.data import PHOTOS, SIZE, SourceImages
from readers import Loader, RandomResizedCrop, Whole, open_dataset
from readers.augment import ColorJitter, Compose, Normalize, RandAugment, RandomErasing
from readers.loader.batches import Ring

cv2.setNumThreads(0)  # as the arms of the others do; each loader has its own threads

FIELDS = ["image", "landmarks", "label"]


class Crop(RandomResizedCrop):
    """The random crop, for samples whose landmarks are random numbers that every loader reads, and none moves."""

    @property
    def moves(self) -> bool:
        """False: no field lies on the image."""
        return False


def plan_of(kind: str, fast: bool) -> dict[str, Any]:
    """How images of a kind are decoded."""
    if kind in PHOTOS:
        return {"image": Crop(SIZE, fast_dct=fast, fast_upsampling=fast, flip=0.5)}
    return {"image": Whole(fast, fast)} if fast else {}


def transform_of(recipe: str) -> Compose:
    """The whole recipe (`benchmarks.peer_loaders.recipes`) behind the crop."""
    colors: Any = ColorJitter(0.4, 0.4, 0.4) if recipe == "jitter" else RandAugment()
    return Compose([colors, Normalize(), RandomErasing(0.25)])


def loader(
    source: str,
    kind: str,
    root: str,
    batch: int,
    shuffle: str = "full",
    checksums: bool = True,
    fast: bool = False,
    fresh: bool = False,
    repeats: int = 1,
    read_ahead: int | None = None,
    recipe: str = "",
    cache: str | None = None,
) -> Batches:
    """`readers.Loader` over a packed dataset; `repeats` makes long epochs, by an index that lists each row so often.

    A remote dataset (`root` is its URL) is read through `cache`.
    """
    torch.set_num_threads(1)
    transform = transform_of(recipe) if recipe else None
    dataset = open_dataset(root, FIELDS, transform, checksums=checksums, decode=plan_of(kind, fast), cache=cache)
    whole: Any = dataset if repeats == 1 else _repeated(dataset, repeats)
    options: dict[str, Any] = {"shuffle": shuffle, "drop_last": True, "read_ahead": read_ahead}
    made = Loader(whole, batch, **options)

    if fresh:  # a ring that keeps nothing: what a loop that keeps its batches makes of it, without room for them all
        made._buffers = Ring(batch, 0)

    def batches(epoch: int) -> Iterable[Any]:
        made.set_epoch(epoch)
        return made

    return Batches(batches)


def _repeated(dataset: Any, repeats: int) -> Any:
    return dataset.subset(np.tile(np.arange(len(dataset)), repeats))


def data_loader(source: str, kind: str, root: str, batch: int, shuffle: str = "full", fast: bool = False) -> Batches:
    """Torch's DataLoader over a packed dataset, with our sampler and collate."""
    dataset = open_dataset(root, FIELDS, decode=plan_of(kind, fast))
    sampler = dataset.sampler(shuffle=shuffle)  # type: ignore[arg-type] # from JSON
    made: DataLoader[Any] = DataLoader(
        dataset,
        batch,
        sampler=sampler,
        collate_fn=dataset.collate,
        num_workers=2,
        persistent_workers=True,
        drop_last=True,
    )

    def batches(epoch: int) -> Iterable[Any]:
        sampler.set_epoch(epoch)
        return made

    return Batches(batches)


class MemmapDataset(Dataset[tuple[Any, ...]]):
    """Raw crops in one ``.npy`` file, read a sample at a time."""

    def __init__(self, source: SourceImages) -> None:
        self._path = source.folder / "pixels.npy"
        self._landmarks = source.landmarks
        self._images: Any = None

    def __len__(self) -> int:
        return len(self._landmarks)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        if self._images is None:
            self._images = np.load(self._path, mmap_mode="r")
        return np.array(self._images[index]), self._landmarks[index], index


def memmap_loader(source: str, kind: str, batch: int) -> Batches:
    """Torch's DataLoader over a memmap."""
    made: DataLoader[Any] = DataLoader(
        MemmapDataset(SourceImages(Path(source), kind)),
        batch,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        drop_last=True,
    )
    return Batches(lambda epoch: made, ("image", "landmarks", "label"))
