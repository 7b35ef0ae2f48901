"""The frames of a small MP4 file with one video track: where each begins, and which are key frames.

Finding a frame by these tables takes microseconds; libavformat would decode frames only to open the file. ISO/IEC
14496-12 defines the boxes, 14496-15 those of H.264.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shardspec.columns import IntArray

_DECODERS = {b"avc1": ("h264", b"avcC"), b"av01": ("av1", b"av1C")}
"""The decoder of a sample entry, and the box in the entry that holds the decoder's configuration."""
_ENTRY_BYTES = 78  # of a visual sample entry, before its boxes
_TABLE_HEAD = 8  # version, flags and count of a table
_SUMS = b"crc32 of frames\0"
"""How the content of the box ``free`` begins that `add_sums` appends."""


@dataclass(frozen=True, eq=False)
class FrameTable:
    """Where the frames of an encoded video are.

    Attributes
    ----------
    decoder : str
        Name of the decoder in libavcodec.
    extradata : bytes
        The decoder's configuration.
    height, width : int
    data : memoryview
        The bytes that hold the packets.
    starts, sizes : int64 array, (T,)
        Place of each frame's packet in `data`, in bytes.
    keys : bool array, (T,)
        Whether a frame can be decoded without another one.
    sums : sequence of int
        CRC-32 of each packet; empty if the whole file was compared with a checksum.
    """

    decoder: str
    extradata: bytes
    height: int
    width: int
    data: memoryview
    starts: IntArray
    sizes: IntArray
    keys: npt.NDArray[np.bool_]
    sums: Sequence[int] = ()


def read_frame_table(data: memoryview) -> FrameTable:
    """Read the tables of an MP4 file.

    Raises
    ------
    ValueError
        If the file has another form, or a frame lies outside of it.
    """
    try:
        return _with_sums(_read(data))
    except (KeyError, struct.error, IndexError) as error:
        raise ValueError(f"a damaged MP4 file ({error})") from error


def add_sums(data: bytes) -> bytes:
    """Append a box with checksums to an MP4 file. Players skip a box ``free``; H.264 itself detects half of all errors.

    After `_SUMS` follow, as big-endian uint32, the CRC-32 of all bytes of the file outside of packets, and that of each
    packet.
    """
    table = _read(memoryview(data))
    ends = zip(table.starts.tolist(), (table.starts + table.sizes).tolist(), strict=True)
    sums = [_sum_outside(table.data, table), *(zlib.crc32(table.data[start:end]) for start, end in ends)]
    content = _SUMS + struct.pack(f">{len(sums)}I", *sums)
    return data + struct.pack(">I4s", 8 + len(content), b"free") + content


def _sum_outside(data: memoryview, table: FrameTable) -> int:
    """Return the CRC-32 of a file's bytes before its first packet and after its last one."""
    first, last = int(table.starts.min()), int((table.starts + table.sizes).max())
    return zlib.crc32(data[last:], zlib.crc32(data[:first]))


def _with_sums(table: FrameTable) -> FrameTable:
    """Return a table with the checksums that its file ends with."""
    size = 8 + len(_SUMS) + 4 * (1 + len(table.sizes))
    at = len(table.data) - size
    if at < 0 or table.data[at + 4 : at + 8 + len(_SUMS)] != b"free" + _SUMS:
        raise ValueError("an MP4 file without checksums at its end")
    outside, *sums = struct.unpack_from(f">{1 + len(table.sizes)}I", table.data, at + 8 + len(_SUMS))
    if _sum_outside(table.data[:at], table) != outside:
        raise ValueError("an MP4 file whose checksum differs")
    return replace(table, sums=sums)


