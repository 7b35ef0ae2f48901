"""Decode one image from its bytes.

The type of a file is determined by its first bytes, not by its suffix. Pixels become RGB by the rule of
`packer.vision.decode.rgb.to_rgb` and are then turned upright as EXIF says. Of an animation or a multi-page file, the
first image is taken.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from packer.vision.decode.jpeg import check_cmyk, check_strict, coded_as, decode_strict
from packer.vision.decode.jpeg_header import JpegHeader, read_header, without_metadata, without_trailer
from packer.vision.decode.limits import (
    MAX_PIXELS,
    ImageError,
    MediaFile,
    check_file_size,
    check_size,
    needing_memory,
    open_media,
    raw_photograph,
)
from packer.vision.decode.orientation import UPRIGHT, exif_orientation, orient
from packer.vision.media import FILE_TYPES, file_type
from shardspec.codecs import codec_for
from shardspec.codecs.base import ImageCodec
from shardspec.errors import CodecError, MissingDependencyError
from shardspec.registry import import_target
from shardspec.schema import Field, NamedConfig

_BY_PILLOW = ("AVIF", "BMP", "GIF", "HEIC", "Netpbm", "PNG", "TIFF", "WebP", "lossless WebP")
_WEBP = ("WebP", "lossless WebP")
_WEBP_PIXEL_BYTES = 12
"""Bytes per pixel of the RGBA canvases and frame that libwebp and Pillow hold at a time (measured: up to 10)."""
_CODED_SIZE = re.compile(rb"\0\0\0\x14ispe\0\0\0\0(.{4})(.{4})", re.DOTALL)  # ISO/IEC 23008-12, 6.5.3
_BOX_BYTES = 8  # length and type (ISO/IEC 14496-12, 4.2)
_LARGE = 1  # in place of a length that follows the type in eight bytes
_RAW = re.compile(rb"FUJIFILMCCD-RAW|II(?:RO|RS|U\0)|MMOR|FOVb|....ftypcrx ", re.DOTALL)  # RAF, ORF, RW2, X3F, CR3
_HEAD_BYTES = 1 << 18  # examined before the rest of a file is read
_CORRUPT = re.compile(r"Corrupt JPEG data|Premature end|[Ii]nconsistent progression|[Ii]nvalid progressive")
_HARMLESS = "extraneous bytes before marker"


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """A decoded image.

    Attributes
    ----------
    image : ndarray, (H, W, 3), uint8
        RGB (BGR on request), upright, C-contiguous, not writeable.
    kept : bytes or None
        Set if the file is a JPEG that shows the same pixels in every decoder and may be stored as it is: 8 bits,
        baseline or progressive, grey or YCbCr, EXIF orientation 1 or none, decoded without any warning. These are its
        bytes up to its end marker, without metadata if those are damaged. (Decoders return a grey JPEG as RGB by
        repeating its value.)
    """

    image: npt.NDArray[np.uint8]
    kept: bytes | None = None


def read_image(source: MediaFile, *, max_pixels: int = MAX_PIXELS) -> bytes:
    """Read the file of an image, after checking its size and its first bytes.

    Raises
    ------
    ImageError
        If the first bytes belong to no known type of image, or if the file is larger than an image of `max_pixels` can
        be. If a file has more than 256 kB, also if its first 256 kB announce more pixels.
    OSError
        If the file cannot be read.
    """
    with open_media(source) as file:
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


def decode_image(data: bytes, *, max_pixels: int = MAX_PIXELS) -> DecodedImage:
    """Decode one image.

    Safe to call from several threads, with one reservation: while a file that is not an ordinary JPEG is decoded,
    Pillow's warnings are silenced by the process-wide warnings filters.

    Parameters
    ----------
    max_pixels : int
        Largest width times height; the header is checked before pixels are allocated.

    Raises
    ------
    ImageError
        If the bytes are empty, no known type of image, cut off, damaged, larger than `max_pixels`, or have a kind of
        pixel that the rule excludes. A JPEG that libjpeg calls corrupt is refused even if Pillow would show a half-grey
        image.
    MemoryError
        If the machine has too little memory for the image, which may be valid. The message says how much it needs.
    """
    kind = _sniff(data)
    if kind == "JPEG":
        return _decode_jpeg(data, max_pixels)
    if kind not in _BY_PILLOW:
        return DecodedImage(_finish(_decode_by_codec(data, kind, max_pixels), UPRIGHT))
    image, orientation = _decode_by_pillow(data, kind, max_pixels)
    return DecodedImage(_finish(image, orientation))


def check_kept(data: bytes, *, max_pixels: int = MAX_PIXELS) -> tuple[JpegHeader, bytes] | None:
    """Check a JPEG whose bytes may be stored (`DecodedImage.kept`) without making its pixels (`check_strict`).

    Returns the header and the bytes to store. Returns None for any other image, and for a damaged one, for which
    `decode_image` gives the reason.
    """
    header = read_header(data)
    if header is None or not header.ordinary or not 0 < header.width * header.height <= max_pixels:
        return None
    if header.exif and exif_orientation(header.exif) != UPRIGHT:
        return None
    for form in _forms(data, header):
        with suppress(ValueError, MemoryError):
            height, width = check_strict(form)
            return (header, without_trailer(form)) if (height, width) == (header.height, header.width) else None
    return None


def _sniff(data: bytes) -> str:
    if not data:
        raise ImageError(expected="an image", found="an empty file")
    kind = file_type(data)
    if kind is None and _RAW.match(data):
        raise raw_photograph()
    if kind is None:
        raise ImageError(expected=f"an image ({', '.join(FILE_TYPES)})", found=f"a file that begins with {data[:12]!r}")
    return kind


def _finish(image: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    upright = np.ascontiguousarray(orient(image, orientation))
    upright.setflags(write=False)
    return upright


def _decode_jpeg(data: bytes, max_pixels: int) -> DecodedImage:
    header = read_header(data)
    if header is None:
        raise ImageError(
            expected="a JPEG's frame header and its pixels", found="a file that lacks one of them", hint="cut off?"
        )
    check_size(header.width, header.height, max_pixels)
    orientation = exif_orientation(header.exif)
    with needing_memory("JPEG", header.width, header.height):
        for form in _forms(data, header):
            try:
                image, coding = _jpeg_pixels(form, max_pixels)
            except ValueError as error:
                warning = str(error)
                continue
            keeps = header.ordinary and coding in ("YCbCr", "Gray") and orientation == UPRIGHT
            return DecodedImage(_finish(image, orientation), without_trailer(form) if keeps else None)
        if _CORRUPT.search(warning) and _HARMLESS not in warning:
            raise ImageError(expected="a whole JPEG", found="a damaged one", hint=warning)
        image, _ = _decode_by_pillow(form, "JPEG", max_pixels)
        return DecodedImage(_finish(image, orientation))


def _forms(data: bytes, header: JpegHeader) -> Iterator[bytes]:
    """Yield a JPEG, then its image without metadata: libjpeg reports its first warning only, even about metadata."""
    yield data
    yield without_metadata(data, header.components)


def _jpeg_pixels(data: bytes, max_pixels: int) -> tuple[npt.NDArray[np.uint8], str]:
    """Return the pixels of a JPEG and its colour coding. Any warning of libjpeg is a `ValueError`."""
    coding = coded_as(data)
    if coding in ("CMYK", "YCCK"):
        check_cmyk(data)
        return _decode_by_pillow(data, "JPEG", max_pixels)[0], coding
    return decode_strict(data), coding


def _decode_by_pillow(data: bytes, kind: str, max_pixels: int) -> tuple[npt.NDArray[np.uint8], int]:
    """Return pixels in RGB as stored, and the orientation to turn them from (HEIC and TIFF are upright already)."""
    if kind == "HEIC":
        _check_heic(data, max_pixels)
    if kind in _WEBP:  # its plugin allocates the canvas on opening
        check_size(*_webp_size(data), max_pixels)
    decode = import_target("packer.vision.decode.rgb:decode_by_pillow", what=f"a {kind} image", extra="pack")
    try:
        pixels, exif = decode(data, kind, max_pixels)
    except (ImageError, MemoryError, MissingDependencyError):
        raise
    except Exception as error:
        # A damaged file can make Pillow raise anything: SyntaxError, struct.error, EOFError.
        if kind in _WEBP:
            _check_webp_memory(*_webp_size(data))
        raise ImageError(
            f"expected a whole {kind} of a kind that can be decoded, found: {str(error) or type(error).__name__}"
        ) from error
    return pixels, exif_orientation(exif)


def _decode_by_codec(data: bytes, kind: str, max_pixels: int) -> npt.NDArray[np.uint8]:
    """Return the pixels of a file that one of our codecs made."""
    codec = codec_for(Field("image", "bytes", "|u1", (None, None, 3), NamedConfig(str(FILE_TYPES[kind].codec))))
    try:
        height, width = cast("ImageCodec", codec).sides(data)
        check_size(width, height, max_pixels)
        with needing_memory(kind, width, height):
            image: npt.NDArray[np.uint8] = codec.decode(data)
            return image
    except CodecError as error:
        raise ImageError(str(error)) from error


def _check_heic(data: bytes, max_pixels: int) -> None:
    """Check the sizes of coded images, which may be cropped, and that they end within the file.

    libheif leaves tiles black that are cut off.
    """
    for found in _CODED_SIZE.finditer(data):
        check_size(int.from_bytes(found[1], "big"), int.from_bytes(found[2], "big"), max_pixels)
    at = 0
    while (size := _box_size(data, at)) >= _BOX_BYTES:
        if data[at + 4 : at + _BOX_BYTES] == b"mdat" and at + size > len(data):
            raise ImageError(expected="a whole HEIC", found="one that is cut off")
        at += size


def _box_size(data: bytes, at: int) -> int:
    size = int.from_bytes(data[at : at + 4], "big")
    return int.from_bytes(data[at + _BOX_BYTES : at + 2 * _BOX_BYTES], "big") if size == _LARGE else size


def _check_webp_memory(width: int, height: int) -> None:
    """Check that memory suffices for an image that did not decode: libwebp gives no reason."""
    with needing_memory("WebP", width, height):
        np.empty((height, width, _WEBP_PIXEL_BYTES), np.uint8)


def _webp_size(data: bytes) -> tuple[int, int]:
    """Return width and height of the canvas from the header (RFC 9649, sections 2.5 to 2.7)."""
    chunk, body = data[12:16], data[20:30]
    if chunk == b"VP8X" and len(body) == 10:
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if chunk == b"VP8L" and len(body) >= 5 and body[0] == 0x2F:
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if chunk == b"VP8 " and len(body) == 10 and body[3:6] == b"\x9d\x01\x2a":
        return int.from_bytes(body[6:8], "little") & 0x3FFF, int.from_bytes(body[8:10], "little") & 0x3FFF
    raise ImageError(expected="a WebP image header", found="none")
