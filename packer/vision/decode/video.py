"""The sampled frames of one video, streamed.

Frames are numbered in presentation order. A frame's time is seconds from the beginning of the file, as players show it
(the earliest timestamp of any of its streams is 0); a frame without a timestamp, or with one that does not follow the
last frame's, is timed by the average rate.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import numpy.typing as npt

from packer.vision.decode.container import open_video
from packer.vision.decode.frame import RgbConverter
from packer.vision.decode.limits import MAX_PIXELS, Input, VideoError
from packer.vision.decode.sampling import Sampling, neighbours
from packer.vision.decode.stream import Decoding
from packer.vision.decode.timeline import scan


@dataclass(frozen=True, slots=True)
class VideoFrame:
    """One frame.

    Attributes
    ----------
    index : int
        Its place in presentation order, from 0.
    time : float, seconds
        Its presentation time.
    position : int
        Its place among the sampled frames, from 0. Frames that are left out because of damage keep their place.
    image : ndarray, (H, W, 3), uint8
        RGB, upright, C-contiguous, the reader's own copy.
    """

    index: int
    time: float
    position: int
    image: npt.NDArray[np.uint8]


class VideoReader:
    """Iterates over the sampled frames of a video, once; memory does not grow with its length.

    For one thread at a time. Not picklable. Use it as a context manager, or call `close`.

    Parameters
    ----------
    source : path, or callable that opens a binary file
    sampling : Sampling
    max_pixels : int
        Largest width times height of a frame.
    threads : int
        Threads of the decoder; with more than one, that many frames are decoded at a time (not in MPEG transport and
        program streams). The frames are the same, unless some in the middle of the file are damaged: libavcodec may
        then report a damaged frame too late, so that only one thread gives the same frames every time.

    Attributes
    ----------
    frames_seen : int
        How many frames the file holds, as far as is known so far.
    frames_read : int
        How many frames were handed out or skipped.
    damage : str or None
        Why the frames are not all that the sampling asks for, or the file is not all that it announces; complete once
        the iteration has ended. Frames that are or may be damaged are left out: those that do not decode, and those
        decoded after them up to the next keyframe.

    Raises
    ------
    VideoError
        If the file cannot be opened or holds no video (on construction), or if the iteration ends without a frame.
    OSError
        If the file cannot be read at all (on construction).
    """

    def __init__(self, source: Input, sampling: Sampling, *, max_pixels: int = MAX_PIXELS, threads: int = 1) -> None:
        if threads < 1:
            raise ValueError(f"expected at least one thread, found {threads}")
        self._timeline = scan(source, max_pixels=max_pixels)
        if not self._timeline.count:
            raise VideoError(
                f"expected at least one frame, found none: {self._timeline.damage or 'the stream is empty'}"
            )
        self._container, stream = open_video(source, max_pixels=max_pixels, threads=threads)
        self._decoding = Decoding(self._container, stream, self._timeline, sampling)
        self._to_rgb = RgbConverter(max_pixels)
        self._first = 0
        self.frames_seen = self._timeline.count
        self.frames_read = 0

    @property
    def damage(self) -> str | None:
        """Description of what was missing or damaged so far, None if nothing was."""
        found = [self._timeline.damage] if self._timeline.damage else []
        return "; ".join(found + self._decoding.problems) or None

    @property
    def sampled(self) -> tuple[int, ...] | None:
        """Indices of the frames that the sampling asks for; None if they are known only once the frames are decoded."""
        return self._decoding.sampled()

    def __enter__(self) -> "VideoReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the decoder and the file. May be called twice."""
        self._container.close()

    def stop(self) -> None:
        """Make the iteration end soon, with any frames or none. Any thread may call it."""
        self._decoding.stop()

    def skip_to(self, index: int) -> None:
        """Hand out no frame before this one from now on. They are decoded, but not converted."""
        self._first = index

    def neighbours(self, frames: int) -> dict[int, tuple[int, ...]]:
        """The frames that may stand in for each of so many (`packer.vision.decode.sampling.neighbours`)."""
        return neighbours(self.frames_seen, frames)

    def __iter__(self) -> Iterator[VideoFrame]:
        for index, time, position, frame in self._decoding.frames():
            self.frames_read += 1
            if index >= self._first:
                yield VideoFrame(index, time, position, self._to_rgb(frame))
        if not self.frames_read:
            raise VideoError(f"expected at least one frame, found none that is whole: {self.damage or 'no keyframe'}")
