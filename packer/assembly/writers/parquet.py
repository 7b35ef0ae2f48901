"""Write shards in the format parquet: one Parquet file per shard."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packer.assembly.writers.base import BlockBuffer, IndexWriter, ShardSize, block_rows_of, check_rows, count_rows
from shardspec.columns import Columns, fixed_bytes
from shardspec.formats.parquet import ROWS_MAX, SCHEMA_KEY, parquet_column
from shardspec.schema import Field, Schema

ROW_GROUP_BYTES = 4 << 20
"""Encoded bytes per row group. For the measurement see `docs/background/formats.md`."""

_LENGTH_BYTES = 4
"""Length that precedes every byte string in a page."""

_PAGE_BYTES_MAX = 1 << 30
_NUMBERS = {
    "|b1": pa.bool_(),
    "|i1": pa.int8(),
    "<i2": pa.int16(),
    "<i4": pa.int32(),
    "<i8": pa.int64(),
    "|u1": pa.uint8(),
    "<u2": pa.uint16(),
    "<u4": pa.uint32(),
    "<u8": pa.uint64(),
    "<f2": pa.float16(),
    "<f4": pa.float32(),
    "<f8": pa.float64(),
}


class ParquetShardWriter:
    """Writes one Parquet file (`packer.assembly.writers.base`).

    Any Parquet library can read the file. It has plain encoding, no compression (images do not shrink), no nulls, the
    page index, and one page with a checksum per column and row group, so that a reader can compute the position of
    every value. Columns are optional, because Hugging Face's `datasets` recognises its features only in such columns.
    The schema's metadata describes the columns for `datasets`.
    """

    def __init__(self, folder: Path, name: str, schema: Schema, size: ShardSize) -> None:
        self.block_rows = min(ROWS_MAX, block_rows_of(size, ROW_GROUP_BYTES))
        self._name = name
        self._size = size
        self._schema = schema
        self._stored = [f for f in schema if parquet_column(f).storage != "none"]
        self._rows = 0
        self._blocks = BlockBuffer(schema, self.block_rows)
        self._index = IndexWriter("parquet", schema, size.samples, summed=schema.names)
        self._groups: list[dict[str, Any]] = []
        """Sizes of each field's values in bits, for each row group."""
        metadata = {
            "huggingface": json.dumps({"info": {"features": huggingface_features(schema)}}),
            SCHEMA_KEY: json.dumps(schema.to_json()),
        }
        self._arrow = pa.schema([pa.field(f.name, _type(f)) for f in self._stored], metadata)
        self._path = folder / f"{name}.parquet"
        # The library would encode text as UTF-8, but a name may be invalid UTF-8.
        self._file = pa.OSFile(os.fsencode(self._path), "wb")
        self._writer = pq.ParquetWriter(
            self._file,
            self._arrow,
            version="2.6",
            compression="none",
            use_dictionary=False,
            # Queries skip row groups by the minimum and maximum of numbers and texts. Those of images mean nothing.
            write_statistics=[
                parquet_column(f).path for f in self._stored if parquet_column(f).storage in ("primitive", "strings")
            ],
            data_page_version="1.0",
            data_page_size=_PAGE_BYTES_MAX,
            write_page_index=True,
            write_page_checksum=True,
        )

    def write(self, rows: Columns) -> None:
        """Append rows."""
        count = count_rows(self._schema, rows)
        self._rows += count
        for block in self._blocks.add(rows, count):
            self._write(block)

    def _write(self, block: Columns) -> None:
        """Write one row group."""
        table = pa.Table.from_arrays([_array(f, block[f.name]) for f in self._stored], schema=self._arrow)
        self._writer.write_table(table, row_group_size=self.block_rows)
        self._groups.append({f.name: _bits(f, block[f.name]) for f in self._stored})

    def close(self) -> None:
        """Finish the file."""
        for block in self._blocks.rest():
            self._write(block)
        self._writer.close()
        self._file.close()
        check_rows(self._name, self._size, self._rows)
        self._write_index()

    def _write_index(self) -> None:
        """Write the index. The values of a column chunk, which is a single page, end where the chunk ends."""
        with self._path.open("rb") as file:  # pyarrow refuses a path that is not UTF-8
            found = pq.read_metadata(file)
        for group, sizes in enumerate(self._groups):
            chunks = {
                chunk.path_in_schema: chunk for chunk in map(found.row_group(group).column, range(found.num_columns))
            }
            for field in self._stored:
                column = parquet_column(field)
                chunk, bits = chunks[column.path], sizes[field.name]
                end = 8 * (chunk.data_page_offset + chunk.total_compressed_size)
                if field.is_fixed:
                    self._index.add(field.name, runs=[(end - int(bits.sum())) // 8])
                    continue
                head = 0 if field.kind == "ragged" else 8 * _LENGTH_BYTES
                start = (end - int((bits + head).sum())) // 8 * 8
                starts = start + np.cumsum(bits + head) - bits
                unit = 1 if column.dtype == "|b1" else 8
                self._index.add(field.name, starts=starts // unit, sizes=bits // unit)
        self._index.write(self._path, self.block_rows)


def _bits(field: Field, values: Any) -> Any:
    """Return the stored size of each value in bits, (n,), int64."""
    column = parquet_column(field)
    lengths = np.fromiter((len(memoryview(value).cast("B")) for value in values), np.int64, len(values))
    if field.kind not in ("fixed", "ragged") or column.storage == "fixed_binary":
        return 8 * lengths
    stored = 1 if column.dtype == "|b1" else 8 * int(column.dtype[2:])
    return lengths // field.numpy_dtype.itemsize * stored


def _type(field: Field) -> Any:
    storage = parquet_column(field).storage
    if storage == "strings":
        return pa.string()
    if storage == "binary":
        return pa.binary()
    if storage == "image":
        return pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])
    if storage == "fixed_binary":
        return pa.binary(field.row_bytes)
    out = _NUMBERS[field.dtype]
    for axis in reversed(field.shape):
        out = pa.list_(out) if axis is None else pa.list_(out, axis)
    return out


def _array(field: Field, values: Any) -> Any:
    storage = parquet_column(field).storage
    kind = _type(field)
    if storage in ("strings", "binary"):
        return _binary(kind, values)
    if storage == "image":
        paths = pa.nulls(len(values), pa.string())
        return pa.StructArray.from_arrays([_binary(pa.binary(), values), paths], fields=list(kind))
    if storage == "fixed_binary":
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(fixed_bytes(values))])
    if field.kind == "ragged":
        offsets = _offsets(values) // field.row_bytes
        flat = np.frombuffer(b"".join(values), field.numpy_dtype)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), _lists(kind.value_type, flat), type=kind)
    return _lists(kind, values.reshape(-1))


