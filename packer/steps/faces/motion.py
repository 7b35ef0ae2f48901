"""The motion of a face's texture from frame to frame, by optical flow, and the steady position that follows from it."""

from collections.abc import Mapping
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from packer.vision.geometry.affine import apply, invert
from packer.vision.geometry.crop import bilinear, crop_matrix

REACH = 3
"""Number of sampled frames before and after a frame whose positions of the face are carried to it."""

AGREEMENT = 0.05
"""Largest distance of positions that agree, relative to the side of the box."""

_SIDE, _MARGIN = 112, 0.25  # of the patch that holds the face
_INNER = 0.35  # reach of the points around the centre of the box, relative to its side: no background
_ROWS = 8  # of points
_WINDOW, _LEVELS = 11, 2  # of the search; the face may move by a third of its side
_RETURNS_PX = 0.5  # distance from where a point started to where the flow back from its target ends
_LEAST = 1 / 3  # of the points

Vector = npt.NDArray[np.float64]


class Texture(NamedTuple):
    """A face as one frame shows it.

    Attributes
    ----------
    patch : ndarray, (112, 112), uint8
        Grey crop around the box.
    matrix : ndarray, (2, 3)
        From the frame to the patch.
    """

    patch: npt.NDArray[np.uint8]
    matrix: npt.NDArray[np.float64]


def make_texture(image: npt.NDArray[np.uint8], box: Vector) -> Texture | None:
    """Cut the texture out of an image, (H, W, 3); None if the box cannot be cut."""
    try:
        matrix = crop_matrix(box, _MARGIN, _SIDE)
    except ValueError:
        return None
    return Texture(np.asarray(cv2.cvtColor(bilinear(image, matrix, _SIDE), cv2.COLOR_RGB2GRAY), np.uint8), matrix)


def _points() -> npt.NDArray[np.float32]:
    reach = _INNER * _SIDE / (1 + 2 * _MARGIN)
    line = np.linspace(_SIDE / 2 - reach, _SIDE / 2 + reach, _ROWS)
    return np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 1, 2).astype(np.float32)


_POINTS = _points()


def shift(before: Texture, after: Texture) -> Vector | None:
    """Return by how much a face moved between two frames, (2,), in pixels of the frame; None if it is not certain.

    This is the median over points of the face that lead back to their start if they are followed in reverse.
    """
    there, found = _flow(before.patch, after.patch, _POINTS)
    back, returned = _flow(after.patch, before.patch, there)
    good = found & returned & (np.abs(back - _POINTS).max(axis=(1, 2)) < _RETURNS_PX)
    if good.sum() < _LEAST * len(_POINTS):
        return None
    start = apply(invert(before.matrix), _POINTS[good, 0] + 0.5)  # OpenCV counts the centre of a pixel as whole
    end = apply(invert(after.matrix), there[good, 0] + 0.5)
    return np.asarray(np.median(end - start, axis=0), np.float64)


def _flow(
    before: npt.NDArray[np.uint8], after: npt.NDArray[np.uint8], points: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Return where points, (n, 1, 2), are in the other patch, and which were found there, (n,)."""
    where, found, _ = cv2.calcOpticalFlowPyrLK(
        before, after, points, points.copy(), winSize=(_WINDOW, _WINDOW), maxLevel=_LEVELS
    )
    return np.asarray(where, np.float32), found.ravel().astype(np.bool_)


class FacePath:
    """The way of one face through a video, as its texture moves. It is broken where the motion is not certain."""

    def __init__(self) -> None:
        self._last: tuple[Texture, Vector] | None = None  # the texture, and its box
        self._places: dict[int, tuple[int, Vector]] = {}  # by frame: number of the unbroken piece, and where in it
        self._latest: tuple[int, Vector] = (0, np.zeros(2))

    def add(self, number: int, image: npt.NDArray[np.uint8], box: Vector | None) -> None:
        """Follow the face into the next frame. Without a box, it is looked for where it was before."""
        before, last_box = self._last or (None, None)
        near = last_box if box is None else box
        if near is None:
            return
        texture = make_texture(image, near)
        moved = None if texture is None or before is None else shift(before, texture)
        piece, place = self._latest
        self._latest = (piece + 1, np.zeros(2)) if moved is None else (piece, place + moved)
        self._places[number] = self._latest
        if box is None and moved is not None:
            near = near + np.tile(moved, 2)
        self._last = None if texture is None else (texture, near)

    def forget(self, number: int) -> None:
        """Drop the frames before this one."""
        for old in [known for known in self._places if known < number]:
            del self._places[old]

    def moves_to(self, number: int) -> dict[int, Vector]:
        """Return how far the face moved to a frame, (2,), from each frame within `REACH` on an unbroken path."""
        if number not in self._places:
            return {}
        piece, here = self._places[number]
        near = {k: self._places[k] for k in range(number - REACH, number + REACH + 1) if k in self._places}
        return {k: here - place for k, (other, place) in near.items() if other == piece}


def steady_centre(number: int, own: Vector, carried: Mapping[int, Vector], side: float) -> Vector:
    """Return the steady centre of a face: the median of the centres that were carried to the frame.

    If the frame's own centre is far from the median, either its points are wrong or the motion is. It is replaced only
    if the centres from before and those from after the frame agree with the median.

    Parameters
    ----------
    number : int
        Number of the frame.
    own : ndarray, (2,)
        Centre in this frame, found or interpolated.
    carried : mapping of int to ndarray
        Centre of the face in each frame in which it was found, moved as the face moved (`FacePath.moves_to`).
    side : float
        Side of the box in this frame.
    """
    if not carried:
        return own
    median = np.median(list(carried.values()), axis=0)

    def agree(*centres: Vector) -> bool:
        return bool(centres) and float(np.hypot(*(np.median(centres, axis=0) - median))) <= AGREEMENT * side

    before = [centre for k, centre in carried.items() if k < number]
    after = [centre for k, centre in carried.items() if k > number]
    return np.asarray(median, np.float64) if agree(own) or (agree(*before) and agree(*after)) else own
