"""Copies of values from mapped files into batches, and errors about damaged shards."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardspec.columns import IntArray
from shardspec.errors import ShardCorruptError
from shardspec.schema import Field
from shardspec.wording import program

ROW_BY_ROW_BYTES = 4096
"""Size of a row in bytes from which a copy per row is faster than a second copy of all rows."""

DAMAGE_ADVICE = (
    f"this file or its manifest entry was altered or truncated: run '{program()} verify' for a full list, "
    "then restore the file or pack again"
)
"""Hint of every error about a damaged shard."""


def corrupt(path: Path, expected: str, found: str) -> ShardCorruptError:
    """Return the error about a shard whose content contradicts the contract."""
    return ShardCorruptError(place=path, expected=expected, found=found, hint=DAMAGE_ADVICE)


def without_advice(error: Exception) -> str:
    """Return the message of an error without `DAMAGE_ADVICE`, for callers that give other advice."""
    return str(error).split(f": {DAMAGE_ADVICE}", maxsplit=1)[0]


def distinct(numbers: IntArray) -> list[int]:
    """Return the distinct numbers in ascending order. ``np.unique`` imports a module, which can hang after a fork."""
    return sorted(set(numbers.tolist()))


def is_run(positions: IntArray) -> bool:
    """Return whether positions are consecutive and ascending."""
    if not len(positions) or int(positions[-1]) - int(positions[0]) != len(positions) - 1:
        return False
    return bool((np.diff(positions) == 1).all())


def gather(values: npt.NDArray[Any], rows: IntArray, out: npt.NDArray[Any] | list[Any], at: IntArray) -> None:
    """Assign ``out[at] = values[rows]`` with one copy if `at` is a run. A list gets views.

    Parameters
    ----------
    values : ndarray, (N, ...)
    rows : int64 array, (n,), within 0 and N - 1
    out : ndarray, (M, ...), of the dtype of `values`, or list of M
    at : int64 array, (n,), within 0 and M - 1
    """
    if not len(rows):
        return
    if isinstance(out, list):
        put([values[row] for row in rows.tolist()], out, at)
        return
    if is_run(at) and out.dtype == values.dtype:
        # With "clip", take writes into `out` directly. No row is outside of the array.
        np.take(values, rows, axis=0, out=out[at[0] : at[0] + len(at)], mode="clip")
    else:
        out[at] = values[rows]


def put(values: Sequence[Any] | npt.NDArray[Any], out: npt.NDArray[Any] | list[Any], at: IntArray) -> None:
    """Assign ``out[at] = values``, for an array or a list."""
    if isinstance(out, list):
        for place, value in zip(at.tolist(), values, strict=True):
            out[place] = value
    else:
        out[at] = values


def take_bytes(data: npt.NDArray[np.uint8], starts: IntArray, size: int) -> npt.NDArray[np.uint8]:
    """Copy ``data[start : start + size]`` for every start, all within `data`: uint8, (n, size)."""
    if not size or not len(starts):
        return np.empty((len(starts), size), np.uint8)
    windows = np.ndarray((len(data) - size + 1,), np.dtype((np.void, size)), data, 0, (1,))
    return windows[starts].view(np.uint8).reshape(len(starts), size)


def gather_bytes(
    data: npt.NDArray[np.uint8], starts: IntArray, field: Field, out: npt.NDArray[Any] | list[Any], at: IntArray
) -> None:
    """Copy the values of a fixed field from ``data[starts[i]:]`` to ``out[at[i]]``, all within `data`.

    A list gets views.
    """
    size, dtype, shape = field.row_bytes, field.numpy_dtype, field.fixed_shape
    if not size or not len(starts):
        return
    if size < ROW_BY_ROW_BYTES and not isinstance(out, list):
        out[at] = take_bytes(data, starts, size).view(dtype).reshape(len(starts), *shape)
        return
    for place, start in zip(at.tolist(), starts.tolist(), strict=True):
        out[place] = data[start : start + size].view(dtype).reshape(shape)
