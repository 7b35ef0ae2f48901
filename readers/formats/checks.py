"""Code shared by the readers of all formats: errors about a damaged shard, and gathering of rows."""

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
"""Size of a row from which on a copy per row costs less than a second copy of all rows."""

DAMAGE_ADVICE = (
    f"this file or its manifest entry was altered or truncated: run '{program()} verify' for a full list, "
    "then restore the file or pack again"
)
"""The end of every error about a damaged shard."""


def corrupt(path: Path, expected: str, found: str) -> ShardCorruptError:
    """The error for a shard whose inner structure is not what the contract says."""
    return ShardCorruptError(place=path, expected=expected, found=found, hint=DAMAGE_ADVICE)


def without_advice(error: Exception) -> str:
    """The message of an error without `DAMAGE_ADVICE`, for callers that give other advice."""
    return str(error).split(f": {DAMAGE_ADVICE}", maxsplit=1)[0]


def check_offsets(path: Path, offsets: npt.NDArray[Any], rows: int, end: int) -> None:
    """Check that offsets of varying values start at 0, never fall, and end with the values.

    Parameters
    ----------
    offsets : ndarray, (rows + 1,), integer
    end : int
        Where the last value must end.

    Raises
    ------
    ShardCorruptError
        If they do not.
    """
    if offsets.shape != (rows + 1,):
        raise corrupt(path, f"{rows + 1} offsets", f"shape {offsets.shape}")
    if offsets[0] != 0 or offsets[-1] != end or bool((offsets[1:] < offsets[:-1]).any()):
        raise corrupt(path, f"offsets rising from 0 to {end}", f"{offsets[0]} to {offsets[-1]}, or a falling one")


def distinct(numbers: IntArray) -> list[int]:
    """The distinct numbers, ascending. Unlike ``np.unique`` it imports nothing: after a fork, an import can hang."""
    return sorted(set(numbers.tolist()))


def is_run(positions: IntArray) -> bool:
    """Return whether positions follow one another without a gap."""
    if not len(positions) or int(positions[-1]) - int(positions[0]) != len(positions) - 1:
        return False
    return bool((np.diff(positions) == 1).all())


def gather(values: npt.NDArray[Any], rows: IntArray, out: npt.NDArray[Any] | list[Any], at: IntArray) -> None:
    """``out[at] = values[rows]`` with one copy, and without the GIL if rows are large. A list gets views.

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
        # With "clip", take writes into `out` directly; the rows are within the array anyway.
        np.take(values, rows, axis=0, out=out[at[0] : at[0] + len(at)], mode="clip")
    elif values[0].nbytes >= ROW_BY_ROW_BYTES:
        for row, place in zip(rows.tolist(), at.tolist(), strict=True):
            out[place] = values[row]
    else:
        out[at] = values[rows]


def put(values: Sequence[Any] | npt.NDArray[Any], out: npt.NDArray[Any] | list[Any], at: IntArray) -> None:
    """``out[at] = values``, for a list too."""
    if isinstance(out, list):
        for place, value in zip(at.tolist(), values, strict=True):
            out[place] = value
    else:
        out[at] = values


def take_bytes(data: npt.NDArray[np.uint8], starts: IntArray, size: int) -> npt.NDArray[np.uint8]:
    """``data[start : start + size]`` for every start: (n, size), uint8, a copy.

    The caller ensures that all of them are within `data`.
    """
    if not size or not len(starts):
        return np.empty((len(starts), size), np.uint8)
    windows = np.ndarray((len(data) - size + 1,), np.dtype((np.void, size)), data, 0, (1,))
    return windows[starts].view(np.uint8).reshape(len(starts), size)


def gather_bytes(
    data: npt.NDArray[np.uint8], starts: IntArray, field: Field, out: npt.NDArray[Any] | list[Any], at: IntArray
) -> None:
    """Put the value of a fixed field whose bytes begin at ``data[starts[i]]`` into ``out[at[i]]``. A list gets views.

    The caller ensures that the values are within `data`.
    """
    size, dtype, shape = field.row_bytes, field.numpy_dtype, field.fixed_shape
    if not size or not len(starts):
        return
    if size < ROW_BY_ROW_BYTES and not isinstance(out, list):
        out[at] = take_bytes(data, starts, size).view(dtype).reshape(len(starts), *shape)
        return
    for place, start in zip(at.tolist(), starts.tolist(), strict=True):
        out[place] = data[start : start + size].view(dtype).reshape(shape)
