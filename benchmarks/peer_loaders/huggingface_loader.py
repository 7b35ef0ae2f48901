"""Hugging Face datasets: an Arrow dataset of binary columns, DataLoader with two workers that reads whole batches."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, Features, Sequence, Value, load_from_disk
from torch.utils.data import DataLoader

from benchmarks.contender import Batches
from benchmarks.data import SourceImages
from benchmarks.peer_loaders.shared import encoded, picture


def _rows(folder: str, kind: str) -> Iterator[dict[str, Any]]:
    source = SourceImages(Path(folder), kind)
    for row in range(len(source)):
        yield {"image": encoded(source, row), "landmarks": source.landmarks[row].reshape(-1), "label": row}


def pack(source: SourceImages, root: Path) -> None:
    """Write an Arrow dataset."""
    features = Features(
        {"image": Value("large_binary"), "landmarks": Sequence(Value("float32"), 10), "label": Value("int64")}
    )
    cache = root / "cache"
    made = Dataset.from_generator(
        _rows,
        features=features,
        gen_kwargs={"folder": str(source.folder), "kind": source.kind},
        cache_dir=str(cache),
        writer_batch_size=200,
    )
    made.save_to_disk(str(root / "data"))
    for left in sorted(cache.rglob("*"), reverse=True):
        left.rmdir() if left.is_dir() else left.unlink()


class _Transform:
    """Decodes a batch as it is read."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        images = [picture(data, self._kind) for data in rows["image"]]
        points = [np.asarray(points, np.float32).reshape(5, 2) for points in rows["landmarks"]]
        return {"image": images, "landmarks": points, "label": rows["label"]}


def _collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "image": torch.from_numpy(np.stack([row["image"] for row in rows])),
        "landmarks": torch.from_numpy(np.stack([row["landmarks"] for row in rows])),
        "label": torch.tensor([row["label"] for row in rows]),
    }


def open(source: str, kind: str, root: str, batch: int) -> Batches:
    """The loader."""
    dataset = load_from_disk(str(Path(root) / "data")).with_transform(_Transform(kind))
    loader: Any = DataLoader(
        dataset,
        batch,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        drop_last=True,
        collate_fn=_collate,
    )
    return Batches(lambda epoch: loader)
