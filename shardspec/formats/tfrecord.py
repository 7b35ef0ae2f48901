"""Feature of a ``tf.train.Example`` that stores a field, and how its bytes begin."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from shardspec.columns import IntArray
from shardspec.schema import Field, Schema

FeatureKind = Literal["bytes", "float", "int64"]

LIST_VALUES_MAX = 1024
"""Fixed fields of this many integers or more are stored as bytes: as int64 they would take up to ten bytes each."""

VARINT_BYTES_MAX = 10

_KIND_TAGS: dict[FeatureKind, int] = {"bytes": 0x0A, "float": 0x12, "int64": 0x1A}
"""Tags of ``Feature.bytes_list``, ``float_list``, ``int64_list``."""
_LENGTH_DELIMITED_1, _LENGTH_DELIMITED_2 = 0x0A, 0x12
"""Tags of fields 1 and 2 of wire type 2: a map entry, its key and value, and a list's values."""

_VARINT_BYTES = {"|b1": 1, "|u1": 2, "<u2": 3, "<u4": 5}
"""Bytes of a varint that holds any value of the dtype. Dtypes not listed may be negative, which takes ten."""


@dataclass(frozen=True)
class Feature:
    """How one field is stored in an ``Example``.

    Attributes
    ----------
    field : Field
    key : str
        ``image`` is ``image/encoded`` and ``label`` is ``image/class/label``, as TensorFlow's vision models name them;
        any other field keeps its name.
    kind : {"bytes", "float", "int64"}
        Float32 is stored as floats, booleans and integers as int64, and everything that these cannot hold exactly as
        little-endian bytes.
    """

    field: Field
    key: str
    kind: FeatureKind

    @property
    def kind_tag(self) -> int:
        """Tag of the feature's list."""
        return _KIND_TAGS[self.kind]

    @cached_property
    def value_bytes(self) -> int:
        """Stored bytes of one number.

        Varints are padded to the longest that the dtype may need, so that a fixed field's size never varies.
        """
        if self.kind == "int64":
            return _VARINT_BYTES.get(self.field.dtype, VARINT_BYTES_MAX)
        return self.field.numpy_dtype.itemsize

    @cached_property
    def payload_bytes(self) -> int:
        """Stored bytes of a fixed field's value."""
        return self.field.row_bytes // self.field.numpy_dtype.itemsize * self.value_bytes

    @cached_property
    def head(self) -> bytes:
        """The bytes in front of a fixed field's value: the heads of the map entry, its key, and the list."""
        return entry_head(self.key, self.kind, self.payload_bytes)


def features(schema: Schema) -> tuple[Feature, ...]:
    """The features of a schema's fields, in the order in which they are written: fixed fields first."""
    return tuple(feature_of(f) for f in sorted(schema, key=lambda field: not field.is_fixed))


def feature_of(field: Field) -> Feature:
    """The feature that stores a field."""
    key = field.name
    if key == "image" and field.is_image:
        key = "image/encoded"
    elif key == "label" and field.is_scalar and field.dtype[1] in "iu":
        key = "image/class/label"
    return Feature(field, key, _kind(field))


def _kind(field: Field) -> FeatureKind:
    if field.kind in ("bytes", "text") or field.is_image:
        return "bytes"
    if field.dtype == "<f4":
        return "float"
    if field.dtype[1] == "f" or field.dtype == "<u8":
        return "bytes"
    large = field.is_fixed and field.row_bytes // field.numpy_dtype.itemsize >= LIST_VALUES_MAX
    return "bytes" if large else "int64"


def varint(number: int) -> bytes:
    """A number of 0 or more as a varint: seven bits to a byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def entry_head(key: str, kind: FeatureKind, size: int) -> bytes:
    """The bytes of one entry of an ``Example``'s feature map up to its payload.

    The payload, one bytes value or packed numbers, is the last `size` bytes of the entry.
    """
    name = key.encode()
    values = bytes([_LENGTH_DELIMITED_1]) + varint(size)
    listed = bytes([_KIND_TAGS[kind]]) + varint(len(values) + size) + values
    feature = bytes([_LENGTH_DELIMITED_2]) + varint(len(listed) + size) + listed
    entry = bytes([_LENGTH_DELIMITED_1]) + varint(len(name)) + name + feature
    return bytes([_LENGTH_DELIMITED_1]) + varint(len(entry) + size) + entry


def masked(crc: int) -> int:
    """A CRC-32C as TFRecord stores it (``tensorflow/core/lib/hash/crc32c.h``)."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def pad_varints(numbers: Any, width: int) -> Any:
    """Integers as varints padded to `width` bytes: (…,) → (…, width), uint8. Protobuf reads them as usual."""
    wide = np.asarray(numbers).astype(np.int64).view(np.uint64)[..., None]
    shifts = np.arange(width, dtype=np.uint64) * np.uint64(7)
    out = (wide >> shifts & np.uint64(0x7F)).astype(np.uint8)
    out[..., :-1] |= 0x80
    return out


def read_varints(data: Any) -> tuple[Any, IntArray]:
    """Read varints of any length that follow one another: their values, int64 (n,), and their lengths, (n,).

    Raises
    ------
    ValueError
        If a varint has more than ten bytes, or the last one has no end.
    """
    data = np.asarray(data, np.uint8)
    ends = np.flatnonzero(data < 0x80)
    if not len(data):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else np.empty(0, np.int64)
    lengths = ends - starts + 1
    if not len(ends) or ends[-1] != len(data) - 1 or lengths.max() > VARINT_BYTES_MAX:
        raise ValueError("expected numbers of at most ten bytes each, found a longer one or one without an end")
    places = np.arange(len(data)) - np.repeat(starts, lengths)
    parts = (data & 0x7F).astype(np.uint64) << (places * 7).astype(np.uint64)
    return np.add.reduceat(parts, starts).view(np.int64), lengths
