"""``h264``, ``av1`` and ``ffv1``: videos, arrays of frames, each a small file of its own.

libavcodec encodes and decodes them, through PyAV, in one thread a value. Decoders and converters of pixels are kept by
each thread, because opening them takes longer than decoding a clip.
"""

import io
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import chain
from typing import Any, ClassVar

import av
import numpy as np
import numpy.typing as npt
from av.bitstream import BitStreamFilterContext
from av.video.reformatter import VideoReformatter

from shardspec.codecs.base import check_sides, codec_error
from shardspec.codecs.mp4 import FrameTable, add_sums, read_frame_table
from shardspec.columns import Buffer
from shardspec.schema import Field

DEFAULT_RATE = 25
"""Frames a second that a file announces if the field's configuration has no ``rate``; samples have the true times."""

_KEPT_DECODERS = 8
_LIMITED, _BT601 = 1, 5  # AVCOL_RANGE_MPEG, AVCOL_SPC_BT470BG
_VOID = b"\xec\x84"
"""An EBML element ``Void`` of four bytes, in which a Matroska file ends with the CRC-32 of all bytes before."""
_PADDING = 1 << 16
_DECODER_NAMES = {"av1": "libdav1d"}
_kept = threading.local()

Frames = npt.NDArray[np.uint8]


class VideoCodec:
    """Videos of RGB frames, uint8 (T, H, W, 3)."""

    encoder: ClassVar[str]
    container: ClassVar[str] = "mp4"
    filter: ClassVar[str | None] = None
    """Bitstream filter after the encoder."""

    def __init__(self, field: Field) -> None:
        self.field = field

    def options(self) -> dict[str, str]:
        """Return the encoder's options."""
        raise NotImplementedError

    def pixel_format(self, height: int, width: int) -> str:
        """Return libav's name of the format in which frames are encoded."""
        raise NotImplementedError

    def encode(self, value: Any) -> Buffer:
        """Encode the frames of a video, one or more. Equal frames give equal bytes, on processors of one kind."""
        writer = self.writer()
        for image in check_video(self.field, value):
            writer.add(image)
        return writer.finish()

    def writer(self) -> "VideoWriter":
        """Return an encoder of one video, which takes its frames one after another."""
        return VideoWriter(self)

    def shape(self, data: Buffer) -> tuple[int, int, int, int]:
        """Return the shape of an encoded video, (T, H, W, 3), from its header; `CodecError` if it is invalid."""
        table = self._table(data)
        return len(table.sizes), table.height, table.width, 3

    def decode(self, data: Buffer, out: npt.NDArray[Any] | None = None) -> Frames:
        """Decode all frames, into `out` if it is given: uint8 (T, H, W, 3)."""
        table = self._table(data)
        return self._decode(table, range(len(table.sizes)), out)

    def decode_frames(
        self,
        data: Buffer,
        numbers: Sequence[int] | Callable[[int], Sequence[int]],
        out: npt.NDArray[Any] | None = None,
        at: Sequence[int] | None = None,
    ) -> Frames:
        """Decode some frames, by their numbers in the video; a number may occur more than once.

        Only the groups of frames from the key frame before each of them are decoded.

        Parameters
        ----------
        data : Buffer
        numbers : sequence of int, (n,), or callable
            0 to T - 1. A callable gets T, and returns them.
        out : ndarray, optional
            Uint8, (n, H, W, 3), or with `at` any number of frames.
        at : sequence of int, (n,), optional
            Where in `out` each frame belongs.

        Raises
        ------
        CodecError
            If the bytes are damaged, or a frame does not exist.
        """
        table = self._table(data)
        count = len(table.sizes)
        if callable(numbers):
            numbers = numbers(count)
        if len(numbers) and not 0 <= min(numbers) <= max(numbers) < count:
            raise codec_error(
                self.field, expected=f"frames 0 to {count - 1}", found=f"{min(numbers)} to {max(numbers)}"
            )
        return self._decode(table, numbers, out, at)

    def _table(self, data: Buffer) -> FrameTable:
        try:
            table = self._read_table(memoryview(data))
        except ValueError as error:
            raise codec_error(self.field, expected="a video that decodes", found=error) from error
        self._check(len(table.sizes), table.height, table.width)
        return table

    def add_sums(self, data: bytes) -> bytes:
        """Return a file with checksums at its end, where players skip them."""
        return add_sums(data)

    def _read_table(self, data: memoryview) -> FrameTable:
        return read_frame_table(data)

    def _check(self, count: int, height: int, width: int) -> None:
        length, *sides = self.field.shape[:3]
        if length not in (None, count):
            raise codec_error(self.field, expected=f"a video of shape {self.field.shape}", found=f"{count} frames")
        for expected, found in zip(sides, (height, width), strict=True):
            if expected not in (None, found):
                raise codec_error(
                    self.field,
                    expected=f"a video of shape {self.field.shape}",
                    found=f"one of {width} x {height} pixels",
                )
        check_pixels = Field("frame", "bytes", "|u1", (None, None, 3))
        check_sides(check_pixels, height, width)

    def _decode(
        self,
        table: FrameTable,
        numbers: Sequence[int],
        out: npt.NDArray[Any] | None,
        at: Sequence[int] | None = None,
    ) -> Frames:
        shape = (len(numbers), table.height, table.width, 3)
        if out is None:
            out = np.empty(shape, np.uint8)
        elif out.shape != shape and (at is None or out.shape[1:] != shape[1:]):
            raise codec_error(self.field, expected=f"a video of shape {out.shape}", found=shape)
        places: dict[int, list[int]] = {}
        for place, number in zip(range(len(numbers)) if at is None else at, numbers, strict=True):
            places.setdefault(int(number), []).append(place)
        keys = np.flatnonzero(table.keys)
        needed: list[int] = []
        for number in sorted(places):
            key = int(keys[np.searchsorted(keys, number, "right") - 1])
            needed.extend(range(max(key, needed[-1] + 1 if needed else 0), number + 1))
        found = 0
        try:
            for number, image in _decoded(table, needed, places):
                if image.shape != shape[1:]:
                    raise codec_error(self.field, expected=f"frames of {shape[1:]}", found=image.shape)
                for place in places[number]:
                    out[place] = image
                found += 1
        except av.FFmpegError as error:
            _forget(table)
            raise codec_error(self.field, expected="a video that decodes", found=_reason(error)) from error
        if found != len(places):
            _forget(table)
            raise codec_error(self.field, expected=f"{len(places)} frames", found=f"{found} that decode")
        return out


