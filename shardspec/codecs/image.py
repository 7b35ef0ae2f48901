"""``jpeg``, ``webp`` and ``webp-lossless``: image files, encoded by Pillow.

simplejpeg decodes JPEGs, straight into the batch. Both libraries bundle libjpeg-turbo and release the GIL. simplejpeg is
not used to encode, because below quality 96 it uses the fast DCT: at quality 95, face crops lost 0.8 dB and were 4 %
larger.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, UnidentifiedImageError

from shardspec.codecs.base import check_image, check_sides, codec_error, shape_error
from shardspec.columns import Buffer
from shardspec.errors import CodecError
from shardspec.schema import Field


class PillowCodec:
    """RGB images, uint8 (H, W, 3), in one of Pillow's formats."""

    pillow_format: ClassVar[str]
    max_side: ClassVar[int] = 2**31 - 1
    """Longest side in pixels that the format can store."""

    def __init__(self, field: Field) -> None:
        self.field = field

    def options(self) -> dict[str, Any]:
        """Return the arguments of Pillow's ``save`` other than the format."""
        raise NotImplementedError

    def encode(self, value: Any, **more: Any) -> Buffer:
        """Encode an image; `more` are further arguments of Pillow's ``save``."""
        file = io.BytesIO()
        image = check_image(self.field, value)
        height, width = image.shape[:2]
        problem = f"cannot encode the image as {self.pillow_format}: "
        if max(height, width) > self.max_side:
            problem += f"expected sides of at most {self.max_side} pixels, found {width} x {height}"
            raise codec_error(self.field, problem)
        try:
            Image.fromarray(image).save(file, self.pillow_format, **self.options(), **more)
        except (OSError, ValueError) as error:
            raise codec_error(self.field, f"{problem}{error}") from error
        return file.getvalue()

    def sides(self, data: Buffer) -> tuple[int, int]:
        """Read height and width from the header of an encoded image."""
        with self._open(data) as image:
            return image.height, image.width

    def decode(self, data: Buffer, out: npt.NDArray[Any] | None = None) -> npt.NDArray[np.uint8]:
        """Decode an image, into `out` if it is given."""
        with self._open(data) as opened:
            check_sides(self.field, opened.height, opened.width)
            image = np.asarray(opened.convert("RGB"))
        if out is None:
            return image
        if image.shape != out.shape:
            raise shape_error(self.field, image.shape, out)
        out[...] = image
        return out

    @contextmanager
    def _open(self, data: Buffer) -> Iterator[Image.Image]:
        """Read the header of an image; Pillow reads the rest when the pixels are needed."""
        try:
            with Image.open(io.BytesIO(data), formats=(self.pillow_format,)) as image:
                yield image
        except CodecError:
            raise
        except UnidentifiedImageError as error:  # its message shows a Python object
            raise codec_error(
                self.field, expected=f"{self.pillow_format} bytes that decode", found="bytes of another kind, or none"
            ) from error
        except (Image.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
            raise codec_error(self.field, expected=f"{self.pillow_format} bytes that decode", hint=error) from error


class JPEGCodec(PillowCodec):
    """Baseline JPEG.

    Configuration: ``quality``, 1 to 100; ``subsampling``, ``"444"``, ``"422"`` or ``"420"`` (chroma at full, half and
    quarter resolution). Decoding needs neither. Images that were packed without encoding them again may be grey or
    progressive; they decode to RGB too.
    """

    pillow_format = "JPEG"
    max_side = 65_500  # libjpeg's limit: for a longer side, libjpeg only writes a message to standard error

    def options(self) -> dict[str, Any]:
        """Return the quality and Pillow's spelling of the subsampling."""
        configuration = self.field.codec.configuration
        subsampling = ":".join(str(configuration.get("subsampling", "420")))
        return {"quality": int(configuration.get("quality", 95)), "subsampling": subsampling}

    def sides(self, data: Buffer) -> tuple[int, int]:
        """Read height and width from the header of an encoded image."""
        try:
            height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        except (ValueError, KeyError) as error:
            raise jpeg_error(self.field, error) from error
        return height, width

    def decode(self, data: Buffer, out: npt.NDArray[Any] | None = None) -> npt.NDArray[np.uint8]:
        """Decode an image, into `out` if it is given: uint8 (H, W, 3), C-contiguous."""
        if out is None:  # otherwise the image must fit into `out`
            check_sides(self.field, *self.sides(data))
        try:
            image: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(data, "RGB", buffer=out)
        except ValueError as error:
            raise jpeg_error(self.field, error) from error
        if out is None:
            return image
        if image.shape != out.shape:
            raise shape_error(self.field, image.shape, out)
        return out


def jpeg_error(field: Field, error: Exception) -> CodecError:
    """Return the error about bytes that simplejpeg cannot decode."""
    return codec_error(field, expected="JPEG bytes that decode", hint=error)


class WebPCodec(PillowCodec):
    """Lossy: about a third smaller than JPEG at the same visual quality, and slower to decode.

    Configuration: ``quality``, 1 to 100. Decoding does not need it.
    """

    pillow_format = "WEBP"
    max_side = 16_383

    def options(self) -> dict[str, Any]:
        """Return the quality; the effort is libwebp's default."""
        return {"quality": int(self.field.codec.configuration.get("quality", 95)), "method": 4}


class LosslessWebPCodec(PillowCodec):
    """Lossless: about three quarters of the size of PNG. No configuration."""

    pillow_format = "WEBP"
    max_side = 16_383

    def options(self) -> dict[str, Any]:
        """Return the effort; more would shrink files little, and take four times as long."""
        return {"lossless": True, "method": 1, "quality": 20}
