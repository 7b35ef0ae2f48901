"""webdataset: a shard is a tar file with one member per field and sample, and DALI's index of it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.assembly.writers.base import ShardSize, block_rows_of, check_rows, count_rows
from shardspec.columns import Buffer, Columns, fixed_bytes
from shardspec.errors import BuildError
from shardspec.formats.npy import npy_header
from shardspec.formats.webdataset import (
    BLOCK,
    END,
    INDEX_VERSION,
    MEMBER_BYTES_MAX,
    NAME_BYTES_MAX,
    Member,
    base_name,
    headers,
    members,
    padded,
)
from shardspec.schema import Field, Schema

BLOCK_BYTES = 1 << 20
"""Encoded bytes per block. The index makes any single row cheap to read; a block only makes disk reads sequential."""


class WebDatasetShardWriter:
    """Writes one tar file and its ``.idx`` (`packer.assembly.writers.base`).

    The members of a sample stand together, those whose size never varies first, so that readers find their values by
    arithmetic. Nothing in a header but name and size differs from member to member.
    """

    def __init__(self, folder: Path, name: str, schema: Schema, size: ShardSize) -> None:
        self.block_rows = block_rows_of(size, BLOCK_BYTES)
        self._name = name
        self._size = size
        self._schema = schema
        self._rows = 0
        self._end = 0
        self._members = members(schema)
        self._extension_bytes = max(len(member.extension) for member in self._members)
        self._keyed = "key" in schema and schema["key"].kind == "text"
        self._line = " ".join(f"{member.extension} %d %d %s.{member.extension}" for member in self._members) + "\n"
        self._tar = (folder / f"{name}.tar").open("xb")
        self._index = (folder / f"{name}.idx").open("xb")
        self._index.write(b"%s %d\n" % (INDEX_VERSION, size.samples))

    def write(self, rows: Columns) -> None:
        """Append rows."""
        count = count_rows(self._schema, rows)
        keys = rows["key"] if self._keyed else [None] * count
        bases = [base_name(key, self._rows + row, self._extension_bytes) for row, key in enumerate(keys)]
        found = [self._pieces(member, rows[member.field.name], bases) for member in self._members]
        sizes = np.array([sizes for sizes, _ in found], np.int64).reshape(len(found), count).T
        ends = self._end + np.cumsum(padded(sizes) + BLOCK).reshape(count, len(found))
        offsets = ends - padded(sizes)
        for row, (base, starts, lengths) in enumerate(zip(bases, offsets.tolist(), sizes.tolist(), strict=True)):
            self._tar.writelines(piece for _, pieces in found for piece in pieces[row])
            words = [word for pair in zip(starts, lengths, strict=True) for word in (*pair, base.decode())]
            self._index.write((self._line % tuple(words)).encode())
        self._end = int(ends[-1, -1]) if count else self._end
        self._rows += count

    def _pieces(self, member: Member, values: Any, bases: Sequence[bytes]) -> tuple[Any, list[list[Buffer]]]:
        """The sizes of a field's members, (n,), and the bytes of each, with header and padding."""
        if member.size is None:
            contents = [self._content(member, value) for value in values]
            sizes = np.array([sum(map(len, parts)) for parts in contents], np.int64)
        else:
            data = fixed_bytes(values)
            step = member.field.row_bytes
            contents = [[member.head, data[row * step : (row + 1) * step]] for row in range(len(bases))]
            sizes = np.full(len(bases), member.size, np.int64)
        if len(sizes) and sizes.max() > MEMBER_BYTES_MAX:
            raise BuildError(
                f"{self._name}: field {member.field.name!r}: expected at most {MEMBER_BYTES_MAX} bytes, which a tar "
                f"file can hold of a value, found {sizes.max()}: use another format"
            )
        heads = headers(_names(bases, member.extension), sizes)
        gaps = (padded(sizes) - sizes).tolist()
        return sizes, [
            [heads[row].data, *parts, bytes(gap)] for row, (parts, gap) in enumerate(zip(contents, gaps, strict=True))
        ]

    def _content(self, member: Member, value: Any) -> list[Buffer]:
        """The bytes of a member whose size varies."""
        if member.content == "bytes":
            return [_flat(value)]
        if member.content == "decimal":
            return [b"%d" % int(value)]
        try:
            return _npy(member.field, _flat(value))
        except ValueError as error:
            raise BuildError(
                f"{self._name}: field {member.field.name!r}: expected the bytes of an array of {member.field.dtype}, "
                f"{member.field.shape}, found {len(value)} others"
            ) from error

    def close(self) -> None:
        """Finish the files."""
        self._tar.write(END)
        self._tar.close()
        self._index.close()
        check_rows(self._name, self._size, self._rows)


def _names(bases: Sequence[bytes], extension: str) -> npt.NDArray[np.uint8]:
    """Names of members, padded with zeros: (n, 100), uint8."""
    joined = b"".join((base + b"." + extension.encode()).ljust(NAME_BYTES_MAX, b"\0") for base in bases)
    return np.frombuffer(joined, np.uint8).reshape(len(bases), NAME_BYTES_MAX)


def _flat(value: Buffer) -> memoryview:
    return memoryview(value).cast("B")


def _npy(field: Field, value: memoryview) -> list[Buffer]:
    """A ``.npy`` file of a ragged array, or of an array of any shape; a `ValueError` if the bytes are not one."""
    if field.kind == "ragged":
        rows = len(value) // field.row_bytes if field.row_bytes else 0
        shape, body = (rows, *field.fixed_shape), value
    else:
        axes = 4 * len(field.shape)
        shape = tuple(np.frombuffer(value[:axes], "<u4").tolist())
        body = value[axes:]
        if len(shape) != len(field.shape):
            raise ValueError(f"{len(value)} bytes")
    if math.prod(shape) * field.numpy_dtype.itemsize != len(body):
        raise ValueError(f"{len(body)} bytes for {shape}")
    return [npy_header(field.dtype, shape), body]
