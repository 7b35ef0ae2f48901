"""The choice of the frames of a video."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from packer.vision.decode.limits import VideoError

LONGEST_SPAN_S = 600
"""Longest interval, in seconds, for which a frame is repeated or its sound is stored; longer ones are wrong timestamps.

A file of three frames could otherwise fill memory and disk.
"""

_TICK_SLACK = 1e-6  # ticks; a presentation time rounded in its last digit must not miss its tick
_HALF_UP = 0.5 + 1e-6  # audio samples; as for ticks
_RATE_ROUNDING = 1.001e-3  # as a share: 30 stands for 30000/1001 as well, and 15 for half of it
_ROUNDED = 0.25  # frames; times in a larger unit are no rounded times
_UNEVEN = 0.02  # frames; a program stream lacks most times, and those that libavformat fills in add up their rounding

Span = tuple[float, float]
"""The beginning and the end of an interval, in seconds from the first frame of a video."""


@dataclass(frozen=True, slots=True)
class FrameClock:
    """How exactly a video's frames are timed.

    Attributes
    ----------
    unit : float, seconds
        Presentation times may be off by this much, because they are rounded; 0 if they are exact.
    rate : float or None, frames per second
        A rate such that every time is a multiple of 1 / `rate`, apart from the rounding. None for a variable rate.
    """

    unit: float = 0.0
    rate: float | None = None

    @classmethod
    def of_times(cls, times: npt.NDArray[np.float64], unit: float, rates: Sequence[float]) -> "FrameClock":
        """Find the lowest of some rates that fits the presentation times, which are multiples of `unit`."""
        # Where the unit is about a frame, as in AVI, times are whole frames and are not rounded.
        fine = [rate for rate in rates if unit * rate <= _ROUNDED]
        rounding = unit if fine else 0.0
        for rate in sorted(fine or rates):
            frames = (times - times[:1]) * rate
            if (np.abs(frames - np.round(frames)) <= max(rounding * rate, _UNEVEN) + _TICK_SLACK).all():
                return cls(rounding, rate)
        return cls(rounding)

    def exact(self, time: float) -> float:
        """Return a time in seconds from the first frame, without the rounding of the file if the rate is constant."""
        return time if self.rate is None else round(time * self.rate) / self.rate


@dataclass(frozen=True, slots=True)
class VideoFrame:
    """One frame of a video, or of a folder of frames.

    Attributes
    ----------
    index : int
        Place of the frame in presentation order, from 0; in a folder, the number in its name
        (`packer.sources.folders.frames.frame_numbers`).
    time : float, seconds
        Presentation time; in a folder, the frame's number divided by the frame rate.
    position : int
        Place of the frame among the sampled frames, from 0. Damaged and missing frames are counted too.
    span : tuple of float, seconds
        The interval of the frame: from this sampled frame to the next one, or to the end of the video.
    image : ndarray, (H, W, 3), uint8
        RGB, upright, C-contiguous. Each frame has separate memory.
    data : bytes or None
        In a folder the JPEG itself, if it may be kept as it is (`packer.vision.decode.image.DecodedImage.kept`).
    """

    index: int
    time: float
    position: int
    span: Span
    image: npt.NDArray[np.uint8]
    data: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The frames to take from a video: exactly one of six rules.

    Attributes
    ----------
    every : int or None
        Frames 0, n, 2n, … in presentation order.
    fps : float or None, frames per second
        The first frame at or after each of the times 0, 1/fps, 2/fps, … counted from the first frame, allowing for the
        rounding of times in the file. No frame is taken twice, so a rate above the video's takes every frame. For a
        video of a constant rate, a value within 0.1 % of the n-th part of this rate takes every n-th frame.
    resample_fps : float or None, frames per second
        The frame nearest to each of the times 0, 1/fps, 2/fps, … counted from the first frame, up to the end of the
        video; the earlier of two at the same distance. A frame may be taken several times.
    frames : int or None
        The number of frames to take, each in the middle of an equal share of the video (see `spread`). A shorter video
        yields all its frames.
    keyframes : bool
        The frames that are coded without reference to others; no other frame is decoded.
    at : tuple of int or None
        The frames with these indices, if they exist.
    """

    every: int | None = None
    fps: float | None = None
    resample_fps: float | None = None
    frames: int | None = None
    keyframes: bool = False
    at: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        rules = [spec.name for spec in fields(self)]
        given = [name for name in rules if getattr(self, name) is not None and getattr(self, name) is not False]
        if len(given) != 1:
            raise ValueError(f"expected exactly one of {', '.join(rules)}, found {', '.join(given) or 'none'}")
        for name in ("every", "frames"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"expected {name} to be at least 1, found {getattr(self, name)}")
        for name in ("fps", "resample_fps"):
            rate = getattr(self, name)
            if rate is not None and not (math.isfinite(rate) and rate > 0):
                raise ValueError(f"expected {name} to be a rate above 0, found {rate}")

    def picker(self, count: int, clock: FrameClock) -> Callable[[int, float, bool], bool]:
        """Return a function ``(index, time in seconds, is keyframe) -> bool`` that decides frame by frame.

        It is called in presentation order and remembers the frames that it has seen. `count` is the number of frames
        (used only by ``frames``), and `clock` is used only by ``fps``. For ``resample_fps``, which frames are taken
        depends on the frames after them (`NearestTicks`).
        """
        if self.every is not None:
            every = self.every
            return lambda index, time, key: index % every == 0
        if self.frames is not None:
            chosen = frozenset(spread(count, self.frames).tolist())
            return lambda index, time, key: index in chosen
        if self.at is not None:
            listed = frozenset(self.at)
            return lambda index, time, key: index in listed
        if self.fps is not None:
            return _Ticks(self.fps, clock)
        return lambda index, time, key: key

    def choose(
        self, times: Iterable[float], keys: Iterable[bool], count: int, clock: FrameClock, end: float
    ) -> npt.NDArray[np.int64]:
        """Return how often each of the `count` frames of a video is taken, (count,).

        Parameters
        ----------
        times : iterable of float, seconds
            The presentation times of the frames.
        keys : iterable of bool
            Whether the frames are keyframes.
        clock : FrameClock
        end : float, seconds
            The end of the last frame.
        """
        if self.resample_fps is not None:
            ticks = NearestTicks(self.resample_fps, clock)
            taken = [ticks.before(time) for time in times] + [ticks.rest(end)]
            return np.array([len(numbers) for numbers in taken[1:]], np.int64)
        wants = self.picker(count, clock)
        flags = (wants(index, time, key) for index, (time, key) in enumerate(zip(times, keys, strict=True)))
        return np.fromiter(flags, np.int64, count)

    def spans_of_ticks(self, ticks: Iterable[int]) -> tuple[Span, ...]:
        """Return the intervals of ticks of ``resample_fps``; none under other rules."""
        rate = self.resample_fps
        return () if rate is None else tuple((tick / rate, (tick + 1) / rate) for tick in ticks)


