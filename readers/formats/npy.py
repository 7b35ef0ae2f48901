"""npy: a shard, or a column, is a folder of plain numpy files, mapped into memory."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from readers.formats.checks import check_offsets, corrupt, gather
from readers.formats.mapping import ByteArray, Extents, map_file
from shardspec.columns import Columns, IntArray
from shardspec.entries import Column, Shard
from shardspec.formats.npy import npy_header
from shardspec.schema import Field, Schema

_OFFSETS = np.dtype("<i8")
HEADER_BYTES_MAX = 1_000
"""Most bytes of a file's header; enough for 33 axes."""
_SHOWN_BYTES = 80
_TOKEN = rb"\s*['\"](descr|fortran_order|shape)['\"]\s*:\s*('[^']*'|\"[^\"]*\"|True|False|\([\d, ]*\))\s*"
_ITEM = re.compile(_TOKEN)
_HEADER = re.compile(rb"\{" + _TOKEN + rb"(?:," + _TOKEN + rb")*,?\s*\}\s*")


class NpyShardReader:
    """Reads a folder of ``.npy`` files (`readers.formats.base`); every field is mapped when it is first read.

    The format has no checksums: a flipped bit of a value reads as another value, which only ``verify=`` finds. Encoded
    values are views of the mapping and keep it alive. Safe to use from several threads, and after a fork.
    """

    def __init__(self, path: Path, shard: Shard | Column, schema: Schema, *, checksums: bool = True) -> None:
        self._path = path
        self._rows = shard.samples
        self._schema = schema
        self._fixed: dict[str, npt.NDArray[Any]] = {}
        self._varying: dict[str, tuple[memoryview, npt.NDArray[np.int64]]] = {}

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Gather rows (`readers.formats.base.ShardReader.read`)."""
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
        """Where rows are (`readers.formats.base.ShardReader.extents`)."""
        for name in fields:
            field = self._schema[name]
            if field.is_fixed:
                values, size = self._fixed_field(field), field.row_bytes
                if size:
                    yield Extents(values.reshape(-1).view(np.uint8), rows * size, (rows + 1) * size)
                continue
            data, offsets = self._varying_field(field)
            yield Extents(np.frombuffer(data, np.uint8), offsets[rows], offsets[rows + 1])

    def close(self) -> None:
        """Drop the mappings, which end with the last view of them."""
        self._fixed.clear()
        self._varying.clear()

    def _fixed_field(self, field: Field) -> npt.NDArray[Any]:
        if field.name not in self._fixed:
            path = self._path / f"{field.name}.npy"
            self._fixed[field.name] = map_npy(path, field.numpy_dtype, (self._rows, *field.fixed_shape))
        return self._fixed[field.name]

    def _varying_field(self, field: Field) -> tuple[memoryview, npt.NDArray[np.int64]]:
        """The encoded bytes of all rows, and where those of each row begin: int64, (rows + 1,)."""
        found = self._varying.get(field.name)
        if found is not None:
            return found
        offsets_path = self._path / f"{field.name}.offsets.npy"
        offsets: npt.NDArray[np.int64] = map_npy(offsets_path, _OFFSETS, (self._rows + 1,))
        if field.kind == "ragged":
            path = self._path / f"{field.name}.npy"
            values = map_npy(path, field.numpy_dtype, (int(offsets[-1]), *field.fixed_shape))
            check_offsets(offsets_path, offsets, self._rows, len(values))
            data, offsets = values.reshape(-1).view(np.uint8), offsets * field.row_bytes
        else:
            data = map_file(self._path / f"{field.name}.bin")
            check_offsets(offsets_path, offsets, self._rows, len(data))
        self._varying[field.name] = (data.data, offsets)
        return self._varying[field.name]


def map_npy(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Map a ``.npy`` file that must hold exactly this array.

    Raises
    ------
    ShardCorruptError
        If the header cannot be read, or gives another dtype, shape or order, or the file is shorter or longer than it
        says.
    """
    data = map_file(path)
    ours = npy_header(dtype.str, shape)
    start = len(ours) if data[: len(ours)].tobytes() == ours else _read_header(path, data, dtype, shape)
    body = data[start:]
    expected = dtype.itemsize * math.prod(shape)
    if len(body) != expected:
        raise corrupt(path, f"{expected} bytes after the header", f"{len(body)}")
    return body.view(dtype).reshape(shape)


def _read_header(path: Path, data: ByteArray, dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Where the values begin after a header that another program wrote, or that is damaged.

    Python's own parser, which numpy calls, overflows a small stack on a crafted header, and crashes the process.
    """
    versions = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4}
    width = versions.get(data[:8].tobytes(), 0)
    start = 8 + width
    end = start + int.from_bytes(data[8:start].tobytes(), "little")
    text = data[start:end].tobytes() if width and end - start <= HEADER_BYTES_MAX else b""
    items = dict(_ITEM.findall(text))
    if end > len(data) or not _HEADER.fullmatch(text) or items.keys() != {b"descr", b"fortran_order", b"shape"}:
        raise corrupt(path, "a .npy header", f"{data[:_SHOWN_BYTES].tobytes()!r}")
    found_dtype = items[b"descr"].decode(errors="replace").strip("'\"")
    found_shape = tuple(int(axis) for axis in re.findall(rb"\d+", items[b"shape"]))
    fortran = items[b"fortran_order"] == b"True"
    same = found_dtype == dtype.str or (dtype.itemsize == 1 and found_dtype == f"<{dtype.str[1:]}")
    if not same or found_shape != shape or (fortran and len(shape) > 1):
        order = "Fortran" if fortran else "C"
        raise corrupt(path, f"{dtype.str} {shape} in C order", f"{found_dtype} {found_shape} in {order} order")
    return end
