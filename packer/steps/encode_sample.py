"""Encode samples made by Python code: check each value against the type of its field, then encode it."""

import operator
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from packer.assembly.piece import ColumnSpec, EncodedValue
from packer.recipe.fields import Declaration, check_name
from packer.steps.encode import BYTES_OF
from packer.vision.decode.jpeg_header import PROGRESSIVE_MARK, is_progressive
from packer.vision.decode.limits import ImageError
from shardspec.codecs import codec_for
from shardspec.codecs.base import Codec
from shardspec.errors import CodecError, SchemaError, UsageError
from shardspec.registry import import_target
from shardspec.schema import NO_CLASS, Field, class_name, is_utf8
from shardspec.typing.field_types import LABEL, FieldType, as_array, infer, is_image
from shardspec.wording import did_you_mean, list_some, shorten

Encode = Callable[[Any], EncodedValue]

_CONVERTIBLE = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}
"""Kinds of dtypes (``numpy.dtype.kind``) that a field accepts, by the kind of the field's dtype."""

_CLASS = ColumnSpec("class", "|u1", 1)
_TRUE = ColumnSpec("array", "|b1", 0)
_VALID, _MISSING = EncodedValue(b"\1", (), _TRUE), EncodedValue(b"\0", (), _TRUE)


class SampleEncoder:
    """Encodes samples by a declaration of their fields. Every error names the field.

    Without declared fields, the values of each sample determine their types.
    """

    def __init__(self, declaration: Declaration) -> None:
        self._classes = declaration.classes
        self._image = declaration.image
        self._encoders: dict[tuple[Any, ...], Encode] = {}
        self._declared: list[tuple[str, str | None, Encode]] | None = None
        self._names: frozenset[str] = frozenset()
        if declaration.fields is not None:
            self._names = frozenset(declaration.fields)
            self._declared = [
                (name, f"{name}_valid" if kind.optional else None, self._encoder(name, kind))
                for name, kind in declaration.fields.items()
            ]

    def encode(self, sample: Mapping[str, Any]) -> dict[str, EncodedValue]:
        """Encode all values of a sample.

        Raises
        ------
        SchemaError
            If a field is missing or unknown, or a value does not fit its field.
        """
        row: dict[str, EncodedValue] = {}
        if self._declared is None:
            for name, value in sample.items():
                row[name] = _named(name, self._infer(name, value), value)
            return row
        if len(sample) != len(self._declared) or not self._names.issuperset(sample):
            raise SchemaError(_describe_names(self._names, sample))
        for name, validity, encode in self._declared:
            value = sample[name]
            row[name] = _named(name, encode, value)
            if validity is not None:
                row[validity] = _MISSING if value is None else _VALID
        return row

    def _infer(self, name: str, value: Any) -> Encode:
        """Return the function that encodes a value whose field is not declared."""
        try:
            check_name(name, "sample")
            if value is None:
                raise SchemaError(
                    expected="a value", found="None", hint="declare a field whose value may be missing, int | None"
                )
            kind = FieldType("class") if name == LABEL and self._classes else infer(name, value, self._image)
        except UsageError as error:
            raise SchemaError(str(error)) from error
        except SchemaError as error:
            raise SchemaError(error, place=f"field {name!r}") from error
        known = (name, kind.kind, kind.dtype, kind.shape)  # an image's codec follows from its name
        if known not in self._encoders:
            self._encoders[known] = self._encoder(name, kind)
        return self._encoders[known]

    def _encoder(self, name: str, kind: FieldType) -> Encode:
        if name == LABEL and self._classes is not None:
            is_number = kind.kind == "array" and not kind.shape and not kind.listed and kind.dtype[1] in "iu"
            encode = _class_encoder(self._classes, kind.dtype if is_number else "<i8")
        else:
            encode = _ENCODERS[kind.kind](kind)
        if not kind.optional:
            return encode
        stand_in = _stand_in(name, kind)
        return lambda value: stand_in if value is None else encode(value)


