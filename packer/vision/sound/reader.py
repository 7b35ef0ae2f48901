"""The sound of a sound file: 16 bits, at its own rate or any other, read forwards; memory does not grow with its length."""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler

from packer.vision.decode.limits import MediaFile, SoundError
from packer.vision.decode.sampling import sample_at
from packer.vision.sound.container import announces_length, ends_in_page, open_sound
from packer.vision.sound.frames import AudioFrames

Samples = npt.NDArray[np.int16]

MOST_BYTES = 2**30
"""Largest sound of one sample in bytes: more than three hours of mono at 48 kHz. A small file may hold far more."""

_MISSING_S = Fraction(1, 10)  # by which a file may announce more than it holds: rounding, and what encoders add
_BARE = ("aac", "wav", "w64")  # demuxers whose duration follows from what the file holds
_ITUNES = re.compile(r"(?:\s*[0-9A-Fa-f]+){3}\s+([0-9A-Fa-f]{1,16})\b")


class SoundReader:
    """Iterates once over the samples of a sound file, in arrays (C, n) that follow each other without a gap.

    libav cuts off the encoder's delay at the beginning and its padding at the end, as the file says: the LAME header of
    an MP3, the pre-skip and the last position of Opus and Vorbis, the edit list of an M4A. libav leaves the padding at
    the end of an M4A, which is cut off by the edit list and iTunes' ``iTunSMPB`` here. One resampler converts the whole
    file, so pieces of it do not depend on where they are cut.

    Use a reader in one thread, and call `close` at the end.

    Parameters
    ----------
    source : path or callable
    rate : int, optional
        Samples a second; by default those of the file.
    mono : bool
        Whether to mix the channels into one, as ``ffmpeg -ac 1`` does.

    Attributes
    ----------
    rate : int
        Samples a second.
    length : int
        Number of samples in each channel that the iteration has yielded so far.

    Raises
    ------
    SoundError
        If the file has no sound, or is cut off: when it is opened, or at the end of the iteration.
    OSError
        If the file cannot be read.
    """

    def __init__(self, source: MediaFile, rate: int | None = None, *, mono: bool = True) -> None:
        self._source = source
        self._container, self._stream = open_sound(source)
        self._decoded = AudioFrames(self._container, self._stream)
        self._frames = iter(self._decoded)
        self._first = next(self._frames, None)
        if self._first is None:
            self.close()
            raise SoundError(expected="at least one sample", found="none", hint="; ".join(self._decoded.problems))
        self.rate = rate or self._first.sample_rate
        self.length = 0
        self._layout = "mono" if mono else self._first.layout.name

    @property
    def damage(self) -> str | None:
        """Description of packets that did not decode so far; None if there are none."""
        return "; ".join(self._decoded.problems) or None

    def close(self) -> None:
        """Free the decoder and the file. May be called twice."""
        self._container.close()

    def __iter__(self) -> Iterator[Samples]:
        left = None if self._valid is None else sample_at(float(self._valid), self.rate)
        for samples in self._converted():
            part = samples if left is None else samples[:, :left]
            left = None if left is None else left - part.shape[1]
            if part.shape[1]:
                self.length += part.shape[1]
                yield part

    @cached_property
    def _valid(self) -> Fraction | None:
        """Seconds after which an M4A has only padding; None if all samples are valid."""
        stream = self._stream
        if "mov" not in self._container.format.name or not stream.frames or stream.duration is None:
            return None
        assert self._first is not None
        valid: Fraction = stream.duration * (stream.time_base or Fraction(1))
        found = _ITUNES.match(self._container.metadata.get("iTunSMPB", ""))
        said = Fraction(int(found[1], 16), self._first.sample_rate) if found else valid
        return min(valid, said) if said else valid

    def _converted(self) -> Iterator[Samples]:
        assert self._first is not None
        resampler, form, seconds = None, None, Fraction(0)
        for frame in _chained(self._first, self._frames):
            found = (frame.format.name, frame.layout.name, frame.sample_rate)
            if resampler is None or found != form:
                if resampler is not None:
                    yield from map(_samples, resampler.resample(None))
                resampler, form = AudioResampler("s16p", self._layout, self.rate), found
            seconds += Fraction(frame.samples, frame.sample_rate)
            frame.pts = None
            yield from map(_samples, resampler.resample(frame))
        if resampler is not None:
            yield from map(_samples, resampler.resample(None))
        self._check_whole(seconds)

    def _check_whole(self, seconds: Fraction) -> None:
        """Raise an error if the file is cut off."""
        demuxer, stream = self._container.format.name, self._stream
        if self._decoded.is_cut_off if demuxer in _BARE else demuxer == "ogg" and ends_in_page(self._source):
            raise SoundError(f"the file is cut off or damaged at its end, after {float(seconds):.2f} s")
        if demuxer in _BARE or (demuxer == "mp3" and not announces_length(self._source)):
            return
        announced = (stream.duration or 0) * (stream.time_base or Fraction(1))
        if demuxer != "ogg" and announced - seconds > _MISSING_S:
            raise SoundError(
                f"the file announces {float(announced):.2f} s of sound and holds {float(seconds):.2f} s: "
                "it is cut off or damaged"
            )


