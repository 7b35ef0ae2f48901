"""A serialised ``tf.train.Example``, from its bytes.

https://protobuf.dev/programming-guides/encoding/ and ``tensorflow/core/example/{example,feature}.proto``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from shardspec.formats.tfrecord import VARINT_BYTES_MAX, Feature, read_varints

_LIST_KINDS = {0x0A: "bytes", 0x12: "float", 0x1A: "int64"}
_VARINT, _EIGHT, _DELIMITED, _FOUR = 0, 1, 2, 5


class ExampleError(ValueError):
    """Bytes that are not an ``Example``, or one without an expected feature."""


def read_varint(data: memoryview, place: int) -> tuple[int, int]:
    """A number, and the place after it."""
    if place < len(data) and data[place] < 0x80:
        return data[place], place + 1
    out = 0
    for count in range(VARINT_BYTES_MAX):
        if place + count >= len(data):
            break
        byte = data[place + count]
        out |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return out & 2**64 - 1, place + count + 1
    raise ExampleError("expected a number of at most ten bytes within the record")


def usual_payload(data: memoryview, place: int, feature: Feature) -> tuple[memoryview | None, int]:
    """The payload of the map entry at `place` if it is this feature's, as packed; and the place after the entry."""
    size, start = read_varint(data, place + 1)
    end = start + size
    key_end = start + 2 + len(feature.key)
    if data[place] != 0x0A or end > len(data) or data[start + 2 : key_end] != feature.key.encode():
        return None, end
    place = key_end
    for tag in (0x12, feature.kind_tag, 0x0A):
        if place >= end or data[place] != tag:
            return None, end
        size, place = read_varint(data, place + 1)
    return (data[place:end] if place + size == end else None), end


def messages(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Tag and bytes of the length-delimited fields of a message; other fields are skipped."""
    place = 0
    while place < len(data):
        tag, place = read_varint(data, place)
        kind = tag & 7
        if kind == _DELIMITED:
            size, place = read_varint(data, place)
            if size > len(data) - place:
                raise ExampleError(f"expected a message within {len(data)} bytes, found one of {size} at {place}")
            yield tag, data[place : place + size]
            place += size
        elif kind == _VARINT:
            _, place = read_varint(data, place)
        elif kind in (_EIGHT, _FOUR):
            place += 8 if kind == _EIGHT else 4
        else:
            raise ExampleError(f"expected a field of wire type 0, 1, 2 or 5, found {kind}")


def entries(data: memoryview) -> dict[bytes, memoryview]:
    """The features of an ``Example`` by key, each still serialised."""
    found: dict[bytes, memoryview] = {}
    for tag, features in messages(data):
        if tag != 0x0A:
            continue
        for entry_tag, entry in messages(features):
            if entry_tag == 0x0A:
                parts = dict(messages(entry))
                found[bytes(parts.get(0x0A, b""))] = parts.get(0x12, memoryview(b""))
    return found


def encoded_value(feature: Feature, found: Mapping[bytes, memoryview]) -> memoryview:
    """The encoded bytes of a field's value (`shardspec.columns`)."""
    serialised = found.get(feature.key.encode())
    if serialised is None:
        raise ExampleError(f"expected a feature {feature.key!r}, found none")
    for tag, values in messages(serialised):
        if _LIST_KINDS.get(tag) == feature.kind:
            return _value(feature, values)
    raise ExampleError(f"expected a {feature.kind} list in feature {feature.key!r}, found none")


def _value(feature: Feature, values: memoryview) -> memoryview:
    if feature.kind == "bytes":
        found = [part for tag, part in messages(values) if tag == 0x0A]
        if len(found) != 1:
            raise ExampleError(f"expected one value in feature {feature.key!r}, found {len(found)}")
        return found[0]
    return encoded_payload(
        feature, memoryview(b"".join(_packed(values, _FOUR if feature.kind == "float" else _VARINT)))
    )


def encoded_payload(feature: Feature, payload: memoryview) -> memoryview:
    """The encoded bytes of a value, from the bytes value or the packed numbers of its feature."""
    if feature.kind != "int64":
        return payload
    try:
        numbers, _ = read_varints(np.frombuffer(payload, np.uint8))
    except ValueError as error:
        raise ExampleError(str(error)) from error
    return memoryview(narrow(feature, numbers).reshape(-1).view(np.uint8))


def _packed(values: memoryview, single: int) -> Iterator[memoryview]:
    """The numbers of a list, which may come one by one or in packed runs."""
    place = 0
    while place < len(values):
        tag, place = read_varint(values, place)
        if tag == 0x0A:
            size, place = read_varint(values, place)
        elif tag == 8 | single:
            size = 4 if single == _FOUR else read_varint(values, place)[1] - place
        else:
            raise ExampleError(f"expected numbers in a list, found tag {tag:#x}")
        if size > len(values) - place:
            raise ExampleError("expected numbers within their list")
        yield values[place : place + size]
        place += size


def narrow(feature: Feature, numbers: Any) -> Any:
    """Numbers of 64 bits in the field's dtype; an `ExampleError` if one does not fit."""
    out = numbers.astype(feature.field.numpy_dtype)
    if not np.array_equal(out.astype(np.int64), numbers):
        raise ExampleError(f"expected values of {feature.field.dtype} in feature {feature.key!r}, found greater ones")
    return out
