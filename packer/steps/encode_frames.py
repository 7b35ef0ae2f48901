"""Encode the frames of videos as they come."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from packer.assembly.piece import ColumnSpec, EncodedValue, ValueKind
from packer.assembly.schemas import LOSSLESS_VIDEO_CODEC
from packer.recipe import Recipe
from packer.steps.encode import field_codecs, image_codec
from shardspec.codecs import codec_for, is_lossy
from shardspec.errors import ItemError
from shardspec.fields import is_mask_name
from shardspec.schema import Field
from shardspec.typing.field_types import is_image

if TYPE_CHECKING:
    from shardspec.codecs.video import VideoCodec, VideoWriter


class VideoEncoder:
    """Encodes the videos of a recipe, each by the codec of its field."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._by_field = field_codecs(recipe)
        self._lossy = is_lossy(recipe.encode)
        self._codecs: dict[str, tuple[VideoCodec, ValueKind]] = {}
        self._codec("video")  # loads the library

    def begin(self, name: str) -> "EncodedFrames":
        """Begin a video of a field."""
        codec, kind = self._codec(name)
        return EncodedFrames(codec.writer(), kind)

    def _codec(self, name: str) -> "tuple[VideoCodec, ValueKind]":
        if name not in self._codecs:
            keeps = self._lossy and is_mask_name(name) and name != "video" and name not in self._by_field
            codec = LOSSLESS_VIDEO_CODEC if keeps else self._by_field.get(name, image_codec(self._recipe))
            made = codec_for(Field(name, "bytes", "|u1", (None, None, None, 3), codec))
            self._codecs[name] = cast("VideoCodec", made), "lossless" if keeps else "image"
        return self._codecs[name]


class EncodedFrames:
    """The frames of one video so far."""

    def __init__(self, writer: "VideoWriter", kind: ValueKind) -> None:
        self._writer = writer
        self._kind: ValueKind = kind
        self._shape: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """Number of encoded bytes."""
        return self._writer.bytes

    def add(self, name: str, image: Any) -> None:
        """Encode a frame of the image field `name`.

        Raises
        ------
        ItemError
            If its shape differs from that of the first one.
        """
        shape = np.shape(image)
        if not self._shape:
            self._shape = shape
        if shape != self._shape or not is_image(np.asarray(image)):
            raise ItemError(
                expected=f"{'frames' if name == 'image' else f'values of {name!r}'} of one shape in a sample",
                found=" and ".join(map(describe_shape, sorted((self._shape, shape)))),
                hint="choose --size and --resize exact" if name == "image" else None,
            )
        self._writer.add(np.ascontiguousarray(image))

    def finish(self) -> EncodedValue:
        """Return the video."""
        spec = ColumnSpec(self._kind, "|u1", 4)
        return EncodedValue(self._writer.finish(), (self._writer.frames, *self._shape), spec)


def describe_shape(shape: Sequence[int]) -> str:
    """Describe a shape, such as ``24x30x3``."""
    return "x".join(map(str, shape))
