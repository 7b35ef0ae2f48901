"""A step of one's own that hands out raw crops: each item stands for some rows of an array."""

from collections.abc import Iterator
from typing import Any

import numpy as np

ITEM_CROPS = 50


def hand_out(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The crops of an item, whose path is that of the array, and whose column `first` the first of its rows."""
    for sample in samples:
        pixels = np.load(sample["_item"].path, mmap_mode="r")
        first = sample["first"]
        for row in range(first, min(first + ITEM_CROPS, len(pixels))):
            yield {"image": np.array(pixels[row]), "label": row}
