"""Types of a field's values: infer a type from values, join types, and make a field of a type."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from shardspec.codecs import is_lossy
from shardspec.errors import SchemaError
from shardspec.fields import is_image_field, is_mask_name
from shardspec.schema import AXES_MAX, DTYPES, Field, Kind, NamedConfig
from shardspec.wording import shorten

LABEL = "label"
"""The field whose texts are the names of classes."""

FieldKind = Literal["array", "class", "blob", "json", "text", "image"]
Shape = tuple[int | None, ...]

INT64 = np.iinfo(np.int64)
_JOINED = {("<i8", "<f8"): "<f8", ("<f8", "<i8"): "<f8"}
_LEAVES: Mapping[frozenset[type], str] = {
    frozenset((bool,)): "|b1",
    frozenset((int,)): "<i8",
    frozenset((float,)): "<f8",
    frozenset((int, float)): "<f8",
}
"""The dtype of a list, by the Python types of its numbers."""


@dataclass(frozen=True)
class FieldType:
    """Type of the values of one field.

    Attributes
    ----------
    kind : {"array", "class", "blob", "json", "text", "image"}
        *class*: a text that names the sample's class.
    dtype : str
        Dtype of an array.
    shape : tuple of (int or None)
        Shape of an array; None for an axis of any size.
    settled : bool
        Whether `shape` is final. Otherwise the samples determine which of the axes with None vary.
    listed : bool
        Whether the values are lists. An array of shape ``()`` then means that all lists were empty, and a text that all
        values were None.
    codec : NamedConfig or None
        Codec of an image.
    optional : bool
        Whether a value may be None.
    in_time : bool
        Whether the first axis of an array, or of a list for JSON, counts the frames of a video.
    """

    kind: FieldKind
    dtype: str = "|u1"
    shape: Shape = ()
    settled: bool = False
    listed: bool = False
    codec: NamedConfig | None = None
    optional: bool = False
    in_time: bool = False

    def describe(self) -> str:
        """Describe the type for an error message."""
        if self.kind == "array" and not self.shape and not self.listed:
            words = {"<i8": "an integer", "<f8": "a number", "|b1": "True or False"}.get(self.dtype)
            return words or f"a number of dtype {self.dtype}"
        if self.kind == "array":
            return f"an array of dtype {self.dtype} and shape {self.shape}"
        return {
            "class": "the name of a class",
            "blob": "bytes",
            "json": "a dict or a list for JSON",
            "text": "text",
            "image": "an image, an array uint8 of shape (H, W, 3) or encoded bytes",
        }[self.kind]

    def to_field(
        self, name: str, shape: Shape, classes: Sequence[str] | None = None, layout: str | None = None
    ) -> Field:
        """Return the field of all values of this type.

        Parameters
        ----------
        shape : tuple of (int or None)
            Shape of arrays and images; None for an axis that varies.
        classes : sequence of str, optional
            Class names; required if the type is *class*.
        layout : str, optional
            The point layout of landmarks.
        """
        names = None if classes is None else tuple(classes)
        marks = {"time": True} if self.in_time else {}
        if self.kind in ("text", "json"):
            codec = NamedConfig("json", marks) if self.kind == "json" else NamedConfig("utf8")
            return Field(name, "text", "|u1", (None,), codec)
        if self.kind == "blob":
            return Field(name, "bytes", "|u1", (None,))
        if self.kind == "class":
            return Field(name, "fixed", "<i8", (), classes=names)
        if self.codec is not None and self.codec.name != "raw":
            return Field(name, "bytes", "|u1", shape, self.codec)
        if None not in shape:
            return Field(name, "fixed", self.dtype, shape, classes=names, layout=layout)
        kind: Kind = "bytes" if None in shape[1:] else "ragged"
        return Field(name, kind, self.dtype, shape, NamedConfig("raw", marks))

    def to_json(self) -> dict[str, Any]:
        """Return the type as JSON."""
        codec = None if self.codec is None else self.codec.to_json()
        return {**vars(self), "shape": list(self.shape), "codec": codec}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "FieldType":
        """Read the result of `to_json`."""
        codec = None if document["codec"] is None else NamedConfig(**document["codec"])
        return cls(**{**document, "shape": tuple(document["shape"]), "codec": codec})


_EMPTY_LIST = FieldType("array", "<i8", (), listed=True)
_OTHER_LIST = FieldType("json", listed=True)


def infer(name: str, value: Any, image: NamedConfig | None = None) -> FieldType:
    """Infer the type of a value.

    Parameters
    ----------
    name : str
        The field.
    image : NamedConfig, optional
        Codec of images. Without it, no array or bytes object is treated as an image.

    Raises
    ------
    SchemaError
        If no field can hold the value.
    """
    if isinstance(value, bool | np.bool_):
        return FieldType("array", "|b1")
    if isinstance(value, int):
        if not INT64.min <= value <= INT64.max:
            raise SchemaError(expected="an integer of 64 bits", found=shorten(value), hint="make it a text")
        return FieldType("array", "<i8")
    if isinstance(value, float) and not isinstance(value, np.generic):
        return FieldType("array", "<f8")
    if isinstance(value, str):
        return FieldType("class" if name == LABEL else "text")
    if isinstance(value, bytes | bytearray | memoryview):
        return FieldType("blob") if image is None or not is_image_field(name) else _image_type(name, image)
    if isinstance(value, dict):
        return FieldType("json")
    if isinstance(value, list | tuple):
        return infer_list(value)
    if value is None:
        return FieldType("text", optional=True, listed=True)
    array = as_array(value)
    if image is not None and is_image_field(name) and is_image(array):
        return _image_type(name, image)
    return FieldType("array", array.dtype.str, (None,) * array.ndim)


def join(one: FieldType, other: FieldType) -> FieldType | None:
    """Return the type that can hold the values of both types; None if there is none."""
    optional = one.optional or other.optional
    for kind, rest in ((one, other), (other, one)):
        if kind.kind == "text" and kind.listed:  # nothing but None so far
            return replace(rest, optional=True)
    one, other = replace(one, optional=optional), replace(other, optional=optional)
    if one == other:
        return one
    as_json = FieldType("json", listed=True, optional=optional)
    if one.listed and other.listed:
        if "json" in (one.kind, other.kind):
            return as_json
        if not one.shape or not other.shape:  # an empty list fits numbers of any dtype
            return one if one.shape else other
        dtype = one.dtype if one.dtype == other.dtype else _JOINED.get((one.dtype, other.dtype))
        return as_json if dtype is None or one.shape != other.shape else replace(one, dtype=dtype)
    if one.kind == other.kind == "array" and not one.shape and not other.shape and not (one.listed or other.listed):
        dtype = _JOINED.get((one.dtype, other.dtype))
        return None if dtype is None else replace(one, dtype=dtype)
    return None


def settle_empty(kind: FieldType) -> FieldType:
    """Return the type to use after the first samples: lists that were all empty become JSON."""
    if kind.kind == "text" and kind.listed:
        return replace(kind, listed=False)
    if kind.kind == "array" and kind.listed and not kind.shape:
        return FieldType("json", listed=True, optional=kind.optional)
    return kind


def common_shape(shapes: Iterable[Shape]) -> Shape:
    """Return the common shape of values with the same number of axes, with None for an axis whose sizes differ."""
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True))


def is_image(array: np.ndarray[Any, Any]) -> bool:
    """Return whether an array has the dtype and shape of an image, uint8 (H, W, 3)."""
    return array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] == 3


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """Convert a value that is not a number, text, list or dict to an array of a dtype that a field may have.

    Raises
    ------
    SchemaError
        If the value cannot be converted.
    """
    try:
        array = np.asarray(value)
    except Exception as error:  # any library may have defined the value's type
        raise SchemaError(
            expected="a value that numpy reads as an array", found=type(value).__name__, hint=error
        ) from error
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.dtype.str not in DTYPES:
        raise SchemaError(
            expected=f"numbers, texts, bytes, JSON, or arrays of {', '.join(DTYPES)}",
            found=f"{type(value).__name__}{'' if array.dtype == object else f' of dtype {array.dtype}'}",
        )
    return array


def _image_type(name: str, image: NamedConfig) -> FieldType:
    """Return the type of an image. Label maps are never stored with loss."""
    lossy = is_lossy(image.name)
    return FieldType("image", codec=NamedConfig("png") if lossy and is_mask_name(name) else image)


def infer_list(value: Sequence[Any]) -> FieldType:
    """Infer the type of a list: an array if it is rectangular and its numbers fit, otherwise JSON."""
    if not value:
        return _EMPTY_LIST
    kinds: set[type] = set()
    shape = _list_shape(value, kinds)
    dtype = _LEAVES.get(frozenset(kinds))
    if dtype is None or shape is None or 0 in shape or len(shape) > AXES_MAX:
        return _OTHER_LIST
    if int in kinds:
        try:
            np.array(value, dtype)
        except OverflowError:
            return _OTHER_LIST
    return _list_type(dtype, shape[1:])


@lru_cache
def _list_type(dtype: str, tail: tuple[int, ...]) -> FieldType:
    return FieldType("array", dtype, (None, *tail), listed=True)


def _list_shape(value: Any, kinds: set[type]) -> tuple[int, ...] | None:
    """Return the shape of nested lists, and add the types of their leaves to `kinds`; None if not rectangular."""
    inside = set(map(type, value))
    if inside.isdisjoint((list, tuple)):
        kinds |= inside
        return (len(value),)
    if not inside <= {list, tuple}:
        return None
    shapes = {_list_shape(entry, kinds) for entry in value}
    tail = shapes.pop()
    return None if shapes or tail is None else (len(value), *tail)
