"""Parts of a frame that the decoder did not write: what lies there is what was in the memory before.

libavcodec gives the memory of a frame to later frames, and several of its decoders hand out a frame as whole that they left half
undecoded. Memory that comes back is therefore filled with noise here; where a frame still shows it, nothing was written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import av
import numpy as np
from av.codec.context import CodecContext
from av.packet import Packet
from av.video.frame import VideoFrame
from numpy.typing import NDArray

# Decoders that report, or flag, every frame that they did not write whole, as found by trying (tests/test_packer/
# test_decode_histories.py). They need no noise.
_REPORT_ALL = frozenset(
    {
        *(
            "av1",
            "flv1",
            "h263",
            "h264",
            "mjpeg",
            "mpeg1video",
            "mpeg2video",
            "mpeg4",
            "msmpeg4v2",
            "msmpeg4v3",
            "prores",
        ),
        *("vp9", "wmv1", "wmv2"),
    }
)
_HELD = 8  # frames that are kept until the decoder refers to them no more
_FILLED_BEFOREHAND = 12
_WORD = 8  # bytes; noise of that length does not occur in a picture by chance


class FrameMemory:
    """Fills the memory of a decoder's frames with noise, and finds what of it is left.

    A frame is looked at once, then given back once it has been used. Memory to which the decoder still refers when `_HELD` more
    frames have been given back is not filled, nor is memory of which only the decoder knows (frames that are not shown).

    Parameters
    ----------
    context : CodecContext
        Not yet used. With several threads, and for decoders that report what they did not write, nothing is done.
    """

    def __init__(self, context: CodecContext) -> None:
        self._context = context
        self._idle = context.thread_count != 1 or context.codec.canonical_name in _REPORT_ALL
        self._held: deque[VideoFrame] = deque()
        self._filled: set[int] = set()
        self._noise = np.empty(0, np.uint64)

    def prepare(self, packet: Packet) -> None:
        """Fill memory beforehand: that of the first packet's frame, many times over. The decoder begins anew after it."""
        if self._idle:
            return
        frames: list[VideoFrame] = []
        for sent in [*[packet] * _FILLED_BEFOREHAND, None]:
            try:
                frames += self._context.decode(sent)
            except av.error.FFmpegError:
                break
        self._context.flush_buffers()
        for frame in frames:
            self._fill(frame)

    def left_unwritten(self, frame: VideoFrame) -> bool:
        """Whether some of a frame is still noise; False where its memory was not filled."""
        if self._idle:
            return False
        address = frame.planes[0].buffer_ptr
        if address not in self._filled:
            return False
        self._filled.discard(address)
        return any((words == self._noise_for(words)).any() for words in _words(frame))

    def give_back(self, frame: VideoFrame) -> None:
        """Let go of a frame. Nobody looks at it any more."""
        if self._idle:
            return
        self._held.append(frame)
        if len(self._held) > _HELD:
            self._fill(self._held.popleft())

    def _fill(self, frame: VideoFrame) -> None:
        address = frame.planes[0].buffer_ptr
        frame.make_writable()  # other memory, where the decoder still refers to this one
        if frame.planes[0].buffer_ptr != address:
            return
        for words in _words(frame):
            words[:] = self._noise_for(words)
        self._filled.add(address)

    def _noise_for(self, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        if len(self._noise) < words.size:
            self._noise = np.random.default_rng(0).integers(1 << 64, size=words.size, dtype=np.uint64)
        return self._noise[: words.size].reshape(words.shape)


def _words(frame: VideoFrame) -> Iterator[NDArray[np.uint64]]:
    """What is seen of each plane, (height, n), without the bytes of a row that fill no word: no palette, no transparency alone."""
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
        rows = np.frombuffer(plane, np.uint8).reshape(-1, size)
        yield rows[:, : min(count, size) // _WORD * _WORD].view(np.uint64)
