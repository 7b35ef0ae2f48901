"""Small datasets of pieces of a real photo."""

from pathlib import Path

import numpy as np
import skimage.data

from shardspec.schema import Schema
from support.datasets import fixed, picture, text, write_dataset


def astronaut_crops(count: int, size: int, seed: int = 0) -> list[np.ndarray]:
    """Square pieces of a real photo."""
    photo = skimage.data.astronaut()
    rng = np.random.default_rng(seed)
    corners = rng.integers(0, photo.shape[0] - size, (count, 2))
    return [np.ascontiguousarray(photo[y : y + size, x : x + size]) for y, x in corners]


def keys(count: int) -> list[str]:
    return [f"{i:08d}-000000" for i in range(count)]


def write_crops(
    root: Path, format: str, codec: str | None, count: int = 60, size: int = 48, shard_rows: int = 17, seed: int = 0
) -> Path:
    """A dataset of photo crops with key, label and landmarks."""
    image = fixed("image", "|u1", size, size, 3) if codec is None else picture("image", codec, size)
    schema = Schema(
        (text("key"), image, fixed("label", "<i8", classes=("a", "b", "c")), fixed("landmarks", "<f4", 5, 2))
    )
    crops = astronaut_crops(count, size, seed)
    columns = {
        "key": keys(count),
        "image": np.stack(crops) if codec is None else crops,
        "label": np.arange(count) % 3,
        "landmarks": np.random.default_rng(1).random((count, 5, 2), np.float32) * size,
    }
    write_dataset(root, format, schema, columns, shard_rows=shard_rows)
    return root
