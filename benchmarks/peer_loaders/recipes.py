"""The whole recipe of photos: a random crop of 224, mirrored half of the time, changes of colour, normalised, erased.

``jitter``: ``ColorJitter(0.4, 0.4, 0.4)``; ``randaugment``: ``RandAugment()`` in its place. `reference` is what
torchvision's training script does with a file; `Finished` is the same behind a faster decoder and resize. The constants
are for loaders with such transforms of their own.
"""

from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import v2

from benchmarks.data import SIZE
from benchmarks.peer_loaders.shared import picture

JITTER = 0.4
"""Brightness, contrast and saturation are multiplied by 1 - 0.4 to 1 + 0.4."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ERASED, ERASED_AREA = 0.25, (0.02, 0.33)
"""How often a rectangle is erased, and its share of the image."""


def finish(recipe: str) -> list[Any]:
    """Transform a crop with torchvision, as a Pillow image, on which its colour changes are the fastest."""
    return [
        v2.ColorJitter(JITTER, JITTER, JITTER) if recipe == "jitter" else v2.RandAugment(),
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
        v2.RandomErasing(ERASED, ERASED_AREA),
    ]


def reference(recipe: str) -> Any:
    """The transforms of an image that Pillow has opened."""
    return v2.Compose([v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip(), *finish(recipe)])


class Finished:
    """Makes (image, landmarks, label) of bytes; for threads, and for workers, which pickle it."""

    def __init__(self, kind: str, recipe: str) -> None:
        self.kind = kind
        self.transforms = v2.Compose(finish(recipe))

    def __call__(self, image: Any, landmarks: Any, label: Any) -> tuple[Any, Any, int]:
        """The sample."""
        points = np.frombuffer(landmarks, np.float32).reshape(5, 2) if isinstance(landmarks, bytes) else landmarks
        return self.transforms(Image.fromarray(picture(image, self.kind))), np.array(points), int(label)
