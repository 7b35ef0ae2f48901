"""Map files as read-only arrays of bytes, without keeping a file descriptor open, and copy values out of them."""

import ctypes
import io
import mmap
import os
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardspec.columns import IntArray
from shardspec.errors import DatasetError, ShardCorruptError, ShardMissingError, ShardspecError, system_reason
from shardspec.layout import open_regular
from shardspec.schema import Field
from shardspec.wording import program

ByteArray = npt.NDArray[np.uint8]

_MAP_FAILED = ctypes.c_void_p(-1).value
_WILL_NEED: int | None = getattr(mmap, "MADV_WILLNEED", None)
_RANDOM: int | None = getattr(mmap, "MADV_RANDOM", None)
_DONT_NEED: int | None = getattr(mmap, "MADV_DONTNEED", None)
_held: dict[int, "weakref.ref[Any]"] = {}
"""Current mappings by number. A dict is safe to use from threads and finalisers."""
_numbers = count()
_GAP_PAGES = 8
"""Ranges with a smaller gap between them are requested together."""
_HEAD_BYTES = 1 << 15
"""Bytes at the start of a file that are requested when it is mapped. No format has a longer header."""
_CALL_PAGES = 32
"""Largest number of pages per request. Linux cuts a longer one to the device's read-ahead, often 128 kB."""

ROW_BY_ROW_BYTES = 4096
"""Size of a row in bytes from which a copy per row is faster than a second copy of all rows."""

DAMAGE_ADVICE = (
    f"this file or its manifest entry was altered or truncated: run '{program()} verify' for a full list, "
    "then restore the file or pack again"
)
"""Hint of every error about a damaged shard."""


@dataclass(frozen=True)
class Extents:
    """Parts of a mapped file.

    Attributes
    ----------
    path : Path
    data : ndarray, (size,), uint8
        The mapping, or a view of it.
    starts, stops : int64 arrays, (n,), within 0 and size
    offset : int
        Position of `data` in the file.
    """

    path: Path
    data: ByteArray
    starts: IntArray
    stops: IntArray
    offset: int = 0


def map_file(path: Path) -> ByteArray:
    """Map a file read-only: uint8, (size,).

    The mapping exists as long as the array or any view of it, including memoryviews, and holds no descriptor. Before
    Python 3.13, Python's ``mmap`` keeps a descriptor per mapping, too many for a dataset of hundreds of shards. The start
    of the file is requested, because touching it otherwise makes the system read megabytes after it.

    Raises
    ------
    ShardMissingError
        If the file does not exist.
    ShardCorruptError
        If it is not a regular file.
    DatasetError
        If the system refuses to open or to map it.
    """
    try:
        with io.FileIO(open_regular(path)) as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:  # the system refuses an empty mapping
                return np.empty(0, np.uint8)
            data = _map(file.fileno(), size)
    except ShardspecError:  # some of them are OSErrors
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise ShardMissingError(place=path, expected="a file", found="none", hint="restore it or pack again") from None
    except OSError as error:
        raise DatasetError(f"cannot be read: {system_reason(error)}", place=path) from error
    if size > _HEAD_BYTES:
        ask_for(data, np.zeros(1, np.int64), np.array([_HEAD_BYTES]))
    return data


def _map(descriptor: int, size: int) -> ByteArray:
    if os.name != "nt" and sys.version_info < (3, 13):
        return np.asarray(_Mapping(descriptor, size))
    options: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
    mapping = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ, **options)
    number = next(_numbers)
    _held[number] = weakref.ref(mapping)
    weakref.finalize(mapping, _held.pop, number, None).atexit = False
    return np.frombuffer(mapping, np.uint8)


def mappings_held() -> int:
    """Return the number of current mappings of this process."""
    return len(_held)


def let_go_of_pages() -> None:
    """Remove pages of mapped files from the memory of this process.

    The arrays stay valid, and the pages stay in the page cache as long as the system has room. Without this call, every
    page that was touched, and the pages that the system mapped around it, count as memory of the process. Does nothing
    on Windows.
    """
    for held in list(_held.values()):
        mapping = held()  # this reference prevents that it is unmapped and its addresses are reused
        if mapping is not None and _DONT_NEED is not None:
            mapping.madvise(_DONT_NEED)


def ask_for(data: ByteArray, starts: IntArray, stops: IntArray) -> None:
    """Make the system start to read parts of a mapped file, without waiting for them.

    Nothing is copied. For parts that are in memory, this takes one or two microseconds per 128 kB. Does nothing on
    Windows, which has no such call for files.

    Parameters
    ----------
    data : ndarray, (size,), uint8
        From `map_file`, or a view of it.
    starts, stops : int64 arrays, (n,), within 0 and size
        In any order; they may overlap.
    """
    wanted = stops > starts
    if _WILL_NEED is None or not wanted.any():
        return
    address, page = data.ctypes.data, mmap.PAGESIZE
    first, last = (starts[wanted] + address) // page, (stops[wanted] + address - 1) // page + 1
    ascending = np.argsort(first, kind="stable")
    first, ends = first[ascending], np.maximum.accumulate(last[ascending])
    apart = np.flatnonzero(first[1:] > ends[:-1] + _GAP_PAGES)
    begins = first[np.append(0, apart + 1)].tolist()
    madvise = _library().madvise
    for begin, end in zip(begins, ends[np.append(apart, len(ends) - 1)].tolist(), strict=True):
        for at in range(begin, end, _CALL_PAGES):
            # The result is ignored, because the read itself reports errors.
            madvise(at * page, min(_CALL_PAGES, end - at) * page, _WILL_NEED)


