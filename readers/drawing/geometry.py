"""Convert the geometry of a sample to coloured shapes, without a library that draws."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardspec.points import REGIONS, layout_of

Points = npt.NDArray[np.float64]

GEOMETRY: Mapping[str, tuple[int, ...]] = {
    "landmarks": (-1, 2),
    "hull": (-1, 2),
    "regions": (len(REGIONS), 4),
    "boxes": (-1, 4),
}
"""Shape of each field that is drawn, in pixels of the image; -1 stands for any size."""

RIGHT, LEFT, MIDDLE = (255, 80, 80), (90, 170, 255), (255, 225, 80)
"""RGB of points on the person's right, on the person's left, and on the midline."""
HULL = (90, 255, 130)
REGION_COLOURS = {"left_eye": LEFT, "right_eye": RIGHT, "nose": MIDDLE, "mouth": (255, 140, 255)}
"""RGB of each region's box."""
COLOURS = {
    "right": RIGHT,
    "left": LEFT,
    "middle": MIDDLE,
    "hull": HULL,
    "box": (255, 255, 255),
    **REGION_COLOURS,
}
"""RGB of each kind of `Shape`."""
MASKS = ((255, 60, 180), (60, 220, 255), (255, 200, 0), (120, 255, 60), (160, 110, 255), (255, 120, 60), (0, 200, 150))
"""RGB of the values 1, 2, … of a mask, used again from the start for larger ones. The value 0 is not drawn."""

_FAR = 1e6
"""Coordinates beyond this number of pixels are not drawn."""


class Shape(NamedTuple):
    """Points, or a closed polygon.

    Attributes
    ----------
    layer : {"points", "outline", "regions", "boxes"}
        Group that pages can show and hide.
    kind : str
        A key of `COLOURS`: ``"right"``, ``"left"`` (the person's) or ``"middle"`` for points, ``"hull"``, ``"box"``, or
        the name of a region.
    points : ndarray, (N, 2)
        In pixels of the image.
    """

    layer: str
    kind: str
    points: Points

    @property
    def path(self) -> str:
        """Data of an SVG path. Points are lines of length 0, which are drawn with round caps."""
        found = [f"{x:.2f} {y:.2f}" for x, y in self.points.tolist()]
        return "".join(f"M{point}h0" for point in found) if self.layer == "points" else f"M{'L'.join(found)}Z"


def shapes_of(sample: Mapping[str, Any]) -> list[Shape]:
    """Return the shapes of a sample's fields in `GEOMETRY`; only the boxes if ``landmarks_valid`` is false.

    Fields of another shape are left out, and so are coordinates that are not finite or far outside of any image.
    """
    found: dict[str, Points] = {}
    for name in GEOMETRY if is_valid(sample) else ("boxes",):
        value = sample.get(name)
        if value is not None and np.asarray(value).dtype.kind in "iuf" and is_geometry(name, value):
            found[name] = np.asarray(value, np.float64)
    boxes = found.get("boxes", np.zeros((0, 4)))
    shapes = [Shape("boxes", "box", _corners(box)) for box in boxes[_drawable(boxes)]]
    regions, hull = found.get("regions"), found.get("hull")
    if regions is not None and _drawable(regions).all():
        shapes += [Shape("regions", name, _corners(box)) for name, box in zip(REGIONS, regions, strict=True)]
    if hull is not None and len(hull) > 1 and _drawable(hull).all():
        shapes.append(Shape("outline", "hull", hull))
    return [*shapes, *_landmarks(found.get("landmarks", np.zeros((0, 2))))]


def is_valid(sample: Mapping[str, Any]) -> bool:
    """Return whether a sample's landmarks are valid."""
    return bool(np.all(sample.get("landmarks_valid", True)))


def _landmarks(landmarks: Points) -> Iterator[Shape]:
    kinds = np.full(len(landmarks), "middle")
    try:
        right, left = np.array(layout_of(len(landmarks)).pairs).T
        kinds[right], kinds[left] = "right", "left"
    except ValueError:  # a custom layout
        pass
    for kind in ("middle", "right", "left"):
        some = landmarks[(kinds == kind) & _drawable(landmarks)]
        if len(some):
            yield Shape("points", kind, some)


def _corners(box: Points) -> Points:
    left, top, right, bottom = box
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)])


def _drawable(values: Points) -> npt.NDArray[np.bool_]:
    """Return which rows have coordinates that can be drawn."""
    return np.asarray(np.all(np.abs(values) < _FAR, axis=1), np.bool_)  # false for NaN


def is_geometry(name: str, value: Any) -> bool:
    """Return whether a value has the shape in `GEOMETRY`. A value of another shape is a custom field."""
    shape, wanted = np.shape(value), GEOMETRY[name]
    return len(shape) == len(wanted) and all(size in (-1, found) for size, found in zip(wanted, shape, strict=True))


def of_frame(name: str, value: Any, t: int, length: int) -> Any:
    """Return the value of frame `t` of a clip, for a field with one value per frame or one for all frames."""
    if name == "landmarks_valid":
        return value if np.ndim(value) == 0 or len(value) != length else value[t]
    several = np.ndim(value) and len(value) == length and not is_geometry(name, value) and is_geometry(name, value[t])
    return value[t] if several else value
