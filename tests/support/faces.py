"""A face sample of a real portrait, and ways to see where a transform has put things."""

from functools import cache
from typing import Any

import numpy as np
import skimage.data

from shardspec.points import LAYOUTS, hull_size

SIZE = 224


@cache
def portrait() -> np.ndarray:
    """The astronaut's face, (224, 224, 3)."""
    return np.ascontiguousarray(skimage.data.astronaut()[20 : 20 + SIZE, 110 : 110 + SIZE])


def face_sample(layout: str = "5", seed: int = 0, frames: int | None = None) -> dict[str, Any]:
    """Fields as the faces preset stores them. Points are placed at random, well inside; `frames` makes a clip of it."""
    rng = np.random.default_rng(seed)
    photo = portrait()
    angle = np.linspace(0, 2 * np.pi, hull_size(layout), endpoint=False)
    sample: dict[str, Any] = {
        "image": photo,
        "label": np.int64(1),
        "key": "00000000-000000",
        "landmarks": rng.uniform(60, 160, (LAYOUTS[layout].count, 2)).astype(np.float32),
        "landmarks_valid": np.True_,
        "hull": (110 + np.stack([50 * np.cos(angle), 70 * np.sin(angle)], 1)).astype(np.float32),
        "regions": np.array(
            [[120, 70, 150, 85], [70, 70, 100, 85], [90, 70, 130, 120], [80, 130, 140, 160]], np.float32
        ),
        "boxes": np.array([[10, 20, 60, 90], [100, 40, 110, 48.5], [0, 0, 224, 224]], np.float32),
        "matrix": np.array([[0.5, 0, -40.25], [0, 0.5, 12.5]], np.float32),
        "mask": (photo[..., 0] > 128).astype(np.uint8),
    }
    if frames is not None:
        for name in ("image", "landmarks", "landmarks_valid", "hull", "regions", "boxes", "matrix", "mask"):
            sample[name] = np.stack([sample[name]] * frames)
    for value in sample.values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False  # a transform that writes into its input fails at once
    return sample


def in_frame(sample: dict[str, Any], points: np.ndarray) -> np.ndarray:
    """Points of the crop, mapped back into the frame by its matrix."""
    matrix = sample["matrix"].astype(np.float64)
    return (points - matrix[:, 2]) @ np.linalg.inv(matrix[:, :2]).T


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Assert that two samples are equal, value by value and type by type."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray | np.generic):
            assert found[name].dtype == value.dtype, name
            assert np.array_equal(found[name], value), name
        else:
            assert found[name] == value, name
