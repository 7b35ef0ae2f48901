"""Where the chunks of an HDF5 dataset are in its file, and their Fletcher-32."""

import math
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from readers.formats.hdf5.file import DatasetHeader, HDF5Error, HDF5File
from readers.formats.mapping import ByteArray
from shardspec.columns import IntArray
from shardspec.formats.hdf5 import HDF5Array

_CHECKSUM_BYTES = 4
_FLETCHER = 65535
_LINE_WORDS = 512
_CHUNK_BYTES_MIN = 4096
"""Least size of a dataset's chunks if it has several: comparing the checksum of their index takes time for each of
them.
"""

_FLETCHER_ALONE = (bytes([2, 1, 3, 0, 0, 0, 0, 0]), bytes([2, 1, 3, 0, 1, 0, 0, 0]))
"""The filter message: version 2, one filter, number 3, mandatory or optional, without parameters."""
_SINGLE, _FIXED_ARRAY = 1, 3
_FILTERED_ALONE = 2
_PAGE_BITS_MAX = 20
_ARRAY_HEADER = struct.Struct("<4s4BQQ")
_ARRAY_BLOCK = struct.Struct("<4sBBQ")
_INTEGER, _FLOAT, _ENUMERATION = 0, 1, 8
_TYPE_VERSIONS = (1, 2, 3)

_Numbers = npt.NDArray[np.uint64]


def _integer(size: int, signed: bool) -> bytes:
    return struct.pack("<BHIHH", 8 * signed, 0, size, 0, 8 * size)


def _float(size: int, fraction: int, exponent: int) -> bytes:
    sign = 8 * size - 1
    properties = (0, 8 * size, fraction, exponent, 0, fraction, (1 << exponent - 1) - 1)
    return struct.pack("<BBBIHHBBBBI", 32, sign, 0, size, *properties)


_TYPES = {
    **{
        f"{'<' if size > 1 else '|'}{kind}{size}": (_INTEGER, _integer(size, kind == "i"))
        for kind in "iu"
        for size in (1, 2, 4, 8)
    },
    "<f2": (_FLOAT, _float(2, 10, 5)),
    "<f4": (_FLOAT, _float(4, 23, 8)),
    "<f8": (_FLOAT, _float(8, 52, 11)),
    "|b1": (_ENUMERATION, struct.pack("<BHIB", 2, 0, 1, 16) + _integer(1, True) + b"FALSE\0TRUE\0\0\1"),
}
"""Class and properties of each dtype, as in a datatype message."""


@dataclass(frozen=True)
class Chunks:
    """The chunks of one dataset.

    Attributes
    ----------
    name : str
    rows : int
        Rows of a chunk; the last chunk is padded.
    row_bytes : int
    starts : ndarray, (chunks,), int64
        Where each chunk begins in the file.
    known : ndarray, (chunks,), bool
        Whether the checksum of each chunk has been compared.
    """

    name: str
    rows: int
    row_bytes: int
    starts: IntArray
    known: npt.NDArray[np.bool_]

    def is_sound(self, data: ByteArray, number: int) -> bool:
        """Return whether a chunk's bytes have the checksum that follows them."""
        start = int(self.starts[number])
        end = start + self.rows * self.row_bytes
        stored = int.from_bytes(data[end : end + _CHECKSUM_BYTES].tobytes(), "little")
        low, high = fletcher32(data[start:end])
        # Modulo 65535, since HDF5 writes zero as 0 or 65535.
        return ((stored & 0xFFFF) - low) % _FLETCHER == 0 and ((stored >> 16) - high) % _FLETCHER == 0


