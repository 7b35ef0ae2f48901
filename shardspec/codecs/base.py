"""The interface of codecs, and checks of images."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shardspec.columns import Buffer
from shardspec.errors import CodecError
from shardspec.schema import IMAGE_PIXELS_MAX, Field


class Codec(Protocol):
    """Encodes one value of a field as bytes, and decodes it. Thread-safe; holds no open resources.

    A codec is made from its `Field`, whose ``codec.configuration`` it reads. Two codecs may share a name only if each
    decodes what the other encodes.
    """

    def __init__(self, field: Field) -> None: ...

    def encode(self, value: Any) -> Buffer:
        """Encode a value; `CodecError` if it does not fit the field."""
        ...

    def decode(self, data: Buffer, out: npt.NDArray[Any] | None = None) -> Any:
        """Decode a value; `CodecError` if the bytes are damaged or do not fit the field.

        Parameters
        ----------
        data : Buffer
        out : ndarray, optional
            Array of the value's shape and dtype, to write the value into and to return.
        """
        ...


class ImageCodec(Codec, Protocol):
    """A codec of images."""

    def sides(self, data: Buffer) -> tuple[int, int]:
        """Read height and width from the header of an encoded image; `CodecError` if the header is invalid."""
        ...


def codec_error(field: Field, problem: str = "", **parts: Any) -> CodecError:
    """Return an error about a value of a field. The other arguments are those of `CodecError`."""
    return CodecError(problem, place=f"field {field.name!r}", **parts)


def check_image(field: Field, value: Any) -> npt.NDArray[np.uint8]:
    """Return an image as a C-contiguous uint8 array, (H, W, 3); `CodecError` if `value` does not fit the field."""
    array = np.asarray(value)
    fits = array.ndim == 3 and all(e in (None, a) for e, a in zip(field.shape, array.shape, strict=True))
    if not fits or array.dtype != np.uint8 or not array.size:
        raise codec_error(
            field,
            expected=f"an image, uint8 of shape {field.shape}",
            found=f"{array.dtype.str} of shape {array.shape}",
        )
    check_sides(field, *array.shape[:2])
    return np.ascontiguousarray(array)


def check_sides(field: Field, height: int, width: int) -> None:
    """Check the sides of an image before memory for its pixels is allocated.

    Raises
    ------
    CodecError
        If the sides differ from the field's, or the image has more than `IMAGE_PIXELS_MAX` pixels.
    """
    for expected, found in zip(field.shape, (height, width), strict=False):  # not any(): this runs for every image
        if expected is not None and expected != found:
            raise codec_error(
                field, expected=f"an image of shape {field.shape}", found=f"one of {width} x {height} pixels"
            )
    if height * width > IMAGE_PIXELS_MAX:
        raise codec_error(field, expected=f"at most {IMAGE_PIXELS_MAX} pixels", found=f"an image of {width} x {height}")


def shape_error(field: Field, shape: tuple[int, ...], out: npt.NDArray[np.uint8]) -> CodecError:
    """Return the error for a decoded image whose shape differs from the shape of its output array."""
    return codec_error(field, expected=f"an image of shape {out.shape}", found=shape)
