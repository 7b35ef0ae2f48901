"""The meta pages of an LMDB file: which tree is the newest (``mdb.c``: ``MDB_meta``, ``MDB_db``)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from readers.formats.mapping import ByteArray
from shardspec.errors import ShardCorruptError

Corrupt = Callable[[str, str], ShardCorruptError]

HEADER_BYTES = 16
"""Bytes of every page's header."""
_PAGE_BYTES = tuple(1 << bits for bits in range(9, 17))

_TREE = [
    ("pad", "<u4"),
    ("flags", "<u2"),
    ("depth", "<u2"),
    ("branch_pages", "<u8"),
    ("leaf_pages", "<u8"),
    ("overflow_pages", "<u8"),
    ("entries", "<u8"),
    ("root", "<u8"),
]
_META = np.dtype(
    [
        ("magic", "<u4"),
        ("version", "<u4"),
        ("address", "<u8"),
        ("map_bytes", "<u8"),
        ("free", _TREE),
        ("main", _TREE),
        ("last_page", "<u8"),
        ("transaction", "<u8"),
    ]
)
_MAGIC, _VERSION = 0xBEEFC0DE, 1


def read_meta(data: ByteArray, entries: int, corrupt: Corrupt) -> Any:
    """The meta page of the last transaction of a file, checked; its ``free`` tree's ``pad`` is the page size.

    Parameters
    ----------
    entries : int
        The expected number of keys.
    corrupt : callable
        Makes the error to raise, given what was expected and what was found.
    """
    meta = newest_meta(data, corrupt)
    page_bytes = int(meta["free"]["pad"])
    expected, found = (int(meta["last_page"]) + 1) * page_bytes, len(data)
    if found != expected:
        raise corrupt(f"{expected} bytes", f"{found}")
    main = meta["main"]
    if main["entries"] != entries or main["flags"] != 0:
        raise corrupt(f"{entries} plain entries", f"{int(main['entries'])} with flags {int(main['flags'])}")
    return meta


def newest_meta(data: ByteArray, corrupt: Corrupt) -> Any:
    """The meta page of the last transaction of any LMDB file; its ``free`` tree's ``pad`` is the page size.

    Parameters
    ----------
    data : ndarray, (n,), uint8
        The file, or enough of its beginning to hold both meta pages.
    corrupt : callable
        Makes the error to raise, given what was expected and what was found.
    """
    first = _meta_at(data, 0, corrupt)
    page_bytes = int(first["free"]["pad"])
    if page_bytes not in _PAGE_BYTES:
        raise corrupt("a page size of 512 to 65536 bytes", f"{page_bytes}")
    second = _meta_at(data, page_bytes, corrupt)
    if second["free"]["pad"] != page_bytes:
        raise corrupt(f"pages of {page_bytes} bytes in both meta pages", f"{int(second['free']['pad'])}")
    return second if second["transaction"] > first["transaction"] else first


def _meta_at(data: ByteArray, start: int, corrupt: Corrupt) -> Any:
    body = data[start + HEADER_BYTES : start + HEADER_BYTES + _META.itemsize]
    if len(body) < _META.itemsize:
        raise corrupt("two meta pages", f"{len(data)} bytes")
    meta = body.view(_META)[0]
    if meta["magic"] != _MAGIC or meta["version"] != _VERSION:
        found = f"magic {int(meta['magic']):#x}, format {int(meta['version'])}"
        raise corrupt("an LMDB file of data format 1", found)
    return meta
