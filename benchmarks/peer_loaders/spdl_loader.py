"""SPDL: a pipeline of threads. Raw crops are gathered from a memmap; JPEGs are decoded by its FFmpeg, a batch per call.

Its filters take one crop for all images of a call, so photos with the whole recipe are decoded one by one, by the
decoder, resize and transforms of `recipes`, in its threads; and there is no row of photos without it.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import spdl.io
import torch
from spdl.pipeline import PipelineBuilder

from benchmarks.contender import Batches
from benchmarks.data import SIZE, SourceImages
from benchmarks.peer_loaders.recipes import Finished


def pack(source: SourceImages, root: Path) -> None:
    """Nothing: it reads the source as it is."""


def open(source: str, kind: str, root: str, batch: int, recipe: str = "") -> Batches:
    """The pipeline."""
    samples = SourceImages(Path(source), kind)
    if recipe:
        load = _finished(samples, recipe)
    elif kind == "raw":
        load = _raw(samples)
    elif kind == "jpeg":
        load = _jpeg(samples)
    else:
        raise ValueError("SPDL has no random crop per image in a batched decode")

    def rows(epoch: int) -> Iterator[Any]:
        order = np.random.default_rng(epoch).permutation(len(samples))
        for first in range(0, len(order) - batch + 1, batch):
            yield order[first : first + batch]

    def batches(epoch: int) -> Iterable[Any]:
        pipeline = PipelineBuilder().add_source(rows(epoch)).pipe(load, concurrency=2).add_sink(4).build(num_threads=2)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    return Batches(batches)


def _raw(samples: SourceImages) -> Any:
    assert samples.images is not None
    pixels = np.asarray(samples.images)

    def load(rows: Any) -> dict[str, Any]:
        image = torch.from_numpy(np.take(pixels, rows, axis=0))
        return {"image": image, "landmarks": torch.from_numpy(samples.landmarks[rows]), "label": torch.from_numpy(rows)}

    return load


def _finished(samples: SourceImages, recipe: str) -> Any:
    data = [samples.encoded(row) for row in range(len(samples))]
    finish = Finished(samples.kind, recipe)

    def load(rows: Any) -> dict[str, Any]:
        made = [finish(data[row], samples.landmarks[row], row)[0] for row in rows.tolist()]
        points = torch.from_numpy(samples.landmarks[rows])
        return {"image": torch.stack(made), "landmarks": points, "label": torch.from_numpy(rows)}

    return load


def _jpeg(samples: SourceImages) -> Any:
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
