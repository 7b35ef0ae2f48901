"""The binary Netpbm formats (``.pbm .pgm .ppm``), read with numpy.

Pillow reads these sample by sample in Python when the largest value is not 255, and scales 16-bit colour and 16-bit
grey by different rules; this module has one rule.
"""

import re

import numpy as np
import numpy.typing as npt

from packer.vision.decode.limits import ImageError, check_size, needing_memory

_CHANNELS = {b"P4": 1, b"P5": 1, b"P6": 3}
_SPACE_OR_COMMENT = re.compile(rb"(?:\s|#[^\n]*\n)+")
_NUMBER = re.compile(rb"\d{1,10}")


def decode_netpbm(data: bytes, max_pixels: int) -> npt.NDArray[np.uint8]:
    """Decode the first image of a P4, P5 or P6 file to (H, W, 3) RGB.

    Samples are scaled to the full range of 8 bits (largest value up to 255) or of 16 bits, of which the high byte is
    kept.

    Raises
    ------
    ImageError
        If the data are not such a file, or are cut off, damaged, or of more than `max_pixels`.
    """
    magic = data[:2]
    if magic not in _CHANNELS:
        raise ImageError(
            expected="binary Netpbm (P4, P5 or P6)", found=f"{magic.decode('latin-1')}; convert it, for example to PNG"
        )
    width, at = _number(data, 2, "a width")
    height, at = _number(data, at, "a height")
    largest, at = (1, at) if magic == b"P4" else _number(data, at, "a largest value")
    if not 1 <= largest <= 65535:
        raise ImageError(expected="a largest value from 1 to 65535 in the Netpbm header", found=largest)
    check_size(width, height, max_pixels)
    if not data[at : at + 1].isspace():
        raise ImageError(expected="one white space after the Netpbm header", found="none")
    with needing_memory("Netpbm", width, height):
        return _decode_body(data, at + 1, magic, width, height, largest)


def _decode_body(data: bytes, at: int, magic: bytes, width: int, height: int, largest: int) -> npt.NDArray[np.uint8]:
    body = data[at:]
    if magic == b"P4":
        rows = _take(body, height * -(-width // 8), np.dtype(np.uint8)).reshape(height, -1).view(np.uint8)
        grey = (1 - np.unpackbits(rows, axis=1, count=width)) * np.uint8(255)  # 1 is black
        return np.repeat(grey[:, :, None], 3, axis=2)
    dtype = np.dtype(np.uint8) if largest < 256 else np.dtype(">u2")
    samples = _take(body, height * width * _CHANNELS[magic], dtype).reshape(height, width, _CHANNELS[magic])
    if samples.size and samples.max() > largest:
        raise ImageError(expected=f"samples of at most {largest}", found=int(samples.max()))
    return np.repeat(_to_eight_bits(samples, largest), 3 // _CHANNELS[magic], axis=2)


def _number(data: bytes, at: int, what: str) -> tuple[int, int]:
    gap = _SPACE_OR_COMMENT.match(data, at)
    digits = _NUMBER.match(data, gap.end()) if gap else None
    if digits is None:
        raise ImageError(expected=f"{what} in the Netpbm header", found=f"{data[at : at + 12]!r}")
    return int(digits.group()), digits.end()


def _take(
    body: bytes, count: int, dtype: np.dtype[np.uint8] | np.dtype[np.uint16]
) -> npt.NDArray[np.uint8 | np.uint16]:
    if len(body) < count * dtype.itemsize:
        raise ImageError(
            expected=f"{count * dtype.itemsize} bytes of pixels", found=len(body), hint="the file is cut off"
        )
    return np.frombuffer(body, dtype, count)


def _to_eight_bits(samples: npt.NDArray[np.uint8 | np.uint16], largest: int) -> npt.NDArray[np.uint8]:
    if largest == 255:
        return samples.astype(np.uint8)
    full = 255 if largest < 256 else 65535
    table = (np.arange(largest + 1, dtype=np.int64) * full + largest // 2) // largest
    if full == 65535:
        table >>= 8
    return table.astype(np.uint8)[samples]
