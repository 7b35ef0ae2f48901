"""Encode a sample's values as bytes, and record the properties from which assembly determines the schema."""

import struct
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from packer.assembly.piece import ColumnSpec, EncodedValue
from packer.assembly.schemas import LOSSLESS_CODEC
from packer.recipe import Recipe
from packer.recipe.parsing import codec_of_encoding
from packer.vision.decode.jpeg_header import (
    PROGRESSIVE_MARK,
    is_progressive,
    restart_interval,
)
from packer.vision.decode.sampling import sample_at
from packer.workspace.disk_list import writing_temporary
from shardspec.codecs import codec_for, is_lossy
from shardspec.codecs.base import Codec
from shardspec.columns import Buffer, fixed_bytes
from shardspec.errors import SchemaError
from shardspec.fields import is_image_field, is_mask_name
from shardspec.registry import import_target
from shardspec.schema import NAME, Field, NamedConfig
from shardspec.typing.field_types import FieldKind, FieldType, as_array, is_image
from shardspec.wording import did_you_mean, list_some

KEPT = "_kept_jpeg"
"""Key of a sample that holds the `OriginalBytes` bytes of its ``image``, if they may be stored unchanged."""


SEQUENCES = "_sequences"
"""Key of a sample that carries the names of the fields that have one value for each of its frames."""


class OriginalBytes(NamedTuple):
    """An image and the bytes that it was decoded from.

    `progressive` says whether the bytes are a progressive JPEG; None if unknown.
    """

    image: npt.NDArray[np.uint8]
    data: bytes
    codec: str
    progressive: bool | None = None


def image_codec(recipe: Recipe) -> NamedConfig:
    """Return the codec of image or video fields in a recipe, except for fields in its `field_codecs`."""
    options: dict[str, Any] = {"quality": recipe.quality, "subsampling": recipe.subsampling, "gop": recipe.gop}
    return _with_rate(recipe, codec_of_encoding(recipe.encode, **options))


def field_codecs(recipe: Recipe) -> Mapping[str, NamedConfig]:
    """Return the codecs of the fields in a recipe's `field_codecs`."""
    return {name: _with_rate(recipe, codec) for name, codec in recipe.field_codecs.items()}


def _with_rate(recipe: Recipe, codec: NamedConfig) -> NamedConfig:
    """Add the rate at which frames were sampled to the codec of a video."""
    rate = recipe.resample_fps or recipe.fps
    if recipe.sample == "frame" or rate is None:
        return codec
    return NamedConfig(codec.name, {**codec.configuration, "rate": rate})


Use = Literal["hidden", "lossless", "plain"]

_NAMES_KEPT = 4096

_IMAGE, _TEXT = ColumnSpec("image", "|u1", 3), ColumnSpec("text", "|u1", 1)
_BLOB, _JSON = ColumnSpec("blob", "|u1", 1), ColumnSpec("json", "|u1", 1)
_JSON_SEQUENCE = ColumnSpec("json_sequence", "|u1", 1)

_write_utf8 = codec_for(Field("text", "text", "|u1", (None,), NamedConfig("utf8"))).encode
_write_json = codec_for(Field("json", "text", "|u1", (None,), NamedConfig("json"))).encode

_PLAIN: Mapping[type, tuple[Callable[[Any], bytes], ColumnSpec]] = {
    bool: (struct.Struct("<?").pack, ColumnSpec("array", "|b1", 0)),
    int: (struct.Struct("<q").pack, ColumnSpec("array", "<i8", 0)),
    float: (struct.Struct("<d").pack, ColumnSpec("array", "<f8", 0)),
}
"""Encoders of Python numbers. They produce the same bytes as NumPy in a tenth of the time."""

SOUND_FIELDS = ("audio", "audio_rate", "piece", "seconds")
"""Fields that the step ``sound`` adds, besides ``time``."""


def load_to_baseline() -> Callable[[bytes, npt.NDArray[np.uint8]], bytes]:
    """Load the function that recodes a progressive JPEG as baseline; `MissingDependencyError` without its library."""
    load: Callable[[bytes, npt.NDArray[np.uint8]], bytes] = import_target(
        "packer.vision.decode.baseline:to_baseline", what="--progressive baseline", extra="progressive"
    )
    return load


def audio_length(recipe: Recipe) -> int | None:
    """Return the number of values of ``audio`` if the recipe alone determines it, otherwise None.

    It does if frames are resampled to a rate that divides the sound's rate. Otherwise the number depends on the videos.
    """
    if recipe.audio is None or recipe.resample_fps is None or not (recipe.audio / recipe.resample_fps).is_integer():
        return None
    return round(recipe.audio / recipe.resample_fps)


