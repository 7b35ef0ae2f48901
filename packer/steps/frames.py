"""The frames of a video that are pictures in a folder, read as `packer.vision.decode.video.VideoReader` reads a file's."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import numpy.typing as npt

from packer.sources.item import Frames
from packer.vision.decode.limits import MAX_PIXELS, PictureError, VideoError
from packer.vision.decode.picture import decode_picture, read_picture
from packer.vision.decode.sampling import Sampling
from shardspec.wording import LONG, counted, cut, shorten


@dataclass(frozen=True, slots=True)
class FramePicture:
    """One frame.

    Attributes
    ----------
    index : int
        Its place in the order of the folder's frames, from 0.
    time : float, seconds
        The index by the frame rate.
    image : ndarray, (H, W, 3), uint8
        RGB, upright, C-contiguous.
    data : bytes or None
        The JPEG itself, if it may be kept as it is (`packer.vision.decode.picture.Picture.passthrough`).
    """

    index: int
    time: float
    image: npt.NDArray[np.uint8]
    data: bytes | None


class FramesReader:
    """Iterates over the sampled frames of a folder, once. A picture that does not decode is left out, as `damage` says.

    Parameters
    ----------
    folder : str
    frames : Frames
    sampling : Sampling
        Every picture counts as a key frame.
    max_pixels : int
        Largest width times height of a frame.

    Attributes
    ----------
    frames_seen : int
        How many frames the folder has.
    sampled : tuple of int
        Indices of the frames that the sampling asks for.
    damage : str or None
        Which frames did not decode so far.

    Raises
    ------
    VideoError
        If the iteration ends without a frame.
    OSError
        If a picture cannot be read.
    """

    def __init__(self, folder: str, frames: Frames, sampling: Sampling, *, max_pixels: int = MAX_PIXELS) -> None:
        self._folder, self._names, self._rate = folder, frames.names, frames.rate
        self._max_pixels = max_pixels
        self._first = 0
        self._stopped = False
        self._damaged = 0
        self._first_damage = ""
        self.frames_seen = len(self._names)
        times = (index / self._rate for index in range(self.frames_seen))
        wanted = sampling.choose(times, [True] * self.frames_seen, self.frames_seen)
        self.sampled: tuple[int, ...] = tuple(np.flatnonzero(wanted).tolist())

    @property
    def damage(self) -> str | None:
        """Description of the frames that were damaged so far, None if none was."""
        if not self._damaged:
            return None
        return f"{counted(self._damaged, 'frame')} left out, the first is {self._first_damage}"

    def __enter__(self) -> "FramesReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def stop(self) -> None:
        """Make the iteration end soon. Any thread may call it."""
        self._stopped = True

    def skip_to(self, index: int) -> None:
        """Hand out no frame before this one from now on; they are not read."""
        self._first = index

    def __iter__(self) -> Iterator[FramePicture]:
        whole = 0
        for index in self.sampled:
            if self._stopped:
                return
            if index < self._first:
                whole += 1
                continue
            frame = self._frame(index)
            if frame is not None:
                whole += 1
                yield frame
        if not whole:
            raise VideoError(f"expected at least one frame, found none that is whole: {self.damage}")

    def _frame(self, index: int) -> FramePicture | None:
        path = os.path.join(self._folder, self._names[index])  # noqa: PTH118 -- many
        try:
            data = read_picture(path, max_pixels=self._max_pixels)
            picture = decode_picture(data, max_pixels=self._max_pixels)
        except PictureError as error:
            self._damaged += 1
            self._first_damage = (
                self._first_damage or f"frame {index} ({shorten(self._names[index])}): {cut(str(error), LONG)}"
            )
            return None
        return FramePicture(index, index / self._rate, picture.image, data if picture.passthrough else None)
