"""Memory layout of the values of a batch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shardspec.columns import Columns
from shardspec.schema import Field

BFLOAT16 = np.dtype("V2")
"""Stands for bfloat16, which numpy lacks: two bytes per value, converted to torch's bfloat16 in a batch."""

JOINED = ("audio",)
"""Fields whose values follow each other in time: a clip has them as one array, (T · n,), and not as (T, n)."""

_LINE_BYTES = 64
"""Size of a cache line in bytes. No vector register is larger."""
_JPEG_BEGIN = 16
"""Offset of decoded JPEGs from the start of a cache line in bytes. libjpeg-turbo writes rows that start at a multiple of
32 bytes past the caches, which took 5 % longer (Zen 4)."""


@dataclass(frozen=True)
class ValueLayout:
    """The layout of one value of a field.

    Attributes
    ----------
    shape : tuple of int or None
        None if it varies; a batch is then a list. Otherwise a batch is one array, (n, *shape).
    dtype : dtype or None
        None if and only if `shape` is.
    image : bool
        Whether the last three axes are (H, W, 3), as of an image or of a video. In torch they become (3, H, W) in channels_last memory.
    encoded : bool
        Whether the values are encoded bytes, which stay in CPU memory.
    time : str
        How clips of different lengths become a batch, if that is what the values are: ``"list"``, or padded with zeros
        (``"pad"``) or by mirroring in time (``"mirror"``).
    stacks_equal : bool
        Whether a batch of values of varying shape is one array if their shapes are equal.
    begin : int
        Best offset of a batch from the start of a cache line in bytes. It affects only speed.
    """

    shape: tuple[int, ...] | None
    dtype: np.dtype[Any] | None
    image: bool = False
    encoded: bool = False
    time: str = ""
    stacks_equal: bool = False
    begin: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return "of varying shape" if self.shape is None else f"{self.dtype} {self.shape}"


BatchLayout = Mapping[str, ValueLayout]


def layout_of_field(field: Field) -> ValueLayout:
    """Return the layout of a field's decoded values."""
    varies = field.kind in ("ragged", "text") or None in field.shape
    if varies:
        return ValueLayout(None, None, field.is_image or field.is_video)
    shape = tuple(axis for axis in field.shape if axis is not None)
    return ValueLayout(shape, field.numpy_dtype, field.is_image, begin=_JPEG_BEGIN if field.codec.name == "jpeg" else 0)


def allocate_values(layout: BatchLayout, rows: int) -> Columns:
    """Create columns to fill: an uninitialised array per field, or a list of None if its shape varies."""
    return {
        name: [None] * rows
        if value.shape is None or value.dtype is None
        else empty_aligned((rows, *value.shape), value.dtype, value.begin)
        for name, value in layout.items()
    }


def empty_aligned(shape: tuple[int, ...], dtype: np.dtype[Any], begin: int = 0) -> npt.NDArray[Any]:
    """Create an uninitialised array that starts `begin` bytes after the start of a cache line.

    numpy's large arrays start 16 bytes after one. Copying rows of 150 kB into them took a third longer (Zen 4, glibc 2.36).
    """
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _LINE_BYTES, np.uint8)
    start = (begin - memory.ctypes.data) % _LINE_BYTES
    array: npt.NDArray[Any] = memory[start : start + size].view(dtype).reshape(shape)
    return array
