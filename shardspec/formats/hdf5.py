"""How HDF5 stores a field."""

import math
from dataclasses import dataclass

from shardspec.formats.index import Stored
from shardspec.schema import Field

CHUNK_BYTES = 1 << 18
"""Approximate size of a chunk: one crop of 224 pixels, or many numbers. HDF5 caches a megabyte of each dataset."""


@dataclass(frozen=True)
class HDF5Array:
    """An HDF5 dataset.

    Attributes
    ----------
    name : str
    dtype : str
        h5py stores booleans as HDF5's enumeration of FALSE and TRUE.
    shape : tuple of int
    chunk_rows : int
        Length of a chunk along the first axis; other axes are not cut. 0 if the dataset has no bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunk_rows: int


def hdf5_arrays(field: Field, rows: int, total: int) -> tuple[HDF5Array, ...]:
    """Return the datasets of a field: its values and, if their size varies, the offset of each row's value.

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


def stored(field: Field, block_rows: int) -> Stored:
    """Return how a field is stored (`shardspec.formats.index.stored`)."""
    unit = field.row_bytes if field.kind in ("fixed", "ragged") else 1
    rows = max(1, CHUNK_BYTES // unit)
    return Stored(unit, rows) if field.is_fixed else Stored(None, chunk_bytes=rows * unit, step=unit)
