"""Batches of rows as columns, which readers fill and writers take.

A batch of n rows is a dict. A *fixed* field is an array, (n, *shape), in the field's dtype. Every other field (*ragged*,
*bytes*, *text*) is a list of n bytes-like objects, the encoded values. ``convert`` therefore moves bytes from reader to
writer without decoding, and a fixed field is copied only once, from the page cache into the batch.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardspec.schema import NO_CLASS, Field

Buffer = bytes | bytearray | memoryview
Columns = dict[str, Any]
"""Rows of a dataset by field: an array (n, *shape) of a fixed field, a list of n encoded values of any other."""
IntArray = npt.NDArray[np.int64]

PIXEL_STATISTICS = "pixel_statistics"
"""Field with exact sums of each image, (7,) int64: pixels, sums of R, G and B, sums of their squares."""


def allocate(fields: Iterable[Field], rows: int) -> Columns:
    """Create columns to fill: an uninitialised array per fixed field, and a list of empty bytes per other field."""
    return {f.name: np.empty((rows, *f.fixed_shape), f.numpy_dtype) if f.is_fixed else [b""] * rows for f in fields}


def mark_missing(column: Any, valid: npt.NDArray[np.bool_] | None) -> Any:
    """Mark the missing values of a column of decoded values: masked in an array (`numpy.ma`), None in a list.

    Parameters
    ----------
    column : ndarray, (n,), or list of n
    valid : ndarray, (n,), bool, or None
        False if the value is missing. If it is None or all true, the column is returned unchanged.
    """
    if valid is None or valid.all():
        return column
    if isinstance(column, list):
        return [value if known else None for value, known in zip(column, valid.tolist(), strict=True)]
    return np.ma.MaskedArray(column, ~valid)


def missing_in(column: Any) -> npt.NDArray[np.bool_]:
    """Return a bool array, (n,), that is true for missing values; the reverse of `mark_missing`."""
    if isinstance(column, np.ndarray):
        return np.ma.getmaskarray(column)
    return np.fromiter((value is None for value in column), np.bool_, len(column))


def fill_missing(column: Any) -> IntArray:
    """Return integers, such as labels, as int64 with `NO_CLASS` (−1) in place of missing values."""
    integers = np.asarray(column).astype(np.int64, copy=False)
    return np.where(missing_in(column), NO_CLASS, integers) if isinstance(column, np.ma.MaskedArray) else integers


def evenly(rows: int, most: int) -> IntArray:
    """Return at most `most` evenly spaced row numbers from the first to the last, ascending and distinct."""
    return np.linspace(0, rows - 1, min(rows, most)).astype(np.int64)


def fixed_bytes(array: npt.NDArray[Any]) -> memoryview:
    """Return the little-endian C-order bytes of an array, without a copy if possible."""
    little = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
    return np.ascontiguousarray(little).reshape(-1).view(np.uint8).data


class ChannelStatistics(NamedTuple):
    """Statistics of all pixels, for levels scaled to 0 to 1.

    Attributes
    ----------
    pixels : int
        Number of pixels.
    mean, std : tuple of 3 float
        Of red, green and blue; population standard deviation.
    """

    pixels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def channel_statistics(sums: Any) -> ChannelStatistics:
    """Return the statistics of images from their sums, (N, 7) int64 (`PIXEL_STATISTICS`). All sums are exact integers.

    Raises
    ------
    ValueError
        If there is no pixel.
    """
    pixels, *totals = (int(total) for total in np.asarray(sums, np.int64).sum(axis=0))
    if not pixels:
        raise ValueError("expected one pixel or more, found none")
    channels = list(zip(totals[:3], totals[3:], strict=True))
    mean = tuple(total / pixels / 255 for total, _ in channels)
    std = tuple((pixels * squares - total**2) ** 0.5 / pixels / 255 for total, squares in channels)
    return ChannelStatistics(pixels, mean, std)