def read_only_asked(data: ByteArray) -> None:
    """Turn off the system's own read-ahead for a mapped file.

    By default the system reads up to megabytes around every missing page that is touched, even for a row of a few
    kilobytes. Does nothing on Windows.
    """
    if _RANDOM is not None and len(data):
        address = data.ctypes.data
        start = address // mmap.PAGESIZE * mmap.PAGESIZE
        _library().madvise(start, address + len(data) - start, _RANDOM)


class _Mapping:
    """A mapping made by the C library, and unmapped when nothing refers to it."""

    def __init__(self, descriptor: int, size: int) -> None:
        library = _library()
        address = library.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (size,), "data": (address, True)}
        self._address, self._size = address, size
        number = next(_numbers)
        _held[number] = weakref.ref(self)
        # Not at exit, because a thread may still be reading, and the system unmaps the file anyway.
        weakref.finalize(self, _unmap, number, library, address, size).atexit = False

    def madvise(self, advice: int) -> None:
        """Give the system advice about the whole mapping."""
        _library().madvise(self._address, self._size, advice)


def _unmap(number: int, library: Any, address: int, size: int) -> None:
    library.munmap(address, size)
    _held.pop(number, None)


@cache
def _library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library


def corrupt(path: Path, expected: str, found: str) -> ShardCorruptError:
    """Return the error about a shard whose content contradicts the contract."""
    return ShardCorruptError(place=path, expected=expected, found=found, hint=DAMAGE_ADVICE)


def without_advice(error: Exception) -> str:
    """Return the message of an error without `DAMAGE_ADVICE`, for callers that give other advice."""
    return str(error).split(f": {DAMAGE_ADVICE}", maxsplit=1)[0]


def distinct(numbers: IntArray) -> list[int]:
    """Return the distinct numbers in ascending order. ``np.unique`` imports a module, which can hang after a fork."""
    return sorted(set(numbers.tolist()))


def is_run(positions: IntArray) -> bool:
    """Return whether positions are consecutive and ascending."""
    if not len(positions) or int(positions[-1]) - int(positions[0]) != len(positions) - 1:
        return False
    return bool((np.diff(positions) == 1).all())


def gather(values: npt.NDArray[Any], rows: IntArray, out: npt.NDArray[Any] | list[Any], at: IntArray) -> None:
    """Assign ``out[at] = values[rows]`` with one copy if `at` is a run. A list gets views.

    Parameters
    ----------
    values : ndarray, (N, ...)
    rows : int64 array, (n,), within 0 and N - 1
    out : ndarray, (M, ...), of the dtype of `values`, or list of M
    at : int64 array, (n,), within 0 and M - 1
    """
    if not len(rows):
        return
    if isinstance(out, list):
        put([values[row] for row in rows.tolist()], out, at)
        return
    if is_run(at) and out.dtype == values.dtype:
        # With "clip", take writes into `out` directly. No row is outside of the array.
        np.take(values, rows, axis=0, out=out[at[0] : at[0] + len(at)], mode="clip")
    else:
        out[at] = values[rows]


def put(values: Sequence[Any] | npt.NDArray[Any], out: npt.NDArray[Any] | list[Any], at: IntArray) -> None:
    """Assign ``out[at] = values``, for an array or a list."""
    if isinstance(out, list):
        for place, value in zip(at.tolist(), values, strict=True):
            out[place] = value
    else:
        out[at] = values


def take_bytes(data: npt.NDArray[np.uint8], starts: IntArray, size: int) -> npt.NDArray[np.uint8]:
    """Copy ``data[start : start + size]`` for every start, all within `data`: uint8, (n, size)."""
    if not size or not len(starts):
        return np.empty((len(starts), size), np.uint8)
    windows = np.ndarray((len(data) - size + 1,), np.dtype((np.void, size)), data, 0, (1,))
    return windows[starts].view(np.uint8).reshape(len(starts), size)


def gather_bytes(
    data: npt.NDArray[np.uint8], starts: IntArray, field: Field, out: npt.NDArray[Any] | list[Any], at: IntArray
) -> None:
    """Copy the values of a fixed field from ``data[starts[i]:]`` to ``out[at[i]]``, all within `data`.

    A list gets views.
    """
    size, dtype, shape = field.row_bytes, field.numpy_dtype, field.fixed_shape
    if not size or not len(starts):
        return
    if size < ROW_BY_ROW_BYTES and not isinstance(out, list):
        out[at] = take_bytes(data, starts, size).view(dtype).reshape(len(starts), *shape)
        return
    for place, start in zip(at.tolist(), starts.tolist(), strict=True):
        out[place] = data[start : start + size].view(dtype).reshape(shape)
