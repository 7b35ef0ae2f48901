"""The parts that all shard writers share: the interface, checks, and blocks of rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shardspec.columns import Columns
from shardspec.errors import BuildError, SchemaError
from shardspec.schema import Schema


@dataclass(frozen=True)
class ShardSize:
    """Expected content of a shard, known before its first row is written.

    Attributes
    ----------
    samples : int
    field_bytes : dict of str to int
        Encoded bytes of each field over all rows: the values of a ragged field without its offsets, the encoded values
        of a varying one.
    field_max_bytes : dict of str to int
        The largest encoded value of each field.
    """

    samples: int
    field_bytes: Mapping[str, int]
    field_max_bytes: Mapping[str, int]

    @property
    def row_bytes(self) -> int:
        """Mean encoded bytes of a row, at least 1."""
        return max(1, sum(self.field_bytes.values()) // max(1, self.samples))


class ShardWriter(Protocol):
    """Writes one shard, row batches in order, into a folder of its own.

    The same rows give the same bytes: nothing in a shard depends on the time, the machine or how rows were batched. The
    caller creates the folder; after `close`, it flushes the files to the disk, takes their digests and moves them into
    place.

    Parameters
    ----------
    folder : Path
        An empty folder. The writer puts ``name`` + the format's suffix (and its sidecar) there, or a folder ``name``.
    name : str
        ``"shard-00000"``.
    schema : Schema
    size : ShardSize

    Attributes
    ----------
    block_rows : int
        Rows per unit that is cheap to read whole, for the manifest.
    """

    block_rows: int

    def __init__(self, folder: Path, name: str, schema: Schema, size: ShardSize) -> None: ...

    def write(self, rows: Columns) -> None:
        """Append rows, in the form of `shardspec.columns`. Batches may have any length, 0 included."""
        ...

    def close(self) -> None:
        """Finish the files. Raises `BuildError` unless as many rows were written as `size` announced."""
        ...


def block_rows_of(size: ShardSize, block_bytes: int) -> int:
    """Rows of a block of about `block_bytes` encoded bytes: at least 1, at most all."""
    return max(1, min(size.samples, block_bytes // size.row_bytes))


def count_rows(schema: Schema, rows: Columns) -> int:
    """The number of rows of a batch. Every field must have as many values, fixed fields in their dtype and shape.

    Raises
    ------
    SchemaError
        If a field does not.
    """
    counts = {field.name: len(rows[field.name]) for field in schema}
    if len(set(counts.values())) != 1:
        raise SchemaError(expected="as many values of every field", found=counts)
    for field in schema:
        if field.is_fixed and (
            rows[field.name].dtype != field.numpy_dtype or rows[field.name].shape[1:] != field.fixed_shape
        ):
            raise SchemaError(
                place=f"field {field.name!r}",
                expected=f"{field.dtype} of shape (n, *{field.fixed_shape})",
                found=f"{rows[field.name].dtype.str} of shape {rows[field.name].shape}",
            )
    return next(iter(counts.values()))


def check_rows(name: str, size: ShardSize, written: int) -> None:
    """Check that a shard got as many rows as its size announced.

    Raises
    ------
    BuildError
        If it got fewer or more.
    """
    if written != size.samples:
        raise BuildError(
            place=name, expected=f"{size.samples} rows", found=written, hint="the parts have changed since planning"
        )


class Blocks:
    """Collects row batches and hands them back as blocks, so that a writer's bytes do not depend on the batches.

    Parameters
    ----------
    schema : Schema
    rows : int
        Rows per block, 1 or more.
    """

    def __init__(self, schema: Schema, rows: int) -> None:
        self._schema = schema
        self._rows = rows
        self._pending: list[Columns] = []
        self._pending_rows = 0

    def add(self, batch: Columns, count: int) -> list[Columns]:
        """Take a batch of `count` rows and return the blocks that are now full, as copies of the rows."""
        full, start = [], 0
        while start < count:
            end = min(count, start + self._rows - self._pending_rows)
            # A copy: the caller may reuse its arrays before the block is full.
            self._pending.append({f.name: _copied(batch[f.name][start:end]) for f in self._schema})
            self._pending_rows += end - start
            start = end
            if self._pending_rows == self._rows:
                full.extend(self.rest())
        return full

    def rest(self) -> list[Columns]:
        """The last block, shorter than the others, if there is one."""
        if not self._pending_rows:
            return []
        block = {
            f.name: np.concatenate([piece[f.name] for piece in self._pending])
            if f.is_fixed
            else list(chain.from_iterable(piece[f.name] for piece in self._pending))
            for f in self._schema
        }
        self._pending, self._pending_rows = [], 0
        return [block]


def _copied(values: Any) -> Any:
    return values.copy() if isinstance(values, np.ndarray) else [bytes(value) for value in values]
