"""Hard cuts in a video, found by comparing each sampled frame with the one before it."""

from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

RULES = ((0.5, 0.93), (0.8, 0.6))
"""There is a cut if the likeness and the shared part of the colours are both below the numbers of one of these pairs.

The first pair finds another shot of the same place, the second one a scene whose light and dark areas happen to be
alike. Measured, likeness and shared colours:

==============================================================  ==========================  ===================
frames of a 1080p street scene, 1, 10 and 25 frames apart       at least 0.97, 0.78, 0.71   at least 0.93
the same scene seen by a camera that turns by 5, 10 % a frame   0.67, 0.50                  0.98, 0.95
two different cutouts of the same frame, 15 pairs               at most 0.59                at most 0.92
two of nine unrelated photographs and frames, 36 pairs          at most 0.64                at most 0.75
==============================================================  ==========================  ===================

A flash or a fade changes the colours and leaves the likeness near 1. Frames of one brightness, such as a white flash, are
left out of the comparison (`packer.steps.faces.tracks`).
"""

_ACROSS, _DOWN = 16, 9
_SAMPLES = 128  # pixels of a row that are read: 0.1 ms for a frame of any size
_LEVELS = 4  # of each of red, green and blue


class Thumbnail(NamedTuple):
    """Reduced frame, which is compared with its neighbours.

    Attributes
    ----------
    light : ndarray, (144,), float32
        Brightness of 16 x 9 areas, less its mean, divided by its norm; zeros if all areas are equal.
    colours : ndarray, (64,), float32
        Share of the pixels that were read with each of 4 x 4 x 4 colours.
    """

    light: npt.NDArray[np.float32]
    colours: npt.NDArray[np.float32]


def make_thumbnail(frame: npt.NDArray[np.uint8]) -> Thumbnail:
    """Reduce a frame, (H, W, 3), to its thumbnail."""
    step = max(1, frame.shape[1] // _SAMPLES)
    pixels = np.ascontiguousarray(frame[::step, ::step])
    areas = cv2.resize(pixels, (_ACROSS, _DOWN), interpolation=cv2.INTER_AREA)
    light = areas.mean(axis=2, dtype=np.float64).ravel()
    light -= light.mean()
    norm = float(np.sqrt(np.square(light).sum()))
    colours = cv2.calcHist([pixels], [0, 1, 2], None, [_LEVELS] * 3, [0, 256] * 3).ravel() * 3 / pixels.size
    return Thumbnail((light / norm if norm else light).astype(np.float32), colours.astype(np.float32))


def is_cut(before: Thumbnail, after: Thumbnail) -> bool:
    """Return whether two neighbouring frames show different scenes, by `RULES`.

    The likeness is the correlation of the brightness; the shared part of the colours is the intersection of the
    histograms. Two frames of one brightness each are alike.
    """
    flat = not before.light.any() and not after.light.any()
    likeness = 1.0 if flat else float(before.light @ after.light)
    shared = float(np.minimum(before.colours, after.colours).sum())
    return any(likeness < least and shared < colours for least, colours in RULES)
