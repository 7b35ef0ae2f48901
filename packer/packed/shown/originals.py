"""The raw pictures and videos that a packed dataset was made from, to look at: items by their names."""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from packer.sources.item import is_picture, is_video
from packer.vision.decode.picture import decode_picture, read_picture
from packer.vision.decode.sampling import Sampling
from packer.vision.decode.video import VideoReader
from shardspec.errors import ItemError, UsageError
from shardspec.wording import shorten

MAX_PIXELS = 100 * 10**6


class Originals:
    """Frames of items, by the items' names relative to their source. Nothing outside the source is opened.

    Parameters
    ----------
    root : path
        The source's folder.

    Raises
    ------
    UsageError
        If it is not a folder.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(os.path.realpath(root))
        if not self.root.is_dir():
            raise UsageError(f"{root}: expected the folder that the dataset was packed from, found none")

    def find(self, item: str) -> Path | None:
        """The file of an item; None if there is none, or if its name or a link leads out of the source."""
        # A report may hold any name: one that the system cannot take is that of no file.
        try:
            path = Path(os.path.realpath(self.root / item))
            return path if path.is_relative_to(self.root) and path.is_file() else None
        except (OSError, ValueError):
            return None

    def frame(self, item: str, frame: int = 0) -> npt.NDArray[np.uint8]:
        """A frame of an item: (H, W, 3) uint8 RGB, upright, as the pack stage decodes it.

        Raises
        ------
        ItemError
            If there is no such file, or it does not decode.
        """
        path = self.find(item)
        if path is None:
            raise ItemError(f"{shorten(item)}: expected a file in the source, found none")
        return read_frame(path, frame)


def read_frame(path: Path, frame: int = 0) -> npt.NDArray[np.uint8]:
    """A frame of a picture or a video: (H, W, 3) uint8 RGB.

    Raises
    ------
    ItemError
        If the file does not decode, or is neither.
    """
    try:
        if is_picture(path.name):
            return decode_picture(read_picture(path, max_pixels=MAX_PIXELS), max_pixels=MAX_PIXELS).image
        if not is_video(path.name):
            raise ItemError(f"{path.name}: expected a picture or a video by its suffix")
        with VideoReader(path, Sampling(at=(max(0, frame),)), max_pixels=MAX_PIXELS) as reader:
            for found in reader:
                return found.image
    except OSError as error:
        raise ItemError(f"{path.name}: cannot be read: {error.strerror or error}") from error
    raise ItemError(f"{path.name}: expected a frame {frame}, found none")
