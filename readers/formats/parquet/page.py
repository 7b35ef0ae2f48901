"""One data page of a Parquet file, from its bytes: header, checksum, levels, values.

A page must be as `SPEC.md` says: data page version 1, plain encoding, uncompressed, no nulls
(https://parquet.apache.org/docs/file-format/data-pages/).
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from readers.formats.mapping import ByteArray
from shardspec.columns import IntArray

_DATA_PAGE, _PLAIN = 0, 0
_STOP, _INT32, _STRUCT = 0, 5, 12
_HEADER_BYTES_MAX = 1 << 16


class PageError(ValueError):
    """A page that breaks the contract; the message says what was expected and found."""


@dataclass(frozen=True)
class Page:
    """A page's payload.

    Attributes
    ----------
    start : int
        Where the body begins in the chunk.
    body : ndarray, (size,), uint8
        Levels, if the column has any, then values.
    values : int
        Number of leaf values, empty lists counted as one.
    """

    start: int
    body: ByteArray
    values: int


def read_page(chunk: ByteArray, *, checksum: bool) -> Page:
    """The one data page that a column chunk consists of.

    Raises
    ------
    PageError
        If the header cannot be read or does not fit the chunk, or the checksum differs.
    """
    fields = _read_header(chunk[:_HEADER_BYTES_MAX].tobytes())
    kind, size, stored, inner = (fields.get(number) for number in (1, 2, 3, 5))
    if kind != _DATA_PAGE or not isinstance(inner, dict) or inner.get(2) != _PLAIN:
        raise PageError(f"expected a data page of plain encoding, found type {kind}")
    if not isinstance(size, int) or size != stored or not 0 <= size < len(chunk):
        raise PageError(f"expected a page of less than {len(chunk)} bytes, found {size} and {stored}")
    count = inner.get(1)
    if not isinstance(count, int) or count < 0:
        raise PageError(f"expected a number of values, found {count}")
    body = chunk[len(chunk) - size :]
    if checksum:
        expected, found = fields.get(4), zlib.crc32(body.data)
        if not isinstance(expected, int) or expected & 0xFFFFFFFF != found:
            raise PageError(f"expected the page's checksum, {expected}, found {found:#x}")
    return Page(len(chunk) - size, body, count)


def _read_header(data: bytes) -> dict[int, Any]:
    """The integers of a page header and of the structs in it, by field number (Thrift's compact protocol).

    Reading ends at the first field of another type, since nothing after one is needed.
    """
    cursor = _Cursor(data)
    try:
        return dict(_struct(cursor, 0))
    except IndexError:
        raise PageError("expected a page header, found one that does not end") from None


class _Cursor:
    """A place in some bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def byte(self) -> int:
        """The next byte."""
        self.place += 1
        return self.data[self.place - 1]

    def varint(self) -> int:
        """The next number, seven bits to a byte, the lowest first; 64 bits at most."""
        out, shift = 0, 0
        while shift < 64:
            byte = self.byte()
            out |= (byte & 0x7F) << shift
            if byte < 0x80:
                return out
            shift += 7
        raise PageError("expected a number of at most 64 bits, found a longer one")


def _struct(cursor: _Cursor, depth: int) -> Iterator[tuple[int, Any]]:
    number = 0
    while (head := cursor.byte()) != _STOP:
        kind, step = head & 15, head >> 4
        if not step:
            raise PageError("expected fields in the order of their numbers")
        number += step
        if kind == _INT32:
            value = cursor.varint()
            yield number, value >> 1 ^ -(value & 1)
        elif kind == _STRUCT and depth == 0:
            yield number, dict(_struct(cursor, 1))
            return  # the last field that a data page needs
        else:
            return


def fixed_start(page: Page, stored: np.dtype[Any], rows: int, per_row: int) -> int:
    """Where the numbers begin in a page's body if all rows have the same count of them: they are its last bytes.

    Parameters
    ----------
    stored : dtype
        Dtype as stored: bool for packed bits, void for byte strings of fixed length.
    """
    size = _stored_bytes(stored, rows * per_row)
    if page.values != rows * per_row or len(page.body) < size:
        raise PageError(f"expected {rows * per_row} values in {size} bytes, found {page.values} in {len(page.body)}")
    return len(page.body) - size


def _stored_bytes(stored: np.dtype[Any], count: int) -> int:
    return -(-count // 8) if stored == np.bool_ else count * stored.itemsize


def list_start(page: Page, stored: np.dtype[Any], rows: int, levels: int) -> tuple[int, IntArray]:
    """Where the numbers begin in a page's body if rows are lists of any length, and the first of each row: (rows + 1,).

    Parameters
    ----------
    levels : int
        Number of nested lists. Each is optional and so are the numbers, so a number exists where the definition level
        is twice that plus one.
    """
    # A value that is not a number is an empty list, which begins a row.
    if page.values > rows + 8 * len(page.body) // (1 if stored == np.bool_ else 8 * stored.itemsize):
        raise PageError(f"expected no more values than {len(page.body)} bytes can hold, found {page.values}")
    repetition, rest = _levels(page.body, page.values, levels)
    greatest = 2 * levels + 1
    definition, rest = _levels(rest, page.values, greatest)
    firsts = np.flatnonzero(repetition == 0)
    if len(firsts) != rows or (rows and firsts[0] != 0):
        raise PageError(f"expected {rows} rows, found {len(firsts)}")
    offsets = np.concatenate([[0], np.cumsum(definition == greatest)])[np.append(firsts, page.values)]
    if len(rest) != _stored_bytes(stored, int(offsets[-1])):
        raise PageError(f"expected {int(offsets[-1])} values after the levels, found {len(rest)} bytes")
    return len(page.body) - len(rest), offsets


def _levels(data: ByteArray, count: int, greatest: int) -> tuple[ByteArray, ByteArray]:
    """Levels, which are stored as runs of one value or groups of eight packed ones, and the bytes after them."""
    width, end = greatest.bit_length(), _levels_end(data)
    cursor = _Cursor(data[4:end].tobytes())
    pieces: list[ByteArray] = []
    left = count
    try:
        while left > 0:
            head = cursor.varint()
            if head & 1:
                packed = np.frombuffer(cursor.data, np.uint8)[cursor.place : cursor.place + (head >> 1) * width]
                cursor.place += (head >> 1) * width
                bits = np.unpackbits(packed, bitorder="little")
                values = bits[: len(bits) // width * width].reshape(-1, width) @ (1 << np.arange(width, dtype=np.uint8))
            else:
                values = np.full(min(head >> 1, left), cursor.byte(), np.uint8)
            if not len(values):
                raise PageError("expected levels, found an empty run")
            pieces.append(values[:left])
            left -= len(pieces[-1])
    except IndexError:
        raise PageError("expected levels that end with their bytes") from None
    return np.concatenate(pieces) if pieces else np.empty(0, np.uint8), data[end:]


def _levels_end(data: ByteArray) -> int:
    """Where the levels at the beginning of some bytes end."""
    size = int.from_bytes(data[:4].tobytes(), "little")
    if len(data) < 4 or size > len(data) - 4:
        raise PageError(f"expected levels within the page, found {size} bytes of them")
    return 4 + size


def byte_offsets(page: Page, rows: int) -> IntArray:
    """Where each byte string of a page begins, after the four bytes of its length: (rows + 1,).

    String i ends four bytes before string i + 1 begins.
    """
    if page.values != rows:
        raise PageError(f"expected {rows} values, found {page.values}")
    data, end = page.body.data, len(page.body)
    offsets = np.empty(rows + 1, np.int64)
    place = _levels_end(page.body)
    for row in range(rows):
        offsets[row] = place + 4
        place += 4 + int.from_bytes(data[place : place + 4], "little")
        if place > end:
            raise PageError(f"expected strings within {end} bytes, found one that ends at {place}")
    if place != end:
        raise PageError(f"expected strings that fill {end} bytes, found {place}")
    offsets[rows] = end + 4
    return offsets
