"""Grain: a shuffled `MapDataset` over batches of the source, read ahead by two threads."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grain
import numpy as np

from benchmarks.contender import Batches
from benchmarks.data import SourceImages
from benchmarks.peer_loaders.shared import BatchLoader


def pack(source: SourceImages, root: Path) -> None:
    """Nothing: it reads the source as it is."""


def open(source: str, kind: str, root: str, batch: int) -> Batches:
    """The dataset. Each thread loads a whole batch of shuffled rows, faster than samples that Grain stacks."""
    samples = SourceImages(Path(source), kind)
    load = BatchLoader(samples)
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)

    def batches(epoch: int) -> Iterable[Any]:
        rows: Any = grain.MapDataset.range(len(samples)).seed(epoch).shuffle()
        return rows.batch(batch, drop_remainder=True, batch_fn=np.array).map(load).to_iter_dataset(options)

    return Batches(batches)
