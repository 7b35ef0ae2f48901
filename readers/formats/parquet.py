"""parquet: a shard is one Parquet file, whose column chunks are plain pages."""

from typing import Any

import numpy as np

from readers.formats.checks import put
from readers.formats.indexed import IndexedReader, Section
from shardspec.columns import IntArray
from shardspec.formats.index import Stored
from shardspec.formats.parquet import parquet_column
from shardspec.schema import Field


class ParquetShardReader(IndexedReader):
    """Reads one Parquet file through its index; pyarrow, whose process a crafted file can crash, is not used.

    The numbers of a fixed field are a run in each row group, so a batch is gathered from all row groups at once and a
    raw image is copied once, where pyarrow would decode each row group that is touched.
    """

    format = "parquet"

    @staticmethod
    def stored(field: Field, block_rows: int) -> Stored:
        """See `IndexedReader.stored`."""
        column = parquet_column(field)
        if column.storage == "fixed_binary":
            return Stored(field.row_bytes, block_rows)
        if field.kind not in ("fixed", "ragged"):
            return Stored(None)
        dtype = column.numpy_dtype
        bits, plain = dtype == np.bool_, dtype == field.numpy_dtype and dtype != np.bool_
        size = field.row_bytes // field.numpy_dtype.itemsize * (1 if bits else dtype.itemsize)
        if field.is_fixed:
            return Stored(size, block_rows, plain=plain, bits=bits)
        return Stored(None, step=size, plain=plain, bits=bits)

    def _read_stored(self, section: Section, field: Field, rows: IntArray, out: Any, at: IntArray) -> None:
        dtype = parquet_column(field).numpy_dtype
        if field.is_fixed:
            values = self._bits(section, rows) if section.stored.bits else self._raw(section, rows).view(dtype)
            put(values.reshape(len(rows), *field.fixed_shape).astype(field.numpy_dtype, copy=False), out, at)
        else:
            starts, ends = section.extents(rows)
            for place, start, end in zip(at.tolist(), starts.tolist(), ends.tolist(), strict=True):
                data = np.frombuffer(section.span(start, end), np.uint8)
                if section.stored.bits:
                    out[place] = np.unpackbits(data, bitorder="little")[start % 8 :][: end - start].data
                else:
                    out[place] = data.view(dtype).astype(field.numpy_dtype).view(np.uint8).data

    def _bits(self, section: Section, rows: IntArray) -> Any:
        """Booleans, eight to a byte, the lowest bit first."""
        assert self._data is not None
        assert section.stored.size is not None
        bits = section.starts_of(rows)[:, None] + np.arange(section.stored.size)
        return (self._data[bits >> 3] >> (bits & 7) & 1).astype(bool)
