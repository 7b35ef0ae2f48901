"""When each frame of a video is shown, from its packets alone: nothing is decoded.

It gives a frame's true index by its timestamp, even if other frames were skipped or are damaged.
"""

import errno
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import av
import numpy as np
import numpy.typing as npt
from av.packet import Packet
from av.video.stream import VideoStream

from packer.vision.decode.container import open_video
from packer.vision.decode.limits import Input, VideoError
from packer.vision.faults import may_pass
from shardspec.errors import system_reason

# Codecs in which a packet is exactly one shown frame. (A bit marks the hidden frames of VP8: RFC 6386, 9.1.)
_ONE_FRAME_A_PACKET = frozenset(
    {"av1", "dnxhd", "ffv1", "h264", "hevc", "mjpeg", "mpeg1video", "mpeg2video", "mpeg4", "prores", "vp8", "vp9"},
)
_VP8_SHOW_FRAME = 0x10
_PROGRESSIVE_OR_UNKNOWN = (0, 1)  # AVFieldOrder: with other values a packet may be one field, half a frame
_MISSING_S = 0.5  # seconds by which a container may announce more than it holds: rounding, and what muxers add
_MATROSKA_MISSING_S = 0.1  # for Matroska and WebM: the last packet's duration; audio packets were seen to lack 0.02 s
_FALLBACK_RATE = Fraction(25)  # frames per second, where a file has neither timestamps nor a rate
_MICROSECONDS = Fraction(1, 1_000_000)  # libavformat's unit of a container's own times


_Row = tuple[int | None, bool, bool, int]  # timestamp, keyframe, whole, place among the packets


@dataclass(frozen=True, slots=True)
class Timeline:
    """The shown frames of a video, in presentation order.

    If a file is known to be cut off, frames that may be shown after a missing one are left out, since their index
    cannot be known: those shown later than the last packet was due to be decoded.

    Attributes
    ----------
    exact : bool
        Whether every packet is one frame with a timestamp of its own. If not, the arrays are empty and frames can be
        counted only while they are decoded.
    pts : ndarray, (N,), int64
        Presentation timestamps in units of the stream's time base, strictly rising.
    keys : ndarray, (N,), bool
        Whether the frame is coded without reference to others.
    whole : ndarray, (N,), bool
        False for packets that are known to the container to be cut off.
    positions : ndarray, (N,), int64
        The place of the frame's packet among all packets of the stream, which is decoding order.
    count : int
        Number of shown frames; number of packets if not exact.
    start : Fraction, seconds
        The beginning of the file, from which `time` counts.
    unit : Fraction, seconds
        The stream's time base.
    rate : Fraction, frames per second
        The stream's average rate.
    damage : str or None
        What is missing from the file or cannot be demuxed.
    """

    exact: bool
    pts: npt.NDArray[np.int64]
    keys: npt.NDArray[np.bool_]
    whole: npt.NDArray[np.bool_]
    positions: npt.NDArray[np.int64]
    count: int
    start: Fraction
    unit: Fraction
    rate: Fraction
    damage: str | None

    def index(self, pts: int | None) -> int | None:
        """The index of the frame with a timestamp, None if there is none."""
        if pts is None:
            return None
        at = int(np.searchsorted(self.pts, pts))
        return at if at < len(self.pts) and self.pts[at] == pts else None

    def times(self) -> npt.NDArray[np.float64]:
        """Presentation times, (N,), float64, seconds."""
        return np.asarray(self.pts * float(self.unit) - float(self.start), np.float64)

    def time(self, pts: int | None) -> float | None:
        """Seconds from the beginning of the file, None without a timestamp."""
        return None if pts is None else float(pts * self.unit - self.start)


def scan(source: Input, *, max_pixels: int) -> Timeline:
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