def declared_fields(recipe: Recipe) -> dict[str, FieldType]:
    """Return the fields whose types the recipe determines: images with separate encodings, and sound."""
    fields = {name: FieldType("image", codec=codec) for name, codec in field_codecs(recipe).items()}
    if recipe.reads_sound:
        known = recipe.audio is not None and recipe.seconds is not None
        length = max(1, sample_at(float(recipe.seconds or 0), int(recipe.audio or 0))) if known else None
        shape = (length,) if recipe.channels == "mono" else (None, length)
        # The number of channels is that of the files if they agree.
        fields["audio"] = FieldType("array", "<i2", shape, settled=shape != (None, length) or not known)
    elif recipe.audio is not None:
        length = audio_length(recipe) if recipe.sample == "frame" else None
        fields["audio"] = FieldType("array", "<i2", (length,), settled=True)
    return fields


class Encoder:
    """Encodes samples by a recipe. An image is a uint8 array (H, W, 3) in a field that `is_image_field` accepts.

    The step ``gather`` has encoded videos already, as `EncodedValue`s.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._encode = recipe.encode
        self._uses: dict[Any, Use] = {}
        self._to_baseline = load_to_baseline() if recipe.progressive == "baseline" else None
        self._lossy = is_lossy(recipe.encode)
        self._by_field: dict[str, Callable[[npt.NDArray[np.uint8]], Buffer]] = {
            name: fixed_bytes
            if codec.name == "raw"
            else codec_for(Field(name, "bytes", "|u1", (None, None, 3), codec)).encode
            for name, codec in (recipe.field_codecs.items() if recipe.sample == "frame" else ())
        }
        self._wanted = tuple(recipe.field_codecs)
        self._recipe = recipe

    # Created when the first image is encoded: if the bytes of all images are kept, no image library is needed.
    @cached_property
    def _exact(self) -> Codec:
        return codec_for(Field("exact", "bytes", "|u1", (None, None, 3), LOSSLESS_CODEC))

    @cached_property
    def _encode_image(self) -> Callable[[npt.NDArray[np.uint8]], Buffer]:
        recipe = self._recipe
        return _image_encoder(recipe, None if recipe.encode == "raw" else codec_for(_image_field(recipe)))

    def prepare(self) -> None:
        """Load the encoder of images now instead of with the first one."""
        if self._recipe.sample == "frame":
            _ = self._encode_image

    def encode(self, sample: dict[str, Any], *, whole: bool = True) -> dict[str, EncodedValue]:
        """Encode all values of a sample; keys with a leading underscore are left out.

        Raises
        ------
        SchemaError
            If a field's name or a value's type cannot be stored, or a `whole` sample lacks a field of `encode_field`.
        """
        kept: OriginalBytes | None = sample.get(KEPT)
        sequences: Collection[str] = sample.get(SEQUENCES, ())
        out: dict[str, EncodedValue] = {}
        for name, value in sample.items():
            use = self._uses.get(name)
            if use is None:
                use = self._use(name)
            if use == "hidden":
                continue
            if isinstance(value, EncodedValue):
                out[name] = value
            elif name == "image" and kept is not None and kept.codec == self._encode and value is kept.image:
                out[name] = self._keep(kept)
            elif name in self._by_field:
                out[name] = self._image(name, value)
            else:
                out[name] = self._value(name, value, lossless=use == "lossless", in_time=name in sequences)
        missing = [name for name in self._wanted if name not in out]
        if missing and whole:
            like = did_you_mean(missing[0], out)
            raise SchemaError(
                place="encode_field", expected=f"a field {missing[0]!r}", found=f"{list_some(list(out))}{like}"
            )
        return out

    def _use(self, name: Any) -> Use:
        """Return how the field with a name is stored; cached, since nearly all samples have the same names."""
        if not isinstance(name, str):
            raise SchemaError(place=f"field {name!r}", expected="a name", found=type(name).__name__)
        hidden = name.startswith("_")
        if not hidden and not NAME.match(name):
            raise SchemaError(place=f"field {name!r}", expected="a name of lower-case letters, digits and underscores")
        if len(self._uses) == _NAMES_KEPT:
            self._uses.clear()
        keeps = self._lossy and is_mask_name(name)
        use: Use = "hidden" if hidden else "lossless" if keeps else "plain"
        self._uses[name] = use
        return use

    def _keep(self, kept: OriginalBytes) -> EncodedValue:
        """Return the original bytes of an image, or the bytes recoded as a baseline JPEG."""
        image, data, _, progressive = kept
        if progressive is None:
            progressive = self._encode == "jpeg" and PROGRESSIVE_MARK in data and is_progressive(data)
        if progressive and self._to_baseline is not None:
            with writing_temporary():
                data = self._to_baseline(data, image)
        return EncodedValue(data, image.shape, _IMAGE, progressive)

    def _image(self, name: str, value: Any) -> EncodedValue:
        array = _as_array(name, value)
        if not is_image(array):
            found = f"{array.dtype} {array.shape}" if isinstance(value, np.ndarray) else type(value).__name__
            raise SchemaError(place="encode_field", expected=f"{name!r} as an image, uint8 (H, W, 3)", found=found)
        return EncodedValue(self._by_field[name](array), array.shape, _IMAGE)

    def _value(self, name: str, value: Any, *, lossless: bool, in_time: bool = False) -> EncodedValue:
        plain = _PLAIN.get(type(value))
        if plain is not None:
            pack, spec = plain
            try:
                return EncodedValue(pack(value), (), spec)
            except struct.error:
                pass  # an integer that does not fit into a signed 64-bit integer
        for types, encode in BYTES_OF.values():
            if isinstance(value, types):
                found = encode(value)
                return found._replace(spec=_JSON_SEQUENCE) if in_time else found
        array = _as_array(name, value)
        if is_image_field(name) and is_image(array):
            if lossless:
                return EncodedValue(self._exact.encode(array), array.shape, ColumnSpec("lossless", "|u1", 3))
            return EncodedValue(self._encode_image(array), array.shape, _IMAGE)
        spec = ColumnSpec("sequence" if in_time else "array", array.dtype.str, array.ndim)
        return EncodedValue(fixed_bytes(array), array.shape, spec)


def write_text(value: str) -> bytes:
    """Return the bytes of a string; raise `CodecError` if it cannot be stored."""
    return bytes(_write_utf8(value))


def encode_text(value: str) -> EncodedValue:
    """Encode a text as the value of a field."""
    data = write_text(value)
    return EncodedValue(data, (len(data),), _TEXT)


def _encode_blob(value: Buffer) -> EncodedValue:
    return EncodedValue(bytes(value), (len(value),), _BLOB)


def _encode_json(value: Any) -> EncodedValue:
    data = bytes(_write_json(value))
    return EncodedValue(data, (len(data),), _JSON)


BYTES_OF: Mapping[FieldKind, tuple[Any, Callable[[Any], EncodedValue]]] = {
    "text": (str, encode_text),
    "blob": (bytes | bytearray | memoryview, _encode_blob),
    "json": (dict | list | tuple, _encode_json),
}
"""The Python types of values that are encoded without NumPy, and the functions that encode them."""


def _image_encoder(recipe: Recipe, codec: Any) -> Callable[[npt.NDArray[np.uint8]], Buffer]:
    """Return the function that encodes an image. `codec` is the field's codec; None for raw images."""
    if codec is None:
        return fixed_bytes
    encode: Callable[..., Buffer] = codec.encode
    if not recipe.restart_markers:
        if recipe.encode != "jpeg":
            return encode
        return _load_jpeg_encoder()(codec)

    def with_markers(image: npt.NDArray[np.uint8]) -> Buffer:
        height, width = image.shape[:2]
        return encode(image, restart_marker_blocks=restart_interval(height, width, recipe.subsampling))

    return with_markers


def _image_field(recipe: Recipe) -> Field:
    return Field("image", "bytes", "|u1", (None, None, 3), image_codec(recipe))


def _load_jpeg_encoder() -> Callable[..., Callable[..., Buffer]]:
    """Load `packer.vision.encode.jpeg_encoder` on first use, because planning does not need its libraries."""
    make: Callable[..., Callable[..., Buffer]] = import_target(
        "packer.vision.encode:jpeg_encoder", what="--encode jpeg", extra="pack"
    )
    return make


def _as_array(name: str, value: Any) -> npt.NDArray[Any]:
    if value is None:
        raise SchemaError(
            place=f"field {name!r}",
            expected="a value",
            found="None",
            hint=f"store a sentinel and a field {name}_valid instead",
        )
    try:
        return as_array(value)
    except SchemaError as error:
        raise SchemaError(error, place=f"field {name!r}") from error


def keeps_images(recipe: Recipe) -> bool:
    """Return whether no step or encoding of a recipe looks at the pixels of a JPEG whose bytes may be kept."""
    own = {step.use for step in recipe.chain} <= {"decode", "resize"}
    return (
        own
        and not recipe.resizes
        and recipe.encode == "jpeg"
        and recipe.progressive != "baseline"
        and recipe.also is None
    )
