"""How TFRecord stores a field: as a feature of a ``tf.train.Example``."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from shardspec.columns import IntArray
from shardspec.formats.index import Stored
from shardspec.formats.index import stored as stored_plainly
from shardspec.schema import Field, Schema

FeatureKind = Literal["bytes", "float", "int64"]

LIST_VALUES_MAX = 1024
"""Fixed values with at least this many integers are stored as bytes, because a varint takes up to ten bytes."""

VARINT_BYTES_MAX = 10

_KIND_TAGS: dict[FeatureKind, int] = {"bytes": 0x0A, "float": 0x12, "int64": 0x1A}
"""Tags of ``Feature.bytes_list``, ``float_list``, ``int64_list``."""
_LENGTH_DELIMITED_1, _LENGTH_DELIMITED_2 = 0x0A, 0x12
"""Tags of fields 1 and 2 with wire type 2: a map entry, its key and its value; the values of a list."""

_VARINT_BYTES = {"|b1": 1, "|u1": 2, "<u2": 3, "<u4": 5}
"""Bytes of a varint that holds any value of the dtype. Other dtypes may be negative, which takes ten bytes."""


@dataclass(frozen=True)
class Feature:
    """Feature of an ``Example`` that stores a field.

    Attributes
    ----------
    field : Field
    key : str
        ``image`` is ``image/encoded`` and ``label`` is ``image/class/label``, as TensorFlow's vision models name them;
        any other field keeps its name.
    kind : {"bytes", "float", "int64"}
        Float32 is stored as floats, booleans and integers as int64. Everything that these cannot hold exactly is stored
        as little-endian bytes.
    """

    field: Field
    key: str
    kind: FeatureKind

    @cached_property
    def payload_bytes(self) -> int:
        """Stored bytes of a fixed field's value."""
        if self.kind == "int64":
            return self.field.row_bytes // self.field.numpy_dtype.itemsize * varint_bytes(self.field)
        return self.field.row_bytes

    @cached_property
    def head(self) -> bytes:
        """Bytes before a fixed field's value: the headers of the map entry, its key and the list."""
        return entry_head(self.key, self.kind, self.payload_bytes)


def features(schema: Schema) -> tuple[Feature, ...]:
    """Return the features of a schema in the order in which they are written: fixed fields first."""
    return tuple(feature_of(f) for f in sorted(schema, key=lambda field: not field.is_fixed))


def feature_of(field: Field) -> Feature:
    """Return the feature that stores a field."""
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


def stored(field: Field, block_rows: int) -> Stored:
    """Return how a field is stored (`shardspec.formats.index.stored`)."""
    feature = feature_of(field)
    if feature.kind != "int64":
        return stored_plainly(field, block_rows)
    return Stored(feature.payload_bytes if field.is_fixed else None, form="varints")


def varint_bytes(field: Field) -> int:
    """Return the bytes of each varint of a fixed field: as many as the dtype may need, so that sizes never vary."""
    return _VARINT_BYTES.get(field.dtype, VARINT_BYTES_MAX)


def varint(number: int) -> bytes:
    """Encode a number of 0 or more as a varint: seven bits to a byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def entry_head(key: str, kind: FeatureKind, size: int) -> bytes:
    """Return the bytes of an entry of an ``Example``'s feature map before its payload.

    The payload, a bytes value or packed numbers, is the last `size` bytes of the entry.
    """
    name = key.encode()
    values = bytes([_LENGTH_DELIMITED_1]) + varint(size)
    listed = bytes([_KIND_TAGS[kind]]) + varint(len(values) + size) + values
    feature = bytes([_LENGTH_DELIMITED_2]) + varint(len(listed) + size) + listed
    entry = bytes([_LENGTH_DELIMITED_1]) + varint(len(name)) + name + feature
    return bytes([_LENGTH_DELIMITED_1]) + varint(len(entry) + size) + entry


def masked(crc: int) -> int:
    """Mask a CRC-32C as TFRecord stores it (``tensorflow/core/lib/hash/crc32c.h``)."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def pad_varints(numbers: Any, width: int) -> Any:
    """Encode integers, (…,), as varints padded to `width` bytes: uint8, (…, width). Any protobuf reader accepts them."""
    wide = np.asarray(numbers).astype(np.int64).view(np.uint64)[..., None]
    shifts = np.arange(width, dtype=np.uint64) * np.uint64(7)
    out = (wide >> shifts & np.uint64(0x7F)).astype(np.uint8)
    out[..., :-1] |= 0x80
    return out


def read_varints(data: Any) -> tuple[Any, IntArray]:
    """Decode adjacent varints of any length.

    Returns
    -------
    values, lengths : int64 arrays, (n,)

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
