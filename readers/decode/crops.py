"""Decode plans that crop and resize. Of a JPEG, only as many pixels are decoded as the result needs.

libjpeg-turbo decodes at eighths of the full size, which saves most of the work if images shrink. A half, a quarter and an
eighth are used, because other scales have no vector code, and seven eighths takes longer than full size. The crop is
chosen on the stored image. Its edges are rounded to whole pixels of the decoded scale, which is at most half a pixel of
the result. The crop is then resized by averaging whole numbers of pixels, and by interpolation for the remaining factor,
which is below two. Compared with decoding everything and averaging the same part, photos differ by at most 2 levels of 255
on average, as the tests check.

With antialiasing, and for masks, images are decoded at full size. If a JPEG has restart markers, only the part around the
crop is decoded. Of other baseline JPEGs, only the rows above the crop's end are decoded (`readers.decode.jpeg_parts`).
Both give the same pixels.

The plan of ``image`` also applies to the sample's masks, by nearest pixels. A mask of other sides than its image covers the
same image, with smaller or larger pixels. Landmarks and other geometry on the stored image are refused
(`readers.decode.decoding.check_alignment`); the transforms of `readers.augment` move them too.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import cv2
import numpy as np
import simplejpeg

from readers.arguments import as_choice, as_count, as_number, as_pair
from readers.decode.jpeg_parts import WORTH_CUTTING, crop_jpeg, rows_are_complete, upper_rows
from readers.decode.plans import Image, Whole, decode_jpeg, sides_of
from readers.decode.resample import INTERPOLATIONS, Interpolation, nearest, resize
from readers.decode.values import ValueLayout
from readers.seeding import uniforms
from shardspec.codecs.base import Codec, check_sides
from shardspec.codecs.image import jpeg_error
from shardspec.errors import UsageError
from shardspec.schema import Field
from shardspec.wording import shorten

Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels of the stored image; pixel (0, 0) covers [0, 1) × [0, 1)."""

_TRIES = 10
_EIGHTHS = 8
_FAST_EIGHTHS = (1, 2, 4)
"""Scales below full size for which libjpeg-turbo's inverse transform has vector code."""
_REACH = 3
"""Pixels of the decoded scale around a crop that affect it: two for the interpolation of chroma, one for rounding."""


def _sides(size: Any) -> tuple[Any, ...]:
    """Return one side or more as a tuple; accept lists of configuration libraries, and arrays."""
    try:
        return (size,) if isinstance(size, str) else tuple(size)
    except TypeError:
        return (size,)


