"""The fields of a sample that are drawn, and their colours. Needs no library that draws."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from shardspec.points import REGIONS

GEOMETRY: Mapping[str, tuple[int, ...]] = {
    "landmarks": (-1, 2),
    "hull": (-1, 2),
    "regions": (len(REGIONS), 4),
    "boxes": (-1, 4),
}
"""Fields that are drawn, in pixels of the picture, and their shapes; -1 stands for any size."""

RIGHT, LEFT, MIDDLE = (255, 80, 80), (90, 170, 255), (255, 225, 80)
"""RGB of points on the person's right, on the left, and on the midline."""
HULL = (90, 255, 130)
REGION_COLOURS = {"left_eye": LEFT, "right_eye": RIGHT, "nose": MIDDLE, "mouth": (255, 140, 255)}
"""RGB of each region's box."""
COLOURS = {
    "right": RIGHT,
    "left": LEFT,
    "middle": MIDDLE,
    "hull": HULL,
    **REGION_COLOURS,
}
"""RGB of each kind of shape (`readers.drawing.svg.Shape`)."""
BOX = (255, 255, 255)
MASKS = ((255, 60, 180), (60, 220, 255), (255, 200, 0), (120, 255, 60), (160, 110, 255), (255, 120, 60), (0, 200, 150))
"""RGB of the values of a mask, from 1 on, over and over; 0 is not drawn."""


def is_geometry(name: str, value: Any) -> bool:
    """Return whether a value has the shape of the field of `GEOMETRY` with that name.

    Others are a user's own fields.
    """
    shape, wanted = np.shape(value), GEOMETRY[name]
    return len(shape) == len(wanted) and all(size in (-1, found) for size, found in zip(wanted, shape, strict=True))


def of_frame(name: str, value: Any, t: int, length: int) -> Any:
    """A frame's value of a field that may have one for each frame."""
    if name == "landmarks_valid":
        return value if np.ndim(value) == 0 or len(value) != length else value[t]
    several = np.ndim(value) and len(value) == length and not is_geometry(name, value) and is_geometry(name, value[t])
    return value[t] if several else value
