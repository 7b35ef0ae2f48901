"""Limits on decoding: inputs, sizes of images and video frames, and the errors about data that does not decode."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike, fsdecode
from typing import BinaryIO

from shardspec.errors import ItemError
from shardspec.schema import IMAGE_PIXELS_MAX

MAX_PIXELS = IMAGE_PIXELS_MAX
"""Default limit of width times height.

The limit of a packed image, twice Pillow's ``MAX_IMAGE_PIXELS`` (537 MB as RGB).
"""

_BYTES_A_PIXEL = 8  # 16 bits of red, green, blue and alpha, uncompressed


MediaFile = str | PathLike[str] | Callable[[], BinaryIO]
"""A path, or a function that opens a new binary file each time, such as a part of another file."""


class ImageError(ItemError, ValueError):
    """Bytes that do not decode to an image."""


class VideoError(ItemError, ValueError):
    """A file from which no video frame can be read."""


class SoundError(ItemError, ValueError):
    """A file whose sound cannot be read, or not to its end."""


def open_media(source: MediaFile) -> BinaryIO:
    """Open an input for reading; the caller closes it."""
    # A file is read in few and large pieces, for which a buffer would only add a copy.
    return source() if callable(source) else open(fsdecode(source), "rb", buffering=0)  # noqa: PTH123 -- may be a str


def check_file_size(size: int, max_pixels: int) -> None:
    """Raise an `ImageError` before a file is read that is larger than an image of `max_pixels` can be."""
    largest = _BYTES_A_PIXEL * max_pixels
    if size > largest:
        raise ImageError(
            expected=f"an image of at most {largest} bytes ({_BYTES_A_PIXEL} for each of {max_pixels} pixels)",
            found=f"a file of {size}",
            hint="make it smaller first",
        )


def check_size(width: int, height: int, max_pixels: int) -> None:
    """Raise an `ImageError` before an image's pixels are allocated: if it has none, or more than `max_pixels`."""
    if width < 1 or height < 1:
        raise ImageError(expected="at least one pixel", found=f"a header that says {width} x {height}")
    if width * height > max_pixels:
        raise ImageError(
            expected=f"at most {max_pixels} pixels",
            found=f"a header that says {width} x {height} = {width * height}; make it smaller first",
        )


def raw_photograph() -> ImageError:
    """Return the error about a raw photograph, which holds the values of a camera's sensor."""
    return ImageError(
        expected="an image",
        found="a raw photograph (such as DNG, NEF, CR2 or ARW)",
        hint="develop it first, for example into a TIFF of 16 bits",
    )


@contextmanager
def needing_memory(kind: str, width: int, height: int) -> Iterator[None]:
    """Make a `MemoryError` raised inside say how much memory an image needs."""
    try:
        yield
    except MemoryError as error:
        raise MemoryError(
            f"no memory for a {kind} of {width} × {height} pixels, "
            f"which takes {3 * width * height / 1e6:.0f} MB decoded, and more while it is decoded"
        ) from error
