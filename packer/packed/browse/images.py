"""Images as a browser gets them."""

import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from shardspec.codecs import image_types
from shardspec.errors import CodecError

MEDIA_TYPES: Mapping[str, str] = {
    name: image.media_type for name, image in image_types().items() if image.media_type is not None
}
"""Codecs whose bytes go to the browser as they are."""


class StoredImage(NamedTuple):
    """An image as the browser gets it.

    Attributes
    ----------
    data : bytes
    media_type : str
    """

    data: bytes
    media_type: str


def as_png(value: npt.NDArray[Any]) -> StoredImage:
    """An array as PNG.

    Raises
    ------
    CodecError
        If it is no image that PNG can hold.
    """
    file = io.BytesIO()
    try:
        Image.fromarray(np.ascontiguousarray(value)).save(file, "PNG", compress_level=1)
    except (OSError, ValueError, TypeError, SystemError, KeyError) as error:
        raise CodecError(expected="an image", found=f"an array of shape {value.shape}", hint=error) from error
    return StoredImage(file.getvalue(), MEDIA_TYPES["png"])
