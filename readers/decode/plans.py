"""Decode plans: which part of a stored image is decoded, and to which size."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt
import simplejpeg

from readers.decode.values import ValueLayout, layout_of_field
from shardspec.codecs.base import Codec, ImageCodec, check_sides, shape_error
from shardspec.codecs.image import jpeg_error
from shardspec.codecs.raw import RawCodec
from shardspec.columns import Buffer
from shardspec.errors import UsageError
from shardspec.schema import Field
from shardspec.wording import shorten

Image = npt.NDArray[np.uint8]


@runtime_checkable
class DecodePlan(Protocol):
    """Decodes a stored image to the one that training gets. Thread-safe, and can be pickled.

    Attributes
    ----------
    random : bool
        Whether `decode` draws from the generator. There is one generator for each (seed, epoch, row), and all fields of a
        sample get equal ones.
    moves : bool
        Whether pixels move. Fields that refer to positions in the stored image cannot be read together with such a plan
        (`readers.decode.decoding.check_alignment`). A plan without this attribute counts as True.
    """

    @property
    def random(self) -> bool:
        """True if `decode` draws from the generator."""
        ...

    def layout(self, field: Field) -> ValueLayout:
        """Return the layout of a field's images in a batch."""
        ...

    def decode(
        self, data: Any, field: Field, codec: Codec | None, rng: np.random.Generator | None, out: Image | None
    ) -> Image:
        """Decode an image, into `out` if it is given (C-contiguous, of the plan's shape).

        `data` holds the encoded bytes. For a raw fixed field, whose `codec` is None, it is the image itself.
        """
        ...


@dataclass(frozen=True)
class Whole:
    """The whole image; for JPEG, optionally with the decoder's faster, less exact modes.

    Attributes
    ----------
    fast_dct : bool
        Use the fast inverse transform. The result differs by a few levels of 255, and by more at qualities of 97 and
        above.
    fast_upsampling : bool
        Repeat chroma instead of interpolating it. No effect on 4:4:4.
    """

    fast_dct: bool = False
    fast_upsampling: bool = False

    random: ClassVar[bool] = False
    moves: ClassVar[bool] = False

    def layout(self, field: Field) -> ValueLayout:
        """Return the field's own layout."""
        return layout_of_field(field)

    def decode(
        self, data: Any, field: Field, codec: Codec | None, rng: np.random.Generator | None, out: Image | None
    ) -> Image:
        """Decode an image (`DecodePlan.decode`)."""
        if field.codec.name == "jpeg":
            image = decode_jpeg(data, field, self, out)
            if out is not None and image.shape != out.shape:
                raise shape_error(field, image.shape, out)
            return image
        whole: Image = data if codec is None else codec.decode(data, out)
        if out is not None and whole is not out:
            out[...] = whole
            return out
        return whole


@dataclass(frozen=True)
class Encoded:
    """The stored bytes of images or videos, for a decoder of your own, such as one on a GPU.

    A sample has a uint8 array, (N,). A batch has a list of such tensors, as ``torchvision.io.decode_jpeg`` takes it, which
    stays in CPU memory on any device. Raw images are refused, because they are not encoded.
    """

    random: ClassVar[bool] = False
    moves: ClassVar[bool] = False
    of_videos: ClassVar[bool] = True

    def layout(self, field: Field) -> ValueLayout:
        """Return the layout of a list; `UsageError` if the field's images are raw."""
        if field.codec.name == "raw":
            raise UsageError(
                option="decode",
                expected="a field of encoded images for Encoded()",
                found=f"{shorten(field.name)}, stored raw",
            )
        return ValueLayout(None, None, encoded=True)

    def decode(
        self, data: Any, field: Field, codec: Codec | None, rng: np.random.Generator | None, out: Image | None
    ) -> Image:
        """Return the bytes, uint8, (N,) (`DecodePlan.decode`)."""
        return np.frombuffer(data, np.uint8)


def decode_jpeg(
    data: Buffer, field: Field, modes: Whole, out: Image | None = None, min_height: int = 0, min_width: int = 0
) -> Image:
    """Decode a JPEG to RGB at the smallest scale of the decoder with at least the given height and width.

    The sides are checked first, unless `out` limits them or the caller, which asks for a scale, has checked them.
    """
    try:
        if out is None and not min_height:
            height, width, _, _ = simplejpeg.decode_jpeg_header(data)
            check_sides(field, height, width)
        image: Image = simplejpeg.decode_jpeg(
            data,
            "RGB",
            fastdct=modes.fast_dct,
            fastupsample=modes.fast_upsampling,
            min_height=min_height,
            min_width=min_width,
            buffer=out,
        )
    except (ValueError, KeyError) as error:
        raise jpeg_error(field, error) from error
    return image


def sides_of(data: Any, codec: Codec | None) -> tuple[int, int]:
    """Return height and width of a stored image: of an array if `codec` is None, otherwise from the encoded header."""
    if isinstance(codec, RawCodec):
        data = codec.decode(data)  # a view
    elif codec is not None:
        return cast("ImageCodec", codec).sides(data)
    height, width = data.shape[:2]
    return height, width
