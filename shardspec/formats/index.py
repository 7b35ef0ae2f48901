"""The index of a shard: where each of its values is in the shard's file. `SPEC.md`, section 5, describes the layout."""

import hashlib
import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardspec.columns import IntArray
from shardspec.schema import Schema

INDEX_SUFFIX = ".index"
"""What follows the name of the shard's file in the name of its index."""

_Numbers = npt.NDArray[np.unsignedinteger[Any]]

_MAGIC = b"packidx1"
_HEAD = struct.Struct("<8sI")
"""Magic, and the CRC-32 of what follows up to the end of the directory."""
_FACTS = struct.Struct("<IIQQ16s")
"""Number of sections, CRC-32 of the file's beginning, rows, bytes of the file, identity of format and fields."""
_DIRECTORY = np.dtype(
    [
        ("start", "<u8"),
        ("width", "<u4"),
        ("crc", "<u4"),
        *((name, "<u8") for name in ("runs", "starts", "sizes", "shapes", "sums")),
    ]
)
_BEGINNING_BYTES = 512
"""Bytes at the beginning of the shard's file that the index has a checksum of, to recognise another file."""
_ALIGN = 8
_NARROW, _WIDE = np.dtype("<u4"), np.dtype("<u8")


def _none() -> _Numbers:
    return np.empty(0, "<u4")


@dataclass(frozen=True)
class Stored:
    """How a format stores the values of a field.

    Attributes
    ----------
    size : int or None
        Bytes of a stored value; None if they vary.
    run_rows : int
        Rows whose values, all of one size, follow one another in a run. 0 if every value has its own place.
    chunk_bytes : int
        Size of a chunk, if values of varying size are one stream of bytes that is cut into chunks; otherwise 0.
    step : int
        Of which every size is a multiple: the size of one step along a ragged value's first axis.
    plain : bool
        Whether the stored bytes are the encoded value's.
    bits : bool
        Whether `size`, `step`, and the index's starts and sizes count bits. Runs are always in bytes.
    """

    size: int | None
    run_rows: int = 0
    chunk_bytes: int = 0
    step: int = 1
    plain: bool = True
    bits: bool = False


@dataclass(frozen=True)
class Places:
    """One section of an index.

    Attributes
    ----------
    runs : (runs,)
        Where runs of values, or chunks, begin.
    starts, sizes : (rows,)
        Where values begin, and their sizes if these vary.
    shapes : (rows * axes,), uint32
        The shapes of arrays of several varying axes, in formats that store them in a form of their own.
    sums : uint32
        Checksum of each run, or of each value if the field has no runs of values: CRC-32, and of records CRC-32C.
    """

    runs: _Numbers = field(default_factory=_none)
    starts: _Numbers = field(default_factory=_none)
    sizes: _Numbers = field(default_factory=_none)
    shapes: _Numbers = field(default_factory=_none)
    sums: _Numbers = field(default_factory=_none)


NO_PLACES = Places()
_ARRAYS = tuple(vars(NO_PLACES))


class IndexFormatError(ValueError):
    """An index that breaks the contract; the message says what was expected and found."""


def index_path(path: Path) -> Path:
    """Where the index of a shard's file is."""
    return path.with_name(path.name + INDEX_SUFFIX)


def pack_index(
    format: str, schema: Schema, rows: int, data: npt.NDArray[np.uint8], sections: Sequence[Places]
) -> bytes:
    """The bytes of an index.

    Parameters
    ----------
    data : ndarray, uint8
        The shard's file.
    sections : sequence of Places
        One for each field of the schema, and one for whole records if the format has a checksum of these.
    """
    directory = np.zeros(len(sections), _DIRECTORY)
    place = _HEAD.size + _FACTS.size + directory.nbytes
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
    facts = _FACTS.pack(len(sections), _sum_beginning(data), rows, len(data), _identity(format, schema))
    listed = facts + directory.tobytes()
    return b"".join((_HEAD.pack(_MAGIC, zlib.crc32(listed)), listed, *bodies))


