"""Decoding and cropping for loaders of other projects that leave both to the user.

They use the fastest way in Python: simplejpeg, and for photos the same draw of a crop and the same resize as our own
decode plan.
"""

from typing import Any

import cv2
import numpy as np
import simplejpeg

from benchmarks.data import SIZE
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
