"""A second picture or video of an item, read beside it: the same frames, in the same order."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from packer.sources.item import ItemFile, is_video
from packer.vision.decode.limits import PictureError, VideoError
from packer.vision.decode.picture import decode_picture, read_picture
from packer.vision.decode.sampling import Sampling
from packer.vision.decode.video import VideoFrame, VideoReader
from packer.vision.faults import may_pass, system_reason
from shardspec.errors import ItemError


class Companion:
    """The frames of a second file by their indices, which only rise. Opened when the first one is asked for; close it.

    Parameters
    ----------
    option : str
        The option that names the file, for messages.
    file : ItemFile
    sampled : tuple of int or None
        The indices that may be asked for, rising; None if any may.
    """

    def __init__(self, option: str, file: ItemFile, sampled: tuple[int, ...] | None) -> None:
        self.file = file
        self._what = f"{option} {file.name!r}"
        self._sampled = sampled
        self._video: VideoReader | None = None
        self._frames: Iterator[VideoFrame] = iter(())
        self._next: VideoFrame | None = None
        self._picture: npt.NDArray[np.uint8] | None = None

    @property
    def damage(self) -> str | None:
        """What could not be read of the file so far; for a video, up to the frame that was asked for last."""
        found = None if self._video is None else self._video.damage
        return None if found is None else f"{self._what}: {found}"

    def close(self) -> None:
        """Free the decoder and the file."""
        if self._video is not None:
            self._video.close()

    def picture(self, index: int) -> npt.NDArray[np.uint8] | None:
        """The frame of an index, (H, W, 3) uint8 RGB; None where the file lacks it or it is damaged.

        Raises
        ------
        ItemError
            If the file cannot be read at all.
        """
        try:
            if is_video(self.file.name):
                return self._frame(index)
            if self._picture is None:
                self._picture = decode_picture(read_picture(Path(self.file.path))).image
            return self._picture
        except (PictureError, VideoError) as error:
            raise ItemError(f"{self._what}: {error}") from error
        except OSError as error:
            raise ItemError(f"{self._what}: expected a readable file, found: {system_reason(error)}") from error

    def _frame(self, index: int) -> npt.NDArray[np.uint8] | None:
        if self._video is None:
            sampling = Sampling(every=1) if self._sampled is None else Sampling(at=self._sampled)
            self._video = VideoReader(self.file.path, sampling)
            self._frames = iter(self._video)
            self._advance()
        while self._next is not None and self._next.index < index:
            self._advance()
        return self._next.image if self._next is not None and self._next.index == index else None

    def _advance(self) -> None:
        try:
            self._next = next(self._frames, None)
        except VideoError as error:
            if may_pass(error):
                raise
            self._next = None  # none of the sampled frames exists undamaged: they are reported missing one by one
