"""Sources of rows for shards: the parts of a build, packed datasets, or both for an update."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from packer.workspace import Workspace
from shardspec.columns import Columns, IntArray
from shardspec.registry import ImportTarget, resolve
from shardspec.schema import Schema

ROW_SOURCES: Mapping[str, ImportTarget] = {
    "packed": ImportTarget("packer.assembly.packed_rows:PackedRows"),
    "parts": ImportTarget("packer.builds.parts.rows:PartRows"),
    "update": ImportTarget("packer.builds.parts.rows:UpdatedRows"),
}

Lengths = npt.NDArray[np.uint32] | npt.NDArray[np.int64]
"""Array of encoded sizes in bytes, int32, or int64 if a size does not fit (`compact`)."""


class RowSource(Protocol):
    """Encoded rows in a fixed order, with a final schema.

    Attributes
    ----------
    schema : Schema
    """

    schema: Schema

    def __len__(self) -> int: ...

    def sizes(self) -> Mapping[str, Lengths]:
        """Return the encoded size of every value, (rows,), by field of variable size."""
        ...

    def read(self, rows: IntArray, fields: Sequence[str]) -> Columns:
        """Return the encoded values of rows in the given order."""
        ...

    def close(self) -> None:
        """Close the files."""
        ...


def compact(lengths: npt.NDArray[np.int64]) -> Lengths:
    """Return a copy of lengths, as int32 if they fit."""
    if lengths.max(initial=0) > np.iinfo(np.uint32).max:
        return lengths.astype(np.int64)
    return lengths.astype(np.uint32)


def open_rows(config: Mapping[str, Any], workspace: Workspace) -> RowSource:
    """Open the row source of an assembly plan.

    Parameters
    ----------
    config : mapping
        ``kind`` is a key of `ROW_SOURCES`; the other keys belong to that source.
    workspace : Workspace
    """
    source: RowSource = resolve("row source", config["kind"], ROW_SOURCES)(config, workspace)
    return source
