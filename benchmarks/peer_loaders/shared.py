"""Decoding and cropping for loaders of other projects that leave both to the user.

They use the fastest way in Python: simplejpeg, and for photos the same draw of a crop and the same resize as our own
decode plan. `BatchLoader` makes whole batches of the source itself, for loaders that bring threads but no container.
"""

from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg
import torch

from benchmarks.data import SIZE, SourceImages
from readers.decode.crops import RandomResizedCrop

NAMES = ("image", "landmarks", "label")
cv2.setNumThreads(0)


def picture(data: Any, kind: str, rng: np.random.Generator | None = None) -> Any:
    """The image, (224, 224, 3) uint8, in a sample's bytes; for photos a random crop, mirrored half of the time."""
    if kind == "raw":
        return np.frombuffer(data, np.uint8).reshape(SIZE, SIZE, 3)
    image = simplejpeg.decode_jpeg(data)
    if kind == "jpeg":
        return image
    return crop(image, np.random.default_rng() if rng is None else rng)


def crop(image: Any, rng: np.random.Generator) -> Any:
    """A random crop of a decoded photo."""
    plan = RandomResizedCrop(SIZE)
    left, top, right, bottom = (int(edge) for edge in plan.box(image.shape[0], image.shape[1], rng))
    part = image[top:bottom, left:right]
    shrinks = part.shape[0] > SIZE or part.shape[1] > SIZE
    resized = cv2.resize(part, (SIZE, SIZE), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
    return cv2.flip(resized, 1) if rng.random() < 0.5 else resized


def encoded(source: Any, row: int) -> bytes:
    """The bytes of a sample of a `benchmarks.data.SourceImages`."""
    data: bytes = source.encoded(row) if source.kind != "raw" else source.pixels(row).tobytes()
    return data


class Decoded:
    """Makes (image, landmarks, label) of bytes; for workers, which pickle it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, image: Any, landmarks: Any, label: Any) -> tuple[Any, Any, int]:
        """The sample."""
        points = np.frombuffer(landmarks, np.float32).reshape(5, 2) if isinstance(landmarks, bytes) else landmarks
        pixels = picture(image, self.kind)
        return (pixels if pixels.flags.writeable else pixels.copy()), np.array(points), int(label)


class BatchLoader:
    """Makes the batch of an array of rows, as a dict of tensors, in one thread of a loader.

    Raw crops come from a memmap. JPEGs are in memory, as bytes; with a recipe, samples go through `recipes.Finished`.
    """

    def __init__(self, samples: SourceImages, recipe: str = "") -> None:
        self._samples = samples
        self._data: list[bytes] = []
        if samples.kind != "raw":
            self._data = [samples.encoded(row) for row in range(len(samples))]
        self._finish: Any = None
        if recipe:
            from benchmarks.peer_loaders.recipes import Finished  # imports this module

            self._finish = Finished(samples.kind, recipe)

    def __call__(self, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        """The batch."""
        points = torch.from_numpy(self._samples.landmarks[rows])
        return {"image": self._images(rows), "landmarks": points, "label": torch.from_numpy(rows)}

    def _images(self, rows: npt.NDArray[np.int64]) -> torch.Tensor:
        if self._finish is not None:
            points = self._samples.landmarks
            return torch.stack([self._finish(self._data[row], points[row], row)[0] for row in rows.tolist()])
        if self._samples.images is not None and self._samples.kind == "raw":
            return torch.from_numpy(np.take(np.asarray(self._samples.images), rows, axis=0))
        images = np.empty((len(rows), SIZE, SIZE, 3), np.uint8)
        for place, row in enumerate(rows.tolist()):
            if self._samples.kind == "jpeg":
                simplejpeg.decode_jpeg(self._data[row], buffer=images[place])
            else:
                images[place] = picture(self._data[row], self._samples.kind)
        return torch.from_numpy(images)


def batches_of_rows(count: int, batch: int, epoch: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the rows of each whole batch of a shuffled epoch."""
    order = np.random.default_rng(epoch).permutation(count)
    for first in range(0, count - batch + 1, batch):
        yield order[first : first + batch]
