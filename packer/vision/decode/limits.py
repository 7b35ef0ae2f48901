"""How large a picture or a video frame may be."""

from collections.abc import Iterator
from contextlib import contextmanager

from packer.vision.decode.errors import PictureError

MAX_PIXELS = 178_956_970
"""Default limit of width times height: twice Pillow's ``MAX_IMAGE_PIXELS``, where Pillow itself refuses (537 MB as RGB)."""


def check_size(width: int, height: int, max_pixels: int) -> None:
    """Refuse a picture by its header, before its pixels are allocated.

    Raises
    ------
    PictureError
        If there are no pixels, or more than `max_pixels`.
    """
    if width < 1 or height < 1:
        raise PictureError(f"expected at least one pixel, found a header that says {width} x {height}")
    if width * height > max_pixels:
        raise PictureError(
            f"expected at most {max_pixels} pixels, found a header that says {width} x {height} = {width * height}; "
            "raise the limit if the file can be trusted"
        )


@contextmanager
def needing_memory(kind: str, width: int, height: int) -> Iterator[None]:
    """Have a `MemoryError` inside say how much a picture takes."""
    try:
        yield
    except MemoryError as error:
        raise MemoryError(
            f"no memory for a {kind} of {width} × {height} pixels, "
            f"which takes {3 * width * height / 1e6:.0f} MB decoded, and more while it is decoded"
        ) from error