def _read(data: memoryview) -> FrameTable:
    track = data
    for name in (b"moov", b"trak", b"mdia", b"minf", b"stbl"):
        found = [body for kind, body in _boxes(track) if kind == name]
        if len(found) != 1:
            raise ValueError(f"an MP4 file with {len(found)} boxes {name.decode()}")
        track = found[0]
    tables = dict(_boxes(track))
    entry = tables[b"stsd"][_TABLE_HEAD:]
    kind, entry = next(_boxes(entry))
    if kind not in _DECODERS:
        raise ValueError(f"an MP4 file of {kind!r}")
    decoder, configuration = _DECODERS[kind]
    width, height = struct.unpack_from(">HH", entry, 24)
    extradata = bytes(dict(_boxes(entry[_ENTRY_BYTES:]))[configuration])
    sizes = _sizes(tables[b"stsz"])
    starts = _starts(tables, sizes)
    keys = np.ones(len(sizes), np.bool_)
    if b"stss" in tables:
        numbers = _table(tables[b"stss"], ">u4") - 1
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(sizes):
            raise ValueError("an MP4 file with a key frame that does not exist")
        keys[:] = False
        keys[numbers] = True
    if not len(sizes) or not keys[0] or not height or not width:
        raise ValueError("an MP4 file without a frame, or that begins with no key frame")
    if (sizes <= 0).any() or starts.min() < 0 or (starts + sizes).max() > len(data):
        raise ValueError("an MP4 file that is cut off")
    if (b"ctts" in tables) and (_table(tables[b"ctts"], ">u4", 2)[:, 1] != 0).any():
        raise ValueError("an MP4 file whose frames are not in the order of display")
    return FrameTable(decoder, extradata, height, width, data, starts, sizes, keys)


def _boxes(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the type and the content of each box in a sequence of boxes."""
    at = 0
    while at + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        head = 8
        if size == 1:
            (size,), head = struct.unpack_from(">Q", data, at + 8), 16
        elif size == 0:
            size = len(data) - at
        if size < head or at + size > len(data):
            raise ValueError("an MP4 file that is cut off")
        yield kind, data[at + head : at + size]
        at += size


def _table(body: memoryview, dtype: str, columns: int = 1, skip: int = 0) -> IntArray:
    """Return the entries of a table, (n, columns); (n,) if there is one column."""
    (count,) = struct.unpack_from(">I", body, 4 + skip)
    if (count * columns * np.dtype(dtype).itemsize) > len(body) - _TABLE_HEAD - skip:
        raise ValueError("an MP4 file that is cut off")
    found = np.frombuffer(body, dtype, count * columns, _TABLE_HEAD + skip).astype(np.int64)
    return found if columns == 1 else found.reshape(-1, columns)


def _sizes(body: memoryview) -> IntArray:
    (common,) = struct.unpack_from(">I", body, 4)
    if common:  # the number of frames would be anyone's claim
        (count,) = struct.unpack_from(">I", body, 8)
        if count != 1:
            raise ValueError("an MP4 file whose frames all have one size")
        return np.array([common], np.int64)
    return _table(body, ">u4", skip=4)


def _starts(tables: dict[bytes, memoryview], sizes: IntArray) -> IntArray:
    """Return the offset of each frame, from those of the chunks and the number of frames in each."""
    chunks = _table(tables[b"stco"], ">u4") if b"stco" in tables else _table(tables[b"co64"], ">u8")
    runs = _table(tables[b"stsc"], ">u4", 3)
    lengths = np.diff(np.append(runs[:, 0], len(chunks) + 1))
    if not len(runs) or runs[0, 0] != 1 or (lengths < 0).any() or (runs[:, 1] > len(sizes)).any():
        raise ValueError("an MP4 file with a wrong table of chunks")
    counts = np.repeat(runs[:, 1], lengths)
    if counts.sum() != len(sizes):
        raise ValueError("an MP4 file with a wrong table of chunks")
    firsts = np.cumsum(counts) - counts
    ends = np.cumsum(sizes)
    before = np.concatenate([[0], ends])[np.minimum(firsts, len(sizes))]
    starts: IntArray = np.repeat(chunks - before, counts) + ends - sizes
    return starts