class VideoWriter:
    """Encodes the frames of one video, one after another. It holds their encoded bytes, and no frame.

    Attributes
    ----------
    frames : int
        Number of frames so far.
    """

    def __init__(self, codec: VideoCodec) -> None:
        self._codec = codec
        self._file = io.BytesIO()
        self._converter = VideoReformatter()
        self._container: Any = None
        self._stream: Any = None
        self._filter: BitStreamFilterContext | None = None
        self.frames = 0

    @property
    def bytes(self) -> int:
        """Number of encoded bytes so far."""
        return self._file.tell()

    def add(self, image: npt.NDArray[np.uint8]) -> None:
        """Encode a frame, uint8 (H, W, 3), of the size of the first one.

        Raises
        ------
        CodecError
            If the encoder does not take it.
        """
        height, width = image.shape[:2]
        with self._naming(height, width):
            if self._container is None:
                self._open(height, width)
            stream = self._stream
            rgb = av.VideoFrame.from_ndarray(image, "rgb24")
            frame: Any = self._converter.reformat(
                rgb, format=stream.pix_fmt, dst_colorspace=_BT601, dst_color_range=_LIMITED, threads=1
            )
            frame.pts, frame.time_base = self.frames, stream.codec_context.time_base
            self._mux(stream.encode(frame))
        self.frames += 1

    def finish(self) -> Buffer:
        """Return the video's bytes. One frame at least has been added."""
        with self._naming(self._stream.height, self._stream.width):
            self._mux(self._stream.encode(None))
            if self._filter is not None:
                self._container.mux(self._filter.filter(None))
            self._container.close()
        return self._codec.add_sums(self._file.getvalue())

    def _open(self, height: int, width: int) -> None:
        codec = self._codec
        # bitexact: no version of the library and no random number in the file
        self._container = av.open(self._file, "w", format=codec.container, options={"fflags": "+bitexact"})
        rate = Fraction(codec.field.codec.configuration.get("rate", DEFAULT_RATE)).limit_denominator(1001)
        rate = max(rate, Fraction(1, 1001))
        stream: Any = self._container.add_stream(codec.encoder, rate, options=codec.options())
        stream.height, stream.width = height, width
        stream.pix_fmt = codec.pixel_format(height, width)
        stream.codec_context.thread_count = 1
        stream.codec_context.time_base = 1 / rate
        if stream.pix_fmt.startswith("yuv"):
            stream.codec_context.color_range, stream.codec_context.colorspace = _LIMITED, _BT601
        self._container.start_encoding()
        self._stream = stream
        self._filter = None if codec.filter is None else BitStreamFilterContext(codec.filter, stream)

    def _mux(self, packets: Iterable[Any]) -> None:
        for packet in packets:
            self._container.mux([packet] if self._filter is None else self._filter.filter(packet))

    @contextmanager
    def _naming(self, height: int, width: int) -> Iterator[None]:
        try:
            yield
        except (av.FFmpegError, ValueError) as error:
            codec = self._codec
            raise codec_error(
                codec.field, f"cannot encode a video of {width} x {height} pixels as {codec.container}: {error}"
            ) from error


