"""What a JPEG's markers say about it, and the fast path of its decoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

_SOI = b"\xff\xd8"
_SOS, _EOI, _APP1, _TEM = 0xDA, 0xD9, 0xE1, 0x01
_STANDALONE = frozenset({_TEM, *range(0xD0, 0xD9)})  # markers without a length: TEM, RST0 to RST7, SOI
_FRAME_HEADERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0 to SOF15 (C4 DHT, C8 JPG, CC DAC are none)
_BASELINE, _PROGRESSIVE = 0xC0, 0xC2
_EXIF = b"Exif\x00\x00"


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """The frame header (ITU-T T.81, B.2.2) and the EXIF block of a JPEG's first picture.

    Attributes
    ----------
    frame_marker : int
        Second byte of the SOF marker: 0xC0 baseline, 0xC2 progressive.
    precision : int
        Bits per sample.
    height, width : int
        Pixels, as stored.
    components : int
        1 grey, 3 colour, 4 CMYK or YCCK.
    exif : bytes
        The TIFF structure of the first EXIF block, empty if there is none.
    """

    frame_marker: int
    precision: int
    height: int
    width: int
    components: int
    exif: bytes

    @property
    def ordinary(self) -> bool:
        """Whether every decoder reads it: 8 bits, baseline or progressive, grey or three components."""
        return self.frame_marker in (_BASELINE, _PROGRESSIVE) and self.precision == 8 and self.components in (1, 3)


def read_header(data: bytes) -> JpegHeader | None:
    """Walk the markers up to the first scan, without decoding anything.

    Returns
    -------
    JpegHeader, or None if no frame header is found where the standard puts one.
    """
    if data[:2] != _SOI:
        return None
    frame: tuple[int, int, int, int, int] | None = None
    exif = b""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        if marker in _STANDALONE:
            at += 2
            continue
        if marker in (_SOS, _EOI):
            break
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        segment = data[at + 4 : at + 2 + length]
        if length < 2 or len(segment) != length - 2:
            return None
        if marker in _FRAME_HEADERS and frame is None:
            if len(segment) < 6:
                return None
            height, width = int.from_bytes(segment[1:3], "big"), int.from_bytes(segment[3:5], "big")
            frame = (marker, segment[0], height, width, segment[5])
        elif marker == _APP1 and not exif and segment.startswith(_EXIF):
            exif = segment[len(_EXIF) :]
        at += 2 + length
    return None if frame is None else JpegHeader(*frame, exif)


def decode_strict(data: bytes) -> NDArray[np.uint8]:
    """Decode with libjpeg-turbo, taking its every warning for an error.

    The pixels are Pillow's (accurate integer DCT, smooth chroma upsampling; a test compares them), in 40 to 90 % of its time.

    Returns
    -------
    ndarray, (H, W, 3), uint8, RGB

    Raises
    ------
    ValueError
        With libjpeg's first warning or error as its message.
    """
    return np.asarray(_turbojpeg(simplejpeg.decode_jpeg, data, "RGB", strict=True), np.uint8)


def check_cmyk(data: bytes) -> None:
    """Decode a CMYK or YCCK picture only for libjpeg's verdict; its colours are Pillow's business.

    Raises
    ------
    ValueError
        As `decode_strict`.
    """
    _turbojpeg(simplejpeg.decode_jpeg, data, "CMYK", strict=True)


def coded_as(data: bytes) -> str:
    """What libjpeg takes the components for: ``YCbCr``, ``Gray``, ``RGB``, ``CMYK`` or ``YCCK``.

    Raises
    ------
    ValueError
        If it cannot read the header.
    """
    return str(_turbojpeg(simplejpeg.decode_jpeg_header, data, strict=False)[2])


def _turbojpeg(call: Callable[..., Any], *arguments: object, **options: object) -> Any:
    try:
        return call(*arguments, **options)
    except KeyError as error:  # simplejpeg's table of subsamplings and colour codings has no such entry
        raise ValueError("libjpeg-turbo knows no name for the picture's subsampling or colours") from error
