"""MosaicML Streaming: MDS shards of 64 MB on the local disk or an S3 server, StreamingDataset, DataLoader with two workers."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

from benchmarks.contender import Batches
from benchmarks.data import SourceImages
from benchmarks.peer_loaders.shared import NAMES, Decoded, encoded


def pack(source: SourceImages, root: Path, shard_bytes: int = 1 << 26) -> None:
    """Write MDS shards."""
    columns = {"image": "bytes", "landmarks": "bytes", "label": "int"}
    with MDSWriter(out=str(root / "data"), columns=columns, size_limit=shard_bytes) as writer:
        for row in range(len(source)):
            points = source.landmarks[row].tobytes()
            writer.write({"image": encoded(source, row), "landmarks": points, "label": row})


class _Dataset(StreamingDataset):  # type: ignore[misc] # no types there
    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__(**options)
        self._decode = Decoded(kind)

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        sample = super().__getitem__(index)
        return self._decode(sample["image"], sample["landmarks"], sample["label"])


def open(source: str, kind: str, root: str, batch: int, server: str = "", cache: str = "") -> Batches:
    """The loader, shuffled by its default py1e, two workers. The settings of an S3 server are in the environment."""
    clean_stale_shared_memory()
    place = {"remote": f"s3://{Path(root).name}/data", "local": cache} if server else {"local": f"{root}/data"}
    dataset = _Dataset(kind, **place, shuffle=True, batch_size=batch)
    for stream in dataset.streams:  # otherwise forked workers share the connection that fetched the index
        stream._downloader.clean_up()
    loader: Any = DataLoader(dataset, batch, num_workers=2, persistent_workers=True, drop_last=True)

    def batches(epoch: int) -> Iterable[Any]:
        return loader

    return Batches(batches, NAMES)
