"""Files as read-only arrays of bytes in memory, without a file descriptor held."""

import ctypes
import mmap
import os
import sys
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardspec.errors import ShardMissingError

ByteArray = npt.NDArray[np.uint8]

_MAP_FAILED = ctypes.c_void_p(-1).value


def map_file(path: Path) -> ByteArray:
    """The bytes of a file, mapped read-only: (size,) uint8.

    The mapping lives as long as the array or any view of it, memoryviews included, and holds no descriptor: Python's own
    ``mmap`` keeps one for each until Python 3.13, too many for a dataset of hundreds of shards.

    Raises
    ------
    ShardMissingError
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    except (FileNotFoundError, NotADirectoryError):
        raise ShardMissingError(f"{path}: expected a file, found none: restore it or pack again") from None
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:  # an empty mapping is refused by the system
            return np.empty(0, np.uint8)
        if sys.version_info >= (3, 13):
            return np.frombuffer(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ, trackfd=False), np.uint8)
        if os.name == "nt":
            return np.frombuffer(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ), np.uint8)
        return np.asarray(_Mapping(descriptor, size))
    finally:
        os.close(descriptor)


class _Mapping:
    """One mapping by the C library, undone when nothing refers to it any more."""

    def __init__(self, descriptor: int, size: int) -> None:
        library = _library()
        address = library.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (size,), "data": (address, True)}
        # Not at exit: a thread may still be reading, and the system unmaps anyway.
        weakref.finalize(self, library.munmap, address, size).atexit = False


@cache
def _library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library
