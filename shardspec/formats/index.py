"""The index of a shard: the place of each value in the shard's file. `SPEC.md`, section 6, describes the layout."""

import hashlib
import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from dataclasses import field as attribute
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shardspec.columns import IntArray
from shardspec.schema import Field, Schema

INDEX_SUFFIX = ".index"
"""Suffix of an index, after the name of the shard's file."""

_Numbers = npt.NDArray[np.unsignedinteger[Any]]

_MAGIC = b"packidx1"
_HEAD = struct.Struct("<8sI")
"""Magic bytes, and the CRC-32 of everything between the head and the end of the directory."""
_SUMMARY = struct.Struct("<IIQQ16s")
"""Number of sections, CRC-32 of the start of the shard's file, rows, bytes of that file, identity of the fields."""
_DIRECTORY = np.dtype(
    [
        ("start", "<u8"),
        ("width", "<u4"),
        ("crc", "<u4"),
        *((name, "<u8") for name in ("runs", "starts", "sizes", "shapes", "sums")),
    ]
)
_START_BYTES = 512
"""Number of bytes at the start of the shard's file whose checksum the index holds, to detect a different file."""
_ALIGN = 8
_NARROW, _WIDE = np.dtype("<u4"), np.dtype("<u8")


def _none() -> _Numbers:
    return np.empty(0, "<u4")


Form = Literal["plain", "numbers", "bits", "varints", "decimal", "shaped"]


@dataclass(frozen=True)
class Stored:
    """How a format stores the values of a field.

    Attributes
    ----------
    size : int or None
        Bytes of a stored value; None if sizes vary.
    run_rows : int
        Number of rows in a run, whose values have one size and are adjacent. 0 if every value has its own place.
    chunk_bytes : int
        Size of a chunk, if values of varying size form one stream of bytes that is cut into chunks; otherwise 0.
    step : int
        Size of one step along a ragged value's first axis. Every size is a multiple of it.
    form : str
        *plain*: the encoded bytes. *numbers*: numbers of another `dtype`. *bits*: booleans, eight to a byte, the lowest
        bit first; `size`, `step`, and the index's starts and sizes then count bits. *varints*: integers as protobuf
        stores them. *decimal*: an integer in ASCII digits. *shaped*: an array, with its shape in the index.
    dtype : str
        Dtype of *numbers*.
    axes : int
        Axes of a *shaped* array.
    """

    size: int | None
    run_rows: int = 0
    chunk_bytes: int = 0
    step: int = 1
    form: Form = "plain"
    dtype: str = "|u1"
    axes: int = 0


def stored(field: Field, block_rows: int) -> Stored:
    """Return how LMDB stores a field: as encoded bytes. Other formats use this by default."""
    if field.is_fixed:
        return Stored(field.row_bytes)
    return Stored(None, step=field.row_bytes if field.kind == "ragged" else 1)


@dataclass(frozen=True)
class Places:
    """A section of an index: the places of the values of a field.

    Attributes
    ----------
    runs : (runs,)
        Starts of runs of values, or of chunks, in the file.
    starts, sizes : (rows,)
        Starts of values, and their sizes if these vary.
    shapes : (rows * axes,), uint32
        Shapes of *shaped* arrays.
    sums : uint32
        Checksum of each run, or of each value if there are no runs: CRC-32; CRC-32C for TFRecord.
    """

    runs: _Numbers = attribute(default_factory=_none)
    starts: _Numbers = attribute(default_factory=_none)
    sizes: _Numbers = attribute(default_factory=_none)
    shapes: _Numbers = attribute(default_factory=_none)
    sums: _Numbers = attribute(default_factory=_none)


NO_PLACES = Places()
_ARRAYS = tuple(vars(NO_PLACES))


class IndexFormatError(ValueError):
    """An index, or stored bytes, that break the contract."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected, self.found = expected, found


def index_path(path: Path) -> Path:
    """Return the path of the index of a shard's file."""
    return path.with_name(path.name + INDEX_SUFFIX)


def pack_index(
    format: str, schema: Schema, rows: int, data: npt.NDArray[np.uint8], sections: Sequence[Places]
) -> bytes:
    """Return the bytes of an index.

    Parameters
    ----------
    data : ndarray, uint8
        The shard's file.
    sections : sequence of Places
        One for each field of the schema, and one for whole records if the format has checksums of records.
    """
    directory = np.zeros(len(sections), _DIRECTORY)
    place = _HEAD.size + _SUMMARY.size + directory.nbytes
    bodies = [bytes(-place % _ALIGN)]
    place += len(bodies[0])
    for entry, found in zip(directory, sections, strict=True):
        arrays = vars(found)
        most = max((int(arrays[name].max(initial=0)) for name in ("runs", "starts", "sizes")), default=0)
        width = 4 if most < 1 << 32 else 8
        body = b"".join(arrays[name].astype(_dtype_of(name, width)).tobytes() for name in _ARRAYS)
        body += bytes(-len(body) % _ALIGN)
        for name in _ARRAYS:
            entry[name] = len(arrays[name])
        entry["start"], entry["width"], entry["crc"] = place, width, zlib.crc32(body)
        bodies.append(body)
        place += len(body)
    summary = _SUMMARY.pack(len(sections), _sum_start(data), rows, len(data), _identity(format, schema))
    checked = summary + directory.tobytes()
    return b"".join((_HEAD.pack(_MAGIC, zlib.crc32(checked)), checked, *bodies))


