"""A perceptual hash of 64 bits, which differs in few bits between images that look alike."""

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from packer.analysis.measures.pixels import Pixels, pixels_of, scaled

SIDE = 32
BITS = 64
_LOW = 8
_CROPS = (0.0, 0.025, 0.05)
WHOLE = len(_CROPS)
"""Number of the first hashes, which are of the whole image and its inner part. The others are of its upper and lower part."""
PART = 0.75
"""Share of the height in the upper and in the lower part."""
_HASHES = WHOLE + 2
FLAT = 2.0
"""Least standard deviation of luma. A flatter image has no hash, because noise would decide its bits."""


class PerceptualHash:
    """Compute ``hash``, five 64-bit hashes of each image, and mask them for images without structure.

    An image's luma is averaged to 64 x 64, then to 32 x 32. Each bit tells whether one of the 8 x 8 lowest frequencies of its cosine
    transform, without the constant ones, is above their median (Zauner 2010, as in pHash). The second and third hash are
    of the image without 2.5 % and 5 % at each side, so that a cropped copy has a hash in common with its original. The
    fourth and fifth are of the upper and of the lower three quarters, which a copy with a caption has in common with its
    original. Of a part without structure, it is the first hash.
    """

    version = "2"

    def __call__(self, image: Any) -> dict[str, Any]:
        """Hash each image of a batch."""
        parts = [_parts(one) for one in pixels_of(image)]
        flat = np.array([one is None for one in parts], np.bool_)
        nothing = np.zeros((_HASHES, SIDE, SIDE), np.float32)
        found = hashes_of(np.stack([nothing, *(nothing if one is None else one for one in parts)]))[1:]
        return {"hash": np.ma.MaskedArray(found, np.repeat(flat[:, None], _HASHES, axis=1))}


def _parts(image: Pixels) -> npt.NDArray[np.float32] | None:
    """Return the luma of the parts to hash, (`_HASHES`, `SIDE`, `SIDE`); None for an image without structure."""
    small = scaled(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), (2 * SIDE, 2 * SIDE))
    if _is_flat(small):
        return None
    whole = [_inner(small, crop) for crop in _CROPS]
    high = round(PART * len(small))
    parts = (
        whole[0] if _is_flat(part) else scaled(part, (SIDE, SIDE)).astype(np.float32)
        for part in (small[:high], small[-high:])
    )
    return np.stack([*whole, *parts])


def _is_flat(luma: npt.NDArray[np.uint8]) -> bool:
    return float(cv2.meanStdDev(luma)[1][0, 0]) < FLAT


def _inner(luma: npt.NDArray[np.uint8], crop: float) -> npt.NDArray[np.float32]:
    """Return an image without a share of each side, at half the size: (2 SIDE, 2 SIDE) to (SIDE, SIDE)."""
    step = 2 * (1 - 2 * crop)
    first = 2 * SIDE * crop + (step - 1) / 2  # the centre of a pixel is a whole number
    matrix = np.array([[step, 0, first], [0, step, first]])
    how = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    part = cv2.warpAffine(luma, matrix, (SIDE, SIDE), flags=how, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(part, np.float32)


_COSINES = cv2.dct(np.eye(SIDE, dtype=np.float32), flags=cv2.DCT_ROWS).T[1 : _LOW + 1]


def hashes_of(luma: npt.NDArray[np.float32]) -> npt.NDArray[np.uint64]:
    """Return the hashes of luma, (..., SIDE, SIDE)."""
    low = (_COSINES @ luma @ _COSINES.T).reshape(*luma.shape[:-2], BITS)
    median = np.partition(low, BITS // 2 - 1, axis=-1)[..., BITS // 2 - 1, None]
    return np.packbits(low > median, axis=-1).view(">u8")[..., 0].astype(np.uint64)
