"""TurboLoader: its C++ threads over one tar file of JPEGs, and over its own ``.tbl`` files of raw images.

Its batches hold images and the numbers of their samples; labels and points are looked up by number. Raw images and
random crops come as float32 from 0 to 1, which its fast path makes of every pixel, JPEG crops as uint8. Over raw crops
there is also its loader of arrays, which gathers rows of the memmap as they are.
"""

import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import turboloader

from benchmarks.contender import Batches
from benchmarks.data import SIZE, SourceImages
from benchmarks.peer_loaders.shared import NAMES


def pack(source: SourceImages, root: Path) -> None:
    """Write the file that its fast path reads."""
    if source.kind == "raw":
        writer = turboloader.TblWriterV2(str(root / "data.tbl"), enable_compression=False)
        for row in range(len(source)):
            pixels = source.pixels(row).tobytes()
            writer.add_sample(pixels, turboloader.SampleFormat.RAW_U8, width=SIZE, height=SIZE)
        writer.finalize()
        return
    with tarfile.open(root / "data.tar", "w", format=tarfile.USTAR_FORMAT) as file:
        for row in range(len(source)):
            data = source.encoded(row)
            member = tarfile.TarInfo(f"{row:08d}.jpg")
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))


def pack_arrays(source: SourceImages, root: Path) -> None:
    """Nothing: it reads the source as it is."""


class _Checked(Batches):
    """Shows the check the levels of floating images."""

    def batches(self, epoch: int) -> Iterator[Mapping[str, Any]]:
        """The batches as dicts of uint8 images."""
        for batch in super().batches(epoch):
            image = batch["image"]
            if image.dtype != np.uint8:
                image = np.rint(image * 255).astype(np.uint8)
            yield {**batch, "image": image}


def open(source: str, kind: str, root: str, batch: int) -> Batches:
    """The loader, two threads, shuffled."""
    landmarks = SourceImages(Path(source), kind).landmarks
    options: dict[str, Any] = {"batch_size": batch, "num_workers": 2, "shuffle": True, "drop_last": True}
    if kind == "raw":
        loader: Any = turboloader.DataLoader(f"{root}/data.tbl", output_format="numpy", **options)
    elif kind == "jpeg":
        loader = turboloader.FastDataLoader(f"{root}/data.tar", target_height=SIZE, target_width=SIZE, **options)
    else:
        crop = {"image_size": SIZE, "train_aug": True, "output_format": "numpy"}
        loader = turboloader.DataLoader(f"{root}/data.tar", **crop, **options)

    def batches(epoch: int) -> Iterable[Any]:
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        for images, facts in loader:
            rows = np.asarray(facts["indices"])
            yield {"image": images, "landmarks": landmarks[rows], "label": rows}

    return _Checked(batches)


def open_arrays(source: str, kind: str, root: str, batch: int) -> Batches:
    """The loader of arrays, in one thread: it has no more."""
    samples = SourceImages(Path(source), kind)
    labels = np.arange(len(samples))
    loader = turboloader.ArrayDataLoader(
        samples.images, samples.landmarks, labels, batch_size=batch, shuffle=True, drop_last=True
    )

    def batches(epoch: int) -> Iterable[Any]:
        loader.set_epoch(epoch)
        return loader

    return Batches(batches, NAMES)
