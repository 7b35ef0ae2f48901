"""What a worker remembers of the faces in the files that it searched last."""

from collections import OrderedDict
from typing import NamedTuple

from packer.sources.item import Item, ItemFile
from packer.steps.faces.frame import FrameFaces

__all__ = ["FaceMemory", "KnownFaces", "KnownFrame"]

KEPT_FRAMES = 20_000
"""Frames whose faces a worker remembers: about 1 KB each."""


class KnownFrame(NamedTuple):
    """The faces of a frame, and the frame's shape."""

    shape: tuple[int, ...]
    faces: FrameFaces


class KnownFaces(NamedTuple):
    """The faces of one file by frame, to be added to. Nothing of it depends on who found them.

    Attributes
    ----------
    by_pass : dict of int to KnownFrame
        Of frames that a pass over the same sampled frames gives: for these the file need not be read again.
    by_frame : dict of int to KnownFrame
        Of frames that any pass gave. A frame looks the same in each, but of a damaged file another pass may lack it.
    """

    by_pass: dict[int, KnownFrame]
    by_frame: dict[int, KnownFrame]

    def add(self, frame: int, known: KnownFrame) -> None:
        """Remember a frame that was given."""
        self.by_pass[frame] = self.by_frame[frame] = known


class _File:
    """The faces of a file: of all frames, and by the frames that a pass sampled."""

    def __init__(self) -> None:
        self.frames: dict[int, KnownFrame] = {}
        self.passes: dict[tuple[int, ...] | None, dict[int, KnownFrame]] = {}


class FaceMemory:
    """The faces of files, of which the one that was not asked for the longest is forgotten first."""

    def __init__(self) -> None:
        self._files: OrderedDict[tuple[str | None, int, int], _File] = OrderedDict()

    def of_file(self, file: Item | ItemFile, sampled: tuple[int, ...] | None) -> KnownFaces:
        """What is known of a file.

        Parameters
        ----------
        file : Item or ItemFile
        sampled : tuple of int or None
            The frames of the pass, None for all or for a picture.
        """
        key = (file.path, file.bytes, file.mtime_ns)
        known = self._files.setdefault(key, _File())
        self._files.move_to_end(key)
        total = sum(len(one.frames) for one in self._files.values())
        while total > KEPT_FRAMES and len(self._files) > 1:
            total -= len(self._files.popitem(last=False)[1].frames)
        return KnownFaces(known.passes.setdefault(sampled, {}), known.frames)
