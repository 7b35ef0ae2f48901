"""Codecs: how one value becomes bytes and back. This is the table of their names; each codec has its own file."""

from collections.abc import Mapping

from shardspec.codecs.base import Codec
from shardspec.registry import Entry, resolve
from shardspec.schema import Field

CODECS: Mapping[str, Entry] = {
    "jpeg": Entry("shardspec.codecs.jpeg:JPEGCodec"),
    "json": Entry("shardspec.codecs.text:JSONCodec"),
    "png": Entry("shardspec.codecs.image:PNGCodec"),
    "raw": Entry("shardspec.codecs.raw:RawCodec"),
    "utf8": Entry("shardspec.codecs.text:UTF8Codec"),
    "webp": Entry("shardspec.codecs.image:WebPCodec"),
}


def codec_for(field: Field) -> Codec:
    """The codec of a field, ready to encode and decode its values.

    Raises
    ------
    UsageError
        If the codec's name is unknown.
    MissingDependencyError
        If a library that the codec needs is not installed.
    """
    codec: Codec = resolve("codec", field.codec.name, CODECS)(field)
    return codec


__all__ = ["CODECS", "Codec", "codec_for"]
