"""The sampled frames of one video, streamed.

Frames are numbered in presentation order. A frame's time is seconds from the beginning of the file, as players show it
(the earliest timestamp of any of its streams is 0); a frame without a timestamp, or with one that does not follow the
last frame's, is timed by the average rate.
"""

import struct
from collections.abc import Iterator
from types import TracebackType
from typing import Any, cast

import cv2
import numpy as np
import numpy.typing as npt
from av.sidedata.sidedata import Type as SideDataType
from av.video.frame import VideoFrame as LibavFrame
from av.video.reformatter import Interpolation, VideoReformatter

from packer.vision.decode.container import open_video
from packer.vision.decode.limits import MAX_PIXELS, MediaFile, VideoError, check_size
from packer.vision.decode.orientation import UPRIGHT, orient
from packer.vision.decode.sampling import Sampling, VideoFrame
from packer.vision.decode.stream import SampleDecoder
from packer.vision.decode.timeline import scan


class VideoReader:
    """Iterates over the sampled frames of a video, once; memory does not grow with its length.

    For one thread at a time. Not picklable. Use it as a context manager, or call `close`.

    Attributes
    ----------
    frames_seen : int
        Number of frames in the file that are known so far.
    frames_read : int
        Number of frames that were returned or skipped.
    wide_colours : str or None
        The standard of the colours, if it is HDR or has a wide gamut; known once a frame was returned. Such colours are
        not mapped.
    damage : str or None
        Why frames that the sampling asks for are missing, or the file is shorter than it announces; complete once the
        iteration has ended. Frames that are or may be damaged are left out: those that do not decode, and those decoded
        after them up to the next keyframe.

    Raises
    ------
    VideoError
        If the file cannot be opened or contains no video (on construction), or if the iteration ends without a frame.
    OSError
        If the file cannot be read at all (on construction).
    """

    def __init__(self, source: MediaFile, sampling: Sampling, *, max_pixels: int = MAX_PIXELS) -> None:
        self._timeline = scan(source, max_pixels=max_pixels)
        if not self._timeline.count:
            raise VideoError(
                expected="at least one frame", found="none", hint=self._timeline.damage or "the stream is empty"
            )
        self._container, stream = open_video(source, max_pixels=max_pixels)
        self._decoding = SampleDecoder(self._container, stream, self._timeline, sampling)
        self._to_rgb = RgbConverter(max_pixels)
        self._first = 0
        self.frames_seen = self._timeline.count
        self.frames_read = 0
        self.wide_colours: str | None = None

    @property
    def duration(self) -> float:
        """Length in seconds of the longest stream of the file, as far as its packets can be read."""
        return float(self._timeline.end)

    @property
    def damage(self) -> str | None:
        """Description of what was missing or damaged so far, None if nothing was."""
        found = [self._timeline.damage] if self._timeline.damage else []
        return "; ".join(found + self._decoding.problems) or None

    @property
    def start(self) -> float:
        """The time of the first frame by the timestamps of the container, in seconds, once a frame was returned."""
        return float(self._timeline.start) + self._decoding.start

    @property
    def sampled(self) -> tuple[int, ...] | None:
        """Index of the frame of each sample, rising; None if they are known only once the frames are decoded.

        With `Sampling.keyframes`, of each frame that is marked as a keyframe; some may refer to others and be no samples.
        `Sampling.resample_fps` may repeat an index.
        """
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
        """Make the iteration end soon, perhaps without a frame. Any thread may call it."""
        self._decoding.stop()

    def skip_to(self, index: int) -> None:
        """Skip all frames before `index`. They are decoded but not converted."""
        self._first = index

    def __iter__(self) -> Iterator[VideoFrame]:
        for taken in self._decoding.frames():
            self.frames_read += 1
            self.wide_colours = self.wide_colours or wide_colours(taken.frame)
            if taken.index < self._first:
                continue
            image = self._to_rgb(taken.frame)
            for position, span in enumerate(taken.spans, taken.position):
                own = image if position == taken.position else image.copy()
                yield VideoFrame(taken.index, taken.time, position, span, own)
        if not self.frames_read:
            raise VideoError(
                expected="at least one frame", found="none that is whole", hint=self.damage or "no keyframe"
            )


