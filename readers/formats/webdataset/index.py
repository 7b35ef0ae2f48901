"""The index of a WebDataset shard: which files each sample has, and how many bytes each of them has."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from readers.formats.checks import corrupt, take_bytes
from readers.formats.mapping import ByteArray, map_file
from shardspec.columns import IntArray
from shardspec.formats.webdataset import INDEX_VERSION, NAME_BYTES_MAX, Member

_DIGITS_MAX = 18
"""Most digits of a number, so that it fits into an int64."""
_WORDS = 4
"""Words for each file: extension, offset, size, name."""


def read_sizes(path: Path, rows: int, members: Sequence[Member]) -> IntArray:
    """The sizes of the members whose size varies, from an index that must name all `members` in every sample.

    Offsets and names are not looked at: offsets follow from the sizes.

    Parameters
    ----------
    path : Path
        The index.
    rows : int
        Samples of the shard.

    Returns
    -------
    int64 array, (rows, members of varying size)

    Raises
    ------
    ShardCorruptError
        If the index has other samples or files, or a size is not a number of at most 18 digits.
    """
    data = map_file(path)
    first = b"%s %d\n" % (INDEX_VERSION, rows)
    longest = sum(len(member.extension) + NAME_BYTES_MAX + 2 * _DIGITS_MAX + _WORDS for member in members)
    if data[: len(first)].tobytes() != first or len(data) > len(first) + rows * longest:
        raise corrupt(path, f"an index of {rows} samples", f"{data[:20].tobytes()!r} and {len(data)} bytes")
    # Zeros in front, so that a window which ends at a number's last digit is within the text.
    text = np.concatenate([np.zeros(_DIGITS_MAX, np.uint8), data[len(first) :]])
    begins, ends = _words(path, text, rows, len(members))
    columns = []
    for place, member in enumerate(members):
        extension = np.frombuffer(member.extension.encode(), np.uint8)
        begin, end = begins[:, place, 0], ends[:, place, 0]
        if (end - begin != len(extension)).any() or (take_bytes(text, begin, len(extension)) != extension).any():
            raise corrupt(path, f"a file {member.extension!r} in every sample", "samples without")
        if member.size is None:
            columns.append(_numbers(path, text, begins[:, place, 2], ends[:, place, 2]))
    return np.stack(columns, axis=1) if columns else np.empty((rows, 0), np.int64)


def _words(path: Path, text: ByteArray, rows: int, files: int) -> tuple[Any, Any]:
    """Where the words of the lines begin and end: (rows, files, 4) each."""
    lines = np.flatnonzero(text == ord("\n"))
    ends = np.flatnonzero((text == ord(" ")) | (text == ord("\n")))
    words = files * _WORDS
    behind = int(ends[-1]) + 1 if len(ends) else _DIGITS_MAX
    if len(ends) != rows * words or not np.array_equal(lines, ends[words - 1 :: words]) or behind != len(text):
        raise corrupt(path, f"{rows} lines of {words} words", f"{len(lines)} lines, {len(ends)} words")
    begins = np.concatenate([np.full(1, _DIGITS_MAX), ends + 1])[: len(ends)]
    return begins.reshape(rows, files, _WORDS), ends.reshape(rows, files, _WORDS)


def _numbers(path: Path, text: ByteArray, begins: IntArray, ends: IntArray) -> IntArray:
    """Words of decimal digits as numbers: (n,), int64."""
    lengths = ends - begins
    digits = take_bytes(text, ends - _DIGITS_MAX, _DIGITS_MAX) - np.uint8(ord("0"))
    digits[np.arange(_DIGITS_MAX) < _DIGITS_MAX - lengths[:, None]] = 0
    if (digits > 9).any() or (lengths < 1).any() or (lengths > _DIGITS_MAX).any():
        raise corrupt(path, "sizes in decimal digits", "others")
    return digits @ 10 ** np.arange(_DIGITS_MAX - 1, -1, -1, dtype=np.int64)
