"""Decode plans: which part of a stored image is decoded, and at which size; and which fields a plan rules out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt
import simplejpeg

from readers.decode.values import ValueLayout, layout_of_field
from shardspec.codecs.base import Codec, ImageCodec, check_sides
from shardspec.codecs.raw import RawCodec
from shardspec.columns import Buffer
from shardspec.errors import CodecError, UsageError
from shardspec.fields import PIXEL_AXES, is_mask_name
from shardspec.schema import Field, Schema
from shardspec.wording import shorten

Image = npt.NDArray[np.uint8]

_NUMBERS = {"matrix": 3, **{name: len(axes) for name, axes in PIXEL_AXES.items()}}
"""Fields (n, k) floating in pixels of ``image``, or that map the frame's pixels to them, and their k."""


@runtime_checkable
class DecodePlan(Protocol):
    """Turns a stored image into the one that training sees. Safe to share between threads and to pickle.

    Attributes
    ----------
    random : bool
        Whether `decode` draws from the generator. There is then one for every (seed, epoch, row), and all fields of a
        sample get equal ones.
    moves : bool
        Whether pixels are elsewhere than in the stored image: then no field that lies on the stored image may be
        read together with this one (`check_alignment`). A plan without this attribute counts as True.
    """

    @property
    def random(self) -> bool:
        """True if `decode` draws from the generator."""
        ...

    def layout(self, field: Field) -> ValueLayout:
        """How a field's images are laid out in a batch."""
        ...

    def decode(
        self, data: Any, field: Field, codec: Codec | None, rng: np.random.Generator | None, out: Image | None
    ) -> Image:
        """The image, written into `out` if that is given (C-contiguous, of the plan's shape).

        `data` holds the encoded bytes; for a raw fixed field, whose `codec` is None, it is the image itself.
        """
        ...


@dataclass(frozen=True)
class Whole:
    """The whole image; for JPEG, optionally with the decoder's faster, slightly less exact modes.

    Attributes
    ----------
    fast_dct : bool
        Use the fast inverse transform. The result differs by a few levels at high qualities, and by more at the highest
        (97 and above).
    fast_upsampling : bool
        Repeat chroma instead of interpolating it. Makes no difference for 4:4:4.
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
        """The image (`DecodePlan.decode`)."""
        if field.codec.name == "jpeg":
            image = decode_jpeg(data, field, self, out)
            if out is not None and image.shape != out.shape:
                raise CodecError(
                    place=f"field {field.name!r}", expected=f"an image of shape {out.shape}", found=image.shape
                )
            return image
        whole: Image = data if codec is None else codec.decode(data, out)
        if out is not None and whole is not out:
            out[...] = whole
            return out
        return whole


@dataclass(frozen=True)
class Encoded:
    """The stored bytes as they are, for a decoder of one's own, such as one on a GPU.

    A sample has them as a uint8 array, (N,); a batch, as a list of such tensors, in the CPU's memory whatever the
    device: what ``torchvision.io.decode_jpeg`` takes. Images that are stored raw have no such bytes.
    """

    @property
    def random(self) -> bool:
        """False."""
        return False

    @property
    def moves(self) -> bool:
        """False."""
        return False

    def layout(self, field: Field) -> ValueLayout:
        """A list.

        Raises
        ------
        UsageError
            If the field's images are raw.
        """
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
        """The bytes, uint8, (N,) (`DecodePlan.decode`)."""
        return np.frombuffer(data, np.uint8)


def decode_jpeg(
    data: Buffer, field: Field, how: Whole, out: Image | None = None, min_height: int = 0, min_width: int = 0
) -> Image:
    """A JPEG as (H, W, 3) uint8 RGB, at the smallest of the decoder's scales that has the least height and width."""
    try:
        if out is None and not min_height:  # a caller that scales has checked the header
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
    except (ValueError, KeyError) as error:
        raise CodecError(place=f"field {field.name!r}", expected="JPEG bytes that decode", hint=error) from error
    return image


