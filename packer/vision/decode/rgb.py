"""Decode with Pillow, and convert every kind of pixel to ``uint8`` RGB by a single rule.

``docs/howto/images.md`` shows the rule as a table. Ordinary JPEGs do not need Pillow, which loads with the first other
image.
"""

import struct
import warnings
import zlib
from binascii import unhexlify
from collections.abc import Callable, Iterator
from fractions import Fraction
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
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from packer.vision.decode.limits import ImageError, check_size, needing_memory
from packer.vision.decode.tiff import select_main_image
from shardspec.errors import MissingDependencyError
from shardspec.registry import import_target

_Open = Callable[[BytesIO], ImageFile.ImageFile]

# The plugin classes and not Image.open, whose check against decompression bombs sets a limit and a warning for the
# process.
_PLUGINS: dict[str, _Open] = {
    "BMP": BmpImagePlugin.BmpImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "JPEG": JpegImagePlugin.JpegImageFile,
    "Netpbm": PpmImagePlugin.PpmImageFile,
    "PNG": PngImagePlugin.PngImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "WebP": WebPImagePlugin.WebPImageFile,
    "lossless WebP": WebPImagePlugin.WebPImageFile,
}
_UPRIGHT = ("HEIC", "TIFF")
"""Formats that are decoded upright."""
_PIXEL_BYTES = 12
"""Bytes per pixel that decoders and Pillow hold at a time (up to)."""

_PNG_SIGNATURE_BYTES, _PNG_FRAME_BYTES = 8, 12  # a chunk has four bytes each of length, type and checksum
_PNG_METADATA = frozenset(
    b"tEXt zTXt iTXt eXIf tIME pHYs iCCP gAMA cHRM sRGB cICP mDCV cLLI sBIT bKGD hIST sPLT acTL fcTL fdAT".split()
)
"""Types of chunks that do not affect the pixels of the first image (PNG specification, third edition, 11.3)."""
_RAW_EXIF = b"Raw profile type exif\x00"
_MOST_TEXT = 1 << 20  # bytes: the orientation comes first

# libtiff decodes all TIFF files: Pillow's own decoder, for those that are not compressed, mixes up the bytes of 16-bit
# samples in separate planes.
TiffImagePlugin.READ_LIBTIFF = True

_BITS_PER_SAMPLE, _PHOTOMETRIC = 258, 262  # TIFF 6.0, section 8
_WHITE_IS_ZERO = 0
_DEEP_GREY = ("I;16", "I;16L", "I;16B", "I;16N")


