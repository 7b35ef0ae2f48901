"""NVIDIA DALI on the CPU: its TFRecord reader over our own TFRecord shards and their indexes, two threads."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nvidia.dali.tfrecord as tfrec
import torch
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

from benchmarks.contender import Batches
from benchmarks.data import SIZE, Source, pack_ours

_BUFFER = 1024


def pack(source: Source, root: Path) -> None:
    """Write TFRecord shards, with the project's writer."""
    pack_ours(source, root / "data", "tfrecord")


def open(source: str, kind: str, root: str, batch: int) -> Batches:
    """The pipeline; its shuffle is a buffer of 1,024."""
    data = Path(root) / "data"
    paths = [str(path) for path in sorted(data.glob("*.tfrecord"))]
    indexes = [str(path) for path in sorted(data.glob("*.idx"))]

    @pipeline_def(batch_size=batch, num_threads=2, device_id=None)  # type: ignore[untyped-decorator] # no types there
    def graph() -> Any:
        found = fn.readers.tfrecord(
            path=paths,
            index_path=indexes,
            features={
                "image/encoded": tfrec.FixedLenFeature((), tfrec.string, ""),
                "landmarks": tfrec.FixedLenFeature([10], tfrec.float32, 0.0),
                "image/class/label": tfrec.FixedLenFeature([1], tfrec.int64, -1),
            },
            random_shuffle=True,
            initial_fill=_BUFFER,
            name="reader",
            dont_use_mmap=False,
        )
        image = _image(found["image/encoded"], kind)
        return image, fn.reshape(found["landmarks"], shape=[5, 2]), found["image/class/label"]

    built = graph()
    built.build()
    names = ["image", "landmarks", "label"]
    loader = DALIGenericIterator(
        built, names, reader_name="reader", auto_reset=True, last_batch_policy=LastBatchPolicy.DROP
    )

    def batches(epoch: int) -> Iterable[Any]:
        for found in loader:
            yield found[0]

    return Batches(batches)


def _image(data: Any, kind: str) -> Any:
    if kind == "raw":
        return fn.reshape(data, shape=[SIZE, SIZE, 3], layout="HWC")
    if kind == "jpeg":
        return fn.decoders.image(data, device="cpu", output_type=types.RGB)
    cut = fn.decoders.image_random_crop(
        data, device="cpu", output_type=types.RGB, random_area=[0.08, 1.0], random_aspect_ratio=[0.75, 1.3333]
    )
    resized = fn.resize(cut, size=[SIZE, SIZE])
    return fn.flip(resized, horizontal=fn.random.coin_flip())


torch.set_num_threads(1)
