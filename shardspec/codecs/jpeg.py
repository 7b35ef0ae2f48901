"""``jpeg``: pictures through libjpeg-turbo (simplejpeg, which bundles it and releases the GIL)."""

from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg

from shardspec.codecs.base import check_picture
from shardspec.columns import Buffer
from shardspec.errors import CodecError
from shardspec.schema import Field

DEFAULT_QUALITY = 95
DEFAULT_SUBSAMPLING = "420"


class JPEGCodec:
    """RGB pictures, (H, W, 3) uint8, as baseline JPEG.

    Configuration: ``quality``, 1 to 100; ``subsampling``, ``"444"``, ``"422"`` or ``"420"`` (chroma at full, half and quarter
    resolution). Neither is needed to decode. Files kept as they came may be grey or progressive; they decode to RGB too.
    """

    def __init__(self, field: Field) -> None:
        self.field = field
        self.quality = int(field.codec.configuration.get("quality", DEFAULT_QUALITY))
        self.subsampling = str(field.codec.configuration.get("subsampling", DEFAULT_SUBSAMPLING))

    def encode(self, value: Any) -> Buffer:
        """The JPEG bytes of a picture."""
        picture = check_picture(self.field, value)
        try:
            data: bytes = simplejpeg.encode_jpeg(
                picture, quality=self.quality, colorspace="RGB", colorsubsampling=self.subsampling
            )
        except ValueError as error:
            raise CodecError(f"field {self.field.name!r}: the picture cannot be JPEG: {error}") from error
        return data

    def decode(self, data: Buffer, out: npt.NDArray[Any] | None = None) -> npt.NDArray[np.uint8]:
        """The picture; `out`, if given, is (H, W, 3) uint8, C-contiguous."""
        try:
            image: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(data, "RGB", buffer=out)
        except ValueError as error:
            raise CodecError(f"field {self.field.name!r}: expected JPEG bytes that decode, {error}") from error
        if out is not None and image.shape != out.shape:
            raise CodecError(f"field {self.field.name!r}: expected a picture of shape {out.shape}, found {image.shape}")
        return image if out is None else out
