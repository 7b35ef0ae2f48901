"""Where assembly takes its rows from: the parts of a build, or packed datasets."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shardspec.columns import Columns, IntArray
from shardspec.registry import Entry, resolve
from shardspec.schema import Schema

ROW_SOURCES: Mapping[str, Entry] = {
    "packed": Entry("packer.assembly.packed_rows:PackedRows"),
    "parts": Entry("packer.builds.parts:PartRows"),
}


class RowSource(Protocol):
    """Encoded rows in a fixed order, with a schema that is settled.

    Attributes
    ----------
    schema : Schema
    """

    schema: Schema

    def __init__(self, config: Mapping[str, Any], root: Path) -> None: ...

    def __len__(self) -> int: ...

    def sizes(self) -> Mapping[str, npt.NDArray[np.int64]]:
        """Encoded bytes of every value, (rows,), for each field that is not fixed."""
        ...

    def read(self, rows: IntArray, fields: Sequence[str]) -> Columns:
        """The encoded values of some rows, in the order asked for."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


def open_rows(config: Mapping[str, Any], root: Path) -> RowSource:
    """Open the row source that an assembly plan describes.

    Parameters
    ----------
    config : mapping
        ``kind`` is a key of `ROW_SOURCES`; the rest is that source's own.
    root : Path
        The build's working folder.
    """
    source: RowSource = resolve("row source", config["kind"], ROW_SOURCES)(config, root)
    return source
