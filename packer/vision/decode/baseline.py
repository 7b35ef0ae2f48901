"""Recode progressive JPEGs as baseline without loss: the same DCT coefficients in another order, as by ``jpegtran``.

A progressive image is coded in about ten passes over all its coefficients, and takes several times longer to decode.
"""

import tempfile
from pathlib import Path
from typing import Any

import jpeglib
import numpy as np
import numpy.typing as npt

from packer.vision.decode.jpeg import decode_strict
from packer.vision.decode.jpeg_header import BASELINE, read_header
from shardspec.errors import CodecError

_JFIF = b"\xff\xe0\x00\x10JFIF\x00"
_JFIF_BYTES = 18

jpeglib.version.set("turbo210")  # the one of the package's libjpegs that is hardened against damaged files


def to_baseline(data: bytes, image: npt.NDArray[np.uint8]) -> bytes:
    """Recode a progressive JPEG as a baseline one, with the Huffman tables that suit it best.

    Markers (EXIF, colour profile, comments) and quantisation tables stay. Returns `data` itself if a baseline JPEG
    cannot code the same pixels (quantisation steps above 255).

    Parameters
    ----------
    data : bytes
        A progressive JPEG that decodes without a warning.
    image : ndarray, (H, W, 3), uint8
        The pixels that it decodes to.

    Raises
    ------
    CodecError
        If the library cannot read the coefficients.
    OSError
        If temporary files cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="packer-") as folder:
        before, after = Path(folder, "before.jpg"), Path(folder, "after.jpg")
        before.write_bytes(data)
        coefficients = _read_coefficients(before)
        coefficients.progressive_mode = False
        coefficients.write_dct(str(after), flags=["+OPTIMIZE_CODING"])
        coded = after.read_bytes()
    if coded.startswith(_JFIF, 2) and coded.startswith(_JFIF, 2 + _JFIF_BYTES):
        coded = coded[:2] + coded[2 + _JFIF_BYTES :]  # the block of libjpeg, which precedes the image's own
    return coded if _shows(coded, image) else data


def _read_coefficients(path: Path) -> Any:
    try:
        coefficients = jpeglib.read_dct(str(path))
        coefficients.load()
    except OSError as error:
        if error.errno is not None:  # of the system; the library's own errors have none
            raise
        raise CodecError(
            f"expected a progressive JPEG that can be coded as baseline, found: {error}: "
            "--progressive keep stores it as it is"
        ) from error
    return coefficients


def _shows(coded: bytes, image: npt.NDArray[np.uint8]) -> bool:
    header = read_header(coded)
    if header is None or header.frame_marker != BASELINE:
        return False
    try:
        return np.array_equal(decode_strict(coded), image)
    except ValueError:
        return False
