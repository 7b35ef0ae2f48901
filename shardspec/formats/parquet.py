"""Parquet column that stores a field."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shardspec.schema import Field

BINARY_VALUES = 1024
"""Numbers in one value from which lists cost too much: a fixed field with as many, or more, is stored as a column of
byte strings of fixed length."""

ROWS_MAX = 20_000
"""Most rows of a row group, so that each column of it is one page in every version of pyarrow."""

SCHEMA_KEY = "packed_schema"
"""Key in the file's metadata of the dataset's schema as JSON, for people without the manifest."""

Storage = Literal["none", "binary", "list", "image", "primitive", "strings", "fixed_binary"]

_WIDENED = {"|i1": "<i4", "<i2": "<i4", "|u1": "<i4", "<u2": "<i4", "<u4": "<i4", "<u8": "<i8"}
"""The dtypes of numbers that Parquet stores as numbers of another type."""


@dataclass(frozen=True)
class ParquetColumn:
    """How one field is stored in a Parquet file. Everything is optional in its schema, and nothing is null.

    Attributes
    ----------
    storage : str
        *none*: values of no bytes have no column. *primitive*: a number. *list*: numbers in lists, of fixed length
        except along the first axis of a ragged field. *fixed_binary*: little-endian C-order bytes. *image*: a struct
        of `bytes` and an optional `path`. *binary* and *strings*: the encoded bytes.
    path : str
        The leaf column's path in the file's schema.
    dtype : str
        The dtype of a stored number. Eight booleans are packed into a byte.
    """

    storage: Storage
    path: str
    dtype: str = "|u1"

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """`dtype`, as numpy's."""
        return np.dtype(self.dtype)


def parquet_column(field: Field) -> ParquetColumn:
    """The column of a field."""
    name = field.name
    if field.kind == "text":
        return ParquetColumn("strings", name)
    if field.kind == "bytes":
        if field.is_encoded_image:
            return ParquetColumn("image", f"{name}.bytes")
        return ParquetColumn("binary", name)
    if not field.row_bytes:
        return ParquetColumn("none", "")
    if field.is_fixed and field.shape and (field.is_image or math.prod(field.fixed_shape) >= BINARY_VALUES):
        return ParquetColumn("fixed_binary", name)
    stored = _WIDENED.get(field.dtype, field.dtype)
    if not field.shape:
        return ParquetColumn("primitive", name, stored)
    return ParquetColumn("list", name + ".list.element" * len(field.shape), stored)
