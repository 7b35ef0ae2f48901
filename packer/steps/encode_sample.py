"""Encoding of samples that Python code makes: each value by the type of its field, checked before it is taken."""

import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from packer.recipe.fields import Declaration, check_name
from packer.steps.encode import ColumnSpec, EncodedValue
from packer.vision.decode.jpeg_header import PROGRESSIVE_MARK, is_progressive
from packer.vision.decode.limits import PictureError
from shardspec.codecs import codec_for
from shardspec.codecs.base import Codec
from shardspec.errors import CodecError, SchemaError, UsageError
from shardspec.registry import import_target
from shardspec.schema import NO_CLASS, Field, NamedConfig, class_name
from shardspec.typing.field_types import LABEL, FieldType, as_array, infer, is_picture
from shardspec.wording import did_you_mean, is_utf8, list_some, shorten

Encode = Callable[[Any], EncodedValue]

_UTF8 = codec_for(Field("text", "text", "|u1", (None,), NamedConfig("utf8")))
_JSON = codec_for(Field("json", "text", "|u1", (None,), NamedConfig("json")))
_TEXT, _TRUE = ColumnSpec("text", "|u1", 1), ColumnSpec("array", "|b1", 0)
_VALID, _MISSING = EncodedValue(b"\1", (), _TRUE), EncodedValue(b"\0", (), _TRUE)


class SampleEncoder:
    """Encodes samples under a declaration. Every error names the field.

    Parameters
    ----------
    declaration : Declaration
        Without declared fields, every sample's values show their types.
    """

    def __init__(self, declaration: Declaration) -> None:
        self._classes = declaration.classes
        self._picture = declaration.picture
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
        """The function that encodes a value whose field nobody has declared."""
        try:
            check_name(name, "sample")
            if value is None:
                raise SchemaError(
                    "expected a value, found None: declare a field whose value may be missing, int | None"
                )
            kind = infer(name, value, self._picture)
        except UsageError as error:
            raise SchemaError(str(error)) from error
        except SchemaError as error:
            raise SchemaError(f"field {name!r}: {error}") from error
        known = (name, kind.kind, kind.dtype, kind.shape)  # a picture's codec follows from its name
        if known not in self._encoders:
            self._encoders[known] = self._encoder(name, kind)
        return self._encoders[known]

    def _encoder(self, name: str, kind: FieldType) -> Encode:
        encode = _ENCODERS[kind.kind](kind) if kind.kind != "class" else _class_encoder(self._classes)
        if name == LABEL and kind.kind != "class" and self._classes is not None:
            numbers = kind.kind == "array" and not kind.shape and not kind.listed and kind.dtype[1] in "iu"
            encode = _checked_class(encode, len(self._classes)) if numbers else _refuse_class(self._classes)
        if not kind.optional:
            return encode
        stand_in = _stand_in(name, kind)
        return lambda value: stand_in if value is None else encode(value)


def _named(name: str, encode: Encode, value: Any) -> EncodedValue:
    try:
        return encode(value)
    except (SchemaError, CodecError, PictureError) as error:
        text = str(error).partition("': ")[2] if str(error).startswith("field '") else str(error)
        raise SchemaError(f"field {name!r}: {text}") from error


def _describe_names(expected: frozenset[str], sample: Mapping[str, Any]) -> str:
    """Return which fields a sample lacks, and which it has too many."""
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
    return SchemaError(f"expected {kind.describe()}, found {found}")


def encode_text(value: str) -> EncodedValue:
    """A text as the value of a field."""
    data = _UTF8.encode(value)
    return EncodedValue(data, (len(data),), _TEXT)


def _text_encoder(kind: FieldType) -> Encode:

    def encode(value: Any) -> EncodedValue:
        if not isinstance(value, str):
            raise _mismatch(kind, value)
        return encode_text(value)

    return encode


