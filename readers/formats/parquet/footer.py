"""The footer of a Parquet file, from its bytes: rows, row groups, and where their column chunks are.

The library trusts what it reads: a crafted footer with the right checksum can crash its process. Here every length is
checked before it is used, and the cost of a footer is bounded by its size. Only the metadata that is needed is kept
(``parquet.thrift``: ``FileMetaData``, ``RowGroup``, ``ColumnChunk``, ``ColumnMetaData``), in Thrift's compact protocol.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_BINARY, _LISTS, _STRUCT = 8, (9, 10), 12
"""Types of values. From 4 to 6 are integers."""
_TRUTHS, _BYTE = (1, 2), 3
_BYTES = {1: 0, 2: 0, _BYTE: 1, 7: 8}
"""Size of a value, for types of fixed size: true, false, a byte, a double."""
_DEPTH_MAX = 16
_LONG = 15
_KEPT_BYTES_MIN = 4
"""Approximate least size of a value in a list that is kept; it bounds the memory that a footer can use."""
_NUMBER_BITS = 64

_PHYSICAL = (
    "BOOLEAN",
    "INT32",
    "INT64",
    "INT96",
    "FLOAT",
    "DOUBLE",
    "BYTE_ARRAY",
    "FIXED_LEN_BYTE_ARRAY",
)

Wanted = Mapping[int, Any]
"""The fields of a struct that are needed, by number, each with the fields that are needed of structs in it."""

_NO_STRUCT: Wanted = {}
_COLUMN: Wanted = dict.fromkeys((1, 3, 4, 7, 9), _NO_STRUCT)
_FILE: Wanted = {3: _NO_STRUCT, 4: {1: {1: _NO_STRUCT, 3: _COLUMN}, 3: _NO_STRUCT}}


class FooterError(ValueError):
    """A footer that breaks the contract; the message says what was expected and found."""


@dataclass(frozen=True)
class ColumnChunk:
    """One column of a row group.

    Attributes
    ----------
    path : str
        Path of the leaf column in the file's schema, with dots.
    physical : str
        The leaf's physical type.
    codec : int
        The number of the compression; 0 for none.
    start, size : int
        Where its first data page begins in the file, and the bytes of all its pages.
    """

    path: str
    physical: str
    codec: int
    start: int
    size: int


@dataclass(frozen=True)
class RowGroup:
    """One row group.

    Attributes
    ----------
    rows : int
    columns : tuple of ColumnChunk
    """

    rows: int
    columns: tuple[ColumnChunk, ...]


@dataclass(frozen=True)
class Footer:
    """Part of a footer that a reader needs.

    Attributes
    ----------
    rows : int
    groups : tuple of RowGroup
    """

    rows: int
    groups: tuple[RowGroup, ...]


def parse_footer(data: bytes) -> Footer:
    """The footer, given its bytes without the length and the magic after them.

    Raises
    ------
    FooterError
        If it cannot be read, or lacks what is needed.
    """
    try:
        fields, end = _struct(data, 0, _FILE, 0)
    except IndexError:
        raise FooterError("expected a footer that ends with its bytes, found a longer one") from None
    if end != len(data):
        raise FooterError(f"expected a footer of {len(data)} bytes, found one of {end}")
    groups = (_fields(group, "a row group") for group in _of_type(fields, 4, list))
    return Footer(_of_type(fields, 3, int), tuple(_row_group(group) for group in groups))


def _row_group(fields: dict[int, Any]) -> RowGroup:
    chunks = (_fields(chunk, "a column chunk") for chunk in _of_type(fields, 1, list))
    return RowGroup(_of_type(fields, 3, int), tuple(_column_chunk(chunk) for chunk in chunks))


def _column_chunk(fields: dict[int, Any]) -> ColumnChunk:
    if 1 in fields:
        raise FooterError("expected column chunks in this file, found one in another")
    column = _of_type(fields, 3, dict)
    kind, start, size = (_of_type(column, number, int) for number in (1, 9, 7))
    parts = _of_type(column, 3, list)
    if not 0 <= kind < len(_PHYSICAL) or size < 0 or not all(isinstance(part, bytes) for part in parts):
        raise FooterError(f"expected a column chunk with type, size and path, found type {kind} and {size} bytes")
    path = b".".join(parts).decode(errors="replace")
    return ColumnChunk(path, _PHYSICAL[kind], _of_type(column, 4, int), start, size)


def _fields(value: Any, what: str) -> dict[int, Any]:
    if not isinstance(value, dict):
        raise FooterError(f"expected {what}, found something else")
    return value


def _of_type(fields: dict[int, Any], number: int, kind: type) -> Any:
    """A field's value, which must exist and have a type."""
    value = fields.get(number)
    if not isinstance(value, kind):
        raise FooterError(f"expected a struct with field {number}, found none, or one of another type")
    return value