def _scan(source: Input, max_pixels: int) -> tuple[Timeline, av.error.FFmpegError | None]:
    """The timeline as far as the packets can be read, and the error that stopped the reading, if any."""
    container, stream = open_video(source, max_pixels=max_pixels)
    with container:
        rows: list[_Row] = []
        read, end, due, damage = 0, Fraction(0), None, None
        stopped: av.error.FFmpegError | None = None
        try:
            for packet in container.demux():
                if packet.pts is not None:
                    end = max(end, (packet.pts + (packet.duration or 0)) * packet.time_base)
                if packet.stream_index != stream.index or not packet.size:
                    continue
                if not packet.is_discard and _shown(stream, packet):
                    rows.append((packet.pts, packet.is_keyframe, not packet.is_corrupt, read))
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
            damage = _missing(container, stream, read, start, end, stamps)
        if damage is not None and due is not None:
            rows = [row for row in rows if row[0] is None or row[0] <= due]
        return _timeline(stream, rows, start, damage), stopped


def _timeline(stream: VideoStream, rows: list[_Row], start: Fraction, damage: str | None) -> Timeline:
    stamps = [pts for pts, *_ in rows if pts is not None]
    exact = (
        stream.codec.canonical_name in _ONE_FRAME_A_PACKET
        and stream.codec_context.field_order in _PROGRESSIVE_OR_UNKNOWN
        and len(set(stamps)) == len(rows) > 0
    )
    known = sorted(rows, key=_by_stamp) if exact else []
    return Timeline(
        exact=exact,
        pts=np.array([pts for pts, *_ in known], np.int64),
        keys=np.array([key for _, key, _, _ in known], np.bool_),
        whole=np.array([whole for _, _, whole, _ in known], np.bool_),
        positions=np.array([position for *_, position in known], np.int64),
        count=len(rows),
        start=start,
        unit=stream.time_base or Fraction(1),
        rate=stream.average_rate or stream.guessed_rate or _FALLBACK_RATE,
        damage=damage,
    )


def _by_stamp(row: _Row) -> int:
    assert row[0] is not None  # an exact timeline has all timestamps
    return row[0]


def _shown(stream: VideoStream, packet: "Packet[VideoStream]") -> bool:
    return stream.codec.canonical_name != "vp8" or bool(bytes(packet)[0] & _VP8_SHOW_FRAME)


def _start(container: av.container.InputContainer, stream: VideoStream) -> Fraction:
    """The file's first timestamp; the stream's own, more exact value if both are the same."""
    own = None if stream.start_time is None else stream.start_time * (stream.time_base or Fraction(1))
    whole = None if container.start_time is None else container.start_time * _MICROSECONDS
    if whole is None:
        return own or Fraction(0)
    return own if own is not None and abs(own - whole) <= 2 * _MICROSECONDS else whole


def _missing(
    container: av.container.InputContainer,
    stream: VideoStream,
    packets: int,
    start: Fraction,
    end: Fraction,
    stamps: list[int],
) -> str | None:
    """Describe what the container announces and does not hold.

    Parameters
    ----------
    packets : int
        Number of packets of the stream.
    start, end : Fraction, seconds
        The first timestamp of all streams, and the end of the packet that is shown last.
    stamps : list of int
        Timestamps of the stream's frames between which none is missing, in the stream's time base.
    """
    if stream.frames > packets:
        return f"the file announces {stream.frames} frames and holds {packets}: it is cut off or damaged"
    announced = Fraction(0) if container.duration is None else container.duration * _MICROSECONDS
    seconds, tolerated = end - start, _MISSING_S
    if "matroska" in container.format.name:
        seconds = max(end, seconds)  # the announced duration may count from 0
        tolerated = min(tolerated, max(_MATROSKA_MISSING_S, 2 * _longest_frame(stream, stamps)))
    if not stream.frames and announced - seconds > tolerated:
        return f"the file announces {float(announced):.2f} s and holds {float(seconds):.2f} s: it is cut off or damaged"
    return None


def _longest_frame(stream: VideoStream, stamps: list[int]) -> float:
    """Longest time between a frame and the next, in seconds; with fewer than two timestamps, from the frame rate."""
    known = sorted(stamps)
    if len(known) < 2:
        return float(1 / (stream.average_rate or stream.guessed_rate or _FALLBACK_RATE))
    longest = max(after - before for before, after in pairwise(known))
    return float(longest * (stream.time_base or Fraction(1)))
