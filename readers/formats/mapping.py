"""Files as read-only arrays of bytes in memory, without a file descriptor held."""

import ctypes
import io
import mmap
import os
import sys
import weakref
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardspec.columns import IntArray
from shardspec.errors import DatasetError, ShardMissingError, ShardspecError, system_reason
from shardspec.layout import open_regular

ByteArray = npt.NDArray[np.uint8]

_MAP_FAILED = ctypes.c_void_p(-1).value
_WILL_NEED: int | None = getattr(mmap, "MADV_WILLNEED", None)
_RANDOM: int | None = getattr(mmap, "MADV_RANDOM", None)
_DONT_NEED: int | None = getattr(mmap, "MADV_DONTNEED", None)
_held: dict[int, "weakref.ref[Any]"] = {}
"""The mappings that exist now, by number. A dict, which is safe to use from threads and finalisers."""
_numbers = count()
_GAP_PAGES = 8
"""Ranges with a smaller gap between them are asked for as one."""
_HEAD_BYTES = 1 << 15
"""So much of a file is asked for when it is mapped: no format's header is longer."""
_CALL_PAGES = 32
"""Most pages per request: Linux cuts a longer one to what the device reads ahead, often no more than 128 kB."""


@dataclass(frozen=True)
class Extents:
    """Parts of a mapped file.

    Attributes
    ----------
    data : ndarray, (size,), uint8
        The mapping, or a view of it.
    starts, stops : int64 arrays, (n,), within 0 and size
    """

    data: ByteArray
    starts: IntArray
    stops: IntArray


def map_file(path: Path) -> ByteArray:
    """The bytes of a file, mapped read-only: (size,) uint8.

    The mapping exists as long as the array or any view of it, memoryviews included, and holds no descriptor. Before
    Python 3.13, Python's own ``mmap`` keeps one for each mapping, too many for a dataset of hundreds of shards. The file's beginning is
    asked for: if it is not in memory, the system would read megabytes after it, too, for whoever touches it.

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
            if size == 0:  # an empty mapping is refused by the system
                return np.empty(0, np.uint8)
            data = _map(file.fileno(), size)
    except ShardspecError:  # some are OSErrors, too
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
    """Number of mappings of this process that exist now."""
    return len(_held)


def let_go_of_pages() -> None:
    """Take what was read of mapped files out of the memory of this process.

    The arrays stay valid: pages that are touched again come from the page cache, where they remain as long as the
    system has room. Until then, every page that was touched, and those that the system mapped around it, count as
    memory of the process. Does nothing on Windows.
    """
    for held in list(_held.values()):
        mapping = held()  # while this refers to it, it cannot be unmapped, and its addresses given to something else
        if mapping is not None and _DONT_NEED is not None:
            mapping.madvise(_DONT_NEED)


def ask_for(data: ByteArray, starts: IntArray, stops: IntArray) -> None:
    """Announce to the system that parts of a mapped file will soon be read, so that it begins to read them.

    Returns as soon as the system has taken note; nothing is copied. For parts that are in memory already, this takes a
    microsecond or two per 128 kB. Does nothing on Windows, which has no such call for files.

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
            # Only advice: if it is refused, the read itself reports what is wrong.
            madvise(at * page, min(_CALL_PAGES, end - at) * page, _WILL_NEED)


def read_only_asked(data: ByteArray) -> None:
    """Make the system read no more of a mapped file than the pages that are asked for or touched.

    By default it reads around every page that is touched and missing, up to as much as the device reads ahead:
    megabytes for a row of some kilobytes. Does nothing on Windows.
    """
    if _RANDOM is not None and len(data):
        address = data.ctypes.data
        start = address // mmap.PAGESIZE * mmap.PAGESIZE
        _library().madvise(start, address + len(data) - start, _RANDOM)


class _Mapping:
    """One mapping by the C library, unmapped when nothing refers to it any more."""

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
        # Not at exit: a thread may still be reading, and the system unmaps anyway.
        weakref.finalize(self, _unmap, number, library, address, size).atexit = False

    def madvise(self, advice: int) -> None:
        """Tell the system about the use of the whole mapping."""
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
