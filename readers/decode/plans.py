"""Decode plans: how much of a stored picture is decoded, and at which size, before anything else sees it."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import simplejpeg

from readers.decode.values import ValueLayout, layout_of_field
from shardspec.codecs import Codec
from shardspec.codecs.base import check_sides
from shardspec.columns import Buffer
from shardspec.errors import CodecError
from shardspec.schema import Field

Image = npt.NDArray[np.uint8]


@runtime_checkable
class DecodePlan(Protocol):
    """Turns a stored picture into the one that training sees. Safe to share between threads and to pickle.

    Attributes
    ----------
    random : bool
        Whether `decode` draws from the generator, which is then one of the sample's own for every (seed, epoch, row), and the same
        for all fields.
    moves : bool
        Whether pixels lie elsewhere than in the stored picture: then nothing that lies on that one may be read beside it
        (`readers.decode.alignment`). May be missing, which is True.
    """

    @property
    def random(self) -> bool:
        """Whether `decode` draws from the generator."""
        ...

    def layout(self, field: Field) -> ValueLayout:
        """How the planned pictures of a field lie in a batch."""
        ...

    def decode(
        self, data: Any, field: Field, codec: Codec | None, rng: np.random.Generator | None, out: Image | None
    ) -> Image:
        """The picture, written into `out` where that is given (C-contiguous, of the plan's shape).

        `data` is the encoded bytes; for a raw fixed field, whose `codec` is None, it is the picture itself.
        """
        ...


@dataclass(frozen=True)
class Whole:
    """The whole picture; for JPEG, with the decoder's faster and slightly less exact ways if wanted.

    Attributes
    ----------
    fast_dct : bool
        The fast inverse transform: differs by a few levels at high qualities, more at the highest (97 and up).
    fast_upsampling : bool
        Chroma repeated instead of interpolated; nothing for 4:4:4.
    """

    fast_dct: bool = False
    fast_upsampling: bool = False

    @property
    def random(self) -> bool:
        """False."""
        return False

    @property
    def moves(self) -> bool:
        """False."""
        return False

    def layout(self, field: Field) -> ValueLayout:
        """The field's own."""
        return layout_of_field(field)

    def decode(
        self, data: Any, field: Field, codec: Codec | None, rng: np.random.Generator | None, out: Image | None
    ) -> Image:
        """The picture (`DecodePlan.decode`)."""
        if field.codec.name == "jpeg":
            image = decode_jpeg(data, field, self, out)
            if out is not None and image.shape != out.shape:
                raise CodecError(f"field {field.name!r}: expected a picture of shape {out.shape}, found {image.shape}")
            return image
        whole: Image = data if codec is None else codec.decode(data, out)
        if out is not None and whole is not out:
            out[...] = whole
            return out
        return whole


def decode_jpeg(
    data: Buffer, field: Field, how: Whole, out: Image | None = None, min_height: int = 0, min_width: int = 0
) -> Image:
    """A JPEG as (H, W, 3) uint8 RGB, at the smallest of the decoder's scales that is no smaller than wanted."""
    try:
        if out is None and not min_height:  # who scales has looked at the header
            height, width, _, _ = simplejpeg.decode_jpeg_header(data)
            check_sides(field, height, width)
        image: Image = simplejpeg.decode_jpeg(
            data,
            "RGB",
            fastdct=how.fast_dct,
            fastupsample=how.fast_upsampling,
            min_height=min_height,
            min_width=min_width,
            buffer=out,
        )
    except CodecError:
        raise
    except ValueError as error:
        raise CodecError(f"field {field.name!r}: expected JPEG bytes that decode, {error}") from error
    return image
