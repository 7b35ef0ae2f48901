"""FFCV: its own page format, Numba-compiled pipelines, threads, ``os_cache``. It encodes JPEGs itself, from pixels."""

from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import IntField, NDArrayField, RGBImageField
from ffcv.fields.decoders import (
    IntDecoder,
    NDArrayDecoder,
    RandomResizedCropRGBImageDecoder,
    SimpleRGBImageDecoder,
)
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import (
    Cutout,
    NormalizeImage,
    RandomBrightness,
    RandomContrast,
    RandomHorizontalFlip,
    RandomSaturation,
    ToTensor,
)
from ffcv.writer import DatasetWriter

from benchmarks.contender import Batches
from benchmarks.data import QUALITY, SIZE, SourceImages
from benchmarks.peer_loaders.recipes import ERASED, ERASED_AREA, JITTER, MEAN, STD
from benchmarks.peer_loaders.shared import NAMES


class _Rows:
    """The source as FFCV's writer indexes it."""

    def __init__(self, source: SourceImages) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, row: int) -> tuple[Any, Any, int]:
        return np.ascontiguousarray(self._source.pixels(row)), self._source.landmarks[row], row


def pack(source: SourceImages, root: Path) -> None:
    """Write one ``.beton`` file."""
    mode = "raw" if source.kind == "raw" else "jpg"
    fields = {
        "image": RGBImageField(write_mode=mode, jpeg_quality=QUALITY),
        "landmarks": NDArrayField(np.dtype("float32"), (5, 2)),
        "label": IntField(),
    }
    DatasetWriter(str(root / "data.beton"), fields, num_workers=2).from_indexed_dataset(_Rows(source))


def _finish(recipe: str) -> list[Any]:
    """Its own transforms. It erases squares of one size, from all images; here they cover as much in all."""
    if recipe != "jitter":
        raise ValueError(f"FFCV has no {recipe}")
    area = ERASED * sum(ERASED_AREA) / 2
    colors = [change(JITTER, 1.0) for change in (RandomBrightness, RandomContrast, RandomSaturation)]
    normalize = NormalizeImage(np.array(MEAN) * 255, np.array(STD) * 255, np.float32)
    fill = tuple(round(mean * 255) for mean in MEAN)
    return [*colors, Cutout(round(SIZE * area**0.5), fill), normalize]


def open(source: str, kind: str, root: str, batch: int, repeats: int = 1, recipe: str = "") -> Batches:
    """The loader, random order, two threads."""
    image: list[Any] = [SimpleRGBImageDecoder()]
    if kind.startswith("photo"):
        image = [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), RandomHorizontalFlip()]
    if recipe:
        image += _finish(recipe)
    pipelines = {
        "image": [*image, ToTensor()],
        "landmarks": [NDArrayDecoder(), ToTensor()],
        "label": [IntDecoder(), ToTensor()],
    }
    rows = len(SourceImages(Path(source), kind))
    indices = None if repeats == 1 else np.tile(np.arange(rows), repeats)
    loader = Loader(
        str(Path(root) / "data.beton"),
        batch_size=batch,
        num_workers=2,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        indices=indices,
        pipelines=pipelines,
    )
    return Batches(lambda epoch: loader, NAMES)