class NearestTicks:
    """Assigns each tick of a constant rate to the nearest frame. Frames must be passed in presentation order."""

    def __init__(self, rate: float, clock: FrameClock) -> None:
        self._rate = rate
        self._clock = clock
        self._start: float | None = None
        self._before = 0.0
        self._next = 0

    def before(self, time: float) -> range:
        """Return the numbers of the ticks that are nearest to the previous frame, given the next frame at `time`."""
        if self._start is None:
            self._start = time
            return range(0)
        here = self._clock.exact(time - self._start)
        middle, self._before = (self._before + here) / 2, here
        return self._until(math.floor(middle * self._rate + _TICK_SLACK) + 1)

    def rest(self, end: float) -> range:
        """Return the numbers of the ticks of the last frame, which ends at `end`; tick 0 belongs to some frame."""
        if self._start is None:
            return range(0)
        return self._until(max(math.ceil(self._clock.exact(end - self._start) * self._rate - _TICK_SLACK), 1))

    def _until(self, stop: int) -> range:
        if stop - self._next > 1:
            check_span((stop - self._next) / self._rate)
        ticks = range(self._next, max(stop, self._next))
        self._next = ticks.stop
        return ticks


def check_span(seconds: float) -> None:
    """Raise a `VideoError` if a frame stands for more than `LONGEST_SPAN_S`."""
    if seconds > LONGEST_SPAN_S:
        raise VideoError(
            expected=f"frames at most {LONGEST_SPAN_S} s apart, to repeat them or to store their sound",
            found=f"one that stands for {seconds:g} s",
        )


def sample_at(time: float, rate: int) -> int:
    """Return the number of the audio sample that is nearest to a time in seconds, the later of two."""
    return math.floor(time * rate + _HALF_UP)


def spread(count: int, frames: int) -> npt.NDArray[np.int64]:
    """Return the middles of equal shares: ``floor((i + 0.5) * count / frames)`` for i = 0 … frames - 1.

    There are min(count, frames) of them, strictly rising.
    """
    wanted = min(count, frames)
    return (2 * np.arange(wanted, dtype=np.int64) + 1) * count // (2 * max(wanted, 1))


class _Ticks:
    """The first frame at or after each tick of a clock that starts with the first frame."""

    def __init__(self, rate: float, clock: FrameClock) -> None:
        self._rate = rate
        self._clock = clock
        self._start: float | None = None
        self._last = -1

    def __call__(self, index: int, time: float, key: bool) -> bool:
        if self._start is None:
            self._start = time
        tick = self._tick(time - self._start)
        if tick <= self._last:
            return False
        self._last = tick
        return True

    def _tick(self, time: float) -> int:
        own = self._clock.rate
        if own is None:
            return math.floor((time + self._clock.unit) * self._rate + _TICK_SLACK)
        frame, every = round(time * own), round(own / self._rate)
        if every and abs(own / (every * self._rate) - 1) <= _RATE_ROUNDING:
            return frame // every
        return math.floor(frame * self._rate / own + _TICK_SLACK)
