"""The interface of shard readers, and the one way to open a shard."""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

from readers.formats.mapping import Extents
from shardspec.columns import Columns, IntArray
from shardspec.entries import Column, Shard
from shardspec.errors import DatasetError
from shardspec.formats import get_format
from shardspec.layout import Layout
from shardspec.manifest import Manifest
from shardspec.registry import resolve
from shardspec.schema import Schema

COLUMN_FORMAT = "npy"
"""The format of the files of a column."""


class ShardReader(Protocol):
    """Reads rows of one shard, whose files it maps. Safe to use from several threads; never pickled.

    It holds no file descriptor between two calls.

    Parameters
    ----------
    path : Path
        The shard's file, or folder.
    shard : Shard
        Its entry in the manifest.
    schema : Schema
        All fields of the shard.
    checksums : bool
        Whether the format's own checksums, if it has any, are checked on reading.
    """

    def __init__(self, path: Path, shard: Shard | Column, schema: Schema, *, checksums: bool = True) -> None: ...

    def __len__(self) -> int: ...

    def read(self, rows: IntArray, fields: Sequence[str], out: Columns, at: IntArray) -> None:
        """Put row ``rows[i]`` of the shard into ``out[field][at[i]]``, for every field in `fields`.

        For a fixed field, `out` has an array that is written to, or a list, whose place gets an array; for any other, a
        list, whose place gets a bytes-like object. Both may be views of the mapped file, and keep the mapping alive. `rows` may be in any order and may
        repeat; the caller ensures that they are within the shard.

        Raises
        ------
        ShardCorruptError
            If the shard is not what the manifest and the format say.
        """
        ...

    def extents(self, rows: IntArray, fields: Sequence[str]) -> Iterator[Extents]:
        """Where the values of rows are. They are not touched, but an index that is needed to find them may be read.

        To give more or less than a `read` touches is not an error, only a waste.
        """
        ...

    def close(self) -> None:
        """Close the files. The reader is not used afterwards."""
        ...


@cache
def reader_class(format: str) -> type[ShardReader]:
    """The class that reads a format's shards, imported on first use.

    Raises
    ------
    MissingDependencyError
        If a library that the format needs is not installed.
    """
    kind: type[ShardReader] = resolve("format", format, {format: get_format(format).reader})
    return kind


def open_shard(layout: Layout, manifest: Manifest, shard: Shard | Column, *, checksums: bool = True) -> ShardReader:
    """The reader of a shard, or of a column. Digests and sizes are not compared here.

    Parameters
    ----------
    layout : Layout
    manifest : Manifest
    shard : Shard or Column
        One of the manifest's. A column is read as a shard with one field and all rows of the dataset.
    checksums : bool
        Whether the format's own checksums, if it has any, are checked on reading.

    Raises
    ------
    DatasetError
        If the shard cannot be opened, or holds another number of samples than the manifest says.
    MissingDependencyError
        If a library that the format needs is not installed.
    """
    path = layout.shard(shard, manifest.format)
    if isinstance(shard, Column):
        return reader_class(COLUMN_FORMAT)(path, shard, manifest.schema.select([shard.field]), checksums=checksums)
    reader = reader_class(manifest.format)(path, shard, manifest.shard_schema, checksums=checksums)
    if len(reader) != shard.samples:
        found = len(reader)
        reader.close()
        raise DatasetError(place=path, expected=f"{shard.samples} samples, as the manifest says", found=found)
    return reader
