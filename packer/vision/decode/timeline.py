"""The presentation times of a video's frames, computed from its packets alone: nothing is decoded.

They give a frame's true index by its timestamp, even if other frames were skipped or are damaged.
"""

import errno
import re
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappush, heappushpop
from itertools import pairwise

import av
import numpy as np
import numpy.typing as npt
from av.packet import Packet
from av.video.stream import VideoStream

from packer.vision.decode.container import PacketPosition, describe_missing, find_cut_off, has_timestamps, open_video
from packer.vision.decode.limits import MediaFile, VideoError
from packer.vision.decode.sampling import FrameClock
from packer.vision.faults import may_pass
from shardspec.errors import system_reason

# Codecs in which a packet is exactly one frame, but for those that `_ShownPackets` finds.
_ONE_FRAME_A_PACKET = frozenset(
    {"av1", "dnxhd", "ffv1", "h264", "hevc", "mjpeg", "mpeg1video", "mpeg2video", "mpeg4", "prores", "vp8", "vp9"},
)
# The most frames that may be decoded before a frame and shown after it.
_MOST_REORDERED = {"mpeg1video": 1, "mpeg2video": 1, "mpeg4": 1}
_MOST_REORDERED_ELSEWHERE = 16
_PROGRESSIVE_OR_UNKNOWN = (0, 1)  # AVFieldOrder: with other values a packet may be one field, half a frame
_FALLBACK_RATE = Fraction(25)  # frames per second, where a file has neither timestamps nor a rate
_MICROSECONDS = Fraction(1, 1_000_000)  # libavformat's unit of a container's own times
_VP8_SHOW_FRAME = 0x10
# MPEG-4 Part 2 (ISO/IEC 14496-2, 6.2): start codes of an image (VOP) and of the stream's header (VOL).
_VOP = b"\x00\x00\x01\xb6"
_VOL = re.compile(rb"\x00\x00\x01[\x20-\x2f]")
_VOL_BYTES = 32  # the fields up to the one that is looked for take at most 17

_Row = tuple[int | None, bool, int]  # timestamp, keyframe, place among the packets


@dataclass(frozen=True, slots=True)
class Timeline:
    """The shown frames of a video, in presentation order.

    If a file is known to be cut off, frames that may be shown after a missing one are left out, since their index
    cannot be known: those shown later than the last packet was due to be decoded.

    Attributes
    ----------
    exact : bool
        Whether every packet is one frame with its own presentation timestamp. If not, frames can be identified only by
        decoding and counting them.
    pts : ndarray, (N,), int64
        Presentation timestamps in units of the stream's time base, strictly rising. Empty if the number of frames or
        their times are known only after decoding.
    keys : ndarray, (N,), bool
        Whether the frame is coded without reference to others. Valid only if `exact`.
    positions : ndarray, (N,), int64
        The place of the frame's packet among all packets of the stream, which is decoding order. Valid only if `exact`.
    hidden : frozenset of int
        The places of packets whose frames are not shown.
    count : int
        Number of shown frames; number of packets if the number of frames is not known.
    start : Fraction, seconds
        The beginning of the file, from which `time` counts.
    end : Fraction, seconds
        The end of the last packet of any stream, on the same clock as `time`.
    unit : Fraction, seconds
        The stream's time base.
    rate : Fraction, frames per second
        The stream's average rate.
    clock : FrameClock
        How exactly the frames are timed.
    last_s : float, seconds
        How long the last frame is shown: a frame's duration at a constant rate, else what the file says.
    timed : bool
        Whether the file stores timestamps at all.
    cut_off : frozenset of int
        The places of packets that are known to the container to be cut off.
    damage : str or None
        What is missing from the file or cannot be demuxed.
    """

    exact: bool
    pts: npt.NDArray[np.int64]
    keys: npt.NDArray[np.bool_]
    positions: npt.NDArray[np.int64]
    hidden: frozenset[int]
    count: int
    start: Fraction
    end: Fraction
    unit: Fraction
    rate: Fraction
    clock: FrameClock
    last_s: float
    timed: bool
    cut_off: frozenset[int]
    damage: str | None

    def index(self, pts: int | None) -> int | None:
        """Return the index of the frame with a timestamp, None if there is none."""
        if pts is None:
            return None
        at = int(np.searchsorted(self.pts, pts))
        return at if at < len(self.pts) and self.pts[at] == pts else None

    def times(self) -> npt.NDArray[np.float64]:
        """Return the presentation times, (N,), in seconds."""
        return np.asarray(self.pts * float(self.unit) - float(self.start), np.float64)

    def time(self, pts: int | None) -> float | None:
        """Return seconds from the beginning of the file, None without a timestamp."""
        return None if pts is None or not self.timed else float(pts * self.unit - self.start)


