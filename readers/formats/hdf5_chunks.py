"""Where the chunks of an HDF5 dataset lie in its file, and their Fletcher-32."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from readers.formats.mapping import ByteArray
from shardspec.columns import IntArray
from shardspec.hdf5_datasets import HDF5Dataset

_CHECKSUM_BYTES = 4
_FLETCHER = 65535
_LINE_WORDS = 512


@dataclass(frozen=True)
class Chunks:
    """The chunks of one dataset.

    Attributes
    ----------
    name : str
    rows : int
        Of a chunk; the last is padded.
    row_bytes : int
    starts : ndarray, (chunks,), int64
        Where each begins in the file.
    known : ndarray, (chunks,), bool
        Whether its checksum has been compared.
    """

    name: str
    rows: int
    row_bytes: int
    starts: IntArray
    known: npt.NDArray[np.bool_]

    def is_sound(self, data: ByteArray, number: int) -> bool:
        """Whether a chunk's bytes have the checksum that follows them."""
        start = int(self.starts[number])
        end = start + self.rows * self.row_bytes
        stored = int.from_bytes(data[end : end + _CHECKSUM_BYTES].tobytes(), "little")
        low, high = fletcher32(data[start:end])
        # Modulo 65535, since HDF5 spells nought as 0 or 65535.
        return ((stored & 0xFFFF) - low) % _FLETCHER == 0 and ((stored >> 16) - high) % _FLETCHER == 0


def fletcher32(data: ByteArray) -> tuple[int, int]:
    """HDF5's Fletcher-32 of some bytes: both sums over its big-endian words of two bytes, modulo 65535.

    The first is the sum of the words, the second that of all first sums on the way, so word i of n counts n - i times
    (``H5_checksum_fletcher32`` in HDF5's ``H5checksum.c``; an odd last byte is a word's high byte).
    """
    if len(data) % 2:
        data = np.append(data, np.uint8(0))
    # Swapping a word's bytes multiplies it by 256 modulo 65535: little-endian sums serve.
    words = data.view("<u2")
    whole = len(words) // _LINE_WORDS * _LINE_WORDS
    table = words[:whole].reshape(-1, _LINE_WORDS)
    # A word's index is its line times the line's length plus its column: sums of lines and of columns give the moment.
    lines = np.add.reduce(table, axis=1, dtype=np.uint32).astype(np.int64)
    columns = np.add.reduce(table, axis=0, dtype=np.uint64).astype(np.int64)
    rest = words[whole:].astype(np.int64)
    total = int(lines.sum()) + int(rest.sum())
    moment = _LINE_WORDS * int((lines * np.arange(len(lines))).sum()) + int((columns * np.arange(_LINE_WORDS)).sum())
    moment += int((rest * np.arange(whole, len(words))).sum())
    return total * 256 % _FLETCHER, (len(words) * total - moment) * 256 % _FLETCHER


def read_chunks(file: Any, expected: HDF5Dataset, end: int) -> Chunks:
    """Find the chunks of a dataset in an open h5py file.

    Parameters
    ----------
    end : int
        Of the file.

    Raises
    ------
    ValueError
        The dataset is not as expected, or a chunk does not lie within the file.
    """
    dataset = file[expected.name]
    if dataset.shape != expected.shape or dataset.dtype != np.dtype(expected.dtype):
        raise ValueError(f"dataset {expected.name!r}: expected {expected.dtype} {expected.shape}, found {dataset}")
    row_bytes = int(np.prod(expected.shape[1:], dtype=np.int64)) * dataset.dtype.itemsize
    if not expected.chunk_rows:
        return Chunks(expected.name, 1, row_bytes, np.empty(0, np.int64), np.empty(0, np.bool_))
    if (
        dataset.chunks is None
        or dataset.chunks[1:] != expected.shape[1:]
        or not dataset.fletcher32
        or _filters(dataset) != 1
    ):
        raise ValueError(f"dataset {expected.name!r}: expected chunks of whole rows with Fletcher-32 alone")
    rows = int(dataset.chunks[0])
    starts = np.full(-(-expected.shape[0] // rows), -1, np.int64)
    sizes = np.zeros(len(starts), np.int64)

    def note(chunk: Any) -> None:
        number = chunk.chunk_offset[0] // rows
        starts[number], sizes[number] = chunk.byte_offset, chunk.size if chunk.filter_mask == 0 else 0

    dataset.id.chunk_iter(note)
    inside = (starts >= 0) & (starts + sizes <= end) & (sizes == rows * row_bytes + _CHECKSUM_BYTES)
    if not inside.all():
        raise ValueError(
            f"dataset {expected.name!r}: expected {len(starts)} whole chunks within the file, found others"
        )
    return Chunks(expected.name, rows, row_bytes, starts, np.zeros(len(starts), np.bool_))


def _filters(dataset: Any) -> int:
    return int(dataset.id.get_create_plist().get_nfilters())
