"""Sequences of frames as a step reads them: a video, or a folder of images, which is read as a video.

Both have the interface of `packer.vision.decode.video.VideoReader`.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice, pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from packer.sources.folders.frames import Frames, frame_numbers
from packer.sources.item import ItemFile
from packer.sources.member_bytes import opener
from packer.vision.decode.image import DecodedImage, decode_image, read_image
from packer.vision.decode.limits import MAX_PIXELS, ImageError, VideoError
from packer.vision.decode.sampling import FrameClock, Sampling, VideoFrame
from shardspec.registry import import_target
from shardspec.wording import LONG, counted, cut, shorten

if TYPE_CHECKING:
    from packer.vision.decode.video import VideoReader

Reader: TypeAlias = "VideoReader | FramesReader"

_GAP = 1.5  # times the usual distance between the numbers of images


def open_reader(file: ItemFile, sampling: Sampling, *, max_pixels: int = MAX_PIXELS) -> "Reader":
    """Open a file whose medium is a sequence: a video, or a folder of frames.

    The video library takes a third of a worker's start-up time, so it is not loaded for images.
    """
    if isinstance(file.member, Frames):
        return FramesReader(file.path, file.member, sampling, max_pixels=max_pixels)
    reader: type[VideoReader] = import_target("packer.vision.decode.video:VideoReader", what="a video", extra="pack")
    return reader(opener(file), sampling, max_pixels=max_pixels)


class FramesReader:
    """Iterates over the sampled frames of a folder, once. Leaves out images that do not decode (see `damage`).

    Parameters
    ----------
    sampling : Sampling
        Rules count the images in order, but `Sampling.at` refers to the numbers in their names. Every image is a
        keyframe.

    Attributes
    ----------
    frames_seen : int
        Number of frames in the folder.
    duration : float
        Time in seconds at which the last frame ends, whether it is sampled or not.
    sampled : tuple of int
        Frame number of each requested sample. A number may be repeated.
    damage : str or None
        Describes the frames that did not decode so far.

    Raises
    ------
    VideoError
        If the iteration ends without a frame.
    OSError
        If an image cannot be read.
    """

    def __init__(self, folder: str, frames: Frames, sampling: Sampling, *, max_pixels: int = MAX_PIXELS) -> None:
        self._folder, self._names, self._rate = folder, frames.names, frames.rate
        self._max_pixels = max_pixels
        self._first = 0
        self._stopped = False
        self._damaged = 0
        self._first_damage = ""
        self.frames_seen = len(self._names)
        self._numbers = frame_numbers(self._names)
        times = [(number - self._numbers[0]) / self._rate for number in (*self._numbers, self._numbers[-1] + 1)]
        if sampling.at is None:
            clock, keys = FrameClock(rate=self._rate), [True] * self.frames_seen
            taken = sampling.choose(times[:-1], keys, self.frames_seen, clock, times[-1])
        else:
            taken = np.isin(self._numbers, sampling.at).astype(np.int64)
        chosen = np.flatnonzero(taken).tolist()
        self.sampled = tuple(np.repeat(self._numbers, taken).tolist())
        begins = [*(times[place] for place in chosen), times[-1]]
        spans = sampling.spans_of_ticks(range(int(taken.sum()))) or pairwise(begins)
        positions: Iterable[int] = _positions(self._numbers, chosen) if sampling.resample_fps is None else count()
        samples = zip(positions, spans, strict=False)
        self._chosen = [(place, list(islice(samples, int(taken[place])))) for place in chosen]
        self.duration = (self._numbers[-1] + 1) / self._rate

    @property
    def damage(self) -> str | None:
        """Description of the damaged frames so far; None if there are none."""
        if not self._damaged:
            return None
        return f"{counted(self._damaged, 'frame')} left out, the first is {self._first_damage}"

    @property
    def wide_colours(self) -> None:
        """The name of an HDR or wide-gamut standard; always None, since profiles of images are ignored."""
        return None

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def stop(self) -> None:
        """Make the iteration end soon. Any thread may call it."""
        self._stopped = True

    def skip_to(self, index: int) -> None:
        """Skip all frames before `index` without reading them."""
        self._first = index

    def __iter__(self) -> Iterator[VideoFrame]:
        whole = 0
        for place, samples in self._chosen:
            if self._stopped:
                return
            if self._numbers[place] < self._first:
                whole += 1
                continue
            decoded = self._decode(place)
            if decoded is None:
                continue
            whole += 1
            number = self._numbers[place]
            for position, span in samples:
                image = decoded.image if position == samples[0][0] else decoded.image.copy()
                yield VideoFrame(number, number / self._rate, position, span, image, decoded.kept)
        if not whole:
            why = self.damage or "none of the requested frames exists"
            raise VideoError(expected="at least one frame", found="no undamaged frame", hint=why)

    def _decode(self, place: int) -> DecodedImage | None:
        name, number = self._names[place], self._numbers[place]
        path = os.path.join(self._folder, name)  # noqa: PTH118 -- many
        try:
            data = read_image(path, max_pixels=self._max_pixels)
            return decode_image(data, max_pixels=self._max_pixels)
        except ImageError as error:
            self._damaged += 1
            self._first_damage = self._first_damage or f"frame {number} ({shorten(name)}): {cut(str(error), LONG)}"
            return None


def _positions(numbers: Sequence[int], chosen: Sequence[int]) -> list[int]:
    """Number the chosen images, skipping a number at each gap of more than `_GAP` times the usual distance."""
    usual = np.median(np.diff(numbers)) if len(numbers) > 1 else 1
    steps, images = np.diff(np.array(numbers)[chosen]), np.diff(chosen)
    missing = np.cumsum([0, *(steps > _GAP * usual * images)])
    return [position + int(gaps) for position, gaps in zip(range(len(chosen)), missing, strict=False)]