def decode_by_pillow(data: bytes, kind: str, max_pixels: int) -> tuple[npt.NDArray[np.uint8], bytes]:
    """Decode an image with Pillow, or a library that extends it, as the type that its first bytes say.

    Returns
    -------
    pixels : ndarray, (H, W, 3), uint8
        RGB as stored; for HEIC and TIFF upright. AVIF and HEIC are cropped as the file says.
    exif : bytes
        The image's EXIF block; empty if it has none, and for HEIC and TIFF.

    Raises
    ------
    ImageError
        If the image is too large, or has a kind of pixel that the rule excludes.
    MemoryError
        If memory does not suffice.
    MissingDependencyError
        If the library that decodes the format is not installed.
    Exception
        Of any kind, if the image is damaged (SyntaxError, struct.error, EOFError).
    """
    exif = b""
    if kind == "PNG":
        data, exif = _split_png(data)
    elif kind == "TIFF":
        data = select_main_image(data)
    open_image = _PLUGINS.get(kind) or _load_plugin(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with open_image(BytesIO(data)) as image:
            check_size(*image.size, max_pixels)
            if kind == "Netpbm":
                _check_netpbm(image)
            with needing_memory(kind, *image.size):
                try:
                    image.load()
                except Exception:  # libavif, libheif and their decoders do not say that they lack memory
                    np.empty((image.height, image.width, _PIXEL_BYTES), np.uint8)
                    raise
                check_size(*image.size, max_pixels)  # a HEIC's header need not tell the size of its coded image
                pixels = to_rgb(image, bits=data[24] if kind == "PNG" else 8)  # its header gives the depth at byte 24
            if kind == "AVIF":
                pixels = _crop_avif(pixels, data)
            return pixels, b"" if kind in _UPRIGHT else exif or image.info.get("exif", b"")


def _load_plugin(kind: str) -> _Open:
    """Load the plugin of a format that is rare or needs another library, and have it decode in one thread."""
    if kind == "AVIF":
        from PIL import AvifImagePlugin

        if not AvifImagePlugin.SUPPORTED:
            raise MissingDependencyError(
                "an AVIF image needs a Pillow with AVIF, which its wheels have",
                hint="pip install --force-reinstall pillow",
            )
        AvifImagePlugin.DEFAULT_MAX_THREADS = AvifImagePlugin.DEFAULT_MAX_THREADS or 1
        plugin: _Open = AvifImagePlugin.AvifImageFile
    else:
        plugin = import_target("pillow_heif:HeifImageFile", what="a HEIC image", extra="heif")
        import_target("pillow_heif:options", what="a HEIC image").DECODE_THREADS = 1
    _PLUGINS[kind] = plugin
    return plugin


def _check_netpbm(image: ImageFile.ImageFile) -> None:
    """Refuse texts, and samples that have to be scaled: Pillow reads these one by one in Python."""
    if image.tile[0].codec_name != "raw" or image.mode == "I":
        raise ImageError(
            expected="binary Netpbm (P4, P5 or P6) with a largest value of 255",
            found="another kind",
            hint="convert it, for example to PNG",
        )


def _split_png(data: bytes) -> tuple[bytes, bytes]:
    """Separate the pixels of a PNG from its metadata, for which Pillow may refuse the file, and find its EXIF block.

    Pillow refuses metadata that are damaged or large, such as comments and colour profiles of more than 1 MiB. Returns
    the file without its metadata (of an animation, the first image), and the ``eXIf`` chunk, or else the text chunk in
    which ImageMagick stores EXIF.
    """
    pieces, exif, text = [data[:_PNG_SIGNATURE_BYTES]], b"", b""
    at = begin = _PNG_SIGNATURE_BYTES
    while at + _PNG_FRAME_BYTES <= len(data):
        kind = data[at + 4 : at + 8]
        body, stop = at + 8, at + _PNG_FRAME_BYTES + int.from_bytes(data[at : at + 4], "big")
        if stop > len(data) or kind == b"IEND":
            break
        if kind in _PNG_METADATA:
            if kind == b"eXIf":
                exif = exif or data[body : stop - 4]
            elif kind in (b"tEXt", b"zTXt") and data.startswith(_RAW_EXIF, body):
                text = text or _read_raw_profile(data[body + len(_RAW_EXIF) : stop - 4], packed=kind == b"zTXt")
            pieces.append(data[begin:at])
            begin = stop
        at = stop
    return data if begin == _PNG_SIGNATURE_BYTES else b"".join((*pieces, data[begin:])), exif or text


def _read_raw_profile(text: bytes, *, packed: bool) -> bytes:
    """Read the hexadecimal digits after three lines (empty, name, length); empty if they are damaged."""
    try:
        plain = zlib.decompressobj().decompress(text[1:], _MOST_TEXT) if packed else text[:_MOST_TEXT]
        digits = b"".join(plain.split(b"\n")[3:])
        return unhexlify(digits[: len(digits) // 2 * 2])
    except (zlib.error, ValueError):
        return b""


def _crop_avif(pixels: npt.NDArray[np.uint8], data: bytes) -> npt.NDArray[np.uint8]:
    """Crop an image to the clean aperture of its file (ISO/IEC 14496-12, 12.1.4), which Pillow ignores.

    As by libavif, an aperture is ignored if it is no part of the image or does not begin and end between pixels.
    """
    height, width = pixels.shape[:2]
    for clean in _properties(data, b"clap"):
        numbers = struct.unpack_from(">IIIIiIiI", clean)
        if 0 in numbers[1::2]:
            continue
        wide, high, right, below = (Fraction(a, b) for a, b in zip(numbers[::2], numbers[1::2], strict=True))
        left, top = right + (width - wide) / 2, below + (height - high) / 2
        edges = left, left + wide, top, top + high
        x, x_end, y, y_end = map(int, edges)
        if edges == (x, x_end, y, y_end) and 0 <= x < x_end <= width and 0 <= y < y_end <= height:
            return np.ascontiguousarray(pixels[y:y_end, x:x_end])
    return pixels


def _properties(data: bytes, kind: bytes) -> Iterator[bytes]:
    """Yield the properties of a kind of the main image of a HEIF file (ISO/IEC 23008-12, 9.3)."""
    meta = [box for name, box in _boxes(data) if name == b"meta"]
    inside = dict(_boxes(meta[0][4:])) if meta else {}
    shared = list(_boxes(inside.get(b"iprp", b"")))
    properties = list(_boxes(dict(shared).get(b"ipco", b"")))
    main = int.from_bytes(inside.get(b"pitm", b"")[4:])
    for table in (BytesIO(content) for name, content in shared if name == b"ipma"):
        version, *_, flags = table.read(4) or bytes(4)
        wide = 4 if version else 2, 2 if flags & 1 else 1
        for _ in range(int.from_bytes(table.read(4))):
            item, count = int.from_bytes(table.read(wide[0])), int.from_bytes(table.read(1))
            indices = [int.from_bytes(table.read(wide[1])) for _ in range(count)]
            if item == main:
                places = {index & (1 << 8 * wide[1] - 1) - 1 for index in indices}  # without "essential"
                yield from (one for place, (name, one) in enumerate(properties, 1) if name == kind and place in places)


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the names and contents of the boxes in a part of a HEIF file (ISO/IEC 14496-12, 4.2)."""
    at = 0
    while at + 8 <= len(data):
        size, begin = int.from_bytes(data[at : at + 4]), at + 8
        if size == 1:
            size, begin = int.from_bytes(data[at + 8 : at + 16]), at + 16
        stop = at + size if size else len(data)
        yield data[at + 4 : at + 8], data[begin:stop]
        at = max(stop, begin)


def to_rgb(image: Image.Image, *, bits: int = 8) -> npt.NDArray[np.uint8]:
    """Convert a loaded Pillow image to RGB, (H, W, 3).

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
    bits : int
        Bits per channel in the file, where Pillow's mode does not show them.

    Raises
    ------
    ImageError
        If the pixels are L*a*b* colours, for which no matrix can be assumed.
    """
    if image.mode == "LAB":
        raise ImageError(
            expected="grey, RGB, YCbCr or CMYK", found="CIE L*a*b* colours; convert the file by your own rule first"
        )
    if image.mode in _DEEP_GREY:
        return _deep_grey(image)
    if bits > 8:
        image.info.pop("transparency", None)
    elif image.mode == "L" and "transparency" in image.info:  # Pillow scales the pixels to 8 bits, but not their key
        image.info["transparency"] = image.info["transparency"] * 255 // (2**bits - 1)
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
