"""HDF5 datasets that store a field."""

import math
from dataclasses import dataclass

from shardspec.schema import Field

CHUNK_BYTES = 1 << 18
"""Approximate size of a dataset's chunk: one 224-pixel crop, or many numbers. Far below the megabyte that HDF5 caches
of a dataset.
"""


@dataclass(frozen=True)
class HDF5Array:
    """One dataset.

    Attributes
    ----------
    name : str
    dtype : str
        Booleans are stored as HDF5's enumeration of FALSE and TRUE, as h5py writes them.
    shape : tuple of int
    chunk_rows : int
        Length of a chunk along the first axis; other axes are not cut. 0 if there is nothing to store, and so no chunk.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunk_rows: int


def hdf5_arrays(field: Field, rows: int, total: int) -> tuple[HDF5Array, ...]:
    """The datasets of a field: its values and, if their size varies, the offsets at which each row's values begin.

    Parameters
    ----------
    rows : int
        Rows of the shard.
    total : int
        Rows of all values of a ragged field, bytes of all values of a *bytes* or *text* field.
    """
    if field.is_fixed:
        return (_dataset(field.name, field.dtype, (rows, *field.fixed_shape)),)
    offsets = _dataset(f"{field.name}_offsets", "<i8", (rows + 1,))
    if field.kind == "ragged":
        return _dataset(field.name, field.dtype, (total, *field.fixed_shape)), offsets
    return _dataset(f"{field.name}_bytes", "|u1", (total,)), offsets


def _dataset(name: str, dtype: str, shape: tuple[int, ...]) -> HDF5Array:
    row_bytes = math.prod(shape[1:]) * int(dtype[2:])
    chunk_rows = min(shape[0], max(1, CHUNK_BYTES // row_bytes)) if row_bytes else 0
    return HDF5Array(name, dtype, shape, chunk_rows)
