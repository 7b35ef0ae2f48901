"""Interface of the shard writers, and code that they share: checks, blocks of rows, and the index of a shard."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from readers.formats.indexed import Section, storage_of
from readers.formats.mapping import map_file
from shardspec.columns import Columns
from shardspec.errors import BuildError, SchemaError
from shardspec.formats.index import NO_PLACES, Places, Stored, has_no_bytes, index_path, pack_index, with_sums
from shardspec.schema import Schema


@dataclass(frozen=True)
class ShardSize:
    """Expected content of a shard, known before its first row is written.

    Attributes
    ----------
    field_bytes : dict of str to int
        Encoded bytes of each field over all rows. Offsets of ragged fields do not count.
    """

    samples: int
    field_bytes: Mapping[str, int]

    @property
    def row_bytes(self) -> int:
        """Mean encoded bytes of a row, at least 1."""
        return max(1, sum(self.field_bytes.values()) // max(1, self.samples))


class ShardWriter(Protocol):
    """Writes one shard into a separate folder, from batches of rows in order.

    The same rows always produce the same bytes, independent of the time, the machine and the batches. The caller
    creates the folder. After `close`, the caller flushes the files, computes their digests and moves them into place.

    Parameters
    ----------
    folder : Path
        An empty folder, in which the writer makes a file ``name`` + the format's suffix (and its sidecar), or a folder
        ``name``.
    name : str
        For example ``"shard-00000"``.

    Attributes
    ----------
    block_rows : int
        Number of rows that are best read together, for the manifest.
    """

    block_rows: int

    def __init__(self, folder: Path, name: str, schema: Schema, size: ShardSize) -> None: ...

    def write(self, rows: Columns) -> None:
        """Append a batch of rows in the form of `shardspec.columns`. A batch may have any length, including 0."""
        ...

    def close(self) -> None:
        """Finish the files. Raise `BuildError` if the number of written rows differs from `size`."""
        ...


def block_rows_of(size: ShardSize, block_bytes: int) -> int:
    """Return the number of rows in a block of about `block_bytes` encoded bytes, at least 1 and at most all rows."""
    return max(1, min(size.samples, block_bytes // size.row_bytes))


def count_rows(schema: Schema, rows: Columns) -> int:
    """Return the number of rows in a batch.

    Raises
    ------
    SchemaError
        If fields differ in their number of values, or if a fixed field has another dtype or shape.
    """
    counts = {field.name: len(rows[field.name]) for field in schema}
    if len(set(counts.values())) != 1:
        raise SchemaError(expected="the same number of values in every field", found=counts)
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
    """Check that the number of written rows is that of `size`.

    Raises
    ------
    BuildError
        If the numbers differ.
    """
    if written != size.samples:
        raise BuildError(
            place=name, expected=f"{size.samples} rows", found=written, hint="the parts have changed since planning"
        )


class BlockBuffer:
    """Regroups batches of rows into blocks of a fixed length, so that a writer's bytes do not depend on the batches.

    Parameters
    ----------
    rows : int
        Rows per block, 1 or more.
    """

    def __init__(self, schema: Schema, rows: int) -> None:
        self._schema = schema
        self._rows = rows
        self._pending: list[Columns] = []
        self._pending_rows = 0

    def add(self, batch: Columns, count: int) -> list[Columns]:
        """Add a batch of `count` rows, and return copies of the blocks that are full now."""
        full, start = [], 0
        while start < count:
            end = min(count, start + self._rows - self._pending_rows)
            # Copied, because the caller may reuse its arrays before the block is full.
            self._pending.append({f.name: _copied(batch[f.name][start:end]) for f in self._schema})
            self._pending_rows += end - start
            start = end
            if self._pending_rows == self._rows:
                full.extend(self.rest())
        return full

    def rest(self) -> list[Columns]:
        """Return the remaining rows as a last, shorter block; an empty list if there are none."""
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


RECORDS = ""
"""Used in place of a field's name for records that hold all fields of a row."""


class IndexWriter:
    """Collects the positions of a shard's values, and writes the index.

    Parameters
    ----------
    summed : sequence of str
        Fields whose values get a checksum, in formats that have checksums of their own.
    """

    def __init__(self, format: str, schema: Schema, rows: int, summed: Sequence[str] = ()) -> None:
        self._format, self._schema, self._rows, self._summed = format, schema, rows, summed
        self._arrays: dict[str, dict[str, list[Any]]] = {}

    def add(self, field: str, **arrays: Any) -> None:
        """Append to the arrays of a field's `Places`."""
        for name, numbers in arrays.items():
            self._arrays.setdefault(field, {}).setdefault(name, []).append(np.asarray(numbers).reshape(-1))

    def write(self, path: Path, block_rows: int) -> None:
        """Write the index of a shard whose file is finished."""
        data = map_file(path)
        names = [*self._schema.names, *([RECORDS] if RECORDS in self._summed else [])]
        sections = []
        for name in names:
            if name != RECORDS and has_no_bytes(self._schema[name]):
                sections.append(NO_PLACES)
                continue
            found = self._arrays.get(name, {})
            places = Places(**{key: np.concatenate(parts).astype(np.uint64) for key, parts in found.items()})
            if name in self._summed:
                storage = storage_of(self._format)
                stored = Stored(None) if name == RECORDS else storage.stored(self._schema[name], block_rows)
                section = Section(stored, places, self._rows, data, storage.checksum)
                places = with_sums(places, section.sums_of(np.arange(section.units)))
            sections.append(places)
        with index_path(path).open("xb") as file:
            file.write(pack_index(self._format, self._schema, self._rows, data, sections))