@dataclass(frozen=True)
class _Crop:
    """Base of the plans in this module.

    Attributes
    ----------
    size : int or (int, int)
        Height and width of the result in pixels.
    fast_dct, fast_upsampling : bool
        See `readers.decode.plans.Whole`.
    interpolation : {"bilinear", "bicubic", "nearest"}
        How to resize images. Masks take the nearest pixels, unless they have a plan of their own.
    antialias : bool
        Resize from all pixels at full size, as torchvision does by default: equal to its result for tensors, and within
        one level of Pillow's (for bicubic, in all but one pixel of a thousand). Otherwise whole numbers of pixels are
        averaged first, which is faster.
    """

    size: int | tuple[int, int]
    fast_dct: bool = field(default=False, kw_only=True)
    fast_upsampling: bool = field(default=False, kw_only=True)
    interpolation: Interpolation = field(default="bilinear", kw_only=True)
    antialias: bool = field(default=False, kw_only=True)

    random: ClassVar[bool] = False
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        sides = _sides(self.size)
        if len(sides) not in (1, 2):
            raise UsageError(option="size", expected="pixels, or (height, width)", found=shorten(self.size))
        sides = tuple(as_count("size", side, unit="pixel") for side in sides)
        object.__setattr__(self, "size", sides if len(sides) == 2 else sides[0])
        as_choice("interpolation", self.interpolation, INTERPOLATIONS)
        if self.antialias and self.interpolation == "nearest":
            raise UsageError(option="antialias", expected='"bilinear" or "bicubic" interpolation', found='"nearest"')

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the result."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    def layout(self, field: Field) -> ValueLayout:
        """Return (height, width, 3) uint8; for a mask (height, width) or (height, width, C) in its dtype."""
        channels = tuple(axis for axis in field.shape[2:] if axis is not None)
        return ValueLayout((*self.shape, *channels), field.numpy_dtype, field.is_image)

    def of_mask(self) -> Self:
        """Return the plan of the image's masks: the same part, by nearest pixels."""
        return replace(self, interpolation="nearest", antialias=False)

    def takes_same_part(self, other: Any) -> bool:
        """Return whether another plan takes the same part. It may resize and decode it in another way."""
        return type(other) is type(self) and self._part() == other._part()

    def _part(self) -> Self:
        return replace(self.of_mask(), fast_dct=False, fast_upsampling=False)

    def box(self, height: int, width: int, rng: np.random.Generator | None) -> Box:
        """Return the part that is cropped from an image of a given size."""
        raise NotImplementedError

    def flips(self, rng: np.random.Generator | None) -> bool:
        """Return whether the result is mirrored."""
        return False

    def eighths(self, box: Box) -> int:
        """Return the smallest fast scale at which a box has as many pixels as the result, in eighths; 8 if none."""
        if self.antialias or self.interpolation == "nearest":
            return _EIGHTHS
        left, top, right, bottom = box
        least = max(self.shape[0] / (bottom - top), self.shape[1] / (right - left))
        return next((eighths for eighths in _FAST_EIGHTHS if least * _EIGHTHS <= eighths), _EIGHTHS)

    def decode(
        self, data: Any, field: Field, codec: Codec | None, rng: np.random.Generator | None, out: Image | None
    ) -> Image:
        """Decode the crop of an image (`readers.decode.plans.DecodePlan.decode`)."""
        out = self._room(field) if out is None else out
        if codec is not None and field.codec.name == "jpeg":
            self._decode_jpeg(data, field, rng, out)
        else:
            image: Image = data if codec is None else codec.decode(data)
            height, width = image.shape[:2]
            left, top, right, bottom = whole_pixels(self.box(height, width, rng), height, width)
            resize(image[top:bottom, left:right], out, self.interpolation, self.antialias)
        self._mirror(field, rng, out)
        return out

    def decode_mask(
        self,
        data: Any,
        field: Field,
        codec: Codec | None,
        rng: np.random.Generator | None,
        out: Image | None,
        sides: tuple[int, int],
    ) -> Image:
        """Decode the part of a mask that covers the crop of its image, which has the given height and width.

        A mask of other sides covers the whole image, with smaller or larger pixels. The result of an empty mask, which
        stands for a missing one, is 0.
        """
        own = sides_of(data, codec)
        if own == sides:
            return self.decode(data, field, codec, rng, out)
        image: Image = data if codec is None else codec.decode(data)
        out = self._room(field) if out is None else out
        if 0 in own:
            out[...] = 0
            return out
        y, x = own[0] / sides[0], own[1] / sides[1]
        left, top, right, bottom = whole_pixels(self.box(*sides, rng), *sides)
        box = (left * x, top * y, right * x, bottom * y)
        if self.interpolation == "nearest":
            out[...] = nearest(image, *self.shape, box)
        else:
            left, top, right, bottom = whole_pixels(box, *own)
            resize(image[top:bottom, left:right], out, self.interpolation, self.antialias)
        self._mirror(field, rng, out)
        return out

    def _room(self, field: Field) -> Image:
        layout = self.layout(field)
        return np.empty(layout.shape or (), layout.dtype)

    def _mirror(self, field: Field, rng: np.random.Generator | None, out: Image) -> None:
        """Mirror a result in place if the draw says so."""
        if self.flips(rng):
            if field.is_image:
                cv2.flip(out, 1, dst=out)
            else:  # of any dtype
                out[...] = out[:, ::-1].copy()

    def _decode_jpeg(self, data: Any, field: Field, rng: np.random.Generator | None, out: Image) -> None:
        try:
            height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        except (ValueError, KeyError) as error:
            raise jpeg_error(field, error) from error
        check_sides(field, height, width)
        box = self.box(height, width, rng)
        eighths = self.eighths(box)
        left, top, right, bottom = whole_pixels(box, height, width, eighths)
        part = None
        if height * width - (box[2] - box[0]) * (box[3] - box[1]) >= WORTH_CUTTING:  # no part saves more
            part = crop_jpeg(data, box, _REACH * _EIGHTHS // eighths)
        if part is not None:
            data, height, width = part.data, part.height, part.width
            x, y = part.left * eighths // _EIGHTHS, part.top * eighths // _EIGHTHS
            left, top, right, bottom = left - x, top - y, right - x, bottom - y
        image = None
        if part is None:
            image = self._decode_upper(data, height, width, math.ceil(box[3]) + _REACH * _EIGHTHS // eighths, eighths)
        if image is None:
            modes = Whole(self.fast_dct, self.fast_upsampling)
            image = decode_jpeg(data, field, modes, None, _scaled(height, eighths), _scaled(width, eighths))
        resize(image[top:bottom, left:right], out, self.interpolation, self.antialias)

    def _decode_upper(self, data: Any, height: int, width: int, rows: int, eighths: int) -> Image | None:
        """Decode the upper rows of a JPEG at a scale; return None if the whole image must be decoded, or is damaged."""
        upper = upper_rows(data, height, width, rows)
        if upper is None:
            return None
        image = np.empty((_scaled(rows, eighths), _scaled(width, eighths), 3), np.uint8)
        try:
            simplejpeg.decode_jpeg(
                upper,
                "RGB",
                fastdct=self.fast_dct,
                fastupsample=self.fast_upsampling,
                min_height=image.shape[0],
                min_width=image.shape[1],
                buffer=image,
            )
        except ValueError as error:
            if not rows_are_complete(error):
                return None
        return image


def whole_pixels(box: Box, height: int, width: int, eighths: int = _EIGHTHS) -> tuple[int, int, int, int]:
    """Round a box to whole pixels of a scale, at least one pixel."""
    height, width, scale = _scaled(height, eighths), _scaled(width, eighths), eighths / _EIGHTHS
    left, top = min(round(box[0] * scale), width - 1), min(round(box[1] * scale), height - 1)
    return left, top, max(left + 1, min(round(box[2] * scale), width)), max(top + 1, min(round(box[3] * scale), height))


def _scaled(side: int, eighths: int) -> int:
    return -(-side * eighths // _EIGHTHS)


@dataclass(frozen=True)
class Resize(_Crop):
    """The whole image, stretched to exactly `size`."""

    def box(self, height: int, width: int, rng: np.random.Generator | None) -> Box:
        """Return the whole image."""
        return 0.0, 0.0, float(width), float(height)


@dataclass(frozen=True)
class CenterCrop(_Crop):
    """The centre of the image, resized to `size`: the largest part with the result's aspect ratio, times `fraction`.

    ``CenterCrop(224, fraction=224 / 256)`` means "shorter side to 256, then the central 224".

    Attributes
    ----------
    fraction : float
        Above 0, at most 1.
    """

    fraction: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < as_number("fraction", self.fraction) <= 1:
            raise UsageError(option="fraction", expected="above 0, at most 1", found=self.fraction)

    def box(self, height: int, width: int, rng: np.random.Generator | None) -> Box:
        """Return the centre."""
        scale = min(height / self.shape[0], width / self.shape[1]) * self.fraction
        h, w = self.shape[0] * scale, self.shape[1] * scale
        return (width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2


@dataclass(frozen=True)
class RandomResizedCrop(_Crop):
    """A random part of random size and aspect ratio, resized to `size`, with the distribution of torchvision.

    Attributes
    ----------
    scale : (float, float)
        Bounds of the part's area, as a fraction of the image's.
    ratio : (float, float)
        Bounds of width over height; its logarithm is uniform.
    flip : float
        Probability that the result is mirrored horizontally.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0

    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        least, most = as_pair("scale", self.scale)
        if not 0 < least <= most <= 1:
            raise UsageError(option="scale", expected="0 < low <= high <= 1", found=self.scale)
        least, most = as_pair("ratio", self.ratio)
        if not 0 < least <= most:
            raise UsageError(option="ratio", expected="0 < low <= high", found=self.ratio)
        if not 0 <= as_number("flip", self.flip) <= 1:
            raise UsageError(option="flip", expected="0 to 1", found=self.flip)

    def flips(self, rng: np.random.Generator | None) -> bool:
        """Return whether the result is mirrored."""
        return self.flip > 0 and rng is not None and rng.random() < self.flip

    def box(self, height: int, width: int, rng: np.random.Generator | None) -> Box:
        """Draw a part in whole pixels; after ten draws that do not fit, take the centre in the nearest allowed ratio."""
        rng = np.random.default_rng() if rng is None else rng
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(_TRIES):
            area, aspect, u, v = uniforms(rng, 4)
            area = (self.scale[0] + (self.scale[1] - self.scale[0]) * area) * height * width
            aspect = math.exp(low + (high - low) * aspect)
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                left, top = int(u * (width - w + 1)), int(v * (height - h + 1))
                return float(left), float(top), float(left + w), float(top + h)
        aspect = min(max(width / height, self.ratio[0]), self.ratio[1])
        broad = min(width, height * aspect)
        tall = broad / aspect
        return (width - broad) / 2, (height - tall) / 2, (width + broad) / 2, (height + tall) / 2
