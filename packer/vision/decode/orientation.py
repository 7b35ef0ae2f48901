"""Apply the eight orientations of EXIF, and of a video's display matrix, to pixels."""

from typing import Literal

import numpy as np
import numpy.typing as npt

UPRIGHT = 1  # the first row is the top, the first column the left side
_TURNED = range(2, 9)
_TRANSPOSED = 5  # and greater ones: rows and columns are exchanged, before anything is flipped
_FLIPS = {2: 1, 3: -1, 4: 0, 6: 1, 7: -1, 8: 0}  # OpenCV's codes: 0 exchanges top and bottom, 1 left and right, -1 both
_TAG = 0x0112  # "Orientation", EXIF 2.32, table 4
_SHORT, _LONG = 3, 4  # the tag's type is SHORT; some writers use LONG


def exif_orientation(exif: bytes) -> int:
    r"""Read the orientation, 1 to 8, from an EXIF block with or without the leading ``Exif\0\0``.

    A block that is absent or broken, or has no valid orientation, counts as 1.
    """
    tiff = exif.removeprefix(b"Exif\x00\x00")
    order: Literal["little", "big"] = "little" if tiff[:2] == b"II" else "big"
    if tiff[:2] not in (b"II", b"MM") or int.from_bytes(tiff[2:4], order) != 42:
        return UPRIGHT
    first = int.from_bytes(tiff[4:8], order)
    for entry in range(int.from_bytes(tiff[first : first + 2], order)):
        at = first + 2 + 12 * entry
        if at + 12 > len(tiff):
            break
        if int.from_bytes(tiff[at : at + 2], order) == _TAG:
            kind = int.from_bytes(tiff[at + 2 : at + 4], order)
            size = {_SHORT: 2, _LONG: 4}.get(kind, 0)
            value = int.from_bytes(tiff[at + 8 : at + 8 + size], order)
            return value if 1 <= value <= 8 else UPRIGHT
    return UPRIGHT


def orient(image: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    """Turn stored pixels, (H, W, 3), upright; returns the same object for orientation 1.

    Parameters
    ----------
    orientation : int
        EXIF's tag 0x0112, 1 to 8: where the stored first row and column belong (3 is half a turn, 6 is shown after a
        quarter turn clockwise, 8 after one counter-clockwise, 2, 4, 5 and 7 are mirrored). Any other value counts as 1.
    """
    if orientation not in _TURNED:
        return image
    import cv2  # here, since most images are upright

    turned = cv2.transpose(image) if orientation >= _TRANSPOSED else image
    axis = _FLIPS.get(orientation)
    return np.asarray(turned if axis is None else cv2.flip(turned, axis), np.uint8)