def _named(name: str, encode: Encode, value: Any) -> EncodedValue:
    try:
        return encode(value)
    except (SchemaError, CodecError, ImageError) as error:
        text = str(error).partition("': ")[2] if str(error).startswith("field '") else str(error)
        raise SchemaError(text, place=f"field {name!r}") from error


def _describe_names(expected: frozenset[str], sample: Mapping[str, Any]) -> str:
    """Describe the missing and the unknown fields of a sample."""
    missing = sorted(expected.difference(sample))
    unknown = sorted((name for name in sample if name not in expected), key=str)
    found = []
    if missing:
        found.append(f"expected {list_some(list(map(repr, missing)))}, found none")
    if unknown:
        like = did_you_mean(str(unknown[0]), missing or expected)
        found.append(
            f"found {list_some([shorten(name) for name in unknown])}, which "
            f"{'is no field' if len(unknown) == 1 else 'are no fields'} of the samples before{like}"
        )
    return "; ".join(found)


def _mismatch(kind: FieldType, value: Any) -> SchemaError:
    found = f"{shorten(value)} ({type(value).__name__})"
    if isinstance(value, np.ndarray | np.generic):
        found = f"dtype {value.dtype.str} and shape {value.shape}"
    return SchemaError(expected=kind.describe(), found=found)


def _bytes_encoder(kind: FieldType) -> Encode:
    types, write = BYTES_OF[kind.kind]

    def encode(value: Any) -> EncodedValue:
        if not isinstance(value, types):
            raise _mismatch(kind, value)
        return write(value)

    return encode


def _encode_class_name(value: Any) -> EncodedValue:
    """Encode a class name, which is replaced by a number when all names are known."""
    name = class_name(value.strip()) if isinstance(value, str) else ""
    if not name or not is_utf8(name):
        raise _mismatch(FieldType("class"), value)
    data = name.encode()
    return EncodedValue(data, (len(data),), _CLASS)


def _class_encoder(classes: tuple[str, ...], dtype: str) -> Encode:
    """Return an encoder that accepts the name or the number of a known class."""
    spec = ColumnSpec("array", dtype, 0)
    numbers = {name: number for number, name in enumerate(classes)}
    limits = np.iinfo(dtype)
    fitting = range(max(NO_CLASS, limits.min), min(len(classes), limits.max + 1))
    values = {number: EncodedValue(np.array(number, dtype).tobytes(), (), spec) for number in fitting}

    def encode(value: Any) -> EncodedValue:
        if isinstance(value, str):
            number = numbers.get(value, numbers.get(class_name(value.strip())))
        else:
            try:
                number = None if isinstance(value, bool) else operator.index(value)
            except TypeError:
                number = None
        if number is None or number not in values:
            like = did_you_mean(value, classes) if isinstance(value, str) else ""
            raise SchemaError(expected=f"a class, {list_some(classes)}, or its number", found=f"{shorten(value)}{like}")
        return values[number]

    return encode


def _array_encoder(kind: FieldType) -> Encode:
    dtype = np.dtype(kind.dtype)
    spec = ColumnSpec("array", kind.dtype, len(kind.shape))
    pack = (
        {"<i8": struct.Struct("<q").pack, "<f8": struct.Struct("<d").pack}.get(kind.dtype) if not kind.shape else None
    )
    plain = int if kind.dtype == "<i8" else float
    fixed = None if None in kind.shape else kind.shape
    axes = len(kind.shape) if not any(kind.shape) else -1  # number of axes if no size is fixed

    def encode(value: Any) -> EncodedValue:
        if pack is not None and type(value) is plain:
            try:
                return EncodedValue(pack(value), (), spec)
            except struct.error:
                raise _mismatch(kind, value) from None
        if type(value) is not np.ndarray or value.dtype != dtype or (value.shape != fixed and value.ndim != axes):
            value = _convert(kind, dtype, value)
        return EncodedValue(value.tobytes(), value.shape, spec)

    return encode