def fletcher32(data: ByteArray) -> tuple[int, int]:
    """HDF5's Fletcher-32 of some bytes: both sums over its big-endian words of two bytes, modulo 65535.

    The first is the sum of the words. The second is the sum of all partial first sums, so word i of n counts n - i
    times (``H5_checksum_fletcher32`` in HDF5's ``H5checksum.c``; an odd last byte is a word's high byte).
    """
    if len(data) % 2:
        data = np.append(data, np.uint8(0))
    # Swapping a word's bytes multiplies it by 256 modulo 65535, so sums of little-endian words will do.
    words = data.view("<u2")
    whole = len(words) // _LINE_WORDS * _LINE_WORDS
    table = words[:whole].reshape(-1, _LINE_WORDS)
    # A word's index is its line times the line's length plus its column: sums of lines and of columns give the moment.
    lines = np.add.reduce(table, axis=1, dtype=np.uint32).astype(np.int64)
    lines %= _FLETCHER  # or the moment of a gigabyte would not fit
    columns = np.add.reduce(table, axis=0, dtype=np.uint64).astype(np.int64)
    rest = words[whole:].astype(np.int64)
    total = int(lines.sum()) + int(rest.sum())
    moment = _LINE_WORDS * int((lines * np.arange(len(lines))).sum()) + int((columns * np.arange(_LINE_WORDS)).sum())
    moment += int((rest * np.arange(whole, len(words))).sum())
    return total * 256 % _FLETCHER, (len(words) * total - moment) * 256 % _FLETCHER


