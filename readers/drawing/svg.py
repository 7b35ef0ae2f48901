"""A face's geometry as SVG, to be laid over the stored picture, whose bytes stay as they are."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardspec.points import REGIONS, layout_of

Points = npt.NDArray[np.float64]

_FAR = 1e6
"""Pixels: coordinates beyond it are not drawn."""


class Shape(NamedTuple):
    """One path of an overlay.

    Attributes
    ----------
    layer : {"points", "outline", "regions"}
        What it belongs to, to be switched on and off.
    kind : str
        What it shows: ``"right"``, ``"left"`` (the person's) or ``"middle"`` points, ``"hull"``, or a region's name.
    path : str
        The path's data, in pixels of the picture. Points are lines of no length, to be drawn with round caps.
    """

    layer: str
    kind: str
    path: str


def overlay(sample: Mapping[str, Any]) -> list[Shape]:
    """The shapes of a sample's ``landmarks``, ``hull`` and ``regions``, where they have the shape of these fields.

    Empty if ``landmarks_valid`` is false. Coordinates that are not finite, or far outside of any picture, are left out.
    """
    if not np.all(sample.get("landmarks_valid", True)):
        return []
    shapes = []
    regions, hull, landmarks = (_array(sample.get(name)) for name in ("regions", "hull", "landmarks"))
    if regions is not None and regions.shape == (len(REGIONS), 4) and _drawable(regions).all():
        for name, (left, top, right, bottom) in zip(REGIONS, regions.tolist(), strict=True):
            shapes.append(Shape("regions", name, f"M{left:.2f} {top:.2f}H{right:.2f}V{bottom:.2f}H{left:.2f}Z"))
    if hull is not None and _are_points(hull) and len(hull) > 1 and _drawable(hull).all():
        shapes.append(Shape("outline", "hull", "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in hull.tolist()) + "Z"))
    if landmarks is not None and _are_points(landmarks):
        shapes += _points(landmarks)
    return shapes


def _points(landmarks: Points) -> Iterator[Shape]:
    kinds = np.full(len(landmarks), "middle")
    try:
        right, left = np.array(layout_of(len(landmarks)).pairs).T
        kinds[right], kinds[left] = "right", "left"
    except ValueError:  # a layout of the user's own
        pass
    drawable = _drawable(landmarks)
    for kind in ("middle", "right", "left"):
        some = landmarks[(kinds == kind) & drawable].tolist()
        if some:
            yield Shape("points", kind, "".join(f"M{x:.2f} {y:.2f}h0" for x, y in some))


def _array(value: Any) -> Points | None:
    return None if value is None or np.asarray(value).dtype.kind not in "iuf" else np.asarray(value, np.float64)


def _are_points(value: Points) -> bool:
    return value.ndim == 2 and value.shape[1] == 2


def _drawable(values: Points) -> npt.NDArray[np.bool_]:
    """Return which rows have coordinates that can be drawn."""
    return np.asarray(np.all(np.abs(values) < _FAR, axis=1), np.bool_)  # false for NaN
