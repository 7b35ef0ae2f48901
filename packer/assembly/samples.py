"""Read decoded samples of a packed dataset."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly.packed_rows import Check, PackedRows
from shardspec.codecs import codec_for
from shardspec.codecs.base import Codec
from shardspec.columns import Columns
from shardspec.errors import UsageError
from shardspec.schema import Field, Schema
from shardspec.wording import span


class PackedSamples:
    """Reader of decoded rows of a packed dataset, for display and for packing again. Training uses `readers`.

    Attributes
    ----------
    schema : Schema
        The fields that are read.
    codecs : dict of str to Codec
        The codec of each field whose values are encoded.

    Parameters
    ----------
    path : path or str
        The dataset's folder, or its URL.
    fields : sequence of str, optional
        The fields to read; all by default.
    check : {"digest", "size"}
        The property to compare with the manifest before a shard is opened.
    digest : str
        Expected beginning of the dataset's digest.
    """

    def __init__(
        self, path: Path | str, fields: Sequence[str] | None = None, check: Check = "digest", digest: str = ""
    ) -> None:
        self.rows = PackedRows.of(path, check=check, digest=digest)
        self.schema: Schema = self.rows.schema.select(None if fields is None else list(fields))
        self.codecs = codecs_of(self.schema)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def row_bytes(self) -> int:
        """Approximate size of a row in the files in bytes."""
        return self.rows.row_bytes

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return the samples of rows in the given order."""
        return self.decode(self.read_encoded(rows))

    def read_encoded(self, rows: Sequence[int]) -> Columns:
        """Return the encoded values of rows."""
        numbers = np.asarray(rows, np.int64)
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise UsageError(expected=f"rows of 0 to {len(self) - 1}", found=span(numbers.min(), numbers.max()))
        return self.rows.read(numbers, self.schema.names)

    def small(self, row: int, names: Sequence[str]) -> dict[str, Any]:
        """Return some decoded values of one row."""
        columns = self.rows.read(np.array([row], np.int64), names)
        return {name: self._value(self.schema[name], columns, 0) for name in names}

    def decode(self, columns: Columns) -> list[dict[str, Any]]:
        """Decode columns to samples."""
        count = len(columns[self.schema.names[0]])
        return [{field.name: self._value(field, columns, row) for field in self.schema} for row in range(count)]

    def _value(self, field: Field, columns: Columns, row: int) -> Any:
        value = columns[field.name][row]
        return value if field.is_fixed else self.codecs[field.name].decode(value)


def codecs_of(schema: Schema) -> dict[str, Codec]:
    """Return the codec of each field whose values are encoded."""
    return {field.name: codec_for(field) for field in schema if not field.is_fixed}
