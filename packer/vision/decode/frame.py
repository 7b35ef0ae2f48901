"""One decoded frame as RGB pixels, with exactly the values that OpenCV's ``VideoCapture`` gives."""

import struct
from typing import Any, cast

import cv2
import numpy as np
import numpy.typing as npt
from av.sidedata.sidedata import Type as SideDataType
from av.video.frame import VideoFrame as LibavFrame
from av.video.reformatter import Interpolation, VideoReformatter

from packer.vision.decode.limits import check_size
from packer.vision.decode.orientation import UPRIGHT, orient

_MATRIX = struct.Struct("=9i")  # libavutil/display.h: a b u c d v x y w, in 16.16 and 2.30 fixed point
_ORIENTATIONS = {
    # signs of (a, d) if the axes stay, of (b, c) if they are exchanged -> EXIF orientation
    ("axes", 1, 1): 1,
    ("axes", -1, 1): 2,
    ("axes", -1, -1): 3,
    ("axes", 1, -1): 4,
    ("exchanged", 1, 1): 5,
    ("exchanged", 1, -1): 6,
    ("exchanged", -1, -1): 7,
    ("exchanged", -1, 1): 8,
}


class RgbConverter:
    """Converts the frames of one video; keeps libswscale's context between them. For one thread.

    Parameters
    ----------
    max_pixels : int
        Largest width times height; checked for each frame, since a stream may change its size on the way.
    """

    def __init__(self, max_pixels: int) -> None:
        self._max_pixels = max_pixels
        self._reformatter = VideoReformatter()
        self._to_thumbnail = VideoReformatter()

    def __call__(self, frame: LibavFrame) -> npt.NDArray[np.uint8]:
        """Convert a frame and turn it upright.

        libswscale gets the same settings as from OpenCV 5: bicubic chroma, the frame's own matrix and range, and BGR
        output, because its code for BGR rounds differently from that for RGB (10-bit and odd-sized frames).

        Returns
        -------
        ndarray, (H, W, 3), uint8, C-contiguous
        """
        check_size(frame.width, frame.height, self._max_pixels)
        bgr = self._reformatter.reformat(frame, format="bgr24", interpolation=Interpolation.BICUBIC, threads=1)
        plane = bgr.planes[0]
        rows = np.frombuffer(cast("memoryview[int]", plane), np.uint8).reshape(-1, plane.line_size)[
            : bgr.height, : 3 * bgr.width
        ]
        pixels = rows.reshape(bgr.height, bgr.width, 3)
        # In PyAV a frame and its side data refer to each other, so a frame whose side data was read stays until a
        # garbage collection. The decoder would get its memory back at a time that depends on everything else the
        # process has
        # done.
        thumbnail = self._to_thumbnail.reformat(bgr, 8, 8, "rgb24", interpolation=Interpolation.POINT, threads=1)
        return orient(np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), np.uint8), orientation(thumbnail))


def orientation(frame: LibavFrame) -> int:
    """How a frame is to be turned for display, as an EXIF orientation, to the nearest quarter turn."""
    side_data = frame.side_data.get("DISPLAYMATRIX")
    if side_data is None:
        return UPRIGHT
    a, b, _, c, d, *_ = _MATRIX.unpack_from(cast("memoryview[int]", side_data))
    if abs(a) + abs(d) >= abs(b) + abs(c):
        return _ORIENTATIONS["axes", _sign(a), _sign(d)]
    return _ORIENTATIONS["exchanged", _sign(b), _sign(c)]


def _unnamed(kind: type[SideDataType], value: object) -> Any:
    member: Any = object.__new__(kind)
    member._name_, member._value_ = f"UNNAMED_{value}", value
    return member


# PyAV reads a frame's side data as a whole, and fails at a kind of a newer FFmpeg that it has no name for (EXIF).
SideDataType._missing_ = classmethod(_unnamed)  # type: ignore[assignment,method-assign]  # what enum asks for


def _sign(value: int) -> int:
    return -1 if value < 0 else 1
