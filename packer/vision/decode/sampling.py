"""The choice of the frames of a video."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

_TICK_SLACK = 1e-6  # ticks; a presentation time rounded in its last digit must not miss its tick
_RATE_ROUNDING = 1.001e-3  # as a share: 30 stands for 30000/1001 as well, and 15 for half of it
_ROUNDED = 0.25  # frames; times in a larger unit are no rounded times
_UNEVEN = 0.02  # frames; a program stream lacks most times, and those that libavformat fills in add up their rounding


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


@dataclass(frozen=True, slots=True)
class VideoFrame:
    """One frame of a video, or of a folder of frames.

    Attributes
    ----------
    index : int
        Its place in presentation order, from 0; in a folder the number in its name
        (`packer.sources.folders.frames.frame_numbers`).
    time : float, seconds
        Its presentation time; in a folder its number divided by the frame rate.
    position : int
        Its place among the sampled frames, from 0. Frames that are damaged or missing keep their place.
    image : ndarray, (H, W, 3), uint8
        RGB, upright, C-contiguous, the reader's own copy.
    data : bytes or None
        In a folder the JPEG itself, if it may be kept as it is (`packer.vision.decode.image.DecodedImage.kept`).
    """

    index: int
    time: float
    position: int
    image: npt.NDArray[np.uint8]
    data: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The frames to take from a video: exactly one of five rules.

    Attributes
    ----------
    every : int or None
        Frames 0, n, 2n, … in presentation order.
    fps : float or None, frames per second
        The first frame at or after each of the times 0, 1/fps, 2/fps, … counted from the first frame, allowing for the
        rounding of times in the file. No frame is taken twice, so a rate above the video's takes every frame. For a
        video of a constant rate, a value within 0.1 % of the n-th part of this rate takes every n-th frame.
    frames : int or None
        This number of frames, each in the middle of an equal share of the video (see `spread`); all frames if it has no
        more.
    keyframes : bool
        The frames that are coded without reference to others; no other frame is decoded.
    at : tuple of int or None
        The frames with these indices, if they exist.
    """

    every: int | None = None
    fps: float | None = None
    frames: int | None = None
    keyframes: bool = False
    at: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("every", "fps", "frames", "at") if getattr(self, name) is not None]
        given += ["keyframes"] * self.keyframes
        if len(given) != 1:
            raise ValueError(
                f"expected exactly one of every, fps, frames, keyframes, at, found {', '.join(given) or 'none'}"
            )
        if self.every is not None and self.every < 1:
            raise ValueError(f"expected every to be at least 1, found {self.every}")
        if self.frames is not None and self.frames < 1:
            raise ValueError(f"expected frames to be at least 1, found {self.frames}")
        if self.fps is not None and not (math.isfinite(self.fps) and self.fps > 0):
            raise ValueError(f"expected fps to be a rate above 0, found {self.fps}")

    def picker(self, count: int, clock: FrameClock) -> Callable[[int, float, bool], bool]:
        """Return a function ``(index, time in seconds, is keyframe) -> bool`` that decides frame by frame.

        It is called in presentation order and remembers the frames that it has seen. `count` is the number of frames
        (used only by ``frames``), and `clock` is used only by ``fps``.
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
        self, times: Iterable[float], keys: Iterable[bool], count: int, clock: FrameClock
    ) -> npt.NDArray[np.bool_]:
        """Decide for all `count` frames of a video at once, from their presentation times in seconds: (count,) bool."""
        wants = self.picker(count, clock)
        flags = (wants(index, time, key) for index, (time, key) in enumerate(zip(times, keys, strict=True)))
        return np.fromiter(flags, np.bool_, count)


def spread(count: int, frames: int) -> npt.NDArray[np.int64]:
    """Return the middles of equal shares: ``floor((i + 0.5) * count / frames)`` for i = 0 … frames - 1.

    There are min(count, frames) of them, strictly rising.
    """
    wanted = min(count, frames)
    return (2 * np.arange(wanted, dtype=np.int64) + 1) * count // (2 * max(wanted, 1))


def neighbours(count: int, frames: int) -> dict[int, tuple[int, ...]]:
    """Return the possible substitutes for each frame of `spread`: up to four frames before it and four after it.

    A substitute is closer to its frame than to any other frame of `spread` (the earlier of two at the same distance),
    so none is listed twice. If there are more than four on a side, the four are closer together near the frame, and the
    last is at the end of its share: i*i/16 of the way, but at least i frames away, for i = 1 … 4. The result is sorted,
    by the index of the frame.
    """
    middles = spread(count, frames).tolist()
    ends = [*((here + after) // 2 + 1 for here, after in pairwise(middles)), count]
    starts = [0, *ends[:-1]]
    found = {}
    for middle, start, end in zip(middles, starts, ends, strict=True):
        before, after = _ladder(middle - start), _ladder(end - 1 - middle)
        found[middle] = tuple([middle - step for step in reversed(before)] + [middle + step for step in after])
    return found


def _ladder(reach: int) -> list[int]:
    """Return up to four distances from 1 to `reach`, rising."""
    return sorted({min(reach, max(i, reach * i * i // 16)) for i in range(1, 5)} - {0})


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