class Index:
    """An index, from its bytes, of which nothing is trusted.

    Parameters
    ----------
    index : ndarray, uint8
    data : ndarray, uint8
        The shard's file.

    Raises
    ------
    IndexFormatError
        If it is not an index of this file with these fields and rows.
    """

    def __init__(
        self, index: npt.NDArray[np.uint8], data: npt.NDArray[np.uint8], format: str, schema: Schema, rows: int
    ) -> None:
        self._index = index
        begin = _HEAD.size + _FACTS.size
        if len(index) < begin:
            raise IndexFormatError(f"expected at least {begin} bytes, found {len(index)}")
        magic, crc = _HEAD.unpack_from(index.data)
        if magic != _MAGIC:
            raise IndexFormatError(f"expected {_MAGIC!r} at the beginning, found {magic!r}")
        sections, beginning, *facts = _FACTS.unpack_from(index.data, _HEAD.size)
        end = begin + sections * _DIRECTORY.itemsize
        if end > len(index) or zlib.crc32(index[_HEAD.size : end].data) != crc:
            raise IndexFormatError("expected a directory with its checksum, found another")
        expected: list[Any] = [rows, len(data), _identity(format, schema)]
        for what, wanted, found in zip(("rows", "bytes in the shard", "as fields"), expected, facts, strict=True):
            if wanted != found:
                raise IndexFormatError(f"expected {_shown(wanted)} {what}, found {_shown(found)}")
        if not len(schema) <= sections <= len(schema) + 1:
            raise IndexFormatError(f"expected {len(schema)} sections, found {sections}")
        if _sum_beginning(data) != beginning:
            raise IndexFormatError("expected the shard that the index was made of, found another")
        self._directory = index[begin:end].view(_DIRECTORY)
        last = self._extent(sections - 1)[1] if sections else end
        if last != len(index):
            raise IndexFormatError(f"expected {last} bytes, found {len(index)}")

    def __len__(self) -> int:
        return len(self._directory)

    def section(self, number: int) -> Places:
        """One section: views of the index.

        Raises
        ------
        IndexFormatError
            If it is not within the index, or its checksum differs.
        """
        start, end = self._extent(number)
        entry = self._directory[number]
        if end > len(self._index) or zlib.crc32(self._index[start:end].data) != entry["crc"]:
            raise IndexFormatError(f"expected section {number} with its checksum, found another")
        arrays = {}
        for name in _ARRAYS:
            dtype = _dtype_of(name, int(entry["width"]))
            stop = start + int(entry[name]) * dtype.itemsize
            arrays[name] = self._index[start:stop].view(dtype)
            start = stop
        return Places(**arrays)

    def _extent(self, number: int) -> tuple[int, int]:
        """Where a section begins and ends, as Python's integers, which do not overflow."""
        entry = self._directory[number]
        width = int(entry["width"])
        if width not in (4, 8):
            raise IndexFormatError(f"expected numbers of 4 or 8 bytes, found {width}")
        size = sum(int(entry[name]) * _dtype_of(name, width).itemsize for name in _ARRAYS)
        return int(entry["start"]), int(entry["start"]) + size + -size % _ALIGN


def with_sums(places: Places, sums: Sequence[int]) -> Places:
    """A section with checksums."""
    return replace(places, sums=np.array(sums, "<u4"))


def integers(numbers: Any) -> IntArray:
    """Numbers of an index as int64; those that do not fit are negative."""
    out: IntArray = numbers.astype(np.int64)
    return out


def _dtype_of(name: str, width: int) -> np.dtype[Any]:
    return _WIDE if width == 8 and name not in ("shapes", "sums") else _NARROW


def _sum_beginning(data: npt.NDArray[np.uint8]) -> int:
    return zlib.crc32(data[:_BEGINNING_BYTES].data)


def _identity(format: str, schema: Schema) -> bytes:
    """Digest of what decides how values are stored: the format, and the fields' names, kinds, dtypes and shapes.

    The shape of encoded bytes does not, and an update may widen it.
    """
    fields = [[f.name, f.kind, f.dtype, [] if f.kind == "bytes" else list(f.shape), f.codec.name] for f in schema]
    return hashlib.sha256(json.dumps([format, fields]).encode()).digest()[:16]


def _shown(fact: int | bytes) -> str:
    return fact.hex() if isinstance(fact, bytes) else str(fact)