def _blob_encoder(kind: FieldType) -> Encode:
    spec = ColumnSpec("blob", "|u1", 1)

    def encode(value: Any) -> EncodedValue:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise _mismatch(kind, value)
        data = bytes(value)
        return EncodedValue(data, (len(data),), spec)

    return encode


def _json_encoder(kind: FieldType) -> Encode:
    spec = ColumnSpec("json", "|u1", 1)

    def encode(value: Any) -> EncodedValue:
        if not isinstance(value, dict | list | tuple):
            raise _mismatch(kind, value)
        data = _JSON.encode(value)
        return EncodedValue(data, (len(data),), spec)

    return encode


def _class_encoder(classes: tuple[str, ...] | None) -> Encode:
    """The number of a class, where the names are known; else the name itself, which is numbered when all are known."""
    if classes is None:
        kind, spec = FieldType("class"), ColumnSpec("class", "|u1", 1)

        def keep(value: Any) -> EncodedValue:
            name = class_name(value.strip()) if isinstance(value, str) else ""
            if not name or not is_utf8(name):
                raise _mismatch(kind, value)
            data = name.encode()
            return EncodedValue(data, (len(data),), spec)

        return keep
    numbers = {name: number for number, name in enumerate(classes)}
    number_spec = ColumnSpec("array", "<i8", 0)
    values = {n: EncodedValue(struct.pack("<q", n), (), number_spec) for n in range(NO_CLASS, len(classes))}

    def encode(value: Any) -> EncodedValue:
        number = numbers.get(value, numbers.get(class_name(value.strip()))) if isinstance(value, str) else None
        if number is None and isinstance(value, int | np.integer) and not isinstance(value, bool):
            number = int(value)
        if number is None or number not in values:
            raise _no_class(value, classes)
        return values[number]

    return encode


def _no_class(value: Any, classes: tuple[str, ...]) -> SchemaError:
    like = did_you_mean(value, classes) if isinstance(value, str) else ""
    return SchemaError(f"expected a class, {list_some(classes)}, or its number, found {shorten(value)}{like}")


def _refuse_class(classes: tuple[str, ...]) -> Encode:
    def refuse(value: Any) -> EncodedValue:
        raise _no_class(value, classes)

    return refuse


def _checked_class(encode: Encode, count: int) -> Encode:
    """Check that the number of a class is one."""

    def checked(value: Any) -> EncodedValue:
        encoded = encode(value)
        if not NO_CLASS <= int(value) < count:
            raise SchemaError(f"expected a class of 0 to {count - 1}, or {NO_CLASS} for none, found {shorten(value)}")
        return encoded

    return checked


def _array_encoder(kind: FieldType) -> Encode:
    dtype = np.dtype(kind.dtype)
    spec = ColumnSpec("array", kind.dtype, len(kind.shape))
    pack = (
        {"<i8": struct.Struct("<q").pack, "<f8": struct.Struct("<d").pack}.get(kind.dtype) if not kind.shape else None
    )
    plain = int if kind.dtype == "<i8" else float
    fixed = None if None in kind.shape else kind.shape
    axes = len(kind.shape) if not any(kind.shape) else -1  # if all sizes are free

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
    """A value as an array of the field's dtype and shape: Python's numbers are converted, arrays only compared."""
    if isinstance(value, bool | int | float | list | tuple) and not isinstance(value, np.generic):
        array = _convert_python(kind, dtype, value)
    elif isinstance(value, str | bytes | bytearray | memoryview | dict) or value is None:
        raise _mismatch(kind, value)
    else:
        array = as_array(value)
        if not kind.shape and not array.shape:  # one number, of whatever width
            array = _convert_python(kind, dtype, array.item()) if _widens(array.dtype, dtype) else array
    if (
        array.dtype != dtype
        or array.ndim != len(kind.shape)
        or any(axis is not None and axis != found for axis, found in zip(kind.shape, array.shape, strict=True))
    ):
        raise _mismatch(kind, value if isinstance(value, np.ndarray) or array.dtype == dtype else array)
    return array


