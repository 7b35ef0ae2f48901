"""Read the bytes of items, from files and from members of archives, without unpacking these."""

import gzip
import io
import math
import os
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy_format

from packer.sources.archives.member import Member
from packer.sources.folders.frames import Frames
from packer.sources.item import Item, ItemFile
from shardspec.errors import ItemError
from shardspec.registry import import_target
from shardspec.wording import shorten

MAX_UNPACKED_BYTES = 512 * 10**6
"""Largest member of a compressed archive in bytes, since it is held in memory."""

_STEP_BYTES = 1 << 20
_WINDOW_BUFFER_BYTES = 1 << 16
_BATCH_BYTES = 16 * 10**6
"""Approximate number of bytes of a Parquet column to decode at a time."""


def opener(file: ItemFile) -> str | Callable[[], BinaryIO]:
    """Return the path of a file, or a function that opens it as a member of an archive, for decoders.

    Raises
    ------
    ItemError
        If the file is a folder of frames.
    """
    if isinstance(file.member, Frames):
        raise ItemError(expected="a file", found="a folder of frames")
    return file.path if file.member is None else partial(_open_member, file.path, file.member)


def read_member(path: str, member: Member) -> bytes:
    """Return all bytes of a member.

    Raises
    ------
    ItemError
        If the archive does not contain all of these bytes.
    OSError
        If the archive cannot be read.
    """
    if member.kind not in ("stored", "zip"):
        return _streams.read(path, member)
    pieces = []
    with open(path, "rb") as file:  # noqa: PTH123 -- often
        if member.kind == "zip":
            return _read_zipped(file, member)
        for offset, size in member.spans:
            file.seek(offset)
            pieces.append(file.read(size))
    data = b"".join(pieces)
    if len(data) != sum(member.place[1::2]):
        raise ItemError(expected=f"{sum(member.place[1::2])} bytes in the archive", found=f"its end after {len(data)}")
    return data


def close_contents() -> None:
    """Close the archives that this process keeps open."""
    _streams.close()


def _open_member(path: str, member: Member) -> BinaryIO:
    if member.kind == "stored" and len(member.place) == 2:
        return io.BufferedReader(_Window(path, *member.place), _WINDOW_BUFFER_BYTES)
    if member.kind == "zip" and member.place[2] == zipfile.ZIP_STORED:
        with open(path, "rb") as file:  # noqa: PTH123 -- often
            offset = _seek_zipped(file, member)
        return io.BufferedReader(_Window(path, offset, member.place[4]), _WINDOW_BUFFER_BYTES)
    return io.BytesIO(read_member(path, member))


_ZIP_HEADER = struct.Struct("<4s22xHH")
"""A file's header in a zip file: signature, and the lengths of the name and the extra fields that follow it
(APPNOTE 4.3.7). The directory need not have the same extra fields."""


def _seek_zipped(file: BinaryIO, member: Member) -> int:
    """Go to the content of a file in a zip file, and return its offset."""
    start, room, _, size, *_ = member.place
    file.seek(start)
    header = file.read(_ZIP_HEADER.size)
    if len(header) == _ZIP_HEADER.size:
        signature, name, extra = _ZIP_HEADER.unpack(header)
        if signature == b"PK\x03\x04" and _ZIP_HEADER.size + name + extra + size <= room:
            return file.seek(name + extra, os.SEEK_CUR)
    raise ItemError(expected="the file's header in the archive", found="other bytes", hint="the archive is damaged")


def _read_zipped(file: BinaryIO, member: Member) -> bytes:
    _, _, method, packed, size, checksum = member.place
    _seek_zipped(file, member)
    data = file.read(packed)
    try:
        if method == zipfile.ZIP_DEFLATED:
            data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
    except zlib.error as error:
        raise ItemError(f"expected a whole file in the archive, found: {error}") from error
    if len(data) != size or zlib.crc32(data) != checksum:
        raise ItemError(expected=f"{size} bytes with the checksum of the archive's directory", found="others: damaged")
    return data


