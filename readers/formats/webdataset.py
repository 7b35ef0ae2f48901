"""webdataset: a shard is a tar file with one member per field and sample."""

from typing import Any

import numpy as np

from readers.formats.checks import corrupt, put
from readers.formats.indexed import IndexedReader, Section
from shardspec.columns import IntArray
from shardspec.formats.index import IndexFormatError, Stored
from shardspec.formats.webdataset import NUMBER_BYTES_MAX, member_of
from shardspec.schema import Field


class WebDatasetShardReader(IndexedReader):
    """Reads one tar file through its index; arrays of several varying axes are copies.

    A flipped bit of a value reads as another value, which only ``verify=`` finds: tar files have checksums of headers
    alone.
    """

    format = "webdataset"

    @staticmethod
    def stored(field: Field, block_rows: int) -> Stored:
        """See `IndexedReader.stored`."""
        content = member_of(field).content
        if content == "decimal" or (content == "npy" and field.kind == "bytes"):
            return Stored(None, plain=False)
        return IndexedReader.stored(field, block_rows)

    def _read_stored(self, section: Section, field: Field, rows: IntArray, out: Any, at: IntArray) -> None:
        if field.is_fixed:
            put(self._decimals(section, field, rows), out, at)
            return
        starts, ends = section.extents(rows)
        axes = len(field.shape)
        if len(section.shapes) != len(self) * axes:
            raise self._not_an_index(IndexFormatError(f"expected {len(self)} shapes, found others"))
        shapes = section.shapes.reshape(-1, axes)
        for row, place, start, end in zip(rows.tolist(), at.tolist(), starts.tolist(), ends.tolist(), strict=True):
            out[place] = memoryview(shapes[row].tobytes() + section.span(start, end))

    def _decimals(self, section: Section, field: Field, rows: IntArray) -> Any:
        """Integers in decimal digits."""
        starts, ends = section.extents(rows)
        try:
            if (ends - starts > NUMBER_BYTES_MAX).any():
                raise ValueError
            texts = [bytes(section.span(*extent)) for extent in zip(starts.tolist(), ends.tolist(), strict=True)]
            numbers = np.array([int(text) for text in texts], field.numpy_dtype)
            if [b"%d" % number for number in numbers.tolist()] != texts:
                raise ValueError
        except (ValueError, OverflowError):
            expected = f"integers of {field.dtype} in decimal digits in field {field.name!r}"
            raise corrupt(self._path, expected, "others") from None
        return numbers
