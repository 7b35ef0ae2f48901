"""Read the fields of an archive's item that are too large for the plan: numpy arrays and plain bytes."""

import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy_format

from packer.sources.contents import read_member
from packer.sources.item import Item
from shardspec.errors import ItemError
from shardspec.wording import shorten

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
