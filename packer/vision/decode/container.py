"""Opening a video file and finding its video stream."""

from os import fsdecode

import av
import av.container
import av.video.stream
import numpy as np

from packer.vision.decode.limits import Input, PictureError, VideoError, check_size, open_input
from shardspec.errors import system_reason

# libavformat's demuxers for these suffixes and no others: a playlist named .mp4 would open further files and addresses.
_DEMUXERS = "mov,matroska,avi,mpegts,mpeg,mpegvideo,asf,flv,ogg"
# Formats in which a packet that is cut off looks like any other. Only the decoder can notice it then, and one that
# decodes several frames at a time hands a frame out before it knows.
_CUT_UNNOTICED = frozenset({"mpeg", "mpegts", "mpegvideo"})
# Decoders that hand out a frame as whole after an error in it, unless every error ends the frame. The option is not set
# for others: H.264's decoder flags what it conceals, and in a file that was cut out of another it treats what is
# missing as an error; TIFF's refuses files of its own encoder.
_ERROR_ENDS_FRAME = frozenset({"hevc", "jpegls", "ljpeg", "mjpeg"})
# A decoder that shows memory that it never wrote, without an error: for a damaged file, other pixels each time.
_NOT_REPEATABLE = {"cfhd": "CineForm"}
# The most that libav allocates at once. It refuses a larger request, which a damaged index makes, as if memory were out.
_AV_BYTES = 2**31 - 1
_OPTIONS = {"format_whitelist": _DEMUXERS, "protocol_whitelist": "file"}


def open_video(
    source: Input, *, max_pixels: int, threads: int = 1
) -> tuple[av.container.InputContainer, av.video.stream.VideoStream]:
    """Open a file and choose its video stream: the default one, else the first; never an attached cover picture.

    The caller closes the container. The decoder has `threads` threads, but one for MPEG transport and program streams.

    Raises
    ------
    VideoError
        If libav cannot open the file, if there is no video stream, or if its frames have more than `max_pixels`.
    OSError
        If the file cannot be read at all (missing, not permitted).
    """
    with open_input(source) as file:  # fails with Python's own error
        if not file.read(1):
            raise VideoError("expected a video, found an empty file")
    opened = source() if callable(source) else f"file:{fsdecode(source)}"
    try:
        container = av.open(opened, options=_OPTIONS, metadata_errors="replace")
    except MemoryError:  # also one of libav's own errors
        if not _has_memory():
            raise
        raise VideoError(
            "expected a video, found a file that does not open: its index asks for more memory than any needs (damaged)"
        ) from None  # a memory error among the causes would count as one of the machine
    except (av.error.FFmpegError, ValueError) as error:
        raise VideoError(
            f"expected a video, found a file that does not open: {system_reason(error)} "
            "(cut off before its index, or no video)"
        ) from error
    try:
        stream = _choose(container)
        _check_codec(stream.codec.canonical_name)
        check_size(stream.codec_context.width, stream.codec_context.height, max_pixels)
        strict = {"err_detect": "explode"} if stream.codec.canonical_name in _ERROR_ENDS_FRAME else {}
        stream.codec_context.options = {"max_pixels": str(max_pixels), **strict}
        parallel = threads > 1 and container.format.name not in _CUT_UNNOTICED
        stream.codec_context.thread_count = threads if parallel else 1
        stream.codec_context.thread_type = "FRAME" if parallel else "NONE"
    except (av.error.FFmpegError, PictureError, VideoError) as error:
        container.close()
        if isinstance(error, MemoryError):
            raise
        raise VideoError(str(error)) from error
    return container, stream


def _has_memory() -> bool:
    """Whether as much memory could be had as libav ever asks for at once; none is touched."""
    try:
        np.empty(_AV_BYTES, np.uint8)
    except MemoryError:
        return False
    return True


def _check_codec(name: str) -> None:
    if name in _NOT_REPEATABLE:
        raise VideoError(
            f"expected a codec whose decoder gives the same pixels every time, found {_NOT_REPEATABLE[name]} ({name}): "
            "convert the file without loss, for example with ffmpeg -i IN -c:v ffv1 OUT.mkv"
        )


def _choose(container: av.container.InputContainer) -> av.video.stream.VideoStream:
    cover = av.stream.Disposition.attached_pic | av.stream.Disposition.timed_thumbnails
    streams = [stream for stream in container.streams.video if not stream.disposition & cover]
    if not streams:
        kinds = ", ".join(sorted({stream.type for stream in container.streams})) or "no stream at all"
        raise VideoError(f"expected a video stream, found {kinds}")
    defaults = [stream for stream in streams if stream.disposition & av.stream.Disposition.default]
    chosen = (defaults or streams)[0]
    if chosen.codec_context is None:
        raise VideoError("expected a video codec that libav knows, found another")
    return chosen