# The functions below are called for every value of a footer. So a place is passed on as an int, and reading past the
# end is left to be an IndexError, since every struct ends with a byte that must exist. Every step moves on by at least
# one byte.


def _struct(data: bytes, place: int, wanted: Wanted, depth: int) -> tuple[dict[int, Any], int]:
    """The fields of a struct that are wanted, and where it ends; all others are skipped."""
    found: dict[int, Any] = {}
    number = 0
    while head := data[place]:
        place += 1
        if head < 16:
            raise FooterError("expected fields in the order of their numbers")
        number += head >> 4
        if number not in wanted:
            place = _pass(data, place, head & 15, depth)
        else:
            found[number], place = _value(data, place, head & 15, wanted[number], depth)
    return found, place + 1


def _value(data: bytes, place: int, kind: int, wanted: Wanted, depth: int) -> tuple[Any, int]:
    """A value and where it ends: bytes, an int, a list, or the wanted fields of a struct."""
    if 4 <= kind <= 6:
        number, place = _varint(data, place)
        return number >> 1 ^ -(number & 1), place
    if kind == _BINARY:
        size, place = _varint(data, place)
        return data[place : place + size], place + size
    if kind == _STRUCT:
        return _struct(data, place, wanted, _deeper(depth))
    if kind not in _LISTS:
        raise FooterError(f"expected a number, bytes, a list or a struct for a value that is needed, found type {kind}")
    inner, count, place = _list(data, place)
    if count * _KEPT_BYTES_MIN > len(data) - place:
        raise FooterError(f"expected a list within the footer, found one of {count} values")
    values = []
    for _ in range(count):
        value, place = _value(data, place, inner, wanted, _deeper(depth))
        values.append(value)
    return values, place


def _pass(data: bytes, place: int, kind: int, depth: int) -> int:
    """Where a value that is skipped ends."""
    if 4 <= kind <= 6:
        while data[place] >= 0x80:
            place += 1
        return place + 1
    if kind == _BINARY:
        size, place = _varint(data, place)
        return place + size
    if kind == _STRUCT:
        depth = _deeper(depth)
        while head := data[place]:
            if head < 16:
                raise FooterError("expected fields in the order of their numbers")
            place = _pass(data, place + 1, head & 15, depth)
        return place + 1
    if kind in _LISTS:
        inner, count, place = _list(data, place)
        # In a list, unlike in a struct, a truth value is a byte.
        inner, depth = _BYTE if inner in _TRUTHS else inner, _deeper(depth)
        for _ in range(count):
            place = _pass(data, place, inner, depth)
        return place
    if kind not in _BYTES:
        raise FooterError(f"expected values of Parquet's types, found type {kind}")
    return place + _BYTES[kind]


def _deeper(depth: int) -> int:
    if depth >= _DEPTH_MAX:
        raise FooterError(f"expected values nested at most {_DEPTH_MAX} deep, found deeper ones")
    return depth + 1


def _list(data: bytes, place: int) -> tuple[int, int, int]:
    """The type of a list's values, their number, and where they begin."""
    head = data[place]
    place += 1
    count = head >> 4
    if count == _LONG:
        count, place = _varint(data, place)
    if count > len(data) - place:
        raise FooterError(f"expected a list within the footer, found one of {count} values")
    return head & 15, count, place


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A number, seven bits to a byte, the lowest first, and where it ends."""
    byte = data[place]
    place += 1
    if byte < 0x80:
        return byte, place
    out, shift = byte & 0x7F, 7
    while byte >= 0x80:
        if shift >= _NUMBER_BITS:
            raise FooterError(f"expected a number of at most {_NUMBER_BITS} bits, found a longer one")
        byte = data[place]
        place += 1
        out |= (byte & 0x7F) << shift
        shift += 7
    return out, place
