"""Find the main image of a TIFF file, and refuse files whose pixels have no rule.

Cameras and scanners store reduced copies of an image before the image itself. Raw photographs (DNG, NEF, CR2, ARW and
others) are TIFF files, too: their main image holds the values of the sensor, from which a program must develop a picture.
"""

import struct
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from PIL.TiffImagePlugin import ImageFileDirectory_v2

from packer.vision.decode.limits import ImageError, raw_photograph

# TIFF 6.0, sections 8 and 19; TIFF/EP and DNG 1.7 for the photometric interpretations of raw photographs
_NEW_SUBFILE_TYPE, _SUBFILE_TYPE, _BITS_PER_SAMPLE, _PHOTOMETRIC = 254, 255, 258, 262
_SUB_IFDS, _SAMPLE_FORMAT = 330, 339
_REDUCED_OR_MASK, _REDUCED = 0b101, 2
_SENSOR_VALUES = (32803, 34892)
_SAMPLE_FORMATS = {2: "signed integers", 3: "floats", 5: "complex integers", 6: "complex floats"}
_CANON_RAW = b"II*\0\x10\0\0\0CR\2"  # header of a CR2, whose directories do not say what it is
_MOST_BITS = 16
_MOST_DIRECTORIES = 100


def select_main_image(data: bytes) -> bytes:
    """Return a TIFF file with its main image as the first one: the first that is neither a reduced copy nor a mask.

    Images in a list of their own (SubIFDs) come after the others. If all images are reduced copies, the first stays.

    Raises
    ------
    ImageError
        If the file is a raw photograph, or if the samples of the main image are not unsigned integers of up to 16 bits.
    Exception
        Of any kind, if the file is damaged.
    """
    head = data[: 16 if data[2:3] == b"+" else 8]  # of a BigTIFF, which Pillow reads in little-endian order only
    first = main = None
    for directory in _directories(data, head):
        if data.startswith(_CANON_RAW) or _numbers(directory, _PHOTOMETRIC, 0)[0] in _SENSOR_VALUES:
            raise raw_photograph()
        if first is None:
            first = directory
        if main is None and not _is_secondary(directory):
            main = directory
    main = first if main is None else main
    if main is not None:
        _check_samples(main)
    if main is None or main is first:
        return data
    order, start = "<" if data[:2] == b"II" else ">", len(head) // 2
    return data[:start] + struct.pack(f"{order}{'Q' if start == 8 else 'I'}", main.offset) + data[len(head) :]


def _directories(data: bytes, head: bytes) -> Iterator[ImageFileDirectory_v2]:
    """Yield the directories of the file up to the first main image, and those in their lists of further images."""
    file = BytesIO(data)
    waiting: list[int] = [ImageFileDirectory_v2(head).next]
    later: list[int] = []
    seen: set[int] = set()
    while (waiting or later) and len(seen) < _MOST_DIRECTORIES:
        offset = waiting.pop() if waiting else later.pop(0)
        if offset in seen or not 0 < offset < len(data):
            continue
        seen.add(offset)
        directory = ImageFileDirectory_v2(head)
        file.seek(offset)
        directory.load(file)
        yield directory
        later += _numbers(directory, _SUB_IFDS)
        if _is_secondary(directory):
            waiting.append(directory.next)


def _is_secondary(directory: ImageFileDirectory_v2) -> bool:
    """Return whether an image is a reduced copy of another one, or a mask."""
    is_new = _numbers(directory, _NEW_SUBFILE_TYPE, 0)[0] & _REDUCED_OR_MASK
    return bool(is_new) or _numbers(directory, _SUBFILE_TYPE, 0)[0] == _REDUCED


def _numbers(directory: ImageFileDirectory_v2, tag: int, *default: int) -> tuple[int, ...]:
    """Return the integers of a tag, or `default` if it is missing or holds other values."""
    value: Any = directory.get(tag)
    values = value if isinstance(value, tuple) else (value,)
    return values if values and all(isinstance(one, int) for one in values) else default


def _check_samples(directory: ImageFileDirectory_v2) -> None:
    formats, bits = _numbers(directory, _SAMPLE_FORMAT, 1), _numbers(directory, _BITS_PER_SAMPLE, 1)
    strange = next((_SAMPLE_FORMATS[one] for one in formats if one in _SAMPLE_FORMATS), None)
    if strange is None and max(bits) <= _MOST_BITS:
        return
    raise ImageError(
        expected=f"1 to {_MOST_BITS} unsigned bits a channel",
        found=f"{max(bits)}-bit {strange or 'integers'}; convert the file by your own rule first",
    )