def scan(source: MediaFile, *, max_pixels: int) -> Timeline:
    """Read a file's packets into a timeline.

    Raises
    ------
    VideoError, OSError
        As for `open_video`; or if the file cannot be read to its end, for a reason that may pass.
    """
    timeline, stopped = _scan(source, max_pixels)
    if stopped is None or not may_pass(stopped):
        return timeline
    if stopped.errno == errno.EIO:  # demuxers also report damage so, which recurs at the same place
        again, stopped = _scan(source, max_pixels)
        if again.damage == timeline.damage or stopped is None:
            return again
    raise VideoError(f"expected a video that can be read to its end, found: {system_reason(stopped)}") from stopped


def _scan(source: MediaFile, max_pixels: int) -> tuple[Timeline, av.error.FFmpegError | None]:
    """Return the timeline as far as the packets can be read, and the error that stopped the reading, if any."""
    container, stream = open_video(source, max_pixels=max_pixels)
    with container:
        timed, shown = has_timestamps(container), _ShownPackets(stream)
        rows: list[_Row] = []
        hidden: set[int] = set()
        places: list[PacketPosition] = []
        read, end, due, damage = 0, Fraction(0), None, None
        stopped: av.error.FFmpegError | None = None
        try:
            for packet in container.demux():
                if packet.pts is not None:
                    end = max(end, (packet.pts + (packet.duration or 0)) * packet.time_base)
                if packet.stream_index != stream.index or not packet.size:
                    continue
                if shown(packet) and not packet.is_discard:
                    rows.append((packet.pts if timed else None, packet.is_keyframe, read))
                else:
                    hidden.add(read)
                places.append(
                    PacketPosition(packet.pos, packet.dts, packet.duration, packet.is_keyframe, packet.is_corrupt)
                )
                due = packet.dts if due is None else max(due, packet.dts or due)
                read += 1
        except MemoryError:  # also one of libav's own errors
            raise
        except av.error.FFmpegError as error:
            stopped, damage = error, f"reading stopped after {read} packets: {system_reason(error)}"
        start = _start(container, stream)
        if damage is None:
            # After `due` a missing packet may have left a gap.
            stamps = [row[0] for row in rows if row[0] is not None and due is not None and row[0] <= due]
            damage = describe_missing(
                source, container, stream, packets=read, start=start, end=end, longest=_longest_frame(stream, stamps)
            )
        if damage is not None and due is not None:
            rows = [row for row in rows if row[0] is None or row[0] <= due]
        cut_off = frozenset(find_cut_off(source, places))
        durations = [place.duration for place in places]
        return _timeline(
            stream, rows, hidden, durations, (start, end), damage, cut_off, timed=timed, packed=shown.packed
        ), stopped


def _timeline(
    stream: VideoStream,
    rows: list[_Row],
    hidden: set[int],
    durations: list[int | None],
    span: tuple[Fraction, Fraction],
    damage: str | None,
    cut_off: frozenset[int],
    *,
    timed: bool,
    packed: bool,
) -> Timeline:
    stamps = [pts for pts, *_ in rows if pts is not None]
    known = (
        stream.codec.canonical_name in _ONE_FRAME_A_PACKET
        and stream.codec_context.field_order in _PROGRESSIVE_OR_UNKNOWN
        and len(set(stamps)) == len(rows) > 0
        and not _begin_again(stamps, rows)
        and not _is_impossible(stamps, _MOST_REORDERED.get(stream.codec.canonical_name, _MOST_REORDERED_ELSEWHERE))
    )
    # Where a container has no presentation times, libavformat gives those of decoding order, which only rise.
    unordered = packed or (stream.codec_context.reorder_depth > 0 and all(a < b for a, b in pairwise(stamps)))
    shown = sorted(rows, key=_by_stamp) if known else []
    rates = [rate for rate in (stream.average_rate, stream.guessed_rate) if rate]
    unit = stream.time_base or Fraction(1)
    rate = next(iter(rates if timed else rates[::-1]), _FALLBACK_RATE)
    times = np.array(sorted(stamps)) * float(unit)
    clock = FrameClock(rate=float(rate))
    if stamps:
        clock = FrameClock.of_times(times, float(unit), [float(r) for r in rates])
    last_s = float((durations[shown[-1][-1]] or 0) * unit) if shown else 0.0
    return Timeline(
        exact=known and not unordered,
        pts=np.array([pts for pts, *_ in shown], np.int64),
        keys=np.array([key for _, key, _ in shown], np.bool_),
        positions=np.array([position for *_, position in shown], np.int64),
        hidden=frozenset(hidden),
        count=len(rows),
        start=span[0],
        end=span[1] - span[0],
        unit=unit,
        rate=rate,
        clock=clock,
        last_s=1 / clock.rate if clock.rate else last_s or float(1 / rate),
        timed=timed,
        cut_off=cut_off,
        damage=damage,
    )


