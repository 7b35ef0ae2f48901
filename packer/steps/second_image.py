"""Companion files of an item, such as the masks of a video: the same frames are read as of the item, in the same order."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from packer.recipe import Recipe
from packer.sources.item import ALSO, ItemFile
from packer.sources.member_bytes import opener
from packer.steps.chain import ITEM, REPORT, SAMPLED, Sample
from packer.steps.sequences import Reader, open_reader
from packer.vision.decode.image import decode_image, read_image
from packer.vision.decode.limits import ImageError, VideoError
from packer.vision.decode.sampling import Sampling, VideoFrame
from packer.vision.faults import may_pass
from shardspec.errors import ItemError, system_reason
from shardspec.wording import counted


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
def open_companion(recipe: Recipe, first: Sample) -> Iterator[CompanionImages]:
    """Open the companion image or video of a sample's item.

    At the end, damage and missing frames are added to the item's report.
    """
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