def _convert(kind: FieldType, dtype: np.dtype[Any], value: Any) -> np.ndarray[Any, Any]:
    """Convert a value to an array of the field's dtype and shape. An array must have both already."""
    if isinstance(value, bool | int | float | list | tuple) and not isinstance(value, np.generic):
        array = _convert_python(kind, dtype, value)
    elif isinstance(value, str | bytes | bytearray | memoryview | dict) or value is None:
        raise _mismatch(kind, value)
    else:
        array = as_array(value)
        if not kind.shape and not array.shape:  # one number, of any width
            declared = dtype.str in ("<i8", "<f8") and array.dtype.kind in _CONVERTIBLE[dtype.kind]
            array = _convert_python(kind, dtype, array.item()) if declared else array
    if (
        array.dtype != dtype
        or array.ndim != len(kind.shape)
        or any(axis is not None and axis != found for axis, found in zip(kind.shape, array.shape, strict=True))
    ):
        raise _mismatch(kind, value if isinstance(value, np.ndarray) or array.dtype == dtype else array)
    return array


def _convert_python(kind: FieldType, dtype: np.dtype[Any], value: Any) -> np.ndarray[Any, Any]:
    """Convert Python numbers, alone or in lists, to an array. No integer is truncated or rounded."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists that are not rectangular
        raise _mismatch(kind, value) from None
    if isinstance(value, list | tuple) and not array.size and array.ndim == 1 and kind.shape:
        array = np.empty((0, *(axis or 0 for axis in kind.shape[1:])), dtype)
    if array.dtype.kind not in _CONVERTIBLE[dtype.kind]:
        raise _mismatch(kind, value)
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    exact = dtype.kind in "iu" and array.size and not np.array_equal(cast, array)
    if exact or (dtype.kind == "f" and array.dtype.kind == "f" and not _same_finite(cast, array)):
        raise _mismatch(kind, value)
    return cast


def _same_finite(cast: np.ndarray[Any, Any], array: np.ndarray[Any, Any]) -> bool:
    """Return whether the cast to a smaller dtype made no number infinite."""
    return bool(np.array_equal(np.isinf(cast), np.isinf(array)))


def _image_encoder(kind: FieldType) -> Encode:
    assert kind.codec is not None
    name = kind.codec.name
    spec = ColumnSpec("image", "|u1", 3)
    field = Field("image", "bytes", "|u1", (None, None, 3), kind.codec)
    codec: Codec | None = None if name == "raw" else codec_for(field)
    # Not imported above, because planning does not need its libraries.
    decode = import_target("packer.vision.decode.image:decode_image", what="a field of images", extra="pack")

    def encode(value: Any) -> EncodedValue:
        if isinstance(value, bytes | bytearray | memoryview):
            decoded = decode(bytes(value))
            data = decoded.kept
            if name == "jpeg" and data is not None:
                return EncodedValue(data, decoded.image.shape, spec, PROGRESSIVE_MARK in data and is_progressive(data))
            image = decoded.image
        elif isinstance(value, str | int | float | list | tuple | dict) or value is None:
            raise _mismatch(kind, value)
        else:
            image = as_array(value)
        if not is_image(image) or not image.size:
            raise _mismatch(kind, image)
        return EncodedValue(image.tobytes() if codec is None else codec.encode(image), image.shape, spec)

    return encode


def _stand_in(name: str, kind: FieldType) -> EncodedValue:
    """Return the sentinel that is stored for a missing value: 0, 0.0, false or empty; −1 for a label."""
    if kind.kind == "array":
        shape = tuple(axis or 0 for axis in kind.shape)
        values = np.full(shape, Field(name, "fixed", kind.dtype, shape).sentinel, kind.dtype)
        return EncodedValue(values.tobytes(), shape, ColumnSpec("array", kind.dtype, len(shape)))
    if kind.kind == "json":
        return EncodedValue(b"[]" if kind.listed else b"{}", (2,), ColumnSpec("json", "|u1", 1))
    return EncodedValue(b"", (0,), ColumnSpec("blob" if kind.kind == "blob" else "text", "|u1", 1))


_ENCODERS: Mapping[str, Callable[[FieldType], Encode]] = {
    "array": _array_encoder,
    "blob": _bytes_encoder,
    "class": lambda _: _encode_class_name,
    "json": _bytes_encoder,
    "image": _image_encoder,
    "text": _bytes_encoder,
}
