"""Pictures as a browser gets them."""

import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from shardspec.errors import CodecError

MEDIA_TYPES: Mapping[str, str] = {"jpeg": "image/jpeg", "png": "image/png", "webp": "image/webp"}
"""By codec: the stored bytes go to the browser as they are."""


class StoredPicture(NamedTuple):
    """A picture as the browser gets it.

    Attributes
    ----------
    data : bytes
    media_type : str
    """

    data: bytes
    media_type: str


def as_png(value: npt.NDArray[Any]) -> StoredPicture:
    """An array as PNG.

    Raises
    ------
    CodecError
        If it is no picture that PNG can hold.
    """
    file = io.BytesIO()
    try:
        Image.fromarray(np.ascontiguousarray(value)).save(file, "PNG", compress_level=1)
    except (OSError, ValueError, TypeError, SystemError, KeyError) as error:
        raise CodecError(f"expected a picture, found an array of shape {value.shape}: {error}") from error
    return StoredPicture(file.getvalue(), MEDIA_TYPES["png"])
