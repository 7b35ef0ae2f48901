"""Fields that are read from an archive together with the item: numpy arrays, and bytes as they are."""

import math
import re
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.sources.contents import read_member
from packer.sources.item import Item
from shardspec.errors import ItemError
from shardspec.wording import shorten

NPY_MAGIC = b"\x93NUMPY"

_HEADER_BYTES_MAX = 1_000
"""Most bytes of a header: enough for 32 axes."""
_WIDTHS = {b"\x01\x00": "<H", b"\x02\x00": "<I", b"\x03\x00": "<I"}
_HEADER = re.compile(
    rb"\{\s*'descr'\s*:\s*'(?P<dtype>[<>|=]?[?a-zA-Z]\d{0,6})'\s*,\s*'fortran_order'\s*:\s*(?P<order>True|False)\s*,"
    rb"\s*'shape'\s*:\s*(?P<shape>\((?:\s*\d{1,18}\s*,?)*\s*\))\s*,?\s*\}\s*"
)


def read_arrays(item: Item) -> dict[str, Any]:
    """The values of an item's fields that lie in its archive.

    Raises
    ------
    ItemError
        If one is no array, or cannot be read.
    """
    found: dict[str, Any] = {}
    for name, member in item.arrays.items():
        data = read_member(str(item.location()), member)
        try:
            found[name] = data if member.kind == "parquet" else parse_npy(data)
        except ItemError as error:
            raise ItemError(f"field {name!r}: {error}") from error
    return found


def parse_npy(data: bytes) -> npt.NDArray[Any]:
    """The array in the bytes of a ``.npy`` file.

    numpy's own reader gives the header to Python's parser, allocates what a header announces before it looks for the
    bytes, and can be made to read pickled objects.

    Raises
    ------
    ItemError
        If they are no array of plain numbers, or not all of it. Objects, which are stored as pickles, are refused.
    """
    layout = _WIDTHS.get(data[6:8]) if data[:6] == NPY_MAGIC else None
    width = 0 if layout is None else struct.calcsize(layout)
    if layout is None or len(data) < 8 + width:
        raise ItemError(f"expected a .npy file, found {shorten(data[:12])}")
    (size,) = struct.unpack_from(layout, data, 8)
    start = 8 + width + size
    header = _HEADER.fullmatch(data[8 + width : start]) if size <= _HEADER_BYTES_MAX else None
    if header is None:
        raise ItemError("expected the header of one array of numbers in the .npy file, found another")
    if header["dtype"][-1:] == b"O" or b"O" in header["dtype"]:
        raise ItemError(
            "expected numbers in the .npy file, found objects: they are pickled, and reading them runs code"
        )
    shape = tuple(int(axis) for axis in re.findall(rb"\d+", header["shape"]))
    try:
        dtype = np.dtype(header["dtype"].decode())
    except TypeError as error:
        raise ItemError("expected an array of numbers in the .npy file, found another") from error
    if dtype.kind not in "biuf" or len(shape) > 32:
        raise ItemError(f"expected an array of numbers in the .npy file, found {dtype} {shape}")
    expected = dtype.itemsize * math.prod(shape)
    if len(data) - start != expected:
        raise ItemError(f"expected {expected} bytes after the header of the .npy file, found {len(data) - start}")
    values: npt.NDArray[Any] = np.frombuffer(data, dtype, offset=start)
    return values.reshape(shape[::-1]).T if header["order"] == b"True" else values.reshape(shape)
