"""SPDL: a pipeline of two threads, each with a whole batch at a time.

Raw crops are gathered from a memmap. JPEGs are decoded by its own FFmpeg, a batch per call, or by simplejpeg. Its
filters take one crop for all images of a call, so photos are decoded and cropped by `shared` or `recipes`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import spdl.io
import torch
from spdl.pipeline import PipelineBuilder

from benchmarks.contender import Batches
from benchmarks.data import SIZE, SourceImages
from benchmarks.peer_loaders.shared import BatchLoader, batches_of_rows


def pack(source: SourceImages, root: Path) -> None:
    """Nothing: it reads the source as it is."""


def open(source: str, kind: str, root: str, batch: int) -> Batches:
    """The pipeline, with its own decoder."""
    samples = SourceImages(Path(source), kind)
    return _open(samples, batch, BatchLoader(samples) if kind == "raw" else _own(samples))


def open_simplejpeg(source: str, kind: str, root: str, batch: int, recipe: str = "") -> Batches:
    """The pipeline, with simplejpeg."""
    samples = SourceImages(Path(source), kind)
    return _open(samples, batch, BatchLoader(samples, recipe))


def _open(samples: SourceImages, batch: int, load: Any) -> Batches:
    def batches(epoch: int) -> Iterable[Any]:
        rows = batches_of_rows(len(samples), batch, epoch)
        pipeline = PipelineBuilder().add_source(rows).pipe(load, concurrency=2).add_sink(4).build(num_threads=2)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    return Batches(batches)


def _own(samples: SourceImages) -> Any:
    data = [samples.encoded(row) for row in range(len(samples))]

    def load(rows: Any) -> dict[str, Any]:
        # A filter that only converts colours; no resize, as the crops have the size already.
        buffer = spdl.io.load_image_batch(
            [data[row] for row in rows.tolist()],
            width=SIZE,
            height=SIZE,
            pix_fmt="rgb24",
            device_config=None,
            strict=True,
        )
        image = spdl.io.to_torch(buffer)
        return {"image": image, "landmarks": torch.from_numpy(samples.landmarks[rows]), "label": torch.from_numpy(rows)}

    return load
