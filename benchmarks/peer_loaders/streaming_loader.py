"""MosaicML Streaming: MDS shards of 64 MB read from the local disk, StreamingDataset, DataLoader with two workers."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

from benchmarks.contender import Batches
from benchmarks.data import Source
from benchmarks.peer_loaders.shared import NAMES, Decoded, encoded


def pack(source: Source, root: Path) -> None:
    """Write MDS shards."""
    columns = {"image": "bytes", "landmarks": "bytes", "label": "int"}
    with MDSWriter(out=str(root / "data"), columns=columns, size_limit=1 << 26) as writer:
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


def open(source: str, kind: str, root: str, batch: int) -> Batches:
    """The loader, shuffled by its default py1e, two workers."""
    clean_stale_shared_memory()
    dataset = _Dataset(kind, local=str(Path(root) / "data"), shuffle=True, batch_size=batch)
    loader: Any = DataLoader(dataset, batch, num_workers=2, persistent_workers=True, drop_last=True)

    def batches(epoch: int) -> Iterable[Any]:
        return loader

    return Batches(batches, NAMES)
