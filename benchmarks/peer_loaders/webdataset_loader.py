"""WebDataset: tar shards on the local disk or streamed from a web server, shuffled shards and a shuffle buffer of 1,000, batches made in two workers."""

from pathlib import Path
from typing import Any

import numpy as np
import webdataset as wds

from benchmarks.contender import Batches
from benchmarks.data import SourceImages
from benchmarks.peer_loaders.shared import NAMES, Decoded, encoded

_SHARDS = 16


def pack(source: SourceImages, root: Path, shard_bytes: int | None = None) -> None:
    """Write tar files."""
    limit = {"maxcount": -(-len(source) // _SHARDS)} if shard_bytes is None else {"maxsize": shard_bytes}
    with wds.ShardWriter(str(root / "shard-%05d.tar"), **limit, verbose=0) as writer:
        for row in range(len(source)):
            points, label = source.landmarks[row].tobytes(), np.int64(row).tobytes()
            writer.write({"__key__": f"{row:08d}", "image": encoded(source, row), "points": points, "number": label})


class _Sample:
    def __init__(self, kind: str) -> None:
        self._decode = Decoded(kind)

    def __call__(self, sample: Any) -> tuple[Any, ...]:
        image, points, number = sample
        return self._decode(bytes(image), bytes(points), np.frombuffer(number, np.int64)[0])


def open(source: str, kind: str, root: str, batch: int, server: str = "", cache: str = "") -> Batches:
    """The loader."""
    folder = f"{server}/{Path(root).name}" if server else root
    urls = sorted(f"{folder}/{path.name}" for path in Path(root).glob("*.tar"))
    dataset = (
        wds.WebDataset(urls, shardshuffle=len(urls), empty_check=False)
        .shuffle(1000)
        .to_tuple("image", "points", "number")
        .map(_Sample(kind))
        .batched(batch)
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    return Batches(lambda epoch: loader, NAMES)
