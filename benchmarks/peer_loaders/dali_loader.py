"""NVIDIA DALI on the CPU, two threads: its TFRecord reader over our shards and their indexes, and its tar reader.

The tar reader is for raw crops: it maps the files and hands out their bytes as they are, whereas the TFRecord reader
parses each record. Both shuffle by a buffer; samples are expected in random order on the disk, as they are here.
"""

import io
import math
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali.tfrecord as tfrec
import torch
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali import math as dalimath
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

from benchmarks.contender import Batches
from benchmarks.data import SIZE, SourceImages, pack_ours
from benchmarks.peer_loaders.recipes import ERASED, ERASED_AREA, JITTER, MEAN, STD
from benchmarks.peer_loaders.shared import NAMES, encoded

_BUFFER = 1024
_SHARDS = 16


def pack(source: SourceImages, root: Path) -> None:
    """Write TFRecord shards, with the project's writer."""
    pack_ours(source, root / "data", "tfrecord")


def pack_tar(source: SourceImages, root: Path) -> None:
    """Write tar files, three members a sample."""
    step = -(-len(source) // _SHARDS)
    for first in range(0, len(source), step):
        with tarfile.open(root / f"shard-{first // step:05d}.tar", "w", format=tarfile.USTAR_FORMAT) as file:
            for row in range(first, min(first + step, len(source))):
                values = (encoded(source, row), source.landmarks[row].tobytes(), np.int64(row).tobytes())
                for name, value in zip(NAMES, values, strict=True):
                    member = tarfile.TarInfo(f"{row:08d}.{name}")
                    member.size = len(value)
                    file.addfile(member, io.BytesIO(value))


def open(source: str, kind: str, root: str, batch: int, recipe: str = "") -> Batches:
    """The pipeline over TFRecord shards."""
    data = Path(root) / "data"

    def read() -> tuple[Any, Any, Any]:
        found = fn.readers.tfrecord(
            path=[str(path) for path in sorted(data.glob("*.tfrecord"))],
            index_path=[str(path) for path in sorted(data.glob("*.idx"))],
            features={
                "image/encoded": tfrec.FixedLenFeature((), tfrec.string, ""),
                "landmarks": tfrec.FixedLenFeature([10], tfrec.float32, 0.0),
                "image/class/label": tfrec.FixedLenFeature([1], tfrec.int64, -1),
            },
            random_shuffle=True,
            initial_fill=_BUFFER,
            name="reader",
        )
        return found["image/encoded"], found["landmarks"], found["image/class/label"]

    return _open(read, kind, batch, recipe)


def open_tar(source: str, kind: str, root: str, batch: int) -> Batches:
    """The pipeline over tar files."""

    def read() -> tuple[Any, Any, Any]:
        found: tuple[Any, Any, Any] = fn.readers.webdataset(
            paths=[str(path) for path in sorted(Path(root).glob("*.tar"))],
            ext=list(NAMES),
            dtypes=[types.UINT8, types.FLOAT, types.INT64],
            missing_component_behavior="error",
            random_shuffle=True,
            initial_fill=_BUFFER,
            name="reader",
        )
        return found

    return _open(read, kind, batch)


def _open(read: Any, kind: str, batch: int, recipe: str = "") -> Batches:
    @pipeline_def(batch_size=batch, num_threads=2, device_id=None)  # type: ignore[untyped-decorator] # no types there
    def graph() -> Any:
        image, landmarks, label = read()
        return _image(image, kind, recipe), fn.reshape(landmarks, shape=[5, 2]), label

    built = graph()
    built.build()
    loader = DALIGenericIterator(
        built, list(NAMES), reader_name="reader", auto_reset=True, last_batch_policy=LastBatchPolicy.DROP
    )

    def batches(epoch: int) -> Iterable[Any]:
        for found in loader:
            yield found[0]

    return Batches(batches)


def _image(data: Any, kind: str, recipe: str) -> Any:
    if kind == "raw":
        return fn.reshape(data, shape=[SIZE, SIZE, 3], layout="HWC")
    if kind == "jpeg":
        return fn.decoders.image(data, device="cpu", output_type=types.RGB)
    cut = fn.decoders.image_random_crop(
        data, device="cpu", output_type=types.RGB, random_area=[0.08, 1.0], random_aspect_ratio=[0.75, 1.3333]
    )
    resized = fn.resize(cut, size=[SIZE, SIZE])
    if not recipe:
        return fn.flip(resized, horizontal=fn.random.coin_flip())
    return _finish(resized, recipe)


def _finish(image: Any, recipe: str) -> Any:
    """Its own transforms: changes of colour as one matrix, then mirrored, normalised and erased."""
    if recipe != "jitter":
        raise ValueError(f"DALI has no {recipe} on the CPU")

    def factor() -> Any:
        return fn.random.uniform(range=[1 - JITTER, 1 + JITTER])

    image = fn.color_twist(image, brightness=factor(), contrast=factor(), saturation=factor())
    image = fn.crop_mirror_normalize(
        image,
        mirror=fn.random.coin_flip(),
        mean=[255 * mean for mean in MEAN],
        std=[255 * std for std in STD],
        dtype=types.FLOAT,
        output_layout="HWC",
    )
    area = fn.random.uniform(range=list(ERASED_AREA)) * fn.random.coin_flip(probability=ERASED)
    ratio = fn.random.uniform(range=[math.log(0.3), math.log(3.3)])
    stretch = dalimath.exp(ratio / 2)
    side = dalimath.sqrt(area)
    shape = fn.stack(dalimath.min(side * stretch, 1.0), dalimath.min(side / stretch, 1.0))
    anchor = fn.random.uniform(range=[0.0, 1.0], shape=[2]) * (1.0 - shape)
    return fn.erase(
        image,
        anchor=anchor,
        shape=shape,
        axis_names="HW",
        normalized_anchor=True,
        normalized_shape=True,
        fill_value=0.0,
    )


torch.set_num_threads(1)
