"""Decoding of one picture from its bytes.

The type of a file is determined by its first bytes, not by its suffix. Pixels become RGB by the rule of
`packer.vision.decode.rgb.to_rgb` and are then turned upright as EXIF says. Of an animation or a multi-page file the
first picture is taken.
"""

import os
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from packer.vision.decode.jpeg import check_cmyk, check_strict, coded_as, decode_strict
from packer.vision.decode.jpeg_header import JpegHeader, read_header
from packer.vision.decode.limits import (
    MAX_PIXELS,
    Input,
    PictureError,
    check_file_size,
    check_size,
    needing_memory,
    open_input,
)
from packer.vision.decode.netpbm import decode_netpbm
from packer.vision.decode.orientation import UPRIGHT, exif_orientation, orient
from shardspec.registry import import_target

_MAGIC = (
    ("JPEG", re.compile(rb"\xff\xd8\xff")),
    ("PNG", re.compile(rb"\x89PNG\r\n\x1a\n")),
    ("WebP", re.compile(rb"RIFF....WEBP", re.DOTALL)),
    ("GIF", re.compile(rb"GIF8[79]a")),
    ("TIFF", re.compile(rb"II[*+]\x00|MM\x00[*+]")),
    ("BMP", re.compile(rb"BM")),
    ("Netpbm", re.compile(rb"P[1-7][\s#]")),
)
_WEBP_PIXEL_BYTES = 12
"""Bytes per pixel of the RGBA canvases and frame that libwebp and Pillow hold at a time (measured: up to 10)."""
_HEAD_BYTES = 1 << 18  # examined before the rest of a file is read
_HARMLESS = re.compile(r"extraneous bytes before marker|JFIF revision|Adobe color transform")
_CORRUPT = re.compile(r"Corrupt JPEG data|Premature end|[Ii]nconsistent progression|[Ii]nvalid progressive")


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded picture.

    Attributes
    ----------
    image : ndarray, (H, W, 3), uint8
        RGB (BGR if that was asked for), upright, C-contiguous, not writeable.
    passthrough : bool
        Whether the file is a JPEG whose own bytes show the same pixels in every decoder and may be kept: 8 bits,
        baseline or progressive, grey or YCbCr, EXIF orientation 1 or none, decoded without any warning. (Decoders
        return a grey JPEG as RGB by repeating its value.)
    format : str
        ``BMP``, ``GIF``, ``JPEG``, ``Netpbm``, ``PNG``, ``TIFF`` or ``WebP``.
    warning : str or None
        What libjpeg warned about while it decoded pixels that are nevertheless whole (stray bytes between markers).
    """

    image: npt.NDArray[np.uint8]
    passthrough: bool
    format: str
    warning: str | None = None


def read_picture(source: Input, *, max_pixels: int = MAX_PIXELS) -> bytes:
    """Read the file of a picture, after checking its size and its first bytes.

    Parameters
    ----------
    source : path, or callable that opens a binary file
    max_pixels : int

    Raises
    ------
    PictureError
        If the first bytes belong to no known kind of picture, or if the file is larger than a picture of `max_pixels`
        can be. Of a file that is more than its first 256 kB also if these announce more pixels.
    OSError
        If the file cannot be read.
    """
    with open_input(source) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        head = file.read(min(size, _HEAD_BYTES))  # memory for more than there is would be fresh each time
        kind = _sniff(head)
        if len(head) == size:
            check_file_size(size, max_pixels)
            return head
        header = read_header(head) if kind == "JPEG" else None
        if header is not None:
            check_size(header.width, header.height, max_pixels)
        check_file_size(size, max_pixels)
        file.seek(0)
        return file.read()


def decode_picture(data: bytes, *, max_pixels: int = MAX_PIXELS, bgr: bool = False) -> Picture:
    """Decode one picture.

    Safe to call from several threads, with one reservation: while a file that is not an ordinary JPEG is decoded,
    Pillow's warnings are silenced by the process-wide warnings filters.

    Parameters
    ----------
    data : bytes
        The whole file.
    max_pixels : int
        Largest width times height; the header is checked before pixels are allocated.
    bgr : bool
        Whether the channels are to be in OpenCV's order; a JPEG is decoded into it at once.

    Returns
    -------
    Picture

    Raises
    ------
    PictureError
        If the bytes are empty, no known kind of picture, cut off, damaged, larger than `max_pixels`, or have a kind of
        pixel that the rule excludes. A JPEG that libjpeg calls corrupt is refused even if Pillow would show a half-grey
        picture.
    MemoryError
        If the machine has too little memory for the picture, which may be good. The message says how much it needs.
    """
    kind = _sniff(data)
    if kind == "Netpbm":
        return _finish(_in_order(decode_netpbm(data, max_pixels), bgr), UPRIGHT, kind)
    if kind == "JPEG":
        return _decode_jpeg(data, max_pixels, bgr)
    image, orientation = _decode_by_pillow(data, kind, max_pixels)
    return _finish(_in_order(image, bgr), orientation, kind)


def check_kept(data: bytes, *, max_pixels: int = MAX_PIXELS) -> JpegHeader | None:
    """Check a picture that `decode_picture` would pass through, without making its pixels (`check_strict`).

    Returns
    -------
    JpegHeader or None
        None of any other picture, and of one that is not whole: `decode_picture` says why.
    """
    header = read_header(data)
    if header is None or not header.ordinary or not 0 < header.width * header.height <= max_pixels:
        return None
    if header.exif and exif_orientation(header.exif) != UPRIGHT:
        return None
    try:
        height, width = check_strict(data)
    except (ValueError, MemoryError):
        return None
    return header if (height, width) == (header.height, header.width) else None


def _sniff(data: bytes) -> str:
    if not data:
        raise PictureError("expected a picture, found an empty file")
    for kind, magic in _MAGIC:
        if magic.match(data):
            return kind
    known = ", ".join(kind for kind, _ in _MAGIC)
    raise PictureError(f"expected a picture ({known}), found a file that begins with {data[:12]!r}")


def _in_order(image: npt.NDArray[np.uint8], bgr: bool) -> npt.NDArray[np.uint8]:
    """A view of an RGB picture, with its channels in OpenCV's order if that is wanted."""
    return image[:, :, ::-1] if bgr else image


