"""Paint over half of the face, or over everything else, along the convex hull of the face."""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from readers.augment.base import Sample, get_field
from readers.augment.paint import Fill, Painter, Painting
from shardspec.errors import UsageError
from shardspec.wording import shorten

HALVES = ("left", "right", "top", "bottom")
"""Halves of the hull as the viewer sees them."""

_SUBPIXEL = 4  # fractional bits of OpenCV's drawing coordinates
_FARTHEST = 2.0**15  # pixels: drawing farther away would overflow OpenCV's integers


class BlackoutHull(Painting[str]):
    """Paint over one half of the convex hull of the face: left, right, top or bottom of its centroid.

    The winners of the DeepFake Detection Challenge did this to keep a network from relying on one part of the face.
    Samples and frames whose ``landmarks_valid`` is false, or whose hull has no area, stay unchanged.

    Parameters
    ----------
    halves : sequence of str
        Halves to draw from: ``"left"``, ``"right"``, ``"top"``, ``"bottom"`` as the viewer sees them.
    p, fill, fill_mask, masks
        Probability of painting; colour of painted pixels, 0 to 255, in the image and in masks (None leaves masks
        unchanged); fields that count as masks (None: those named ``mask``, ``*_mask`` or ``*_image``, of the image's
        size).
    """

    def __init__(
        self,
        halves: Sequence[str] = HALVES,
        p: float = 0.3,
        fill: Fill = 0,
        fill_mask: int | None = None,
        masks: Sequence[str] | None = None,
    ) -> None:
        super().__init__(p, fill, fill_mask, masks)
        if isinstance(halves, str) or not halves or not set(halves) <= set(HALVES):
            raise UsageError(place="BlackoutHull", expected=f"halves among {', '.join(HALVES)}", found=shorten(halves))
        self.halves = tuple(halves)

    def draw(self, sample: Sample, rng: np.random.Generator) -> str:
        """Draw the half to paint over."""
        return self.halves[int(rng.integers(len(self.halves)))]

    def painter(self, sample: Sample, params: str) -> Painter:
        """Return the function that paints the half."""
        polygons = _convex(get_field(sample, "hull", "BlackoutHull"))

        def paint(image: npt.NDArray[Any], at: int, fill: Fill) -> None:
            moments = cv2.moments(polygons[at])
            if moments["m00"] <= 0:
                return
            height, width = image.shape[:2]
            x = min(max(round(moments["m10"] / moments["m00"]), 0), width)
            y = min(max(round(moments["m01"] / moments["m00"]), 0), height)
            if params in ("left", "top"):
                half, corner = image[: y if params == "top" else height, : x if params == "left" else width], (0, 0)
            elif params == "right":
                half, corner = image[:, x:], (x, 0)
            else:
                half, corner = image[y:], (0, y)
            _fill_polygon(half, polygons[at] - np.array(corner, np.float32), fill)

        return paint


class KeepHull(Painting[None]):
    """Paint over everything outside the convex hull of the face.

    Samples and frames whose ``landmarks_valid`` is false stay unchanged.

    Parameters
    ----------
    p, fill, fill_mask, masks
        Probability of painting; colour of painted pixels, 0 to 255, in the image and in masks (None leaves masks
        unchanged); fields that count as masks (None: those named ``mask``, ``*_mask`` or ``*_image``, of the image's
        size).
    """

    def painter(self, sample: Sample, params: None) -> Painter:
        """Return the function that paints outside the hull."""
        polygons = _convex(get_field(sample, "hull", "KeepHull"))

        def paint(image: npt.NDArray[Any], at: int, fill: Fill) -> None:
            outside = np.full(image.shape[:2], 255, np.uint8)
            _fill_polygon(outside, polygons[at], 0)
            image[outside > 0] = fill

        return paint


def _convex(hulls: npt.NDArray[Any]) -> list[npt.NDArray[np.float32]]:
    points = hulls.reshape(-1, *hulls.shape[-2:]).astype(np.float32, copy=False)
    return [np.asarray(cv2.convexHull(frame), np.float32).reshape(-1, 2) for frame in points]


def _fill_polygon(image: npt.NDArray[Any], polygon: npt.NDArray[np.float32], fill: Fill) -> None:
    """Set the pixels of an image (H, W, ...) inside a convex polygon and on its edge, exact to half a pixel."""
    if not image.size:
        return
    centred = np.clip(
        polygon - np.float32(0.5), -_FARTHEST, _FARTHEST
    )  # integer coordinates of OpenCV are pixel centres
    fixed = np.rint(centred * np.float32(1 << _SUBPIXEL)).astype(np.int32)
    if image.dtype == np.uint8 and (image.ndim == 2 or image.shape[2] <= 4):
        colour = fill if isinstance(fill, tuple) else (fill,) * 4
        cv2.fillConvexPoly(image, fixed, colour, shift=_SUBPIXEL)
        return
    inside = np.zeros(image.shape[:2], np.uint8)
    cv2.fillConvexPoly(inside, fixed, 1, shift=_SUBPIXEL)
    image[inside > 0] = fill
