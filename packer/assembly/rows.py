"""Sources of rows for shards: the parts of a build, packed datasets, or both for an update."""

from collections.abc import Iterable, Mapping, Sequence
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
    "update": ImportTarget("packer.builds.update.rows:UpdatedRows"),
}

_UINT32_MAX = np.iinfo(np.uint32).max

Lengths = npt.NDArray[np.uint32] | npt.NDArray[np.int64]
"""Array of encoded sizes: 4 bytes each, or 8 if a value is too large."""


class RowSource(Protocol):
    """Encoded rows in a fixed order, with a final schema.

    Attributes
    ----------
    schema : Schema
    """

    schema: Schema

    def __init__(self, config: Mapping[str, Any], workspace: Workspace) -> None: ...

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


class LengthTable:
    """Lengths of the values of fields, filled row by row.

    Attributes
    ----------
    columns : dict of str to (rows,) uint32 or int64
    """

    def __init__(self, fields: Iterable[str], rows: int) -> None:
        self.columns: dict[str, Lengths] = {name: np.empty(rows, np.uint32) for name in fields}
        self._filled = 0

    def append(self, lengths: Sequence[npt.NDArray[np.int64]] | npt.NDArray[np.int64]) -> None:
        """Append the lengths of rows, one array per field."""
        first = self._filled
        for name, values in zip(self.columns, lengths, strict=True):
            if self.columns[name].dtype == np.uint32 and values.max(initial=0) > _UINT32_MAX:
                self.columns[name] = self.columns[name].astype(np.int64)
            self.columns[name][first : first + len(values)] = values
            self._filled = first + len(values)


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