def sides_of(data: Any, codec: Codec | None) -> tuple[int, int]:
    """Height and width of a stored image: of an array if there is no codec, otherwise by the header of the bytes."""
    if isinstance(codec, RawCodec):
        data = codec.decode(data)  # a view
    elif codec is not None:
        return cast("ImageCodec", codec).sides(data)
    height, width = data.shape[:2]
    return height, width


def with_masks(schema: Schema, plans: Mapping[str, DecodePlan]) -> dict[str, DecodePlan]:
    """The plans, and that of ``image`` for its masks without one, if it has a form for masks (``of_mask``)."""
    found, plan = dict(plans), plans.get("image")
    of_mask = getattr(plan, "of_mask", None)
    if "image" in schema and _moves(plan) and of_mask is not None:
        found.update((name, of_mask()) for name in _masks(schema) if name not in plans)
    return found


def check_alignment(schema: Schema, plans: Mapping[str, DecodePlan]) -> None:
    """Refuse fields that would no longer lie on ``image`` as it is decoded.

    Geometry (``landmarks``, ``hull``, ``regions``, ``matrix``, and fields with a point layout) lies on the stored
    image. Masks (``mask``, ``*_mask``, ``*_image``) lie on it pixel by pixel, and still do if their plan takes the
    same part: random plans draw alike for all fields of a sample.

    Parameters
    ----------
    schema : Schema
        The fields that are read.
    plans : dict of str to DecodePlan

    Raises
    ------
    UsageError
        If there is such a field; the message names it and says what can be done.
    """
    if "image" not in schema:
        return
    plan = plans.get("image")
    left = [field.name for field in schema if _is_geometry(field)] if _moves(plan) else []
    masks = [name for name in _masks(schema) if not _alike(plan, plans.get(name))]
    if not left and not masks:
        return
    planned = ", ".join(f"{name!r}: {plans[name]}" for name in ("image", *masks) if name in plans)
    raise UsageError(
        "decode: expected no fields in pixels of the stored image together with a plan that crops, resizes or "
        f"flips it, found {', '.join([*left, *masks])} with {{{planned}}}: leave them out by fields=, or leave out the "
        "plan and use a transform of readers.augment, such as CropJitter or HorizontalFlip, which moves them too"
        + (f"; or give the same plan to image and {', '.join(masks)}" if masks else "")
    )


def _alike(plan: DecodePlan | None, other: DecodePlan | None) -> bool:
    """Return whether two plans leave the pixels of two images of one size on each other."""
    if plan == other or not (_moves(plan) or _moves(other)):
        return True
    takes_what = getattr(plan, "takes_what", None)
    return takes_what is not None and bool(takes_what(other))


def _moves(plan: DecodePlan | None) -> bool:
    """Return whether a plan moves pixels. A caller's own plan that does not say so is assumed to."""
    return plan is not None and bool(getattr(plan, "moves", True))


def _is_geometry(field: Field) -> bool:
    if field.layout is not None:
        return True
    floating = np.issubdtype(field.numpy_dtype, np.floating)
    return floating and len(field.shape) == 2 and field.shape[1] == _NUMBERS.get(field.name)


def masks_with_plans(schema: Schema, plans: Mapping[str, DecodePlan]) -> frozenset[str]:
    """The masks that are cropped as ``image`` is, by plans that take masks of other sides (``decode_mask``)."""
    if "image" not in schema or not _moves(plans.get("image")):
        return frozenset()
    return frozenset(name for name in _masks(schema) if hasattr(plans.get(name), "decode_mask"))


def _masks(schema: Schema) -> Iterator[str]:
    """Further images that may be as large as ``image``."""
    sides: tuple[Any, ...] = schema["image"].shape[:2]
    for field in schema:
        if is_mask_name(field.name) and len(field.shape) in (2, 3):
            known = zip(field.shape, sides, strict=False)
            if all(one is None or other is None or one == other for one, other in known):
                yield field.name
