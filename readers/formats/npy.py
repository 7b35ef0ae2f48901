"""The reader of npy shards and of columns: folders of plain numpy files, mapped into memory."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from readers.formats.mapping import Extents, corrupt, gather, map_file
from shardspec.columns import Columns, IntArray
from shardspec.entries import Column, Shard
from shardspec.formats.npy import npy_header
from shardspec.schema import Field, Schema

_OFFSETS = np.dtype("<i8")
_SHOWN_BYTES = 80


class NpyShardReader:
    """Reads a folder of ``.npy`` files (`readers.formats.shards.ShardReader`). Fields are mapped when first read.

    The format has no checksums: only ``verify=`` detects a flipped bit in a value. Encoded values are views of the
    mapping and keep it alive.
    """

    def __init__(
        self, path: Path, shard: Shard | Column, schema: Schema, format: str, *, checksums: bool = True
    ) -> None:
        self._path = path
        self._rows = shard.samples
        self._schema = schema
        self._fixed: dict[str, npt.NDArray[Any]] = {}
        self._varying: dict[str, tuple[memoryview, npt.NDArray[np.int64]]] = {}

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Copy rows (`readers.formats.shards.ShardReader.read`)."""
        for name in fields:
            field = self._schema[name]
            if field.is_fixed:
                gather(self._fixed_field(field), rows, out[name], at)
                continue
            data, offsets = self._varying_field(field)
            starts, ends = offsets[rows].tolist(), offsets[rows + 1].tolist()
            column = out[name]
            for place, start, end in zip(at.tolist(), starts, ends, strict=True):
                column[place] = data[start:end]

    def extents(self, rows: IntArray, fields: Sequence[str]) -> Iterator[Extents]:
        """Yield the places of rows (`readers.formats.shards.ShardReader.extents`)."""
        for name in fields:
            field = self._schema[name]
            size = field.row_bytes if field.kind in ("fixed", "ragged") else 0
            if field.is_fixed:
                if not size:
                    continue
                data = self._fixed_field(field).reshape(-1).view(np.uint8)
                starts, stops = rows * size, (rows + 1) * size
            else:
                view, offsets = self._varying_field(field)
                data, starts, stops = np.frombuffer(view, np.uint8), offsets[rows], offsets[rows + 1]
            if not len(data):
                continue
            if size:
                header = npy_header(field.numpy_dtype.str, (len(data) // size, *field.fixed_shape))
                yield Extents(self._path / f"{name}.npy", data, starts, stops, len(header))
            else:
                yield Extents(self._path / f"{name}.bin", data, starts, stops)

    def lengths(self, field: str) -> IntArray:
        """Return the encoded sizes of a field's values (`readers.formats.shards.ShardReader.lengths`)."""
        return np.diff(self._varying_field(self._schema[field])[1])

    def close(self) -> None:
        """Drop the mappings. The files are unmapped when no view of them is left."""
        self._fixed.clear()
        self._varying.clear()

    def _fixed_field(self, field: Field) -> npt.NDArray[Any]:
        if field.name not in self._fixed:
            path = self._path / f"{field.name}.npy"
            self._fixed[field.name] = map_npy(path, field.numpy_dtype, (self._rows, *field.fixed_shape))
        return self._fixed[field.name]

    def _varying_field(self, field: Field) -> tuple[memoryview, npt.NDArray[np.int64]]:
        """Return the encoded bytes of all rows, and the offset of each row: int64, (rows + 1,)."""
        found = self._varying.get(field.name)
        if found is not None:
            return found
        offsets_path = self._path / f"{field.name}.offsets.npy"
        offsets: npt.NDArray[np.int64] = map_npy(offsets_path, _OFFSETS, (self._rows + 1,))
        if field.kind == "ragged":
            path = self._path / f"{field.name}.npy"
            values = map_npy(path, field.numpy_dtype, (int(offsets[-1]), *field.fixed_shape))
            _check_offsets(offsets_path, offsets, len(values))
            data, offsets = values.reshape(-1).view(np.uint8), offsets * field.row_bytes
        else:
            data = map_file(self._path / f"{field.name}.bin")
            _check_offsets(offsets_path, offsets, len(data))
        self._varying[field.name] = (data.data, offsets)
        return self._varying[field.name]


def map_npy(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Map a ``.npy`` file; `ShardCorruptError` if it does not hold exactly an array of this dtype and shape.

    The header is compared and not parsed: Python's parser, which numpy calls, overflows a small stack on a crafted
    header and crashes the process.
    """
    data = map_file(path)
    header = npy_header(dtype.str, shape)
    if data[: len(header)].tobytes() != header:
        raise corrupt(path, f"the header of {dtype.str} {shape}", f"{data[:_SHOWN_BYTES].tobytes()!r}")
    body = data[len(header) :]
    expected = dtype.itemsize * math.prod(shape)
    if len(body) != expected:
        raise corrupt(path, f"{expected} bytes after the header", f"{len(body)}")
    return body.view(dtype).reshape(shape)


def _check_offsets(path: Path, offsets: npt.NDArray[Any], end: int) -> None:
    """Check that offsets start at 0, never fall, and end with the values."""
    if offsets[0] != 0 or offsets[-1] != end or bool((offsets[1:] < offsets[:-1]).any()):
        raise corrupt(path, f"offsets rising from 0 to {end}", f"{offsets[0]} to {offsets[-1]}, or a falling one")