class H264Codec(VideoCodec):
    """H.264 in MP4, encoded by x264.

    Configuration: ``quality``, the quantizer (QP) of frames that are not key frames, 0 to 51, less is better; ``gop``,
    the largest number of frames from one key frame to the next; ``subsampling``, ``"420"`` or ``"444"`` (odd sides are
    always stored as 4:4:4); ``rate``, frames a second. Decoding needs none of them.

    Frames are stored in the order of display and without arithmetic coding, which decodes in half of the time and takes
    a tenth more bytes. x264's weights for human viewers are off: they cost 0.4 dB. The quantizer is constant, so that
    nothing looks ahead: with a constant rate factor, equal frames did not always give equal bytes.
    """

    encoder = "libx264"
    filter = "filter_units=remove_types=6"  # the text in which x264 names its version and options

    def options(self) -> dict[str, str]:
        """Return x264's options."""
        configuration = self.field.codec.configuration
        return {
            "preset": "veryfast",
            "qp": str(configuration.get("quality", 21)),
            "g": str(configuration.get("gop", 4)),
            "bf": "0",
            "coder": "0",
            "x264-params": "aq-mode=0:no-psy=1:scenecut=0:mbtree=0:weightp=0:threads=1:lookahead-threads=1",
        }

    def pixel_format(self, height: int, width: int) -> str:
        """Return 4:2:0 if the configuration and the sides allow it, otherwise 4:4:4."""
        full = self.field.codec.configuration.get("subsampling") == "444" or height % 2 or width % 2
        return "yuv444p" if full else "yuv420p"


class AV1Codec(VideoCodec):
    """AV1 in MP4, encoded by SVT-AV1: half of the bytes of H.264, free of royalties, and slow to encode.

    Configuration: ``quality``, the CRF, 1 to 63; ``gop``; ``rate``.
    """

    encoder = "libsvtav1"

    def options(self) -> dict[str, str]:
        """Return SVT-AV1's options."""
        # Otherwise it writes its settings to standard error, and an error for each video that is not finished.
        os.environ.setdefault("SVT_LOG", "0")
        configuration = self.field.codec.configuration
        return {
            "preset": "8",
            "crf": str(configuration.get("quality", 25)),
            "g": str(configuration.get("gop", 4)),
            "svtav1-params": "lp=1:pred-struct=1",
        }

    def pixel_format(self, height: int, width: int) -> str:
        """Return 4:2:0."""
        return "yuv420p"


