"""The media that an item may have, and the types of image files.

A new medium is an entry of `MEDIA`, a case of the step ``decode``, and the module that decodes it. Everything else asks
the item for its medium. The types of image files that datasets store come from the table of codecs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shardspec.codecs import image_types


class FileType(NamedTuple):
    """A type of image files.

    Attributes
    ----------
    suffixes : tuple of str
        In lower case.
    magic : re.Pattern
        Matches the first bytes of such a file.
    codec : str or None
        The codec that makes such files; None if datasets do not store them.
    """

    suffixes: tuple[str, ...]
    magic: re.Pattern[bytes]
    codec: str | None = None


_FTYP = rb"....ftyp(?:....){0,12}?"  # the brands of a file (ISO/IEC 14496-12, 4.3)

FILE_TYPES: Mapping[str, FileType] = {
    **{image.title: FileType(image.suffixes, image.magic, name) for name, image in image_types().items()},
    "GIF": FileType((".gif",), re.compile(rb"GIF8[79]a")),
    "TIFF": FileType((".tif", ".tiff"), re.compile(rb"II[*+]\x00|MM\x00[*+]")),
    "BMP": FileType((".bmp",), re.compile(rb"BM")),
    "Netpbm": FileType((".pbm", ".pgm", ".pnm", ".ppm"), re.compile(rb"P[1-7][\s#]")),
    "AVIF": FileType((".avif",), re.compile(_FTYP + rb"avi[fs]", re.DOTALL)),
    "HEIC": FileType((".heic", ".heif"), re.compile(_FTYP + rb"(?:hei[cmsx]|hev[cmsx]|mif1|msf1)", re.DOTALL)),
}


def file_type(head: bytes) -> str | None:
    """Return the type of an image file by its first bytes; None if they belong to no known type."""
    return next((title for title, known in FILE_TYPES.items() if known.magic.match(head)), None)


@dataclass(frozen=True, eq=False)
class Medium:
    """A kind of content of an item's file.

    Attributes
    ----------
    noun : str
        Name of a file of this medium, for messages.
    suffixes : tuple of str
        In lower case.
    is_sequence : bool
        True if a file is a sequence of frames in time, from which frames are sampled.
    libraries : tuple of str
        Modules that are needed to decode this medium, besides the core's.
    weight : int
        Work per byte, relative to a byte of an image. A byte of a video represents more pixels.
    """

    noun: str
    suffixes: tuple[str, ...]
    is_sequence: bool = False
    libraries: tuple[str, ...] = ()
    weight: int = 1

    def holds(self, name: str) -> bool:
        """Return whether a file is of this medium by its suffix."""
        return medium_of(name) is self


IMAGE = Medium("an image", tuple(suffix for known in FILE_TYPES.values() for suffix in known.suffixes))
VIDEO = Medium(
    "a video",
    suffixes=(
        *(".3g2", ".3gp", ".asf", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts"),
        *(".ogv", ".ts", ".vob", ".webm", ".wmv"),
    ),
    is_sequence=True,
    libraries=("av", "cv2"),
    weight=8,
)
MEDIA = (IMAGE, VIDEO)

_BY_SUFFIX: Mapping[str, Medium] = {suffix: medium for medium in MEDIA for suffix in medium.suffixes}


def medium_of(name: str) -> Medium | None:
    """Return the medium of a file by its suffix, in upper or lower case; None for any other file."""
    dot = name.rfind(".")  # as of a path object, which takes longer to make
    return _BY_SUFFIX.get(name[dot:].lower()) if name.rfind("/") + 1 < dot else None
