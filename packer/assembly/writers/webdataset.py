"""Write shards in the format webdataset: a tar file with one member per field and sample, and an index for DALI."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.assembly.writers.base import IndexWriter, ShardSize, block_rows_of, check_rows, count_rows
from shardspec.columns import Buffer, Columns, IntArray, fixed_bytes
from shardspec.errors import BuildError
from shardspec.formats.npy import npy_header
from shardspec.formats.webdataset import (
    BLOCK,
    END,
    INDEX_VERSION,
    MEMBER_BYTES_MAX,
    NAME_BYTES_MAX,
    ShardMember,
    base_name,
    headers,
    members,
    padded,
)
from shardspec.schema import Field, Schema

BLOCK_BYTES = 1 << 20
"""Encoded bytes per block, which only makes disk reads sequential. With the index, reading a single row is cheap."""


class WebDatasetShardWriter:
    """Writes one tar file, its index, and an ``.idx`` for DALI (`packer.assembly.writers.base`).

    The members of a sample are consecutive. Members of constant size come first, so that readers can compute the
    positions of their values. Headers of members differ only in name and size.
    """

    def __init__(self, folder: Path, name: str, schema: Schema, size: ShardSize) -> None:
        self.block_rows = block_rows_of(size, BLOCK_BYTES)
        self._name = name
        self._size = size
        self._schema = schema
        self._rows = 0
        self._end = 0
        stored = members(schema)
        self._fixed = [(member, member.size) for member in stored if member.size is not None]
        self._varying = [member for member in stored if member.size is None]
        for member, content in self._fixed:
            self._check_size(member, content)
        self._extension_bytes = max(len(member.extension) for member in stored)
        self._keyed = "key" in schema and schema["key"].kind == "text"
        self._line = " ".join(f"{member.extension} %d %d %s.{member.extension}" for member in stored) + "\n"
        self._path = folder / f"{name}.tar"
        self._tar = self._path.open("xb")
        self._lines = (folder / f"{name}.idx").open("xb")
        self._index = IndexWriter("webdataset", schema, size.samples)
        self._lines.write(b"%s %d\n" % (INDEX_VERSION, size.samples))

    def write(self, rows: Columns) -> None:
        """Append rows."""
        count = count_rows(self._schema, rows)
        keys = rows["key"] if self._keyed else [None] * count
        bases = [base_name(key, self._rows + row, self._extension_bytes) for row, key in enumerate(keys)]
        fixed = self._fixed_members(rows, bases)
        varying = [self._varying_members(member, rows[member.field.name], bases) for member in self._varying]
        columns = [np.full(count, size) for _, size in self._fixed] + [sizes for sizes, _ in varying]
        sizes = np.stack(columns, axis=1)
        ends = self._end + np.cumsum(padded(sizes) + BLOCK).reshape(sizes.shape)
        for row, numbers in enumerate(zip(bases, (ends - padded(sizes)).tolist(), sizes.tolist(), strict=True)):
            self._tar.write(fixed[row].data)
            for _, pieces in varying:
                self._tar.writelines(pieces[row])
            self._lines.write(self._line_of(*numbers))
        self._note_places(rows, ends - padded(sizes), sizes)
        self._end = int(ends[-1, -1]) if count else self._end
        self._rows += count

    def _note_places(self, rows: Columns, starts: IntArray, sizes: IntArray) -> None:
        """Add the values of members to the index. The members begin at `starts`, (n, members)."""
        for column, (member, _) in enumerate(self._fixed):
            self._index.add(member.field.name, starts=starts[:, column] + len(member.head))
        for column, member in enumerate(self._varying, len(self._fixed)):
            name, more = member.field.name, {}
            heads: Any = 0
            if member.content == "npy":
                shapes = [_shape(member.field, memoryview(value).cast("B"))[0] for value in rows[name]]
                heads = [len(npy_header(member.field.dtype, shape)) for shape in shapes]
                if member.field.kind == "bytes":
                    more["shapes"] = np.array(shapes, "<u4")
            self._index.add(name, starts=starts[:, column] + heads, sizes=sizes[:, column] - heads, **more)

    def _fixed_members(self, rows: Columns, bases: Sequence[bytes]) -> npt.NDArray[np.uint8]:
        """Return the members of constant size, including headers and padding, (n, bytes), uint8."""
        out = np.zeros((len(bases), sum(BLOCK + padded(size) for _, size in self._fixed)), np.uint8)
        start = 0
        for member, size in self._fixed:
            value = start + BLOCK + len(member.head)
            out[:, start : start + BLOCK] = headers(_names(bases, member.extension), np.full(len(bases), size))
            out[:, start + BLOCK : value] = np.frombuffer(member.head, np.uint8)
            data = np.frombuffer(fixed_bytes(rows[member.field.name]), np.uint8)
            out[:, value : value + member.field.row_bytes] = data.reshape(len(bases), member.field.row_bytes)
            start += BLOCK + padded(size)
        return out

    def _varying_members(
        self, member: ShardMember, values: Any, bases: Sequence[bytes]
    ) -> tuple[IntArray, list[tuple[Buffer, ...]]]:
        """Return the sizes of a field's members, (n,), and the bytes of each member with header and padding."""
        contents = [self._content(member, value) for value in values]
        sizes = np.array([sum(map(len, parts)) for parts in contents], np.int64)
        self._check_size(member, int(sizes.max(initial=0)))
        heads = headers(_names(bases, member.extension), sizes)
        gaps = (padded(sizes) - sizes).tolist()
        return sizes, [(head.data, *parts, bytes(gap)) for head, parts, gap in zip(heads, contents, gaps, strict=True)]

    def _content(self, member: ShardMember, value: Any) -> tuple[Buffer, ...]:
        """Return the content of a member of varying size."""
        if member.content == "bytes":
            return (memoryview(value).cast("B"),)
        if member.content == "decimal":
            return (b"%d" % int(value),)
        try:
            return _npy(member.field, memoryview(value).cast("B"))
        except ValueError as error:
            raise BuildError(
                (
                    f"field {member.field.name!r}: expected the bytes of an array of {member.field.dtype}, "
                    f"{member.field.shape}, found {len(value)} bytes that do not fit"
                ),
                place=self._name,
                hint="use another format",
            ) from error

    def _line_of(self, base: bytes, offsets: Sequence[int], sizes: Sequence[int]) -> bytes:
        """Return the line of a sample in the index for DALI."""
        name = base.decode()
        words = [word for offset, size in zip(offsets, sizes, strict=True) for word in (offset, size, name)]
        return (self._line % tuple(words)).encode()

    def _check_size(self, member: ShardMember, size: int) -> None:
        if size > MEMBER_BYTES_MAX:
            raise BuildError(
                (
                    f"field {member.field.name!r}: expected values of at most {MEMBER_BYTES_MAX} bytes in a "
                    f"tar file, found {size}"
                ),
                place=self._name,
                hint="use another format",
            )

    def close(self) -> None:
        """Finish the files."""
        self._tar.write(END)
        self._tar.close()
        self._lines.close()
        check_rows(self._name, self._size, self._rows)
        self._index.write(self._path, self.block_rows)


