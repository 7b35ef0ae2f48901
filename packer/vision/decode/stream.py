"""Decode a video's sampled frames: which packets are decoded, skipped, or left out because of damage."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Literal, cast

import av
import numpy as np
import numpy.typing as npt
from av.container import InputContainer
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from packer.vision.decode.decoder_log import decoder_errors
from packer.vision.decode.limits import VideoError
from packer.vision.decode.sampling import NearestTicks, Sampling, Span
from packer.vision.decode.timeline import Timeline
from packer.vision.faults import may_pass
from shardspec.errors import system_reason
from shardspec.wording import counted

# Codecs whose bitstream marks frames to which no other refers (H.264's nal_ref_idc 0), so that skipping them changes
# nothing. HEVC marks them only within a temporal layer.
_MARKS_NON_REFERENCE = frozenset({"h264"})
# Decoders that return a frame in spite of an error in it, and only log the error. They return a frame with its packet.
_ONLY_LOG_ERRORS = frozenset(
    {
        *("cinepak", "ffv1", "flashsv", "flv1", "gif", "h261", "h263", "msmpeg4v2", "msmpeg4v3", "msvideo1"),
        *("qtrle", "snow", "wmv1", "wmv2", "zmbv"),
    }
)
_STAMPS_AHEAD = 8  # timestamps that are compared with one, to find a wrong one
_Skip = Literal["DEFAULT", "NONREF"]  # libavcodec's AVDiscard


@dataclass(frozen=True, slots=True)
class TakenFrame:
    """A sampled frame.

    Attributes
    ----------
    index : int
    time : float, seconds
    position : int
        The place of its first sample among the samples of the video.
    spans : tuple
        The interval of each of its samples.
    frame : av.VideoFrame
    """

    index: int
    time: float
    position: int
    spans: tuple[Span, ...]
    frame: VideoFrame


class SampleDecoder:
    """One pass over the packets of a stream from `open_video`, whose container the caller closes.

    Attributes
    ----------
    problems : list of str
        Descriptions of the damage; complete once `frames` has ended.
    start : float, seconds
        The time of the first frame; set when `frames` has yielded it.
    """

    def __init__(self, container: InputContainer, stream: VideoStream, timeline: Timeline, sampling: Sampling) -> None:
        self._container = container
        self._stream = stream
        self._timeline = timeline
        self._sampling = sampling
        self._logs = stream.codec.canonical_name in _ONLY_LOG_ERRORS
        stream.codec_context.copy_opaque = bool(timeline.hidden)  # a hidden frame carries the place of its packet
        self._failures = 0
        self._failure = ""
        self.problems: list[str] = []
        self.start = 0.0
        self._left_out = 0
        self._stopped = False

    def stop(self) -> None:
        """Make `frames` end after the current packet. Any thread may call it."""
        self._stopped = True

    def frames(self) -> Iterator[TakenFrame]:
        """Yield the sampled frames in order."""
        timeline, sampling = self._timeline, self._sampling
        yield from self._by_timeline() if timeline.exact and not sampling.keyframes else self._by_counting()
        if self._failures:
            self.problems.append(f"{counted(self._failures, 'packet')} did not decode: {self._failure}")

    def sampled(self) -> tuple[int, ...] | None:
        """Return the index of the frame of each sample, None if they are known only once the frames are decoded.

        Some frames that are marked as keyframes may yield no sample (`_keyframes`).
        """
        taken = self._taken()
        return None if taken is None else tuple(np.repeat(np.arange(len(taken)), taken).tolist())

    def _taken(self) -> npt.NDArray[np.int64] | None:
        """Return how often each frame is sampled, (N,); None if that is known only once the frames are decoded."""
        timeline = self._timeline
        if not len(timeline.pts) or (self._sampling.keyframes and not timeline.exact):
            return None
        times = timeline.times().tolist()
        end = times[-1] + timeline.last_s
        return self._sampling.choose(times, timeline.keys.tolist(), timeline.count, timeline.clock, end)

    def _by_timeline(self) -> Iterator[TakenFrame]:
        """Identify frames by their timestamps, so that only wanted ones need to be decoded."""
        timeline = self._timeline
        times = timeline.times().tolist()
        taken = self._taken()
        assert taken is not None  # an exact timeline says which frames are sampled
        self.start = times[0]
        wanted = taken > 0
        missing = wanted.copy()
        positions = (np.cumsum(taken) - taken).tolist()
        begins = [self._since_start(times[index]) for index in np.flatnonzero(wanted)]
        ends = [*begins[1:], self._since_start(times[-1] + timeline.last_s)]
        trust = DamagedGroups(timeline.keys, timeline.positions)
        before = -1
        for index, frame in self._held_back(wanted, trust):
            # For a damaged stream the decoder may return a frame twice, or too late.
            if index > before and not trust.doubted(index):
                before = index
                missing[index] = False
                position = positions[index]
                spans = self._sampling.spans_of_ticks(range(position, position + int(taken[index])))
                spans = spans or ((begins[position], ends[position]),)
                yield TakenFrame(index, times[index], position, spans, frame)
        self._report_lost(missing, wanted)

    def _since_start(self, time: float) -> float:
        return self._timeline.clock.exact(time - self.start)

    def _report_lost(self, missing: npt.NDArray[np.bool_], wanted: npt.NDArray[np.bool_]) -> None:
        lost = np.flatnonzero(missing)
        if len(lost):
            self.problems.append(
                f"{len(lost)} of {np.count_nonzero(wanted)} sampled frames are damaged or missing "
                f"(the first is frame {lost[0]}, the last frame {lost[-1]})"
            )

    def _held_back(self, wanted: npt.NDArray[np.bool_], trust: "DamagedGroups") -> Iterator[tuple[int, VideoFrame]]:
        """Yield requested frames. Hold each back until all frames that are decoded before it but shown later came out."""
        timeline = self._timeline
        last = int(np.flatnonzero(wanted).max(initial=-1))
        depth = self._stream.codec_context.reorder_depth
        held: deque[tuple[int, VideoFrame]] = deque()
        for frames, damaged in self._decode(wanted):
            if damaged is not None:
                trust.doubt(damaged)
            for frame in frames:
                hidden = frame.opaque
                if isinstance(hidden, int):
                    if frame.is_corrupt:
                        trust.doubt(hidden)
                    continue
                index = timeline.index(frame.pts)
                if index is None:  # its timestamp was changed on the way
                    continue
                # With intra refresh, the container marks frames as keyframes that refer to others.
                refers = timeline.keys[index] and not frame.key_frame and index > 0
                if frame.is_corrupt or (refers and trust.doubted(index - 1)):
                    trust.doubt(int(timeline.positions[index]))
                if wanted[index]:
                    held.append((index, frame))
                while held and held[0][0] + depth < index:
                    yield held.popleft()
                if index > last + depth:
                    return
        yield from held

    def _by_counting(self) -> Iterator[TakenFrame]:
        """Identify frames by decoding them up to the last wanted one; one that fails counts too.

        A sampled frame is yielded once the next one is known, where its span ends.
        """
        timeline, sampling, clock = self._timeline, self._sampling, self._timeline.clock
        taken = self._taken()
        last = None if taken is None else int(np.flatnonzero(taken).max(initial=-1))
        wants = sampling.picker(timeline.count, clock)
        ticks = None if sampling.resample_fps is None else NearestTicks(sampling.resample_fps, clock)
        held: _Counted | None = None
        position, begin = 0, 0.0
        known = timeline.times().tolist()
        end = known[-1] if known else 0.0
        for found in self._keyframes(known) if timeline.exact else self._counted(known):
            end = max(end, found.time)
            if ticks is not None or wants(found.index, found.time, found.key):
                here = self._since_start(found.time)
                spans = ((begin, here),) if ticks is None else self._sampling.spans_of_ticks(ticks.before(found.time))
                if held is not None:
                    yield from self._finish(held, position, spans)
                    position += len(spans)
                held, begin = found, here
            if last is not None and found.index >= last:
                break
        if held is not None:
            end += timeline.last_s
            spans = (
                ((begin, self._since_start(end)),) if ticks is None else self._sampling.spans_of_ticks(ticks.rest(end))
            )
            yield from self._finish(held, position, spans)
        if self._left_out:
            are = "is" if self._left_out == 1 else "are"
            self.problems.append(f"{counted(self._left_out, 'sampled frame')} {are} damaged")

    def _finish(self, held: "_Counted", position: int, spans: tuple[Span, ...]) -> Iterator[TakenFrame]:
        """Yield a counted frame, unless it is damaged."""
        if held.frame is None:
            self._left_out += bool(spans)
            return
        if spans:
            yield TakenFrame(held.index, held.time, position, spans, held.frame)

    def _counted(self, known: list[float]) -> Iterator["_Counted"]:
        """Decode and count the frames, and time them by their timestamps if the timeline lacks their times."""
        step = float(1 / self._timeline.rate)
        time = -step
        ahead: deque[_Numbered] = deque()
        for found in chain(self._numbered(known), repeat(None, _STAMPS_AHEAD)):
            if found is not None:
                ahead.append(found)
            if ahead and (found is None or len(ahead) > _STAMPS_AHEAD):
                first = ahead.popleft()
                time = next_time(time, step, first.stamp, [one.stamp for one in ahead])
                self.start = self.start if first.index else time
                yield _Counted(first.index, time, first.key, first.frame)

    def _numbered(self, known: list[float]) -> "Iterator[_Numbered]":
        """Decode and count the frames."""
        timeline = self._timeline
        index, doubted = -1, False
        for frames, damaged in self._decode(None):
            if damaged is not None and damaged in timeline.hidden:
                doubted = True
            elif damaged is not None and not frames:
                index += 1
                doubted = True
                yield _Numbered(None, index, False, None)
            for frame in frames:
                unsure = doubted and not frame.key_frame
                if frame.opaque is not None:
                    doubted = frame.is_corrupt or unsure
                    continue
                index += 1
                if doubted and frame.key_frame:  # as many frames are shown before it as are decoded before it, or more
                    index = max(index, timeline.index(frame.pts) or 0)
                doubted = damaged is not None or frame.is_corrupt or unsure
                stamp = known[index] if index < len(known) else timeline.time(frame.pts)
                yield _Numbered(stamp, index, bool(frame.key_frame), None if doubted else frame)

    def _keyframes(self, times: list[float]) -> Iterator["_Counted"]:
        """Decode each keyframe of an exact timeline alone.

        If a packet yields neither a frame nor an error, its frame refers to others in spite of its mark. This is where
        a stream without keyframes can be entered (intra refresh).
        """
        timeline = self._timeline
        self.start = times[0]
        before = -1
        for frames, damaged in self._decode(timeline.keys, alone=True):
            if damaged is not None:
                before = int(np.flatnonzero(timeline.positions == damaged)[0])
                yield _Counted(before, times[before], True, None)
            for frame in frames:
                index = timeline.index(frame.pts)
                if index is not None and index > before:  # not of a damaged packet
                    before = index
                    yield _Counted(index, times[index], True, None if frame.is_corrupt else frame)

    def _decode(
        self, wanted: npt.NDArray[np.bool_] | None, *, alone: bool = False
    ) -> Iterator[tuple[list[VideoFrame], int | None]]:
        """Yield the frames of each packet, and the place in decoding order where damage showed, if it did.

        With `alone`, only wanted packets are decoded, each as if it were the only one.
        """
        context = self._stream.codec_context
        skipping: _Skip = "DEFAULT"
        sent = cut_off = 0
        for packet in self._packets():
            index = None
            if packet is not None and packet.is_discard:
                packet = _revealed(packet, sent)
            elif packet is not None:
                index = self._timeline.index(packet.pts)
            if alone and (wanted is None or index is None or not wanted[index]):
                sent += 1
                continue
            if sent in self._timeline.cut_off:
                cut_off += 1
                yield [], sent
                sent += 1
                continue
            if packet is not None and wanted is not None:
                skip = self._skip(index, wanted)
                if skip != skipping:
                    context.skip_frame = skipping = skip
            try:
                frames, damaged = self._decode_packet(packet)
            except MemoryError:  # also one of libav's own errors
                raise
            except av.error.FFmpegError as error:
                self._fail(error)
                yield [], sent
                frames, damaged = self._drain() if packet is None else [], False
            if alone:
                frames += self._drain()
                context.flush_buffers()
            yield frames, sent if damaged else None
            sent += 1
        if cut_off:
            self.problems.append(f"{counted(cut_off, 'packet')} {'is' if cut_off == 1 else 'are'} cut off")

    def _decode_packet(self, packet: "Packet[VideoStream] | None") -> tuple[list[VideoFrame], bool]:
        """Return the frames that the decoder has for a packet (None at the end), and whether they contain an error."""
        decode = self._stream.codec_context.decode
        if not self._logs:
            return decode(packet), False
        with decoder_errors() as errors:
            return decode(packet), bool(errors)

    def _skip(self, index: int | None, wanted: npt.NDArray[np.bool_]) -> _Skip:
        """Return the part of the decoding that may be skipped for a packet."""
        if index is None or wanted[index]:
            return "DEFAULT"
        return "NONREF" if self._stream.codec.canonical_name in _MARKS_NON_REFERENCE else "DEFAULT"

    def _packets(self) -> "Iterator[Packet[VideoStream] | None]":
        """Yield the stream's packets, then None, for which the decoder returns the frames that it still holds."""
        try:
            for packet in self._container.demux(self._stream):
                if self._stopped:
                    break
                if packet.size:
                    yield packet
        except MemoryError:  # also one of libav's own errors
            raise
        except av.error.FFmpegError as error:
            if may_pass(error) and self._timeline.damage is None:  # a moment ago the file could be read to its end
                raise VideoError(f"reading stopped: {system_reason(error)}") from error
            self.problems.append(f"reading stopped: {system_reason(error)}")
        yield None

    def _drain(self) -> list[VideoFrame]:
        """Return the frames that a decoder still holds."""
        try:
            return self._stream.codec_context.decode(None)
        except MemoryError:  # also one of libav's own errors
            raise
        except av.error.FFmpegError as error:
            if not isinstance(error, EOFError):
                self._fail(error)
            return []

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        self._failure = system_reason(error)


