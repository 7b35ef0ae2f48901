"""Check on the pixels that two images look the same, so that flat and dark images and similar scenes do not pair."""

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from packer.analysis.duplicates.search import Pairs
from packer.analysis.measures.hash import PART
from packer.analysis.measures.pixels import scaled
from shardspec.columns import IntArray

SIDE = 64
"""Side of the luma that is compared, in pixels."""
WITHIN = 0.06
"""Largest distance of two images that look the same: 1 minus the correlation of their luma, at its best place."""

_FLAT = 1.0
"""Least standard deviation of the luma of an image with structure."""
_STRUCTURE = 8.0
"""Least standard deviation of a part's luma. Plain parts, such as a sky, resemble each other."""
_SCALES = (1.0, 0.975, 0.95, 0.925, 0.9)
"""Share of one image's sides that the other one may show."""
_BATCH = 64


def thumbnails(dataset: Any, rows: IntArray) -> npt.NDArray[np.uint8]:
    """Return the luma of some images of a dataset of readers, (n, `SIDE`, `SIDE`)."""
    found = np.empty((len(rows), SIDE, SIDE), np.uint8)
    for start in range(0, len(rows), _BATCH):
        images = dataset.read_batch(rows[start : start + _BATCH])["image"]
        for place, image in enumerate(images, start):
            found[place] = scaled(cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2GRAY), (SIDE, SIDE))
    return found


def distance(one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8], within: float = 0.0) -> float:
    """Return 1 minus the correlation of two images, 0 to 2, at the scale and place at which they fit best.

    One of them may be the other without up to a tenth of its sides, or both may share their upper or lower three quarters,
    as with a caption. Brightness and contrast do not count.

    Parameters
    ----------
    within : float
        Do not look for a better fit than this.
    """
    best = 2.0
    if min(one.std(), other.std()) < _FLAT:  # noise correlates with nothing, and OpenCV returns 1 for flat images
        return best
    for scale in _SCALES:
        side = round(SIDE * scale)
        for whole, part in ((one, other), (other, one)):
            template = part if side == SIDE else scaled(part, (side, side))
            found = cv2.matchTemplate(whole, template, cv2.TM_CCOEFF_NORMED)
            best = min(best, 1 - float(found.max()))
            if scale == 1.0:
                break
        if best <= within / 2:
            return max(0.0, best)
    high = round(PART * SIDE)
    for rows in (slice(high), slice(-high, None)):
        if min(one[rows].std(), other[rows].std()) >= _STRUCTURE:
            found = cv2.matchTemplate(one[rows], other[rows], cv2.TM_CCOEFF_NORMED)
            best = min(best, 1 - float(found.max()))
    return max(0.0, best)


def keep_alike(pairs: tuple[IntArray, IntArray], luma: npt.NDArray[np.uint8], rows: IntArray, within: float) -> Pairs:
    """Return the pairs of rows that look the same.

    Parameters
    ----------
    luma : (m, SIDE, SIDE)
        Of `rows`, ascending.
    """
    ones, others = pairs
    places = zip(np.searchsorted(rows, ones).tolist(), np.searchsorted(rows, others).tolist(), strict=True)
    distances = np.fromiter((distance(luma[a], luma[b], within) for a, b in places), np.float32, len(ones))
    alike = distances <= within
    return Pairs(ones[alike], others[alike], distances[alike])
