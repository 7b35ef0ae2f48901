"""tfrecord: a shard is one file of ``tf.train.Example`` records."""

from typing import Any

import google_crc32c
import numpy as np

from readers.formats.checks import corrupt, put
from readers.formats.indexed import IndexedReader, Section
from shardspec.columns import IntArray
from shardspec.formats.index import Stored
from shardspec.formats.tfrecord import feature_of, read_varints
from shardspec.schema import Field


class TFRecordShardReader(IndexedReader):
    """Reads one TFRecord file through its index, which has the checksum of each record that the record has, too."""

    format = "tfrecord"

    @staticmethod
    def crc(data: Any) -> int:
        """See `IndexedReader.crc`."""
        return int(google_crc32c.value(data))

    @staticmethod
    def stored(field: Field, block_rows: int) -> Stored:
        """See `IndexedReader.stored`."""
        feature = feature_of(field)
        if feature.kind != "int64":
            return IndexedReader.stored(field, block_rows)
        return Stored(feature.payload_bytes if field.is_fixed else None, plain=False)

    def _read_stored(self, section: Section, field: Field, rows: IntArray, out: Any, at: IntArray) -> None:
        if field.is_fixed:
            put(self._integers(field, self._raw(section, rows).reshape(-1)).reshape(len(rows), *field.shape), out, at)
            return
        starts, ends = section.extents(rows)
        for place, start, end in zip(at.tolist(), starts.tolist(), ends.tolist(), strict=True):
            numbers = self._integers(field, np.frombuffer(section.span(start, end), np.uint8))
            if len(numbers) * field.numpy_dtype.itemsize % field.row_bytes:
                raise corrupt(self._path, f"whole rows of field {field.name!r}", f"{len(numbers)} numbers")
            out[place] = numbers.view(np.uint8).data

    def _integers(self, field: Field, stored: Any) -> Any:
        """Varints as numbers of the field's dtype."""
        try:
            numbers, lengths = read_varints(stored)
        except ValueError as error:
            raise corrupt(self._path, f"varints in field {field.name!r}", str(error)) from error
        out = numbers.astype(field.numpy_dtype)
        width = feature_of(field).value_bytes
        if not np.array_equal(out.astype(np.int64), numbers) or (field.is_fixed and (lengths != width).any()):
            raise corrupt(self._path, f"integers of {field.dtype} in field {field.name!r}", "others")
        return out
