"""The protocol of a codec."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shardspec.columns import Buffer
from shardspec.errors import CodecError
from shardspec.schema import IMAGE_PIXELS_MAX, Field


class Codec(Protocol):
    """Turns one value of a field into bytes and back. Safe to share between threads; holds no open resources.

    A codec is made from its `Field`, whose ``codec.configuration`` it reads. Two codecs may share a name only if each
    decodes what the other encodes.
    """

    def __init__(self, field: Field) -> None: ...

    def encode(self, value: Any) -> Buffer:
        """The bytes of one value.

        Raises
        ------
        CodecError
            If the value does not fit the field.
        """
        ...

    def decode(self, data: Buffer, out: npt.NDArray[Any] | None = None) -> Any:
        """The value that some bytes encode.

        Parameters
        ----------
        data : Buffer
        out : ndarray, optional
            Of the value's shape and dtype. The value is written into it, and it is returned.

        Raises
        ------
        CodecError
            If the bytes do not decode to what the field promises.
        """
        ...


class ImageCodec(Codec, Protocol):
    """A codec of images."""

    def sides(self, data: Buffer) -> tuple[int, int]:
        """Height and width of an encoded image, by its header alone.

        Raises
        ------
        CodecError
            If there is no such header.
        """
        ...


def check_image(field: Field, value: Any) -> npt.NDArray[np.uint8]:
    """An image as a C-contiguous array, (H, W, 3) uint8.

    Raises
    ------
    CodecError
        If the value is not an image, or does not have the field's shape.
    """
    array = np.asarray(value)
    fits = array.ndim == 3 and all(e in (None, a) for e, a in zip(field.shape, array.shape, strict=True))
    if not fits or array.dtype != np.uint8 or not array.size:
        raise CodecError(
            place=f"field {field.name!r}",
            expected=f"an image, uint8 of shape {field.shape}",
            found=f"{array.dtype.str} of shape {array.shape}",
        )
    check_sides(field, *array.shape[:2])
    return np.ascontiguousarray(array)


def check_sides(field: Field, height: int, width: int) -> None:
    """Check the sides of an image before its pixels are allocated.

    Raises
    ------
    CodecError
        If the sides are not those that the field promises, or the image has more than `IMAGE_PIXELS_MAX` pixels.
    """
    for expected, found in zip(field.shape, (height, width), strict=False):  # not any(): this runs for every image
        if expected is not None and expected != found:
            raise CodecError(
                place=f"field {field.name!r}",
                expected=f"an image of shape {field.shape}",
                found=f"one of {width} x {height} pixels",
            )
    if height * width > IMAGE_PIXELS_MAX:
        raise CodecError(
            place=f"field {field.name!r}",
            expected=f"at most {IMAGE_PIXELS_MAX} pixels",
            found=f"an image of {width} x {height}",
        )
