"""The media that an item may have, and the types of image files.

A new medium is an entry of `MEDIA`, a step that reads it, and the module that decodes it. A recipe says which media its
steps take (`packer.recipe.Recipe.media`). Everything else asks the item for its medium. The types of image files that
datasets store come from the table of codecs.
"""

import re
from collections.abc import Collection, Mapping
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
    name : str
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
    preset : str
        The preset that packs such files.
    advice : str
        How to pack such a file, for messages.
    """

    name: str
    noun: str
    suffixes: tuple[str, ...]
    is_sequence: bool = False
    libraries: tuple[str, ...] = ()
    weight: int = 1
    preset: str = "images"
    advice: str = "--preset images packs it"

    def holds(self, name: str) -> bool:
        """Return whether a file is of this medium by its suffix."""
        return medium_of(name) is self


IMAGE = Medium("image", "an image", tuple(suffix for known in FILE_TYPES.values() for suffix in known.suffixes))
VIDEO = Medium(
    "video",
    "a video",
    suffixes=(
        *(".3g2", ".3gp", ".asf", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts"),
        *(".ogv", ".ts", ".vob", ".webm", ".wmv"),
    ),
    is_sequence=True,
    libraries=("av", "cv2"),
    weight=8,
    advice="--preset images packs its frames, and --audio RATE its sound; ffmpeg -i IN -vn OUT.wav extracts the sound",
)
SOUND = Medium(
    "sound",
    "a sound file",
    (".aac", ".aif", ".aiff", ".flac", ".m4a", ".mp3", ".oga", ".ogg", ".opus", ".sph", ".wav"),
    libraries=("av",),
    weight=4,
    preset="sound",
    advice="--preset sound packs it",
)
MEDIA = (IMAGE, VIDEO, SOUND)
PICTURES = (IMAGE, VIDEO)
"""Media that have pixels, which the presets take unless they say otherwise."""

_BY_SUFFIX: Mapping[str, Medium] = {suffix: medium for medium in MEDIA for suffix in medium.suffixes}


def medium_of(name: str, media: Collection[Medium] = MEDIA) -> Medium | None:
    """Return the medium of a file by its suffix, in upper or lower case; None if it is none of `media`."""
    dot = name.rfind(".")  # as of a path object, which takes longer to make
    medium = _BY_SUFFIX.get(name[dot:].lower()) if name.rfind("/") + 1 < dot else None
    return medium if medium in media else None


def media_named(names: Collection[str]) -> tuple[Medium, ...]:
    """Return the media with some names, as a recipe has them."""
    return tuple(medium for medium in MEDIA if medium.name in names)


def is_picture(name: str) -> bool:
    """Return whether a file is an image or a video by its suffix."""
    return medium_of(name, PICTURES) is not None


def describe_files(media: Collection[Medium]) -> str:
    """Name the files of some media, in the plural."""
    return "sound files" if SOUND in media else "images or videos"


def describe_sought(media: Collection[Medium]) -> str:
    """Describe the files that a build looks for in a folder."""
    if SOUND in media:
        return "sound files, known by suffixes such as .wav, .flac and .mp3"
    return "images and videos, known by suffixes such as .jpg, .png and .mp4"


def describe_media(media: Collection[Medium]) -> str:
    """Name media in messages, such as ``an image or a video``."""
    return " or ".join(medium.noun for medium in media)