class Piece(NamedTuple):
    """A part of a sound file.

    Attributes
    ----------
    start : int
        Number of its first sample in the file.
    valid : int
        Number of samples before the padding.
    samples : ndarray, (C, N), int16
    """

    start: int
    valid: int
    samples: Samples


def cut(blocks: Iterable[Samples], starts: Iterable[int], length: int, *, pads: bool) -> Iterator[Piece]:
    """Cut pieces of `length` samples, which may overlap, out of consecutive arrays (C, n).

    Parameters
    ----------
    starts : iterable of int
        The first sample of each piece, ascending and without end.
    pads : bool
        Whether the samples after the last whole piece are padded with zeros to a piece, or left out.

    Raises
    ------
    SoundError
        If a piece would be larger than `MOST_BYTES`.
    """
    held: deque[Samples] = deque()
    remaining = iter(blocks)
    begin = end = done = 0
    for start in starts:
        while end < start + length and (block := next(remaining, None)) is not None:
            check_bytes(length * len(block) * block.itemsize)
            held.append(block)
            end += block.shape[1]
            while held and begin + held[0].shape[1] <= start:
                begin += held.popleft().shape[1]
        while held and begin + held[0].shape[1] <= start:
            begin += held.popleft().shape[1]
        valid = min(length, end - start)
        if valid < length and (not pads or valid <= 0 or done >= end):
            return
        found = np.concatenate(held, axis=1)[:, start - begin : start - begin + length]
        samples = np.zeros((len(found), length), np.int16)
        samples[:, :valid] = found
        done = start + length
        yield Piece(start, valid, samples)


def join(blocks: Iterable[Samples]) -> Samples:
    """Join consecutive arrays (C, n); raise `SoundError` if they are larger than `MOST_BYTES`."""
    parts: list[Samples] = []
    size = 0
    for block in blocks:
        size += block.nbytes
        check_bytes(size)
        parts.append(block)
    return np.concatenate(parts, axis=1) if parts else np.empty((1, 0), np.int16)


def check_bytes(size: int) -> None:
    """Raise `SoundError` if a sample would be larger than `MOST_BYTES`."""
    if size > MOST_BYTES:
        raise SoundError(
            expected=f"at most {MOST_BYTES / 2**30:g} GiB of samples in one piece",
            found="more",
            hint="cut the file into shorter pieces with --seconds S",
        )


def _samples(frame: AudioFrame) -> Samples:
    return np.asarray(frame.to_ndarray(), np.int16)


def _chained(first: AudioFrame, others: Iterator[AudioFrame]) -> Iterator[AudioFrame]:
    yield first
    yield from others
