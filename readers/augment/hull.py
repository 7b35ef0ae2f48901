"""Transforms by the face's outline: half of the face painted over, or everything but the face."""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from readers.augment.base import Sample, Transform, get_field
from readers.augment.paint import Fill, check_fill, paint_frames
from shardspec.errors import UsageError
from shardspec.wording import shorten

HALVES = ("left", "right", "top", "bottom")
"""Halves of the hull, in the picture's directions."""

_SUBPIXEL = 4  # fractional bits of OpenCV's drawing coordinates
_FARTHEST = 2.0**15  # pixels: drawing farther away would overflow OpenCV's integers


class BlackoutHull(Transform[str]):
    """Paints over one half of the convex hull of the face: left, right, top or bottom of its centroid.

    The winners of the DeepFake Detection Challenge did this to keep a network from relying on one part of the face. A
    sample (or frame) whose ``landmarks_valid`` is false, or whose hull has no area, stays as it is.

    Parameters
    ----------
    halves : sequence of str
        Which halves may be painted, in the picture's directions. One of them is drawn.
    p : float
    fill : int or tuple of int
    fill_mask : int or None
        Value of the masks' pixels there; None leaves masks as they are.
    masks : sequence of str or None
        See `Transform`.
    """

    def __init__(
        self,
        halves: Sequence[str] = HALVES,
        p: float = 0.3,
        fill: Fill = 0,
        fill_mask: int | None = None,
        masks: Sequence[str] | None = None,
    ) -> None:
        super().__init__(p, masks)
        if isinstance(halves, str) or not halves or not set(halves) <= set(HALVES):
            raise UsageError(f"BlackoutHull: expected halves among {', '.join(HALVES)}, found {shorten(halves)}")
        self.halves = tuple(halves)
        self.fill = check_fill(fill, "BlackoutHull")
        self.fill_mask = fill_mask

    def draw(self, sample: Sample, rng: np.random.Generator) -> str:
        """The half to paint over."""
        return self.halves[int(rng.integers(len(self.halves)))]

    def apply(self, sample: Sample, params: str) -> Sample:
        """The sample without that half of the face."""
        polygons = _convex(get_field(sample, "hull", "BlackoutHull"))

        def paint(picture: npt.NDArray[Any], at: int, fill: Fill) -> None:
            moments = cv2.moments(polygons[at])
            if moments["m00"] <= 0:
                return
            height, width = picture.shape[:2]
            x = min(max(round(moments["m10"] / moments["m00"]), 0), width)
            y = min(max(round(moments["m01"] / moments["m00"]), 0), height)
            if params in ("left", "top"):
                half, corner = picture[: y if params == "top" else height, : x if params == "left" else width], (0, 0)
            elif params == "right":
                half, corner = picture[:, x:], (x, 0)
            else:
                half, corner = picture[y:], (0, y)
            _fill_polygon(half, polygons[at] - np.array(corner, np.float32), fill)

        return paint_frames(sample, "BlackoutHull", paint, fill=self.fill, fill_mask=self.fill_mask, masks=self.masks)


class KeepHull(Transform[None]):
    """Paints over everything outside the convex hull of the face.

    A sample (or frame) whose ``landmarks_valid`` is false stays as it is.

    Parameters
    ----------
    p : float
    fill : int or tuple of int
    fill_mask : int or None
        Value of the masks' pixels there; None leaves masks as they are.
    masks : sequence of str or None
        See `Transform`.
    """

    def __init__(
        self, p: float = 0.3, fill: Fill = 0, fill_mask: int | None = None, masks: Sequence[str] | None = None
    ) -> None:
        super().__init__(p, masks)
        self.fill = check_fill(fill, "KeepHull")
        self.fill_mask = fill_mask

    def draw(self, sample: Sample, rng: np.random.Generator) -> None:
        """Nothing: there are no parameters."""

    def apply(self, sample: Sample, params: None) -> Sample:
        """The sample with nothing but the face."""
        polygons = _convex(get_field(sample, "hull", "KeepHull"))

        def paint(picture: npt.NDArray[Any], at: int, fill: Fill) -> None:
            outside = np.full(picture.shape[:2], 255, np.uint8)
            _fill_polygon(outside, polygons[at], 0)
            _set_where(picture, outside, fill)

        return paint_frames(sample, "KeepHull", paint, fill=self.fill, fill_mask=self.fill_mask, masks=self.masks)


def _convex(hulls: npt.NDArray[Any]) -> list[npt.NDArray[np.float32]]:
    """The convex hull of each frame's polygon: (n, 2)."""
    points = hulls.reshape(-1, *hulls.shape[-2:]).astype(np.float32, copy=False)
    return [np.asarray(cv2.convexHull(frame), np.float32).reshape(-1, 2) for frame in points]


def _fill_polygon(picture: npt.NDArray[Any], polygon: npt.NDArray[np.float32], fill: Fill) -> None:
    """Set the pixels of a (H, W, ...) picture within a convex polygon, its edge included: exact to half a pixel."""
    if not picture.size:
        return
    centred = np.clip(polygon - np.float32(0.5), -_FARTHEST, _FARTHEST)  # OpenCV's whole numbers are pixel centres
    fixed = np.rint(centred * np.float32(1 << _SUBPIXEL)).astype(np.int32)
    if picture.dtype == np.uint8 and (picture.ndim == 2 or picture.shape[2] <= 4):
        colour = fill if isinstance(fill, tuple) else (fill,) * 4
        cv2.fillConvexPoly(picture, fixed, colour, shift=_SUBPIXEL)
        return
    inside = np.zeros(picture.shape[:2], np.uint8)
    cv2.fillConvexPoly(inside, fixed, 1, shift=_SUBPIXEL)
    picture[inside > 0] = fill


def _set_where(picture: npt.NDArray[Any], where: npt.NDArray[np.uint8], fill: Fill) -> None:
    """Set the pixels of a (H, W, ...) picture at which a (H, W) array is not zero."""
    if fill == 0 and picture.dtype == np.uint8 and picture.ndim == 3:
        # takes a quarter of the time of indexing by a mask
        cv2.copyTo(np.zeros_like(picture), where, picture)
        return
    picture[where > 0] = fill
