"""The meta pages of an LMDB file: which tree is the newest (``mdb.c``: ``MDB_meta``, ``MDB_db``)."""

from pathlib import Path
from typing import Any

import numpy as np

from readers.formats.checks import corrupt
from readers.formats.mapping import ByteArray

HEADER_BYTES = 16
"""Of every page."""
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


def read_meta(path: Path, data: ByteArray, entries: int) -> Any:
    """The meta page of the last transaction, checked; its ``free`` tree's ``pad`` is the page size.

    Parameters
    ----------
    path : Path
        For messages.
    data : ndarray, (size,), uint8
        The file.
    entries : int
        Keys that there must be.

    Raises
    ------
    ShardCorruptError
    """
    first = _meta_at(path, data, 0)
    page_bytes = int(first["free"]["pad"])
    if page_bytes not in _PAGE_BYTES:
        raise corrupt(path, "a page size of 512 to 65536 bytes", f"{page_bytes}")
    second = _meta_at(path, data, page_bytes)
    meta = second if second["transaction"] > first["transaction"] else first
    expected, found = (int(meta["last_page"]) + 1) * page_bytes, len(data)
    if found != expected:
        raise corrupt(path, f"{expected} bytes", f"{found}")
    main = meta["main"]
    if main["entries"] != entries or main["flags"] != 0:
        raise corrupt(path, f"{entries} plain entries", f"{int(main['entries'])} with flags {int(main['flags'])}")
    return meta


def _meta_at(path: Path, data: ByteArray, start: int) -> Any:
    body = data[start + HEADER_BYTES : start + HEADER_BYTES + _META.itemsize]
    if len(body) < _META.itemsize:
        raise corrupt(path, "two meta pages", f"{len(data)} bytes")
    meta = body.view(_META)[0]
    if meta["magic"] != _MAGIC or meta["version"] != _VERSION:
        found = f"magic {int(meta['magic']):#x}, format {int(meta['version'])}"
        raise corrupt(path, "an LMDB file of data format 1", found)
    return meta
