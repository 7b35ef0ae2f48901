"""How Parquet stores a field."""

import math
from dataclasses import dataclass
from typing import Literal

from shardspec.formats.index import Form, Stored
from shardspec.schema import Field

BINARY_VALUES = 1024
"""Fixed values with at least this many numbers are stored as byte strings, because lists would cost too much."""

ROWS_MAX = 20_000
"""Largest number of rows of a row group, so that every version of pyarrow writes each of its columns as one page."""

SCHEMA_KEY = "packed_schema"
"""Metadata key of the dataset's schema as JSON, for readers without the manifest."""

Storage = Literal["none", "binary", "list", "image", "primitive", "strings", "fixed_binary"]

_WIDENED = {"|i1": "<i4", "<i2": "<i4", "|u1": "<i4", "<u2": "<i4", "<u4": "<i4", "<u8": "<i8"}
"""Dtypes that Parquet lacks, and the wider dtype that stores each."""


@dataclass(frozen=True)
class ParquetColumn:
    """Parquet column that stores a field. The file's schema allows nulls everywhere, but only ``path`` is null.

    Attributes
    ----------
    storage : str
        *none*: values without bytes have no column. *primitive*: a number. *list*: numbers in lists, of fixed length
        except along the first axis of a ragged field. *fixed_binary*: little-endian C-order bytes. *image*: a struct
        of `bytes` and `path`. *binary* and *strings*: the encoded bytes.
    path : str
        Path of the leaf column in the file's schema.
    dtype : str
        Dtype of a stored number. Eight booleans are packed into a byte.
    """

    storage: Storage
    path: str
    dtype: str = "|u1"


def parquet_column(field: Field) -> ParquetColumn:
    """Return the column of a field."""
    name = field.name
    if field.kind == "text":
        return ParquetColumn("strings", name)
    if field.kind == "bytes":
        if field.is_encoded_image or field.is_encoded_video:
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


def stored(field: Field, block_rows: int) -> Stored:
    """Return how a field is stored (`shardspec.formats.index.stored`): fixed values as a run in each row group."""
    column = parquet_column(field)
    if column.storage == "fixed_binary":
        return Stored(field.row_bytes, block_rows)
    if field.kind not in ("fixed", "ragged"):
        return Stored(None)
    numbers = field.row_bytes // field.numpy_dtype.itemsize
    if column.dtype == "|b1":
        return Stored(numbers, block_rows, form="bits") if field.is_fixed else Stored(None, step=numbers, form="bits")
    form: Form = "plain" if column.dtype == field.dtype else "numbers"
    size = numbers * int(column.dtype[2:])
    if field.is_fixed:
        return Stored(size, block_rows, form=form, dtype=column.dtype)
    return Stored(None, step=size, form=form, dtype=column.dtype)