def _revealed(packet: "Packet[VideoStream]", place: int) -> "Packet[VideoStream]":
    """Return a copy of a packet whose frame is not to be shown, so that the decoder returns it. It may be corrupt."""
    copy = cast("Packet[VideoStream]", Packet(bytes(packet)))
    copy.pts, copy.dts, copy.duration, copy.time_base = packet.pts, packet.dts, packet.duration, packet.time_base
    copy.is_keyframe, copy.opaque = packet.is_keyframe, place
    for data in packet.iter_sidedata():
        copy.set_sidedata(data)
    return copy


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A frame whose index was counted, before it is timed; `frame` is None if it is damaged."""

    stamp: float | None
    index: int
    key: bool
    frame: VideoFrame | None


@dataclass(frozen=True, slots=True)
class _Counted:
    """A frame whose index was counted; `frame` is None if it is damaged."""

    index: int
    time: float
    key: bool
    frame: VideoFrame | None


def next_time(time: float, step: float, stamp: float | None, later: Sequence[float | None]) -> float:
    """Return the time of a frame by its timestamp, in seconds, unless it has none or a wrong one.

    A timestamp is wrong if it does not follow the time of the frame before, or if it is more than a frame away from
    that and not before the timestamps of later frames. Such a frame is placed one frame of the average rate after the
    one before. But if the later timestamps follow sooner, and none of them is as late as at the average rate, the time
    before was wrong, and the frame is placed before them.

    Parameters
    ----------
    time : float, seconds
        The time of the frame before.
    step : float, seconds
        The duration of a frame at the average rate.
    stamp : float or None, seconds
    later : sequence of float or None, seconds
        The timestamps of the next frames.
    """
    following = min((after for after in later if after is not None and after > time), default=math.inf)
    if stamp is not None and stamp > time and (stamp < following or stamp <= time + 1.5 * step):
        return stamp
    regular = [time + number * step for number in range(1, len(later) + 2)]
    is_regular = any(after is not None and after > at - step / 2 for after, at in zip(later, regular[1:], strict=True))
    return regular[0] if regular[0] < following or is_regular else (time + following) / 2


class DamagedGroups:
    """Remembers the first damage in each group of frames that starts with a keyframe.

    Parameters
    ----------
    keys : ndarray, (N,), bool
        Which frames are keyframes, in presentation order.
    positions : ndarray, (N,), int64
        Each frame's place in decoding order; some places may belong to no frame.
    """

    def __init__(self, keys: npt.NDArray[np.bool_], positions: npt.NDArray[np.int64]) -> None:
        self._groups = np.cumsum(keys)
        self._positions = positions
        self._by_position = np.argsort(positions)
        self._places = positions[self._by_position]
        self._first: dict[int, int] = {}

    def doubt(self, position: int) -> None:
        """Record damage at a place in decoding order.

        It belongs to the group of the frame at that place, or of the last frame before it.
        """
        at = max(int(np.searchsorted(self._places, position, side="right")) - 1, 0)
        group = int(self._groups[self._by_position[at]])
        self._first[group] = min(position, self._first.get(group, position))

    def doubted(self, index: int) -> bool:
        """Return whether the frame of an index (in presentation order) may be damaged.

        A frame shown before a keyframe but decoded after it may refer to either group.
        """
        group, position = int(self._groups[index]), int(self._positions[index])
        return any(self._first.get(near, position + 1) <= position for near in (group, group + 1))