# Values of ISO/IEC 23091-2, as libav's enumerations have them.
_HDR = {16: "HDR (PQ)", 18: "HDR (HLG)"}  # transfer characteristics
_WIDE_GAMUT = {9: "BT.2020", 11: "DCI-P3", 12: "Display P3"}  # colour primaries


def wide_colours(frame: LibavFrame) -> str | None:
    """Return the name of a frame's colour standard if it is HDR or has a wide gamut."""
    return _HDR.get(frame.color_trc) or _WIDE_GAMUT.get(frame.color_primaries)


_MATRIX = struct.Struct("=9i")  # libavutil/display.h: a b u c d v x y w, in 16.16 and 2.30 fixed point
_ORIENTATIONS = {
    # signs of (a, d) if the axes stay, of (b, c) if they are exchanged -> EXIF orientation
    ("axes", 1, 1): 1,
    ("axes", -1, 1): 2,
    ("axes", -1, -1): 3,
    ("axes", 1, -1): 4,
    ("exchanged", 1, 1): 5,
    ("exchanged", 1, -1): 6,
    ("exchanged", -1, -1): 7,
    ("exchanged", -1, 1): 8,
}


class RgbConverter:
    """Converts the frames of one video; keeps libswscale's context between them. For one thread.

    `max_pixels` is checked for each frame, since a stream may change its size.
    """

    def __init__(self, max_pixels: int) -> None:
        self._max_pixels = max_pixels
        self._reformatter = VideoReformatter()
        self._to_thumbnail = VideoReformatter()

    def __call__(self, frame: LibavFrame) -> npt.NDArray[np.uint8]:
        """Convert a frame to (H, W, 3) and turn it upright.

        libswscale gets the same settings as from OpenCV 5: bicubic chroma, the frame's own matrix and range, and BGR
        output, because its code for BGR rounds differently from that for RGB (10-bit and odd-sized frames).
        """
        check_size(frame.width, frame.height, self._max_pixels)
        bgr = self._reformatter.reformat(frame, format="bgr24", interpolation=Interpolation.BICUBIC, threads=1)
        plane = bgr.planes[0]
        rows = np.frombuffer(cast("memoryview[int]", plane), np.uint8).reshape(-1, plane.line_size)[
            : bgr.height, : 3 * bgr.width
        ]
        pixels = rows.reshape(bgr.height, bgr.width, 3)
        # In PyAV a frame and its side data refer to each other, so a frame whose side data was read stays until a
        # garbage collection. The decoder would get its memory back at a time that depends on everything else the
        # process has
        # done.
        thumbnail = self._to_thumbnail.reformat(bgr, 8, 8, "rgb24", interpolation=Interpolation.POINT, threads=1)
        return orient(np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), np.uint8), orientation(thumbnail))


def orientation(frame: LibavFrame) -> int:
    """Return the EXIF orientation that turns a frame for display, to the nearest quarter turn."""
    side_data = frame.side_data.get("DISPLAYMATRIX")
    if side_data is None:
        return UPRIGHT
    a, b, _, c, d, *_ = _MATRIX.unpack_from(cast("memoryview[int]", side_data))
    if abs(a) + abs(d) >= abs(b) + abs(c):
        return _ORIENTATIONS["axes", _sign(a), _sign(d)]
    return _ORIENTATIONS["exchanged", _sign(b), _sign(c)]


def _unnamed(kind: type[SideDataType], value: object) -> Any:
    member: Any = object.__new__(kind)
    member._name_, member._value_ = f"UNNAMED_{value}", value
    return member


# PyAV reads a frame's side data as a whole, and fails at a kind of a newer FFmpeg that it has no name for (EXIF).
SideDataType._missing_ = classmethod(_unnamed)  # type: ignore[assignment,method-assign]  # what enum asks for


def _sign(value: int) -> int:
    return -1 if value < 0 else 1