class _Window(io.RawIOBase):
    """A part of a file as a read-only file object."""

    def __init__(self, path: str, offset: int, size: int) -> None:
        self._offset, self._size, self._at = offset, size, 0
        self._file = io.FileIO(path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(f"expected an offset in the file, found {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = max(0, min(len(buffer), self._size - self._at))
        self._file.seek(self._offset + self._at)
        found = self._file.readinto(memoryview(buffer)[:wanted]) or 0
        self._at += found
        return found

    def close(self) -> None:
        self._file.close()
        super().close()


class _Streams:
    """Keeps the last used archive open, so that members can be read in order in one pass. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key: tuple[Any, ...] | None = None
        self._stream: _GzipStream | _ParquetStream | None = None

    def read(self, path: str, member: Member) -> bytes:
        """Return the bytes of a member; fast if the member follows the one read last."""
        key = (path, member.kind, member.run, member.place[2:], os.stat(path).st_mtime_ns)
        with self._lock:
            if self._key != key or self._stream is None:
                self._close()
                self._stream = _GzipStream(path) if member.kind == "gzip" else _ParquetStream(path, member.place)
                self._key = key
            try:
                return self._stream.read(member.place)
            except BaseException:
                self._close()
                raise

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._key = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class _GzipStream:
    """A file compressed by gzip. Reading backwards is slow, because decompression restarts from the beginning."""

    def __init__(self, path: str) -> None:
        self._file = gzip.open(path)  # noqa: SIM115 -- closed by `close`

    def read(self, place: tuple[int, ...]) -> bytes:
        offset, size = place
        try:
            self._file.seek(offset)
            data = self._file.read(size)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ItemError(f"expected a whole gzip file, found: {error}") from error
        if len(data) != size:
            raise ItemError(expected=f"{size} bytes in the archive", found=f"its end after {len(data)}")
        return data

    def close(self) -> None:
        self._file.close()


class _ParquetStream:
    """A column in a row group of a Parquet file, decoded batch by batch. Reading backwards decodes it again."""

    def __init__(self, path: str, place: tuple[int, ...]) -> None:
        self._group, _, self._column, self._field = place
        opened = import_target("pyarrow.parquet:ParquetFile", what=f"images in {shorten(path)}", extra="parquet")
        try:
            self._file = opened(path, buffer_size=_STEP_BYTES, pre_buffer=False)
        except ValueError as error:  # pyarrow's errors
            raise ItemError(f"expected a Parquet file, {error}") from error
        self._values: Iterator[Any] = iter(())
        self._next = -1

    def read(self, place: tuple[int, ...]) -> bytes:
        row = place[1]
        try:
            if self._next < 0 or row < self._next:
                self._values, self._next = self._all(), 0
            value = None
            while self._next <= row:
                value = next(self._values)
                self._next += 1
        except (ValueError, NotImplementedError, StopIteration) as error:
            raise ItemError(f"expected row {row} of row group {self._group}, {error or 'found none'}") from error
        if value is not None and self._field >= 0:
            value = value["bytes"]
        if not isinstance(value, bytes):
            raise ItemError(expected="the bytes of an image", found="none (a path alone, or an empty row)")
        return value

    def _all(self) -> Iterator[Any]:
        """Yield the values of the column, with one batch in memory at a time."""
        meta = self._file.metadata.row_group(self._group)
        name = self._file.schema_arrow.names[self._column]
        rows = max(1, min(64, _BATCH_BYTES * max(1, meta.num_rows) // max(1, meta.total_byte_size)))
        leaf = name if self._field < 0 else f"{name}.bytes"
        for batch in self._file.iter_batches(rows, row_groups=[self._group], columns=[leaf], use_threads=False):
            yield from (value.as_py() for value in batch.column(0))

    def close(self) -> None:
        with suppress(ValueError):
            self._file.close()


_streams = _Streams()
"""The open archive of this process, at most one. `close_contents` closes it."""


_HEADER_BYTES_MAX = 1_000
"""Largest header in bytes: enough for 32 axes, and too small to crash Python's parser."""
_READERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}


def read_arrays(item: Item) -> dict[str, Any]:
    """Return the values of an item's large fields, which are read from its archive.

    Raises
    ------
    ItemError
        If a value is not an array, or cannot be read.
    """
    found: dict[str, Any] = {}
    for name, member in item.arrays.items():
        data = read_member(str(item.location()), member)
        try:
            found[name] = data if member.kind == "parquet" else parse_npy(data)
        except ItemError as error:
            raise ItemError(error, place=f"field {name!r}") from error
    return found


def parse_npy(data: bytes) -> npt.NDArray[Any]:
    """Return the array in the bytes of a ``.npy`` file.

    Only the header is parsed by numpy, because its reader allocates the announced size before it checks the bytes.

    Raises
    ------
    ItemError
        If the bytes are not exactly one array of plain numbers. Objects are refused, because they are pickles.
    """
    file = io.BytesIO(data)
    try:
        read = _READERS[npy_format.read_magic(file)]
        shape, fortran, dtype = read(file, max_header_size=_HEADER_BYTES_MAX)
    except Exception as error:  # raised by numpy or by Python's parser
        raise ItemError(expected="a .npy file with one array of numbers", found=shorten(data[:12])) from error
    if dtype.hasobject:
        raise ItemError(
            expected="numbers in the .npy file", found="objects", hint="they are pickled, and reading them runs code"
        )
    if dtype.kind not in "biuf" or len(shape) > 32 or min(shape, default=0) < 0:
        raise ItemError(expected="an array of numbers in the .npy file", found=f"{dtype} {shape}")
    expected, start = dtype.itemsize * math.prod(shape), file.tell()
    if len(data) - start != expected:
        raise ItemError(expected=f"{expected} bytes after the header of the .npy file", found=len(data) - start)
    values: npt.NDArray[Any] = np.frombuffer(data, dtype, offset=start)
    return values.reshape(shape, order="F" if fortran else "C")