def _begin_again(stamps: list[int], rows: list[_Row]) -> bool:
    """Find a keyframe whose timestamp is before those of frames decoded earlier, as where two streams are joined."""
    before = np.maximum.accumulate(stamps)[:-1]
    keys = np.array([key for _, key, _ in rows[1:]], np.bool_)
    return bool((np.array(stamps[1:])[keys] < before[keys]).any())


def _is_impossible(stamps: list[int], most: int) -> bool:
    """Return whether more than `most` frames would be decoded before a frame and shown after it."""
    latest: list[int] = []
    for stamp in stamps:
        if len(latest) <= most:
            heappush(latest, stamp)
        elif stamp < latest[0]:
            return True
        else:
            heappushpop(latest, stamp)
    return False


def _by_stamp(row: _Row) -> int:
    assert row[0] is not None  # a timeline whose frames are known has all timestamps
    return row[0]


class _ShownPackets:
    """Decides for each packet, in decoding order, whether it holds or represents a frame that is shown.

    A bit marks the hidden frames of VP8 (RFC 6386, 9.1). An image of MPEG-4 Part 2 that is not coded repeats the one
    before, and the decoder returns no frame for it. But a packed bitstream, as DivX and XviD write it into AVI, has
    packets that hold two images: after each of them, an image that is not coded stands for the second one.

    Attributes
    ----------
    packed : bool
        Whether a packet with two images was found. The timestamps are then not those of the frames.
    """

    def __init__(self, stream: VideoStream) -> None:
        self._codec = stream.codec.canonical_name
        self._time_bits = _time_bits(stream.codec_context.extradata or b"")
        self._owed = 0
        self.packed = False

    def __call__(self, packet: "Packet[VideoStream]") -> bool:
        if self._codec == "vp8":
            return bool(bytes(packet)[0] & _VP8_SHOW_FRAME)
        if self._codec != "mpeg4":
            return True
        data = bytes(packet)
        at = data.find(_VOP)
        self._time_bits = _time_bits(data[:at]) or self._time_bits
        if at < 0 or _is_coded(data[at + len(_VOP) :], self._time_bits):
            second = at >= 0 and data.find(_VOP, at + 1) > 0
            self.packed = self.packed or second
            self._owed += second
            return True
        owed, self._owed = self._owed, max(0, self._owed - 1)
        return owed > 0


def _time_bits(header: bytes) -> int | None:
    """Return the number of bits of the time in MPEG-4 images, None if no stream header is found."""
    found = _VOL.search(header)
    if found is None:
        return None
    bits = _bits(header[found.end() : found.end() + _VOL_BYTES])
    at = 9  # random access, type of object
    at += 8 if bits[at : at + 1] == "1" else 1  # version and priority
    at += 20 if bits[at : at + 4] == "1111" else 4  # shape of pixels
    at += 1
    if bits[at - 1 : at] == "1":  # chroma format, low delay, parameters of a buffer
        at += 4
        at += 79 if bits[at - 1 : at] == "1" else 0
    at += 3  # shape of the image, and a marker
    units = bits[at : at + 16]
    return max(1, (int(units, 2) - 1).bit_length()) if len(units) == 16 and int(units, 2) else None


def _is_coded(image: bytes, time_bits: int | None) -> bool:
    """Read the bit of an MPEG-4 image that says whether pixels follow; `image` begins after its start code."""
    bits = _bits(image[:_VOL_BYTES])
    seconds = bits.find("0", 2)  # after the type of image, a 1 for each second since the last image
    return time_bits is None or seconds < 0 or bits[seconds + 2 + time_bits + 1 :][:1] != "0"


def _bits(data: bytes) -> str:
    return "".join(f"{byte:08b}" for byte in data)


def _start(container: av.container.InputContainer, stream: VideoStream) -> Fraction:
    """Return the file's first timestamp; the stream's own, more exact value if both are the same."""
    own = None if stream.start_time is None else stream.start_time * (stream.time_base or Fraction(1))
    whole = None if container.start_time is None else container.start_time * _MICROSECONDS
    if whole is None:
        return own or Fraction(0)
    return own if own is not None and abs(own - whole) <= 2 * _MICROSECONDS else whole


def _longest_frame(stream: VideoStream, stamps: list[int]) -> float:
    """Return the longest time between two frames, in seconds; with fewer than two timestamps, from the frame rate."""
    known = sorted(stamps)
    if len(known) < 2:
        return float(1 / (stream.average_rate or stream.guessed_rate or _FALLBACK_RATE))
    longest = max(after - before for before, after in pairwise(known))
    return float(longest * (stream.time_base or Fraction(1)))
