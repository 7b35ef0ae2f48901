"""Files that are read frame by frame: companion files of an item, such as the masks of a video, and folders of frames.

Of a companion file, the same frames are read as of the item, in the same order. A folder of images is read as a video,
with the interface of `packer.vision.decode.video.VideoReader`.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, islice, pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from packer.recipe import Recipe
from packer.sources.folders.frames import Frames, frame_numbers
from packer.sources.item import ALSO, ItemFile
from packer.sources.member_bytes import opener
from packer.steps.chain import ITEM, REPORT, SAMPLED, Sample
from packer.vision.decode.image import DecodedImage, decode_image, read_image
from packer.vision.decode.limits import MAX_PIXELS, ImageError, VideoError
from packer.vision.decode.sampling import FrameClock, Sampling, VideoFrame
from packer.vision.faults import may_pass
from shardspec.errors import ItemError, system_reason
from shardspec.registry import import_target
from shardspec.wording import LONG, counted, cut, shorten

if TYPE_CHECKING:
    from packer.vision.decode.video import VideoReader

Reader: TypeAlias = "VideoReader | FramesReader"


def open_reader(file: ItemFile, sampling: Sampling, *, max_pixels: int = MAX_PIXELS) -> "Reader":
    """Open a file whose medium is a sequence: a video, or a folder of frames.

    The video library takes a third of a worker's start-up time, so it is not loaded for images.
    """
    if isinstance(file.member, Frames):
        return FramesReader(file.path, file.member, sampling, max_pixels=max_pixels)
    reader: type[VideoReader] = import_target("packer.vision.decode.video:VideoReader", what="a video", extra="pack")
    return reader(opener(file), sampling, max_pixels=max_pixels)


class CompanionFile:
    """The frames of a companion file by index. Indices must be requested in ascending order.

    The file is opened when the first frame is requested, and closed by `close`.

    Parameters
    ----------
    option : str
        The option that names the file, for messages.
    sampled : tuple of int or None
        The indices that may be requested, in ascending order; None for any index.
    """

    def __init__(self, option: str, file: ItemFile, sampled: tuple[int, ...] | None) -> None:
        self.file = file
        self._what = f"{option} {file.name!r}"
        self._sampled = sampled
        self._video: Reader | None = None
        self._frames: Iterator[VideoFrame] = iter(())
        self._next: VideoFrame | None = None
        self._ended = False
        self._image: npt.NDArray[np.uint8] | None = None

    @property
    def damage(self) -> str | None:
        """Damage in the file so far; for a video, up to the last requested frame."""
        found = None if self._video is None else self._video.damage
        return None if found is None else f"{self._what}: {found}"

    def close(self) -> None:
        """Free the decoder and the file."""
        if self._video is not None:
            self._video.close()

    def image(self, index: int) -> npt.NDArray[np.uint8] | None:
        """Return the image of a frame, (H, W, 3) RGB, or of an image file; None if it is missing or damaged."""
        if self.file.medium.is_sequence:
            frame = self.frame(index)
            return None if frame is None else frame.image
        with self._naming_errors():
            if self._image is None:
                self._image = decode_image(read_image(opener(self.file))).image
            return self._image

    def frame(self, index: int) -> VideoFrame | None:
        """Return a frame of a video by index; None if it is missing or damaged."""
        with self._naming_errors():
            if self._video is None:
                sampling = Sampling(every=1) if self._sampled is None else Sampling(at=self._sampled)
                self._video = open_reader(self.file, sampling)
                self._frames = iter(self._video)
            self._video.skip_to(index)
            while not self._ended and (self._next is None or self._next.index < index):
                self._advance()
            return self._next if self._next is not None and self._next.index == index else None

    @contextmanager
    def _naming_errors(self) -> Iterator[None]:
        """Add the file's name to errors of reading it."""
        try:
            yield
        except (ImageError, VideoError) as error:
            raise ItemError(error, place=self._what) from error
        except OSError as error:
            raise ItemError(f"expected a readable file, found: {system_reason(error)}", place=self._what) from error

    def _advance(self) -> None:
        try:
            self._next = next(self._frames, None)
        except VideoError as error:
            if may_pass(error):
                raise
            self._next = None  # none of the sampled frames exists undamaged: they are reported missing one by one
        self._ended = self._next is None


class CompanionImages:
    """The companion images of an item's frames.

    Parameters
    ----------
    file : CompanionFile or None
        None if the item's row names no file.
    zero : bool
        Whether a missing file means images that are zero everywhere.
    """

    def __init__(self, file: CompanionFile | None, *, zero: bool = False) -> None:
        self._file = file
        self._zero = zero and file is None
        self._frame: tuple[int, npt.NDArray[np.uint8] | None] = (-1, None)
        self._missing: list[int] = []

    def is_valid(self, image: npt.NDArray[np.uint8] | None) -> bool:
        """Return whether a frame has a companion image, or the missing file means an image of zeros."""
        return self._zero or image is not None

    def problems(self) -> Iterator[str]:
        """Describe the damage and the missing frames."""
        if self._file is not None and self._file.damage is not None:
            yield self._file.damage
        if self._file is not None and self._missing:
            name = self._file.file.name
            missing = counted(len(self._missing), "missing frame")
            yield f"also {name!r}: {missing} (the first is frame {self._missing[0]})"

    def image(self, sample: Sample) -> npt.NDArray[np.uint8] | None:
        """Return the companion image of a frame, (H, W, 3), or None; raise `ItemError` if its size differs."""
        if self._file is None:
            return None
        index = sample["frame"]
        if self._frame[0] != index:
            self._frame = (index, self._file.image(index))
            if self._frame[1] is None:
                self._missing.append(index)
        image = self._frame[1]
        if image is not None and image.shape != sample["image"].shape:
            sizes = " and ".join(f"{each.shape[1]} x {each.shape[0]}" for each in (sample["image"], image))
            raise ItemError(place="also", expected="images of the same size", found=f"{sizes} at frame {index}")
        return image


@contextmanager
def open_companion(recipe: Recipe, first: Sample) -> Iterator[CompanionImages | None]:
    """Open the companion image or video of a sample's item; None if the recipe has no companion files.

    At the end, damage and missing frames are added to the item's report.
    """
    if recipe.also is None:
        yield None
        return
    named = first[ITEM].files.get(ALSO)
    file = None if named is None else CompanionFile(ALSO, named, first.get(SAMPLED))
    images = CompanionImages(file, zero=recipe.also_missing == "zero")
    try:
        yield images
        for problem in images.problems():
            if problem not in (first[REPORT].damage or ""):  # an earlier pass may have reported the same problem
                first[REPORT].add_damage(problem)
    finally:
        if file is not None:
            file.close()


_GAP = 1.5  # times the usual distance between the numbers of images


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
