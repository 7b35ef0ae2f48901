"""How the values of a batch are laid out in memory."""

import math
import mmap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shardspec.columns import Columns
from shardspec.schema import Field

BFLOAT16 = np.dtype("V2")
"""numpy has no bfloat16: its bits travel as two bytes each, and are torch's bfloat16 in a batch."""

JOINED = ("audio",)
"""Fields whose values follow each other in time: a clip has them as one array, (T · n,), and not as (T, n)."""

_LINE_BYTES = 64
"""Bytes of a cache line. No vector register is larger."""
_HUGE_PAGE_BYTES = 1 << 21
_HUGE_ARRAY_BYTES = 1 << 24
"""Arrays at least this large get pages of their own: whole batches do, scratch memory that is used again and again does
not."""
_HUGE_PAGES: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
_JPEG_BEGIN = 16
"""Bytes after the start of a cache line at which images decoded from JPEG begin: libjpeg-turbo writes rows that begin
at a multiple of 32 bytes past the caches, which here took 5 % longer (Zen 4).
"""


@dataclass(frozen=True)
class ValueLayout:
    """The layout of one value of a field.

    Attributes
    ----------
    shape : tuple of int or None
        None if it varies: a batch of the field is then a list. Otherwise a batch is one array, (n, *shape).
    dtype : dtype or None
        None exactly if `shape` is.
    image : bool
        Whether the last three axes are (H, W, 3): torch gets them as (3, H, W), in channels_last memory.
    encoded : bool
        Whether the values are encoded bytes: in a batch they stay in the CPU's memory, where decoders want them.
    time : str
        How clips of different lengths become a batch, if that is what the values are: ``"list"``, or padded with zeros
        (``"pad"``) or by mirroring in time (``"mirror"``).
    begin : int
        Bytes after the start of a cache line at which a batch of these values should begin; this affects only speed.
    """

    shape: tuple[int, ...] | None
    dtype: np.dtype[Any] | None
    picture: bool = False
    encoded: bool = False
    time: str = ""
    begin: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return "of varying shape" if self.shape is None else f"{self.dtype} {self.shape}"


BatchLayout = Mapping[str, ValueLayout]


def layout_of_field(field: Field) -> ValueLayout:
    """The layout of a field's decoded values."""
    varies = field.kind in ("ragged", "text") or None in field.shape
    if varies:
        return ValueLayout(None, None, field.is_image)
    shape = tuple(axis for axis in field.shape if axis is not None)
    return ValueLayout(shape, field.numpy_dtype, field.is_image, begin=_JPEG_BEGIN if field.codec.name == "jpeg" else 0)


def allocate_values(layout: BatchLayout, rows: int) -> Columns:
    """Columns to fill: an uninitialised array per field, or a list of None if its shape varies."""
    return {
        name: [None] * rows
        if value.shape is None or value.dtype is None
        else empty_aligned((rows, *value.shape), value.dtype, value.begin)
        for name, value in layout.items()
    }


def empty_aligned(shape: tuple[int, ...], dtype: np.dtype[Any], begin: int = 0) -> npt.NDArray[Any]:
    """An uninitialised array that begins `begin` bytes after the start of a cache line.

    numpy's own arrays begin 16 bytes after one; copying rows of 150 kB into them took a third longer (Zen 4, glibc
    2.36). On Linux, large arrays are allocated in whole huge pages, which the system hands out faster, and takes back
    without the GIL.
    """
    size = math.prod(shape) * dtype.itemsize
    if size >= _HUGE_ARRAY_BYTES and _HUGE_PAGES is not None:
        pages = mmap.mmap(
            -1, -(-(size + begin) // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        with suppress(OSError):  # a system without them
            pages.madvise(_HUGE_PAGES)
        memory = np.frombuffer(pages, np.uint8)
        start = begin
    else:
        memory = np.empty(size + _LINE_BYTES, np.uint8)
        start = (begin - memory.ctypes.data) % _LINE_BYTES
    array: npt.NDArray[Any] = memory[start : start + size].view(dtype).reshape(shape)
    return array