def _names(bases: Sequence[bytes], extension: str) -> npt.NDArray[np.uint8]:
    """Return the names of members, padded with zeros, (n, 100), uint8."""
    joined = b"".join((base + b"." + extension.encode()).ljust(NAME_BYTES_MAX, b"\0") for base in bases)
    return np.frombuffer(joined, np.uint8).reshape(len(bases), NAME_BYTES_MAX)


def _npy(field: Field, value: memoryview) -> tuple[Buffer, ...]:
    """Return a ``.npy`` file of a ragged array or an array of any shape. Raise `ValueError` if the bytes do not fit."""
    shape, body = _shape(field, value)
    if len(shape) != len(field.shape):
        raise ValueError(f"{len(value)} bytes")
    if math.prod(shape) * field.numpy_dtype.itemsize != len(body):
        raise ValueError(f"{len(body)} bytes for {shape}")
    return npy_header(field.dtype, shape), body


def _shape(field: Field, value: memoryview) -> tuple[tuple[int, ...], memoryview]:
    """Return the shape and bytes of a ragged array or an array of any shape."""
    if field.kind == "ragged":
        rows = len(value) // field.row_bytes if field.row_bytes else 0
        return (rows, *field.fixed_shape), value
    axes = 4 * len(field.shape)
    return tuple(np.frombuffer(value[:axes], "<u4").tolist()), value[axes:]