def _finish(
    image: npt.NDArray[np.uint8], orientation: int, kind: str, *, passthrough: bool = False, warning: str | None = None
) -> Picture:
    upright = np.ascontiguousarray(orient(image, orientation))
    upright.setflags(write=False)
    return Picture(upright, passthrough and orientation == UPRIGHT, kind, warning)


def _decode_jpeg(data: bytes, max_pixels: int, bgr: bool) -> Picture:
    header = read_header(data)
    if header is None:
        raise PictureError("expected a JPEG's frame header, found none before the pixels or the end of the file")
    check_size(header.width, header.height, max_pixels)
    with needing_memory("JPEG", header.width, header.height):
        return _decode_checked_jpeg(data, header, max_pixels, bgr)


def _decode_checked_jpeg(data: bytes, header: JpegHeader, max_pixels: int, bgr: bool) -> Picture:
    orientation = exif_orientation(header.exif)
    try:
        coding = coded_as(data)
        if coding in ("CMYK", "YCCK"):
            check_cmyk(data)
            image, _ = _decode_by_pillow(data, "JPEG", max_pixels)
            return _finish(_in_order(image, bgr), orientation, "JPEG")
        passthrough = header.ordinary and coding in ("YCbCr", "Gray")
        return _finish(decode_strict(data, bgr=bgr), orientation, "JPEG", passthrough=passthrough)
    except ValueError as error:
        warning = str(error)
    if _CORRUPT.search(warning) and not _HARMLESS.search(warning):
        raise PictureError(f"expected a whole JPEG, found a damaged one: {warning}")
    image, _ = _decode_by_pillow(data, "JPEG", max_pixels)
    return _finish(_in_order(image, bgr), orientation, "JPEG", warning=warning)


def _decode_by_pillow(data: bytes, kind: str, max_pixels: int) -> tuple[npt.NDArray[np.uint8], int]:
    """Pixels in RGB as stored, and the orientation to turn them from (TIFF: Pillow has already turned them)."""
    if kind == "WebP":  # its plugin allocates the canvas on opening
        check_size(*_webp_size(data), max_pixels)
    decode = import_target("packer.vision.decode.rgb:decode_by_pillow", what=f"a {kind} picture", extra="pack")
    try:
        pixels, exif = decode(data, kind, max_pixels)
    except (PictureError, MemoryError):
        raise
    except Exception as error:
        # A damaged file can make Pillow raise anything: SyntaxError, struct.error, EOFError.
        if kind == "WebP":
            _check_webp_memory(*_webp_size(data))
        raise PictureError(
            f"expected a whole {kind}, found one that does not decode: {str(error) or type(error).__name__}"
        ) from error
    return pixels, exif_orientation(exif)


def _check_webp_memory(width: int, height: int) -> None:
    """Check that memory suffices for a picture that did not decode: libwebp gives no reason."""
    with needing_memory("WebP", width, height):
        np.empty((height, width, _WEBP_PIXEL_BYTES), np.uint8)


def _webp_size(data: bytes) -> tuple[int, int]:
    """Width and height of the canvas from the header (RFC 9649, sections 2.5 to 2.7)."""
    chunk, body = data[12:16], data[20:30]
    if chunk == b"VP8X" and len(body) == 10:
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if chunk == b"VP8L" and len(body) >= 5 and body[0] == 0x2F:
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if chunk == b"VP8 " and len(body) == 10 and body[3:6] == b"\x9d\x01\x2a":
        return int.from_bytes(body[6:8], "little") & 0x3FFF, int.from_bytes(body[8:10], "little") & 0x3FFF
    raise PictureError("expected a WebP image header, found none")
