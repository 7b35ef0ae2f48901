"""What Pillow decodes, and the single rule by which every kind of pixel becomes ``uint8`` RGB.

As a table: ``docs/pictures.md``. Ordinary JPEGs do not pass here, so the library is loaded by the first other picture.
"""

import warnings
from collections.abc import Callable
from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from packer.vision.decode.limits import PictureError, check_size, needing_memory

# The plugin classes and not Image.open, whose check against decompression bombs sets a limit and a warning for the
# process.
_PLUGINS: dict[str, Callable[[BytesIO], ImageFile.ImageFile]] = {
    "BMP": BmpImagePlugin.BmpImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "JPEG": JpegImagePlugin.JpegImageFile,
    "PNG": PngImagePlugin.PngImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "WebP": WebPImagePlugin.WebPImageFile,
}

_BITS_PER_SAMPLE, _PHOTOMETRIC = 258, 262  # TIFF 6.0, section 8
_WHITE_IS_ZERO = 0
_DEEP_GREY = ("I;16", "I;16L", "I;16B", "I;16N")
_REFUSED = {
    "I": "32-bit or signed integers",
    "F": "32-bit floats",
    "LAB": "CIE L*a*b* colours",
}


def decode_by_pillow(data: bytes, kind: str, max_pixels: int) -> tuple[npt.NDArray[np.uint8], bytes]:
    """Decode a picture by the library, of the kind that its first bytes say.

    Returns
    -------
    pixels : ndarray, (H, W, 3), uint8
        RGB as stored; of a TIFF upright, since Pillow turns it.
    exif : bytes
        The picture's EXIF block; empty if it has none, or is a TIFF.

    Raises
    ------
    PictureError
        If the picture is too large, or has a kind of pixel that the rule excludes.
    MemoryError
        If memory does not suffice.
    Exception
        Of any kind, if the picture is damaged (SyntaxError, struct.error, EOFError).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _PLUGINS[kind](BytesIO(data)) as image:
            check_size(*image.size, max_pixels)
            with needing_memory(kind, *image.size):
                image.load()
                pixels = to_rgb(image, bits=data[24] if kind == "PNG" else 8)  # its header gives the depth at byte 24
            return pixels, image.info.get("exif", b"") if kind != "TIFF" else b""


def to_rgb(image: Image.Image, *, bits: int = 8) -> npt.NDArray[np.uint8]:
    """Turn a loaded Pillow image into RGB.

    * More than 8 bits a channel: the high byte (``v >> 8`` of 16 bits, ``v >> 4`` of 12), as in Pillow and OpenCV for
      colour.
    * Grey: the value, three times. 1 bit: 0 or 255. Palette: its colours. CMYK: ``(255 - C) * (255 - K) / 255`` and so
      on, rounded. YCbCr (TIFF): JPEG's matrix.
    * Alpha, a transparent palette entry or a colour key: laid over white, ``(a * v + (255 - a) * 255) / 255`` rounded,
      which is what a viewer's white page shows; most drawings with a transparent ground are dark and would vanish on
      black. A colour key of 16 bits is ignored.
    * Colour profiles are ignored: the numbers are used as they are.

    Parameters
    ----------
    image : PIL.Image.Image
    bits : int
        Bits per channel in the file, where Pillow's mode does not show them.

    Returns
    -------
    ndarray, (H, W, 3), uint8

    Raises
    ------
    PictureError
        If the pixels are floats, signed or 32-bit integers, or L*a*b*: no range or matrix can be assumed for them.
    """
    if image.mode in _REFUSED:
        raise PictureError(
            f"expected 1 to 16 unsigned bits a channel, found {_REFUSED[image.mode]} (Pillow mode {image.mode}); "
            "convert the file by your own rule first"
        )
    if image.mode in _DEEP_GREY:
        return _deep_grey(image)
    if bits > 8:
        image.info.pop("transparency", None)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        ground = Image.new("RGB", image.size, (255, 255, 255))
        ground.paste(layer, mask=layer)
        return np.asarray(ground)
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _deep_grey(image: Image.Image) -> npt.NDArray[np.uint8]:
    tags = getattr(image, "tag_v2", {})
    bits = int(tags.get(_BITS_PER_SAMPLE, (16,))[0])
    grey = (np.asarray(image) >> (bits - 8)).astype(np.uint8)
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        grey = 255 - grey  # Pillow inverts these only up to 8 bits
    return np.repeat(grey[:, :, None], 3, axis=2)
