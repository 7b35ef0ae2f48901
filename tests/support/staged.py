"""Remote datasets that are read through a cache, and their stagers."""

from pathlib import Path
from typing import Any

import torch

from readers import Loader, open_dataset
from readers.staging.folder import CacheFolder, read_address

COUNT, SHARD_ROWS = 60, 5
FORMATS = ["hdf5", "lmdb", "npy", "parquet", "tfrecord", "webdataset"]


def shard_bytes(path: Path) -> int:
    return max(part.bytes for part in open_dataset(path).manifest.parts)


def epoch_of(loader: Loader) -> list[dict[str, Any]]:
    return [dict(batch) for batch in loader]


def assert_same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a["key"] == b["key"]
        assert torch.equal(a["image"], b["image"])
        assert torch.equal(a["landmarks"], b["landmarks"])


def stager_pid(cache: Path) -> int:
    address = read_address(CacheFolder(cache).address)
    assert address is not None
    return int(address["pid"])