def read_chunks(file: HDF5File, expected: HDF5Array) -> Chunks:
    """Find the chunks of a dataset.

    Raises
    ------
    HDF5Error
        If the dataset is not as expected, or a chunk is not within the file.
    """
    header = file.dataset(expected.name)
    _check_type(header, expected)
    row_bytes = math.prod(expected.shape[1:]) * int(expected.dtype[2:])
    if not expected.chunk_rows:
        return Chunks(expected.name, 1, row_bytes, np.empty(0, np.int64), np.empty(0, np.bool_))
    if header.filters not in _FLETCHER_ALONE:
        raise HDF5Error(f"dataset {expected.name!r}: expected Fletcher-32 and no other filter")
    rows, index = _parse_layout(header.layout, expected)
    count, size = -(-expected.shape[0] // rows), rows * row_bytes + _CHECKSUM_BYTES
    # Checked first, since it bounds the length of the index.
    if count * size > len(file.data) or (count > 1 and size < _CHUNK_BYTES_MIN):
        raise HDF5Error(
            f"dataset {expected.name!r}: expected chunks within the file, of {_CHUNK_BYTES_MIN} bytes at least if "
            f"there are several, found {count} of {size} bytes"
        )
    places, sizes, masks = _read_index(file, index, count, filtered=header.layout[2])
    if (places > len(file.data) - size).any() or (sizes != size).any() or masks.any():
        raise HDF5Error(f"dataset {expected.name!r}: expected {count} whole chunks within the file, found others")
    return Chunks(expected.name, rows, row_bytes, places.astype(np.int64), np.zeros(count, np.bool_))


def _check_type(header: DatasetHeader, expected: HDF5Array) -> None:
    """Compare shape and dtype, as HDF5 stores them, with the expected ones."""
    if max(expected.shape) >= 1 << 63:
        raise HDF5Error(f"dataset {expected.name!r}: expected axes below 2 ** 63")
    shape = b"".join(axis.to_bytes(8, "little") for axis in expected.shape)
    rank = len(expected.shape)
    if header.dataspace not in (bytes([2, rank, 0, 1]) + shape, bytes([2, rank, 1, 1]) + shape + shape):
        raise HDF5Error(f"dataset {expected.name!r}: expected shape {expected.shape}, found another")
    version, kind = divmod(header.datatype[0] if header.datatype else 0, 16)
    if (kind, header.datatype[1:]) != _TYPES[expected.dtype] or version not in _TYPE_VERSIONS:
        raise HDF5Error(f"dataset {expected.name!r}: expected dtype {expected.dtype}, found another")


def _parse_layout(layout: bytes, expected: HDF5Array) -> tuple[int, bytes]:
    """Rows of a chunk, and the description of the chunk index."""
    axes = [*expected.shape[1:], int(expected.dtype[2:])]
    width = layout[4] if len(layout) > 4 else 0
    end = 5 + width * (1 + len(axes))
    found = [int.from_bytes(layout[at : at + width], "little") for at in range(5, end, width or 1)]
    if layout[:2] != b"\x04\x02" or not 1 <= width <= 8 or len(layout) <= end or layout[3] != len(found):
        raise HDF5Error(f"dataset {expected.name!r}: expected chunks in a layout of version 4, found another")
    if found[1:] != axes or not 1 <= found[0] <= expected.shape[0] or layout[2] not in (0, _FILTERED_ALONE):
        raise HDF5Error(f"dataset {expected.name!r}: expected chunks of whole rows, found others")
    return found[0], layout[end:]


def _read_index(file: HDF5File, index: bytes, count: int, *, filtered: int) -> tuple[_Numbers, _Numbers, _Numbers]:
    """Addresses, sizes and filter masks of the chunks: three uint64 arrays, (count,)."""
    if index[0] == _SINGLE and count == 1 and filtered == _FILTERED_ALONE and len(index) == 21:
        size, mask, place = struct.unpack("<QIQ", index[1:])
        return np.array([place], np.uint64), np.array([size], np.uint64), np.array([mask], np.uint64)
    if index[0] != _FIXED_ARRAY or filtered or len(index) != 10 or not 1 <= index[1] <= _PAGE_BITS_MAX:
        raise HDF5Error("expected a chunk index that is a fixed array, or a single chunk, found another")
    page_entries, place = 1 << index[1], int.from_bytes(index[2:], "little")
    head = file.checked(place, _ARRAY_HEADER.size + _CHECKSUM_BYTES, "a fixed array")
    name, version, client, entry, bits, entries, block = _ARRAY_HEADER.unpack(head)
    if (name, version, client, bits, entries) != (b"FAHD", 0, 1, index[1], count) or not 13 <= entry <= 20:
        raise HDF5Error(f"expected a fixed array of {count} chunks at {place}, found another")
    prefix = _ARRAY_BLOCK.pack(b"FADB", 0, 1, place)
    if count <= page_entries:
        body = file.checked(block, len(prefix) + count * entry + _CHECKSUM_BYTES, "the chunks of a fixed array")
        table = np.frombuffer(body, np.uint8)[len(prefix) :]
    else:
        pages = -(-count // page_entries)
        bitmap = np.packbits(np.ones(pages, np.uint8)).tobytes()
        prefix += bitmap
        body = file.checked(block, len(prefix) + _CHECKSUM_BYTES, "the chunks of a fixed array")
        begin = block + len(prefix) + _CHECKSUM_BYTES
        sizes = [min(page_entries, count - page * page_entries) * entry for page in range(pages)]
        starts = range(
            begin, begin + pages * (page_entries * entry + _CHECKSUM_BYTES), page_entries * entry + _CHECKSUM_BYTES
        )
        parts = [
            file.checked(start, size + _CHECKSUM_BYTES, "a page of a fixed array")
            for start, size in zip(starts, sizes, strict=True)
        ]
        table = np.frombuffer(b"".join(parts), np.uint8)
    if body[: len(prefix)] != prefix:
        raise HDF5Error(f"expected the chunks of a fixed array at {block}, found something else")
    table = table.reshape(count, entry)
    return _numbers(table[:, :8]), _numbers(table[:, 8:-4]), _numbers(table[:, -4:])


def _numbers(columns: npt.NDArray[np.uint8]) -> _Numbers:
    """Little-endian numbers of at most eight bytes, one a row."""
    wide = np.zeros((len(columns), 8), np.uint8)
    wide[:, : columns.shape[1]] = columns
    return wide.view("<u8")[:, 0]
