"""The index: every scalar field once more, for the whole dataset, so that subsets and balancing never touch images."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from packer.assembly.rows import RowSource
from shardspec.columns import IntArray

_CHUNK_ROWS = 1 << 16


def write_index(source: RowSource, order: IntArray | None, folder: Path) -> None:
    """Write ``<field>.npy`` for each fixed 0-d field, in the stored order of the rows.

    Parameters
    ----------
    order : (rows,) int64 or None
        The source's rows in stored order, maybe some of them only; None is the source's own.
    folder : Path
        Made if it is not there.
    """
    fields = [field for field in source.schema if field.is_fixed and not field.shape]
    if not fields:
        return
    folder.mkdir(parents=True, exist_ok=True)
    names = [field.name for field in fields]
    count = len(source) if order is None else len(order)
    columns = {field.name: np.empty(count, field.numpy_dtype) for field in fields}
    for first in range(0, count, _CHUNK_ROWS):
        rows = _rows(order, first, min(first + _CHUNK_ROWS, count))
        _fill(columns, source, rows, names, first)
    for name, values in columns.items():
        np.save(folder / f"{name}.npy", values)


def _rows(order: IntArray | None, start: int, stop: int) -> IntArray:
    return np.arange(start, stop, dtype=np.int64) if order is None else np.array(order[start:stop])


def _fill(columns: dict[str, np.ndarray], source: RowSource, rows: IntArray, names: Sequence[str], first: int) -> None:
    for name, values in source.read(rows, names).items():
        columns[name][first : first + len(rows)] = values
