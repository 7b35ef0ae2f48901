"""Open a video file, find its video stream, and compare what the file announces with what it contains."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import pairwise
from os import SEEK_END, fsdecode
from typing import NamedTuple

import av
import av.audio.stream
import av.container
import av.format
import av.video.stream
import numpy as np

from packer.vision.decode.limits import ImageError, MediaFile, SoundError, VideoError, check_size, open_media
from shardspec.errors import system_reason

# libavformat's demuxers for these suffixes and no others: a playlist named .mp4 would open further files and addresses.
_DEMUXERS = "mov,matroska,avi,mpegts,mpeg,mpegvideo,asf,flv,ogg"
# Decoders that return a frame as whole after an error in it, unless every error ends the frame. The option is not set
# for others: H.264's decoder flags the parts that it conceals, and in a file that was cut out of another it treats
# missing frames as errors; TIFF's decoder refuses files of libav's own encoder.
_ERROR_ENDS_FRAME = frozenset({"hevc", "jpegls", "ljpeg", "mjpeg"})
# A decoder that shows memory that it never wrote, without an error: for a damaged file, other pixels each time.
_NOT_REPEATABLE = {"cfhd": "CineForm"}
# The largest block that libav allocates. It refuses a larger request, as from a damaged index, as if memory were out.
_AV_BYTES = 2**31 - 1
_OPTIONS = {"format_whitelist": _DEMUXERS, "protocol_whitelist": "file"}
# MPEG transport streams (ISO/IEC 13818-1, 2.4.3.2).
_TS_PACKET_BYTES = (188, 192, 204)  # the last two with a timestamp or a checksum
_TS_HEADER_BYTES = 4
_TS_SYNC = 0x47
_TS_HAS_PAYLOAD = 0x10
_MISSING_S = 0.5  # seconds by which a container may announce more than it holds: rounding, and what muxers add
_MATROSKA_MISSING_S = 0.1  # for Matroska and WebM: the last packet's duration; audio packets were seen to lack 0.02 s


def open_video(
    source: MediaFile, *, max_pixels: int
) -> tuple[av.container.InputContainer, av.video.stream.VideoStream]:
    """Open a file and choose its video stream: the default one, else the first; never an attached cover image.

    The caller closes the container. The decoder has one thread: with more, it may report damage too late.

    Raises
    ------
    VideoError
        If libav cannot open the file, if there is no video stream, or if its frames have more than `max_pixels`.
    OSError
        If the file cannot be read at all (missing, not permitted).
    """
    container = open_input(source, "video", VideoError)
    try:
        stream = _choose(container)
        _check_codec(stream.codec.canonical_name)
        check_size(stream.codec_context.width, stream.codec_context.height, max_pixels)
        strict = {"err_detect": "explode"} if stream.codec.canonical_name in _ERROR_ENDS_FRAME else {}
        stream.codec_context.options = {"max_pixels": str(max_pixels), **strict}
        stream.codec_context.thread_count = 1
        stream.codec_context.thread_type = "NONE"
    except (av.error.FFmpegError, ImageError, VideoError) as error:
        container.close()
        if isinstance(error, MemoryError):
            raise
        raise VideoError(str(error)) from error
    return container, stream


def open_audio(source: MediaFile) -> tuple[av.container.InputContainer, av.audio.stream.AudioStream | None]:
    """Open a video file again for its sound: the default stream, or else the first stream that libav can decode.

    The stream is None if the file has no such stream. The caller closes the container. Errors are as in `open_video`.
    """
    container = open_input(source, "video", VideoError)
    return container, choose_audio(container)


def choose_audio(container: av.container.InputContainer) -> av.audio.stream.AudioStream | None:
    """Return the default stream of sound, or else the first one that libav can decode; None if there is none."""
    streams = [stream for stream in container.streams.audio if stream.codec_context is not None]
    defaults = [stream for stream in streams if stream.disposition & av.stream.Disposition.default]
    chosen = next(iter(defaults or streams), None)
    if chosen is not None:
        chosen.codec_context.thread_count = 1
    return chosen


def open_input(
    source: MediaFile, kind: str, fault: type[VideoError | SoundError], demuxers: str = _DEMUXERS
) -> av.container.InputContainer:
    """Open a file of a kind, which messages name. The caller closes the container.

    Raises
    ------
    VideoError or SoundError
        The `fault`, if libav cannot open the file.
    OSError
        If the file cannot be read at all (missing, not permitted).
    """
    with open_media(source) as file:  # fails with Python's own error
        if not file.read(1):
            raise fault(expected=f"a {kind}", found="an empty file")
    cause: Exception | None = None
    try:
        return _open(source, {"format_whitelist": demuxers})
    except MemoryError:  # also one of libav's own errors; among the causes it would count as one of the machine
        if not _has_memory():
            raise
        hint = "its index asks for more memory than any needs (damaged)"
    except (av.error.FFmpegError, ValueError) as error:
        hint, cause = f"{system_reason(error)} (cut off before its index, or no {kind})", error
    raise fault(expected=f"a {kind}", found="a file that does not open", hint=hint) from cause


def _open(source: MediaFile, options: Mapping[str, str]) -> av.container.InputContainer:
    opened = source() if callable(source) else f"file:{fsdecode(source)}"
    return av.open(opened, options={**_OPTIONS, **options}, metadata_errors="replace")


def has_timestamps(container: av.container.InputContainer) -> bool:
    """Return whether the format stores times of frames; libavformat makes up the times of a bare stream."""
    return not container.format.flags & av.format.Flags.no_timestamps.value


def describe_missing(
    source: MediaFile,
    container: av.container.InputContainer,
    stream: av.video.stream.VideoStream,
    *,
    packets: int,
    start: Fraction,
    end: Fraction,
    longest: float,
) -> str | None:
    """Describe frames or seconds that a file announces but does not contain; None if nothing is missing.

    Parameters
    ----------
    source, container, stream
        The file, open and read to its end.
    packets : int
        Number of packets of the stream.
    start, end : Fraction, seconds
        The first timestamp of all streams, and the end of the packet that is shown last.
    longest : float, seconds
        The longest time for which a frame of the stream is shown.
    """
    if stream.frames > packets and not _has_all_entries(source, container, stream, packets):
        return f"the file announces {stream.frames} frames and holds {packets}: it is cut off or damaged"
    announced = Fraction(container.duration or 0, av.time_base)
    seconds, tolerated = end - start, _MISSING_S
    if "matroska" in container.format.name:
        seconds = max(end, seconds)  # the announced duration may count from 0
        tolerated = min(tolerated, max(_MATROSKA_MISSING_S, 2 * longest))
    if not stream.frames and announced - seconds > tolerated:
        return f"the file announces {float(announced):.2f} s and holds {float(seconds):.2f} s: it is cut off or damaged"
    return None


def _has_all_entries(
    source: MediaFile, container: av.container.InputContainer, stream: av.video.stream.VideoStream, packets: int
) -> bool:
    """Return whether announced frames without a packet are only entries that are not to be shown."""
    if packets < sum(entry.size > 0 for entry in stream.index_entries):
        return False
    if container.format.name == "avi":  # an empty chunk repeats the frame before; the file's index is at its end
        with open_media(source) as file:
            size = int.from_bytes(file.read(8)[4:], "little")
            return bool(file.seek(0, SEEK_END) >= size)
    with _open(source, {"ignore_editlist": "1"}) as whole:
        return bool(len(whole.streams[stream.index].index_entries) >= stream.frames)


class PacketPosition(NamedTuple):
    """A packet in the file; `corrupt` is set by the container."""

    offset: int | None
    dts: int | None
    duration: int | None
    key: bool
    corrupt: bool


def find_cut_off(source: MediaFile, places: list[PacketPosition]) -> Iterator[int]:
    """Yield the places of the packets that the container calls corrupt, but not those before a joint.

    libavformat flags the frame before the one whose bytes are corrupt if it parses the stream, so both are yielded.
    """
    for place in (index for index, found in enumerate(places) if found.corrupt):
        near = places[place : place + 3]
        if not any(_is_joint(source, near[0].offset, last, first) for last, first in pairwise(near)):
            yield from range(place, min(place + 2, len(places)))


def _is_joint(source: MediaFile, begin: int | None, last: PacketPosition, first: PacketPosition) -> bool:
    """Return whether two MPEG transport streams are joined between two packets, `last` and `first`.

    The numbers of the stream's packets in the file jump there. If they jump anywhere else after `begin`, or if there is
    time for a frame in between, packets are lost.
    """
    end = first.offset
    if begin is None or end is None or end <= begin or not first.key or last.dts is None or first.dts is None:
        return False
    if first.dts - last.dts >= 2 * (last.duration or 0):
        return False
    with open_media(source) as file:
        file.seek(begin)
        data = file.read(end + _TS_HEADER_BYTES - begin)
    size = next((size for size in _TS_PACKET_BYTES if set(data[::size]) == {_TS_SYNC}), 0)
    if not size:
        return False
    numbers = []
    for at in range(0, len(data), size):
        of_stream = (data[at + 1] ^ data[1]) & 0x1F == 0 and data[at + 2] == data[2]
        if of_stream and data[at + 3] & _TS_HAS_PAYLOAD:
            numbers.append((at, data[at + 3] & 0x0F))
    return [at for (_, a), (at, b) in pairwise(numbers) if (b - a) % 16 != 1] == [end - begin]


def _has_memory() -> bool:
    """Return whether the largest block that libav ever requests can be allocated; none of it is touched."""
    try:
        np.empty(_AV_BYTES, np.uint8)
    except MemoryError:
        return False
    return True


def _check_codec(name: str) -> None:
    if name in _NOT_REPEATABLE:
        raise VideoError(
            expected="a codec whose decoder gives the same pixels every time",
            found=f"{_NOT_REPEATABLE[name]} ({name})",
            hint="convert the file without loss, for example with ffmpeg -i IN -c:v ffv1 OUT.mkv",
        )


def _choose(container: av.container.InputContainer) -> av.video.stream.VideoStream:
    cover = av.stream.Disposition.attached_pic | av.stream.Disposition.timed_thumbnails
    streams = [stream for stream in container.streams.video if not stream.disposition & cover]
    if not streams:
        kinds = ", ".join(sorted({stream.type for stream in container.streams})) or "no stream at all"
        raise VideoError(expected="a video stream", found=kinds)
    defaults = [stream for stream in streams if stream.disposition & av.stream.Disposition.default]
    chosen = (defaults or streams)[0]
    if chosen.codec_context is None:
        raise VideoError(expected="a video codec that libav knows", found="another")
    return chosen
