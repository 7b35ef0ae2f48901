"""The table of codecs, which encode one value as bytes. The modules of codecs are imported on first use.

To add a codec of images or videos, add a module to this folder and an entry to `CODECS`. Everything else follows from the entry.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from shardspec.registry import ImportTarget, resolve

if TYPE_CHECKING:
    from shardspec.codecs.base import Codec
    from shardspec.schema import Field


@dataclass(frozen=True)
class ImageType:
    """Properties of the image files that a codec writes.

    Attributes
    ----------
    title : str
        Name in messages.
    suffixes : tuple of str
        File suffixes in lower case. Exported files get the first one.
    magic : re.Pattern
        Matches the first bytes of these files and of no others.
    media_type : str or None
        None if browsers cannot show the files.
    lossy : bool
    options : tuple of str
        Options of a recipe that are stored in the codec's configuration: ``quality``, ``subsampling``.
    """

    title: str
    suffixes: tuple[str, ...]
    magic: re.Pattern[bytes]
    media_type: str | None = None
    lossy: bool = False
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class VideoType:
    """Properties of the video files that a codec writes.

    Attributes
    ----------
    title : str
        Name in messages.
    suffix : str
        File suffix.
    media_type : str
    lossy : bool
    quality : tuple of (int, int, int) or None
        Lowest, highest and default value of the option ``quality``; None if the codec does not read it.
    options : tuple of str
        Options of a recipe that are stored in the codec's configuration: ``quality``, ``gop``, ``subsampling``.
    """

    title: str
    suffix: str
    media_type: str
    lossy: bool = False
    quality: tuple[int, int, int] | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class CodecEntry(ImportTarget):
    """An entry in the table of codecs.

    Attributes
    ----------
    kinds : tuple of str
        Kinds of the fields (`shardspec.schema.Kind`) whose values it encodes.
    image : ImageType or None
        None if the codec is not limited to images.
    video : VideoType or None
        None if the codec is not limited to videos.
    """

    kinds: tuple[str, ...] = ("bytes",)
    image: ImageType | None = None
    video: VideoType | None = None


JPEG = ImageType(
    title="JPEG",
    suffixes=(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"),
    magic=re.compile(rb"\xff\xd8"),
    media_type="image/jpeg",
    lossy=True,
    options=("quality", "subsampling"),
)
PNG = ImageType("PNG", (".png",), re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png")
WEBP = ImageType(
    title="WebP",
    suffixes=(".webp",),
    magic=re.compile(rb"RIFF....WEBP(?!VP8L)", re.DOTALL),
    media_type="image/webp",
    lossy=True,
    options=("quality",),
)
LOSSLESS_WEBP = ImageType("lossless WebP", (".webp",), re.compile(rb"RIFF....WEBPVP8L", re.DOTALL), "image/webp")

H264 = VideoType("H.264", ".mp4", "video/mp4", True, (0, 51, 21), ("quality", "gop", "subsampling"))
AV1 = VideoType("AV1", ".mp4", "video/mp4", True, (1, 63, 25), ("quality", "gop"))
FFV1 = VideoType("FFV1", ".mkv", "video/x-matroska")

CODECS: dict[str, CodecEntry] = {
    "av1": CodecEntry("shardspec.codecs.video:AV1Codec", "pack", video=AV1),
    "ffv1": CodecEntry("shardspec.codecs.video:FFV1Codec", "pack", video=FFV1),
    "h264": CodecEntry("shardspec.codecs.video:H264Codec", "pack", video=H264),
    "jpeg": CodecEntry("shardspec.codecs.image:JPEGCodec", image=JPEG),
    "json": CodecEntry("shardspec.codecs.text:JSONCodec", kinds=("text",)),
    "png": CodecEntry("shardspec.codecs.png:PNGCodec", image=PNG),
    "raw": CodecEntry("shardspec.codecs.raw:RawCodec", kinds=("fixed", "ragged", "bytes")),
    "utf8": CodecEntry("shardspec.codecs.text:UTF8Codec", kinds=("text",)),
    "webp": CodecEntry("shardspec.codecs.image:WebPCodec", image=WEBP),
    "webp-lossless": CodecEntry("shardspec.codecs.image:LosslessWebPCodec", image=LOSSLESS_WEBP),
}


def codecs_of(kind: str) -> tuple[str, ...]:
    """Return the names of the codecs for a kind of field."""
    return tuple(name for name, entry in CODECS.items() if kind in entry.kinds)


def image_types() -> Mapping[str, ImageType]:
    """Return the codecs of images by name."""
    return {name: entry.image for name, entry in CODECS.items() if entry.image is not None}


def video_types() -> Mapping[str, VideoType]:
    """Return the codecs of videos by name."""
    return {name: entry.video for name, entry in CODECS.items() if entry.video is not None}


def is_lossy(codec: str) -> bool:
    """Return whether a codec stores images or videos with loss."""
    entry = CODECS.get(codec)
    file = None if entry is None else entry.image or entry.video
    return file is not None and file.lossy


def codec_for(field: "Field") -> "Codec":
    """Return the codec of a field.

    Raises
    ------
    UsageError
        If the codec's name is unknown.
    MissingDependencyError
        If a library that the codec needs is not installed.
    """
    return cast("Codec", resolve("codec", field.codec.name, CODECS)(field))
