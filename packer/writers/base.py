"""What a shard writer is."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shardspec.columns import Columns
from shardspec.schema import Schema


@dataclass(frozen=True)
class ShardSize:
    """What a shard will hold, known before its first row is written.

    Attributes
    ----------
    samples : int
    field_bytes : dict of str to int
        Encoded bytes of each field over all rows: a ragged field's values without its offsets, a varying one's encoded values.
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

    The same rows give the same bytes: nothing in a shard depends on the time, the machine or how rows were batched.
    The caller makes the folder, and after `close` flushes the files to the disk, takes their digests and moves them into place.

    Parameters
    ----------
    folder : Path
        An empty folder. The writer puts ``name`` + the format's suffix there (and its sidecar), or a folder ``name``.
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
        """Append rows (`shardspec.columns` says how they look). Batches may be of any length, empty ones too."""
        ...

    def close(self) -> None:
        """Finish the files. Fewer or more rows than `size` told are a `BuildError`."""
        ...
