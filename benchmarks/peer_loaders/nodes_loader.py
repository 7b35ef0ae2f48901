"""torchdata's nodes: batches of rows, a `ParallelMapper` with two threads that loads each, and a `Loader`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Sampler
from torchdata.nodes import Batcher, Loader, ParallelMapper, Prefetcher, SamplerWrapper

from benchmarks.contender import Batches
from benchmarks.data import SourceImages
from benchmarks.peer_loaders.shared import BatchLoader


def pack(source: SourceImages, root: Path) -> None:
    """Nothing: it reads the source as it is."""


class _Shuffled(Sampler[int]):
    """Shuffles by the number of the epoch."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order; `SamplerWrapper` calls it."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng(self._epoch).permutation(self._count).tolist())


class _Load:
    def __init__(self, samples: SourceImages) -> None:
        self._load = BatchLoader(samples)

    def __call__(self, rows: list[int]) -> dict[str, Any]:
        return self._load(np.array(rows))


def open(source: str, kind: str, root: str, batch: int) -> Batches:
    """The loader."""
    samples = SourceImages(Path(source), kind)
    rows: Any = Batcher(SamplerWrapper(_Shuffled(len(samples))), batch, drop_last=True)
    mapped = ParallelMapper(rows, _Load(samples), num_workers=2, method="thread")
    loader: Any = Loader(Prefetcher(mapped, prefetch_factor=2))

    def batches(epoch: int) -> Iterable[Any]:
        return loader

    return Batches(batches)
