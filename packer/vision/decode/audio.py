"""The sound of a video: mono, 16 bits, at any rate, read forwards in pieces; memory does not grow with its length."""

import sys
from collections import deque
from collections.abc import Iterator
from fractions import Fraction
from itertools import chain, repeat
from statistics import median_low

import numpy as np
import numpy.typing as npt
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler

from packer.vision.decode.container import open_audio
from packer.vision.decode.limits import MediaFile
from packer.vision.decode.sampling import sample_at
from packer.vision.sound.frames import AudioFrames
from shardspec.wording import counted

Samples = npt.NDArray[np.int16]

# Seconds: timestamps of containers are rounded to milliseconds, and some recorders' jitter by a few.
_JITTER = Fraction(1, 100)
_LASTING = 16  # frames; a shift that lasts for so many frames is no jitter
_SHIFT = Fraction(1, 1000)  # seconds; no smaller shift is looked for


class AudioReader:
    """Reads the sound of a video forwards. Sample 0 is at the time of the first frame.

    A decoded frame begins where the previous one ends, unless its timestamp differs by more than half a frame and 10
    ms, or all timestamps from there on are shifted by more than they scatter. A gap is filled with silence, and
    overlapping samples are dropped. libav cuts the encoder's delay at the beginning; the padding at the end is cut by
    the duration in MP4 and MOV files.

    Use a reader in one thread at a time, and call `close` at the end.

    Parameters
    ----------
    source : path or callable
    rate : int
        Samples a second.
    origin : float, seconds
        The time of the first frame by the timestamps of the container.

    Attributes
    ----------
    exists : bool
        Whether the file has a stream of sound.

    Raises
    ------
    VideoError, OSError
        If the file cannot be opened or read, for a reason that may pass.
    """

    def __init__(self, source: MediaFile, rate: int, origin: float) -> None:
        self._rate, self._origin = rate, origin
        self._gaps, self._gaps_s, self._first_gap_s = 0, 0.0, 0.0
        self._at, self._data = 0, np.empty(0, np.int16)
        self._stop = sys.maxsize
        self._container, stream = open_audio(source)
        self.exists = stream is not None
        self._frames = None if stream is None else AudioFrames(self._container, stream)
        self._pieces: Iterator[tuple[int, Samples]] = iter(())
        if stream is not None:
            if "mov" in self._container.format.name and stream.frames and stream.duration is not None:
                end = ((stream.start_time or 0) + stream.duration) * (stream.time_base or Fraction(1))
                self._stop = self._sample(end)
            self._pieces = self._joined()

    @property
    def damage(self) -> str | None:
        """Description of the gaps and of packets that did not decode so far; None if there are none."""
        found = [] if self._frames is None else self._frames.problems
        if self._gaps:
            found.append(
                f"{counted(self._gaps, 'gap')} of {self._gaps_s:.3f} s filled with zeros, the first "
                f"{self._first_gap_s:.3f} s after the first frame"
            )
        return f"sound: {'; '.join(found)}" if found else None

    def close(self) -> None:
        """Free the decoder and the file. May be called twice."""
        self._container.close()

    def read(self, start: int, stop: int) -> tuple[Samples, bool]:
        """Return the samples from `start` to `stop` (exclusive), and whether all of them are in the file.

        Samples that the file lacks are zero. `start` must not be before the `stop` of an earlier call.
        """
        out = np.zeros(stop - start, np.int16)
        found = 0
        while self._at < stop:
            end = self._at + len(self._data)
            first, last = max(start, self._at), min(stop, end)
            if first < last:
                out[first - start : last - start] = self._data[first - self._at : last - self._at]
                found += last - first
            if end >= stop:
                break
            self._at, self._data = next(self._pieces, (sys.maxsize, self._data))
        return out, found == len(out)

    def _sample(self, time: Fraction) -> int:
        return sample_at(float(time) - self._origin, self._rate)

    def _joined(self) -> Iterator[tuple[int, Samples]]:
        """Yield the samples with the number of the first one, without overlaps."""
        done = -sys.maxsize
        for at, samples in self._placed():
            first, last = max(at, done), min(at + len(samples), self._stop)
            if first < last:
                done = last
                yield first, samples[first - at : last - at]

    def _placed(self) -> Iterator[tuple[int, Samples]]:
        """Yield the samples of each decoded frame with the number of the first one."""
        resampler: AudioResampler | None = None
        form: tuple[str, str, int] | None = None
        at, expected = 0, Fraction(self._origin)
        for frame, begin in self._timed():
            found = (frame.format.name, frame.layout.name, frame.sample_rate)
            if resampler is None or begin != expected or found != form:
                if resampler is not None:
                    yield at, _samples(resampler.resample(None))
                    self._count_gap(expected, begin)
                resampler, form = AudioResampler("s16", "mono", self._rate), found
                at = self._sample(begin)
            expected = begin + Fraction(frame.samples, frame.sample_rate)
            frame.pts = None
            samples = _samples(resampler.resample(frame))
            yield at, samples
            at += len(samples)
        if resampler is not None:
            yield at, _samples(resampler.resample(None))

    def _count_gap(self, end: Fraction, begin: Fraction) -> None:
        end = max(end, Fraction(self._origin))  # what is missing before the first frame is of no use
        if begin > end:
            self._first_gap_s = self._first_gap_s if self._gaps else float(end) - self._origin
            self._gaps += 1
            self._gaps_s += float(begin - end)

    def _timed(self) -> Iterator[tuple[AudioFrame, Fraction]]:
        """Yield the decoded frames and the seconds at which they begin."""
        ahead: deque[tuple[AudioFrame, Fraction, Fraction]] = deque()
        before: deque[Fraction] = deque(maxlen=_LASTING)
        length, late, shift = Fraction(0), Fraction(self._origin), Fraction(0)
        for frame in chain(self._frames or (), repeat(None, _LASTING)):
            if frame is not None:
                if frame.pts is not None:
                    late = Fraction(frame.pts * (frame.time_base or 1)) - length
                ahead.append((frame, length, late))
                length += Fraction(frame.samples, frame.sample_rate)
            if ahead and (frame is None or len(ahead) == _LASTING):
                shift = _shift(shift, before, ahead)
                first, begin, late_by = ahead.popleft()
                before.append(late_by)
                yield first, begin + shift


def _samples(frames: list[AudioFrame]) -> Samples:
    parts = [np.asarray(frame.to_ndarray()[0], np.int16) for frame in frames]
    return np.concatenate(parts) if parts else np.empty(0, np.int16)


def _shift(shift: Fraction, before: deque[Fraction], ahead: deque[tuple[AudioFrame, Fraction, Fraction]]) -> Fraction:
    """Return the shift of the first frame ahead, given that of the frame before it.

    A shift is the time at which a frame begins, without the length of all frames before. `before` and `ahead` hold
    those that the timestamps of neighbouring frames say.
    """
    frame, _, own = ahead[0]
    if not before or abs(own - shift) > max(Fraction(frame.samples, 2 * frame.sample_rate), _JITTER):
        before.clear()  # what was said before a jump does not show how much the timestamps after it scatter
        return own
    if abs(own - before[-1]) <= _SHIFT:
        return shift
    after = [late for *_, late in ahead]
    scatter = max(max(before) - min(before), max(after) - min(after), _SHIFT)
    lasts = max(min(after) - max(before), min(before) - max(after)) > scatter
    return median_low(after) if lasts else shift