class Index:
    """The content of an index, which is not trusted: each section is checked when it is read.

    Parameters
    ----------
    index : ndarray, uint8
        Bytes of the index.
    data : ndarray, uint8
        Bytes of the shard's file.

    Raises
    ------
    IndexFormatError
        If these are not the bytes of an index of this file with these fields and rows.
    """

    def __init__(
        self, index: npt.NDArray[np.uint8], data: npt.NDArray[np.uint8], format: str, schema: Schema, rows: int
    ) -> None:
        self._index = index
        begin = _HEAD.size + _SUMMARY.size
        if len(index) < begin:
            raise IndexFormatError(f"at least {begin} bytes", f"{len(index)}")
        magic, crc = _HEAD.unpack_from(index.data)
        if magic != _MAGIC:
            raise IndexFormatError(f"{_MAGIC!r} at the start", f"{magic!r}")
        sections, start_sum, *found = _SUMMARY.unpack_from(index.data, _HEAD.size)
        end = begin + sections * _DIRECTORY.itemsize
        if end > len(index) or zlib.crc32(index[_HEAD.size : end].data) != crc:
            raise IndexFormatError("a directory with its checksum", "another")
        expected: list[Any] = [rows, len(data), _identity(format, schema)]
        for what, wanted, value in zip(("rows", "bytes in the shard", "as fields"), expected, found, strict=True):
            if wanted != value:
                raise IndexFormatError(f"{_shown(wanted)} {what}", _shown(value))
        if not len(schema) <= sections <= len(schema) + 1:
            raise IndexFormatError(f"{len(schema)} sections", f"{sections}")
        if _sum_start(data) != start_sum:
            raise IndexFormatError("the shard that the index was made for", "another")
        self._directory = index[begin:end].view(_DIRECTORY)
        last = self._extent(sections - 1)[1] if sections else end
        if last != len(index):
            raise IndexFormatError(f"{last} bytes", f"{len(index)}")

    def __len__(self) -> int:
        return len(self._directory)

    def section(self, number: int) -> Places:
        """Return a section as views of the index; `IndexFormatError` if it is damaged."""
        start, end = self._extent(number)
        entry = self._directory[number]
        if end > len(self._index) or zlib.crc32(self._index[start:end].data) != entry["crc"]:
            raise IndexFormatError(f"section {number} with its checksum", "another")
        arrays = {}
        for name in _ARRAYS:
            dtype = _dtype_of(name, int(entry["width"]))
            stop = start + int(entry[name]) * dtype.itemsize
            arrays[name] = self._index[start:stop].view(dtype)
            start = stop
        return Places(**arrays)

    def _extent(self, number: int) -> tuple[int, int]:
        """Return the start and end of a section, computed with Python's integers, which do not overflow."""
        entry = self._directory[number]
        width = int(entry["width"])
        if width not in (4, 8):
            raise IndexFormatError("numbers of 4 or 8 bytes", f"{width}")
        size = sum(int(entry[name]) * _dtype_of(name, width).itemsize for name in _ARRAYS)
        return int(entry["start"]), int(entry["start"]) + size + -size % _ALIGN


def with_sums(places: Places, sums: Sequence[int]) -> Places:
    """Return a section with checksums."""
    return replace(places, sums=np.array(sums, "<u4"))


def integers(numbers: Any) -> IntArray:
    """Return numbers of an index as int64; those that do not fit become negative."""
    out: IntArray = numbers.astype(np.int64)
    return out


def _dtype_of(name: str, width: int) -> np.dtype[Any]:
    return _WIDE if width == 8 and name not in ("shapes", "sums") else _NARROW


def _sum_start(data: npt.NDArray[np.uint8]) -> int:
    return zlib.crc32(data[:_START_BYTES].data)


def _identity(format: str, schema: Schema) -> bytes:
    """Hash everything that determines how values are stored.

    The shape of encoded bytes is left out: it has no effect, and an update may widen it.
    """
    fields = [[f.name, f.kind, f.dtype, [] if f.kind == "bytes" else list(f.shape), f.codec.name] for f in schema]
    return hashlib.sha256(json.dumps([format, fields]).encode()).digest()[:16]


def _shown(value: int | bytes) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def has_no_bytes(field: Field) -> bool:
    """Return whether no value of a field has any bytes, so that no format stores the field."""
    return field.kind in ("fixed", "ragged") and not field.row_bytes