def _lists(kind: Any, flat: Any) -> Any:
    """Return numbers as an Arrow array, nested in lists of fixed length according to the type."""
    if not pa.types.is_fixed_size_list(kind):
        return pa.array(flat, kind)
    return pa.FixedSizeListArray.from_arrays(_lists(kind.value_type, flat), type=kind)


def _binary(kind: Any, values: list[bytes]) -> Any:
    """Return encoded values as an Arrow array without validating them, since a text may be invalid UTF-8."""
    buffers = [None, pa.py_buffer(_offsets(values)), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _offsets(values: list[bytes]) -> Any:
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def huggingface_features(schema: Schema) -> dict[str, Any]:
    """Return the ``features`` that describe a schema to Hugging Face's `datasets`.

    Class numbers with names become ``ClassLabel``, encoded images ``Image``, videos ``Video``, and arrays lists of fixed length. Raw
    images become bytes, whose shape is in our own schema under `SCHEMA_KEY`.
    """
    return {f.name: _feature(f) for f in schema if parquet_column(f).storage != "none"}


def _feature(field: Field) -> dict[str, Any]:
    storage = parquet_column(field).storage
    if storage == "image":
        return {"_type": "Video" if field.is_encoded_video else "Image"}
    if storage in ("strings", "binary", "fixed_binary"):
        return {"dtype": "string" if storage == "strings" else "binary", "_type": "Value"}
    if field.classes is not None:
        return {"names": list(field.classes), "_type": "ClassLabel"}
    name = "bool" if field.dtype == "|b1" else field.numpy_dtype.name
    feature: dict[str, Any] = {"dtype": name, "_type": "Value"}
    for axis in reversed(field.shape):
        feature = {"feature": feature, "length": -1 if axis is None else axis, "_type": "Sequence"}
    return feature