class FFV1Codec(VideoCodec):
    """FFV1 in Matroska: lossless. Every frame is a key frame. Configuration: ``rate``."""

    encoder = "ffv1"
    container = "matroska"

    def options(self) -> dict[str, str]:
        """Return FFV1's options."""
        return {"level": "3", "g": "1", "coder": "1", "context": "0", "slices": "4", "slicecrc": "1"}

    def pixel_format(self, height: int, width: int) -> str:
        """Return RGB with a byte of padding."""
        return "bgr0"

    def add_sums(self, data: bytes) -> bytes:
        """Return a file with a checksum at its end."""
        return data + _VOID + zlib.crc32(_VOID, zlib.crc32(data)).to_bytes(4, "big")

    def _read_table(self, data: memoryview) -> FrameTable:
        if data[-6:-4] != _VOID or zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "big"):
            raise ValueError("a Matroska file that is cut off, or whose checksum differs")
        try:
            with av.open(io.BytesIO(data), format=self.container) as container:
                (stream,) = container.streams
                context: Any = stream.codec_context
                packets = [bytes(packet) for packet in container.demux(stream) if packet.size]
        except av.FFmpegError as error:
            raise ValueError(_reason(error)) from error
        sizes = np.array([len(packet) for packet in packets], np.int64)
        if context.name != self.encoder or not len(sizes):
            raise ValueError(f"{len(sizes)} frames of {context.name}")
        keys = np.ones(len(sizes), np.bool_)
        frames = memoryview(b"".join(packets))
        return FrameTable(
            context.name,
            context.extradata or b"",
            context.height,
            context.width,
            frames,
            np.cumsum(sizes) - sizes,
            sizes,
            keys,
        )


def check_video(field: Field, value: Any) -> Frames:
    """Return a video as a C-contiguous uint8 array, (T, H, W, 3); `CodecError` if `value` does not fit the field."""
    array = np.asarray(value)
    fits = array.ndim == 4 and all(e in (None, a) for e, a in zip(field.shape, array.shape, strict=True))
    if not fits or array.dtype != np.uint8 or not array.size:
        raise codec_error(
            field,
            expected=f"a video, uint8 of shape {field.shape}",
            found=f"{array.dtype.str} of shape {array.shape}",
        )
    return np.ascontiguousarray(array)


def _decoded(table: FrameTable, needed: Iterable[int], wanted: Container[int]) -> Iterator[tuple[int, Frames]]:
    """Yield the number and the pixels, (H, W, 3), of each wanted frame, which the next one replaces.

    `needed` has the wanted frames and those that they refer to, in order.
    """
    decoder, converter = _tools(table)
    for packet in chain((_packet(table, number) for number in needed), (None,)):
        for frame in decoder.decode(packet):
            if frame.is_corrupt:
                raise av.InvalidDataError(1, f"frame {frame.pts} is damaged")
            if frame.pts in wanted:
                rgb: Any = converter.reformat(frame, format="rgb24", threads=1)
                plane = rgb.planes[0]
                rows = np.frombuffer(plane, np.uint8).reshape(frame.height, plane.line_size)
                yield frame.pts, rows[:, : 3 * frame.width].reshape(frame.height, frame.width, 3)
    decoder.flush_buffers()  # it may be used again


def _packet(table: FrameTable, number: int) -> av.Packet:
    start = int(table.starts[number])
    data = table.data[start : start + int(table.sizes[number])]
    if len(table.sums) and zlib.crc32(data) != table.sums[number]:
        raise av.InvalidDataError(1, f"a checksum of frame {number} that differs")
    packet = av.Packet(data)
    packet.pts = packet.dts = number
    return packet


def _tools(table: FrameTable) -> tuple[Any, VideoReformatter]:
    """Return this thread's decoder and converter for videos of one configuration. The least recently used are closed."""
    kept = _kept.__dict__.setdefault("tools", OrderedDict())
    key = (table.decoder, table.extradata, table.height, table.width)
    found: tuple[Any, VideoReformatter] | None = kept.get(key)
    if found is None:
        decoder: Any = av.CodecContext.create(_DECODER_NAMES.get(table.decoder, table.decoder), "r")
        decoder.thread_count = 1
        decoder.extradata = table.extradata
        decoder.width, decoder.height = table.width, table.height
        # The sides were checked: libav must not allocate memory for others.
        decoder.options = {"err_detect": "explode", "max_pixels": str(table.height * table.width * 2 + _PADDING)}
        found = kept[key] = decoder, VideoReformatter()
        if len(kept) > _KEPT_DECODERS:
            kept.popitem(last=False)
    kept.move_to_end(key)
    return found


def _forget(table: FrameTable) -> None:
    """Drop the decoder of a damaged video, so that no later video depends on its state."""
    _kept.__dict__.get("tools", {}).pop((table.decoder, table.extradata, table.height, table.width), None)


def _reason(error: Exception) -> str:
    return str(error.args[1]) if len(error.args) > 1 else str(error)
