"""Find parts of a frame that the decoder did not write: they show the previous content of the memory.

libavcodec reuses the memory of a frame for later frames, and several of its decoders return a half-decoded frame as a
whole one. Memory that comes back is therefore filled with noise here; where a frame still shows it, nothing was
written. Some decoders leave or copy an older frame of the file there instead. These log an error, which is looked for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import av
import av.logging
import numpy as np
import numpy.typing as npt
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

# Decoders found by experiment to report or flag every frame that they did not write completely. They need no noise.
_REPORT_ALL = frozenset(
    {
        *("av1", "flv1", "h263", "h264", "mjpeg", "mpeg1video", "mpeg2video"),
        *("mpeg4", "msmpeg4v2", "msmpeg4v3", "prores", "vp9", "wmv1", "wmv2"),
    }
)
# Decoders that return a frame in spite of an error in it and only log the error. Parts of the frame are then zero or
# show an older frame.
_LOG_ERRORS = frozenset({"cinepak", "ffv1", "flashsv", "gif", "h261", "msvideo1", "qtrle", "snow", "zmbv"})
# Decoders that write blocks of at least 8 rows of every plane: checking one row of each block is enough.
_ROWS_A_BLOCK = {"hevc": 8, "vp8": 8}
_HELD = 8  # frames that are kept until the decoder no longer refers to them
_FILLED_BEFOREHAND = 2 * _HELD
_SHIFTS = 1009  # number of pieces of memory whose noise differs
_WORD = 8  # bytes; noise of this length does not occur in an image by chance
_LOG = threading.Lock()  # libav has one log for the whole process


class FrameMemory:
    """A decoder whose frames are in memory filled with noise; finds where noise is left.

    Each frame is examined once, and given back once it has been used. Two kinds of memory are not filled: memory to
    which the decoder still refers when `_HELD` more frames have been given back, and memory known only to the decoder
    (frames that are not shown).

    In codecs where no frame refers to another, each frame is decoded twice and must come out the same: a decoder may
    compute with memory that it did not write, and the result is no longer the noise.

    For decoders that only log the errors in a frame, a frame during which an error was logged counts as partly
    unwritten. For decoders that report damage reliably, this class only decodes. The context must not have been used
    yet.
    """

    def __init__(self, context: VideoCodecContext) -> None:
        self._context = context
        self._idle = context.codec.canonical_name in _REPORT_ALL
        self._twice = not self._idle and context.codec.intra_only
        self._prepared = self._idle
        self._logs = not self._idle and context.codec.canonical_name in _LOG_ERRORS
        self._step = _ROWS_A_BLOCK.get(context.codec.canonical_name, 1)
        self._held: deque[VideoFrame] = deque()
        self._filled: dict[int, int] = {}
        self._fillings = 0
        self._doubted: set[int] = set()
        self._noise = np.empty(0, np.uint64)

    def decode(self, packet: Packet[VideoStream] | None) -> list[VideoFrame]:
        """Return the frames that the decoder has for a packet (None at the end), or raise its `FFmpegError`."""
        if packet is not None and not self._prepared:
            self._prepared = self._prepare(packet)
        if self._logs:
            with decoder_errors() as errors:
                frames = self._context.decode(packet)
            if errors:
                self._doubted.update(map(_address, frames))
        else:
            frames = self._context.decode(packet)
        if self._twice and packet is not None:
            for frame, again in zip(frames, self._context.decode(packet), strict=False):
                if not all(
                    np.array_equal(a, b)
                    for a, b in zip(_words(frame, self._step), _words(again, self._step), strict=False)
                ):
                    self._doubted.add(_address(frame))
                self._filled.pop(_address(again), None)
                self.give_back(again)
        return frames

    def left_unwritten(self, frame: VideoFrame) -> bool:
        """Return whether the decoder left some of a frame unwritten; False if its memory was not filled."""
        if self._idle:
            return False
        address = _address(frame)
        if address in self._doubted:
            self._doubted.discard(address)
            return True
        shift = self._filled.pop(address, None)
        return shift is not None and any(
            (words == self._noise_for(words, shift)).any() for words in _words(frame, self._step)
        )

    def give_back(self, frame: VideoFrame) -> None:
        """Release a frame, which must not be used any more."""
        if self._idle:
            return
        self._held.append(frame)
        if len(self._held) > _HELD:
            self._fill(self._held.popleft())

    def _prepare(self, packet: Packet[VideoStream]) -> bool:
        """Fill memory beforehand by decoding one packet many times. The decoder restarts after it."""
        frames: list[VideoFrame] = []
        with suppress(av.error.FFmpegError):
            for _ in range(_FILLED_BEFOREHAND):
                frames += self._context.decode(packet)
        with suppress(av.error.FFmpegError):
            frames += self._context.decode(None)
        self._context.flush_buffers()
        for frame in frames:
            self.give_back(frame)
        return bool(frames)

    def _fill(self, frame: VideoFrame) -> None:
        address = _address(frame)
        frame.make_writable()  # moves it to other memory if the decoder still refers to this one
        if _address(frame) != address:
            return
        self._fillings += 1
        self._filled[address] = shift = self._fillings % _SHIFTS
        for words in _words(frame, self._step):
            words[:] = self._noise_for(words, shift)

    def _noise_for(self, words: npt.NDArray[np.uint64], shift: int) -> npt.NDArray[np.uint64]:
        if len(self._noise) < words.size + _SHIFTS:
            self._noise = np.random.default_rng(0).integers(1 << 64, size=words.size + _SHIFTS, dtype=np.uint64)
        return self._noise[shift : shift + words.size].reshape(words.shape)


@contextmanager
def decoder_errors() -> Iterator[list[Any]]:
    """Yield the list of errors that libav logs in this thread in the meantime. Logs of other threads are dropped."""
    with _LOG:
        level, skips = av.logging.get_level(), av.logging.get_skip_repeated()
        av.logging.set_level(av.logging.ERROR)
        av.logging.set_skip_repeated(False)
        try:
            with av.logging.Capture(local=False), av.logging.Capture() as errors:
                yield errors
        finally:
            av.logging.set_skip_repeated(skips)
            av.logging.set_level(level)


def _address(frame: VideoFrame) -> int:
    return frame.planes[0].buffer_ptr


def _words(frame: VideoFrame, step: int) -> Iterator[npt.NDArray[np.uint64]]:
    """Yield every `step`-th visible row of each plane, (rows, n), without the bytes of a row that fill no word.

    A palette is not visible, nor is a plane of transparency alone.
    """
    parts = [part for part in frame.format.components if not part.is_alpha]
    for index, plane in enumerate(frame.planes):
        inside = [part for part in parts if part.plane == index]
        if not inside:
            continue
        if len(frame.planes) == 1:
            count = frame.width * frame.format.padded_bits_per_pixel // 8
        else:
            count = plane.width * sum(-(-part.bits // 8) for part in inside)
        size = abs(plane.line_size)
        rows = np.frombuffer(cast("memoryview[int]", plane), np.uint8).reshape(-1, size)
        yield rows[step - 1 :: step, : min(count, size) // _WORD * _WORD].view(np.uint64)
