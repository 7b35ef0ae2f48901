"""``png`` and ``webp``: lossless and lossy images through Pillow."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from shardspec.codecs.base import check_image, check_sides
from shardspec.columns import Buffer
from shardspec.errors import CodecError
from shardspec.schema import Field


class PillowCodec:
    """RGB images, (H, W, 3) uint8, in one of Pillow's formats."""

    pillow_format: ClassVar[str]
    max_side: ClassVar[int] = 2**31 - 1
    """Pixels: the longest side that the format can store."""

    def __init__(self, field: Field) -> None:
        self.field = field

    def options(self) -> dict[str, Any]:
        """The arguments of Pillow's ``save`` other than the format."""
        raise NotImplementedError

    def encode(self, value: Any, **more: Any) -> Buffer:
        """The encoded bytes of an image; `more` goes to Pillow's ``save`` too."""
        file = io.BytesIO()
        picture = check_image(self.field, value)
        height, width = picture.shape[:2]
        if max(height, width) > self.max_side:
            raise CodecError(
                (
                    f"cannot encode the image as {self.pillow_format}: expected sides of at most "
                    f"{self.max_side} pixels, found {width} x {height}"
                ),
                place=f"field {self.field.name!r}",
            )
        try:
            Image.fromarray(picture).save(file, self.pillow_format, **self.options(), **more)
        except (OSError, ValueError) as error:
            raise CodecError(
                f"cannot encode the image as {self.pillow_format}: {error}", place=f"field {self.field.name!r}"
            ) from error
        return file.getvalue()

    def sides(self, data: Buffer) -> tuple[int, int]:
        """Height and width of an encoded image, by its header alone."""
        with self._open(data) as picture:
            return picture.height, picture.width

    def decode(self, data: Buffer, out: npt.NDArray[Any] | None = None) -> npt.NDArray[np.uint8]:
        """The image, written into `out` if it is given."""
        with self._open(data) as picture:
            check_sides(self.field, picture.height, picture.width)
            image = np.asarray(picture.convert("RGB"))
        if out is None:
            return image
        if image.shape != out.shape:
            raise CodecError(
                place=f"field {self.field.name!r}", expected=f"an image of shape {out.shape}", found=image.shape
            )
        out[...] = image
        return out

    @contextmanager
    def _open(self, data: Buffer) -> Iterator[Image.Image]:
        """An encoded image, of which no more than the header has been read."""
        try:
            with Image.open(io.BytesIO(data), formats=(self.pillow_format,)) as picture:
                yield picture
        except CodecError:
            raise
        except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
            raise CodecError(
                place=f"field {self.field.name!r}", expected=f"{self.pillow_format} bytes that decode", hint=error
            ) from error


class PNGCodec(PillowCodec):
    """Lossless. Configuration: ``level``, zlib's 0 to 9; not needed to decode."""

    pillow_format = "PNG"

    def options(self) -> dict[str, Any]:
        """Zlib's level."""
        return {"compress_level": int(self.field.codec.configuration.get("level", 3))}


class WebPCodec(PillowCodec):
    """Lossy: about a third smaller than JPEG of the same visual quality, and slower to decode.

    Configuration: ``quality``, 1 to 100; not needed to decode.
    """

    pillow_format = "WEBP"
    max_side = 16_383

    def options(self) -> dict[str, Any]:
        """The quality, and libwebp's medium effort."""
        return {"quality": int(self.field.codec.configuration.get("quality", 95)), "method": 4}
