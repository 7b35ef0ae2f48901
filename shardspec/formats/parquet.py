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

Storage = Literal["none", "binary", "list", "picture", "primitive", "strings", "fixed_binary"]
Physical = Literal["BOOLEAN", "INT32", "INT64", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"]

_PHYSICAL: dict[str, tuple[Physical, str]] = {
    "|b1": ("BOOLEAN", "|u1"),
    "|i1": ("INT32", "<i4"),
    "<i2": ("INT32", "<i4"),
    "<i4": ("INT32", "<i4"),
    "<i8": ("INT64", "<i8"),
    "|u1": ("INT32", "<i4"),
    "<u2": ("INT32", "<i4"),
    "<u4": ("INT32", "<i4"),
    "<u8": ("INT64", "<i8"),
    "<f2": ("FIXED_LEN_BYTE_ARRAY", "<f2"),
    "<f4": ("FLOAT", "<f4"),
    "<f8": ("DOUBLE", "<f8"),
}


@dataclass(frozen=True)
class ParquetColumn:
    """How one field is stored in a Parquet file. Everything is optional in its schema, and nothing is null.

    Attributes
    ----------
    storage : str
        *none*: values of no bytes have no column. *primitive*: a number. *list*: numbers in lists, of fixed length
        except along the first axis of a ragged field. *fixed_binary*: little-endian C-order bytes. *picture*: a struct
        of `bytes` and an optional `path`. *binary* and *strings*: the encoded bytes.
    path : str
        The leaf column's path in the file's schema.
    physical : str
        The leaf's physical type.
    stored : str
        The dtype of a stored number.
    """

    storage: Storage
    path: str
    physical: Physical
    stored: str

    @property
    def levels(self) -> int:
        """Number of nested lists."""
        return self.path.count(".list.")

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of stored numbers; bool if eight of them are packed into a byte."""
        return np.dtype(bool) if self.physical == "BOOLEAN" else np.dtype(self.stored)


def parquet_column(field: Field) -> ParquetColumn:
    """The column of a field."""
    name = field.name
    if field.kind == "text":
        return ParquetColumn("strings", name, "BYTE_ARRAY", "|u1")
    if field.kind == "bytes":
        if field.is_encoded_image:
            return ParquetColumn("picture", f"{name}.bytes", "BYTE_ARRAY", "|u1")
        return ParquetColumn("binary", name, "BYTE_ARRAY", "|u1")
    if not field.row_bytes:
        return ParquetColumn("none", "", "BOOLEAN", "|u1")
    if field.is_fixed and field.shape and (field.is_image or math.prod(field.fixed_shape) >= BINARY_VALUES):
        return ParquetColumn("fixed_binary", name, "FIXED_LEN_BYTE_ARRAY", "|u1")
    physical, stored = _PHYSICAL[field.dtype]
    if not field.shape:
        return ParquetColumn("primitive", name, physical, stored)
    return ParquetColumn("list", name + ".list.element" * len(field.shape), physical, stored)