def _widens(found: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    """Return whether numbers of a dtype may be stored as those of a declared ``int``, ``float`` or ``bool``."""
    return (
        dtype.itemsize >= found.itemsize
        and dtype.str in ("<i8", "<f8")
        and (dtype.kind, found.kind)
        in {
            ("i", "i"),
            ("i", "u"),
            ("f", "f"),
            ("f", "i"),
            ("f", "u"),
        }
    )


def _convert_python(kind: FieldType, dtype: np.dtype[Any], value: Any) -> np.ndarray[Any, Any]:
    """Numbers of Python, alone or in lists, as an array; none is cut or rounded to another integer."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists that are not rectangular
        raise _mismatch(kind, value) from None
    if isinstance(value, list | tuple) and not array.size and array.ndim == 1 and kind.shape:
        array = np.empty((0, *(axis or 0 for axis in kind.shape[1:])), dtype)
    if array.dtype.kind not in {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[dtype.kind]:
        raise _mismatch(kind, value)
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    exact = dtype.kind in "iu" and array.size and not np.array_equal(cast, array)
    if exact or (dtype.kind == "f" and array.dtype.kind == "f" and not _same_finite(cast, array)):
        raise _mismatch(kind, value)
    if dtype.kind in "iu" and array.dtype.kind in "iu" and array.size:
        limits = np.iinfo(dtype)
        if not limits.min <= int(array.min()) <= int(array.max()) <= limits.max:
            raise _mismatch(kind, value)
    return cast


def _same_finite(cast: np.ndarray[Any, Any], array: np.ndarray[Any, Any]) -> bool:
    """Return whether no number became infinite because it is too large for the dtype."""
    return bool(np.array_equal(np.isinf(cast), np.isinf(array)))


def _picture_encoder(kind: FieldType) -> Encode:
    assert kind.codec is not None
    name = kind.codec.name
    spec = ColumnSpec("image", "|u1", 3)
    field = Field("image", "bytes", "|u1", (None, None, 3), kind.codec)
    codec: Codec | None = None if name == "raw" else codec_for(field)
    # Not imported above: a plan needs none of its libraries.
    decode = import_target("packer.vision.decode.picture:decode_picture", what="a field of pictures", extra="pack")

    def encode(value: Any) -> EncodedValue:
        if isinstance(value, bytes | bytearray | memoryview):
            picture = decode(bytes(value))
            data = picture.kept
            if name == "jpeg" and data is not None:
                return EncodedValue(data, picture.image.shape, spec, PROGRESSIVE_MARK in data and is_progressive(data))
            image = picture.image
        elif isinstance(value, str | int | float | list | tuple | dict) or value is None:
            raise _mismatch(kind, value)
        else:
            image = as_array(value)
        if not is_picture(image) or not image.size:
            raise _mismatch(kind, image)
        return EncodedValue(image.tobytes() if codec is None else codec.encode(image), image.shape, spec)

    return encode


def _stand_in(name: str, kind: FieldType) -> EncodedValue:
    """Return the stored value for a missing one: 0, 0.0, false, empty; −1 for a label."""
    if kind.kind == "array":
        shape = tuple(axis or 0 for axis in kind.shape)
        values = np.full(shape, Field(name, "fixed", kind.dtype, shape).sentinel, kind.dtype)
        return EncodedValue(values.tobytes(), shape, ColumnSpec("array", kind.dtype, len(shape)))
    if kind.kind == "json":
        return EncodedValue(b"[]" if kind.listed else b"{}", (2,), ColumnSpec("json", "|u1", 1))
    return EncodedValue(b"", (0,), ColumnSpec("blob" if kind.kind == "blob" else "text", "|u1", 1))


_ENCODERS: Mapping[str, Callable[[FieldType], Encode]] = {
    "array": _array_encoder,
    "blob": _blob_encoder,
    "json": _json_encoder,
    "picture": _picture_encoder,
    "text": _text_encoder,
}
