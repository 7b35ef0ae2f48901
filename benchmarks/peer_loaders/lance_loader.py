"""Lance: one table; a `DataLoader` with two workers, each of which takes the rows of a whole batch by one call."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.contender import Batches
from benchmarks.data import SIZE, SourceImages
from benchmarks.peer_loaders.shared import encoded, picture

_ROWS = 256
_RAW = SIZE * SIZE * 3


def pack(source: SourceImages, root: Path) -> None:
    """Write a table: raw crops as lists of one size, which are read without parsing, JPEGs as binary."""
    image = pa.list_(pa.uint8(), _RAW) if source.kind == "raw" else pa.large_binary()
    points = pa.list_(pa.float32(), 10)
    schema = pa.schema([("image", image), ("landmarks", points), ("label", pa.int64())])

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, len(source), _ROWS):
            rows = range(first, min(first + _ROWS, len(source)))
            if source.kind == "raw":
                pixels = np.concatenate([source.pixels(row).reshape(-1) for row in rows])
                images = pa.FixedSizeListArray.from_arrays(pa.array(pixels), _RAW)
            else:
                images = pa.array([encoded(source, row) for row in rows], image)
            stored = pa.array(source.landmarks[rows.start : rows.stop].reshape(-1))
            columns = [images, pa.FixedSizeListArray.from_arrays(stored, 10), pa.array(rows, pa.int64())]
            yield pa.record_batch(columns, schema)

    lance.write_dataset(batches(), str(root / "data.lance"), schema)


class _Rows(Dataset[dict[str, torch.Tensor]]):
    """Opens the table in the worker that reads, as Lance must not be forked."""

    def __init__(self, root: str, kind: str, rows: int) -> None:
        self._path = f"{root}/data.lance"
        self._kind = kind
        self._rows = rows
        self._table: Any = None

    def __len__(self) -> int:
        return self._rows

    def __getitems__(self, rows: list[int]) -> dict[str, torch.Tensor]:
        if self._table is None:
            self._table = lance.dataset(self._path)
        found = self._table.take(rows).combine_chunks()
        image, landmarks, label = (found[name].chunk(0) for name in ("image", "landmarks", "label"))
        if self._kind == "raw":
            images = image.flatten().to_numpy().reshape(-1, SIZE, SIZE, 3)
        else:
            images = np.stack([picture(np.frombuffer(data.as_buffer(), np.uint8), self._kind) for data in image])
        points = landmarks.flatten().to_numpy().reshape(-1, 5, 2)
        arrays = {"image": images, "landmarks": points, "label": label.to_numpy()}
        return {name: torch.tensor(array) for name, array in arrays.items()}


def _as_it_is(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return batch


def open(source: str, kind: str, root: str, batch: int) -> Batches:
    """The loader."""
    loader: Any = DataLoader(
        _Rows(root, kind, len(SourceImages(Path(source), kind))),
        batch,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        drop_last=True,
        collate_fn=_as_it_is,
        multiprocessing_context="spawn",
    )
    return Batches(lambda epoch: loader)
