"""The frames of a video that are images in a folder."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from packer.sources.files import FileState
from shardspec.wording import list_some, shorten

_NUMBER = re.compile(r"[0-9]+")
_DECIMAL = re.compile(r"[0-9]\.[0-9]+[^0-9]*\Z")

_SHOWN = 3
"""Number of image names to list in a reason."""

_NUMBER_MAX = 2**53 - 1
"""Largest number of a frame: tables may store the numbers as 64-bit floats."""

_STATE_DIGITS = 32


class Frames(NamedTuple):
    """The frames of a video that are images in the folder at the item's path.

    Attributes
    ----------
    kind : {"frames"}
    names : tuple of str
        Names of the images, in the order of the frames.
    state : str
        Digest of the images' sizes and modification times when they were listed (`FramesState`).
    rate : float, frames per second
    """

    kind: Literal["frames"]
    names: tuple[str, ...]
    state: str
    rate: float

    @property
    def run(self) -> None:
        """None, because each folder is read alone."""
        return


class FramesState:
    """The state of the files of some frames, by which a changed file is detected.

    Attributes
    ----------
    bytes : int
        Total size of the files.
    mtime_ns : int
        Modification time of the newest file.
    digest : str
        Digest of the sizes and times of all files, in order.
    """

    def __init__(self, found: Iterable[FileState]) -> None:
        self.bytes = self.mtime_ns = 0
        digest = hashlib.sha256()
        for file in found:
            self.bytes += file.st_size
            self.mtime_ns = max(self.mtime_ns, file.st_mtime_ns)
            digest.update(b"%d %d\n" % (file.st_size, file.st_mtime_ns))
        self.digest = digest.hexdigest()[:_STATE_DIGITS]


class FramesError(ValueError):
    """The images are not the frames of a video; the message says why."""


def frame_numbers(names: Sequence[str]) -> list[int]:
    """Return the numbers of frames: the last number in each name. ``001_017.png`` is frame 17.

    The number does not depend on the other images, so a mask with the same name as a frame has the same number.

    Parameters
    ----------
    names : sequence of str

    Returns
    -------
    list of int
        A name without a number is 0.

    Raises
    ------
    FramesError
        If the names differ in more than numbers, or if two names have the same last number.
    """
    shapes: dict[str, str] = {}
    for name in names:
        shapes.setdefault(_NUMBER.sub("/", name), name)
    if len(shapes) > 1:
        shown = list_some(list(map(shorten, list(shapes.values())[:_SHOWN])))
        more = " and others" if len(shapes) > _SHOWN else ""
        raise FramesError(
            f"expected frames whose names differ only in their numbers, found {shown}{more}: "
            "keep one kind of image (with a folder as SOURCE, choose it with --include or --exclude)"
        )
    texts = [(_NUMBER.findall(name) or ["0"])[-1] for name in names]
    if len(set(map(len, texts))) > 1 and _DECIMAL.search(names[0]):
        raise FramesError(
            f"expected the number of a frame at the end of its name, found a decimal, {shorten(names[0])}"
        )
    first: dict[int, str] = {}
    for name, number in zip(names, map(int, texts), strict=True):
        if number in first:
            raise FramesError(
                f"expected each number once at the end of the frames' names, found {shorten(first[number])} and "
                f"{shorten(name)}: put each video into a separate folder"
            )
        if number > _NUMBER_MAX:
            raise FramesError(f"expected numbers of frames up to {_NUMBER_MAX}, found {shorten(name)}")
        first[number] = name
    return list(first)
