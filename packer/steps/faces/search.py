"""Where an item's faces come from: a detector on its own or another item's frames, or boxes that the user gives."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from packer.recipe import Recipe
from packer.sources.item import BOXES_FROM, Item, ItemFile, is_video
from packer.steps.faces.boxes import Sidecar, open_sidecar
from packer.steps.faces.frame import FrameFaces
from packer.steps.faces.second import Companion
from packer.vision.detect import Detector
from packer.vision.detect.detections import FaceDetector
from shardspec.errors import ItemError


def make_detector(recipe: Recipe) -> Detector:
    """Load the detector: the same one in every process that needs it."""
    if recipe.parity:
        return Detector(recipe.detector, device=recipe.device)
    return Detector.dataset(recipe.min_face, runtime=recipe.detector, device=recipe.device)


KEPT_FRAMES = 20_000
"""Frames whose faces a worker remembers: about 1 KB each."""


class KnownFrame(NamedTuple):
    """The faces of a frame, and the shape of the frame."""

    shape: tuple[int, ...]
    faces: FrameFaces


class KnownFaces(NamedTuple):
    """The faces of one file by frame, to which more are added. They do not depend on which search found them.

    Attributes
    ----------
    by_pass : dict of int to KnownFrame
        Frames that a pass over the same sampled frames gave: for these the file need not be read again.
    by_frame : dict of int to KnownFrame
        Frames that any pass gave. A frame looks the same in each, but in a damaged file another pass may lack it.
    """

    by_pass: dict[int, KnownFrame]
    by_frame: dict[int, KnownFrame]

    def add(self, frame: int, known: KnownFrame) -> None:
        """Remember the faces of a frame."""
        self.by_pass[frame] = self.by_frame[frame] = known


class _File:
    """The faces of a file: those of all frames, and those of each pass by the frames that it sampled."""

    def __init__(self) -> None:
        self.frames: dict[int, KnownFrame] = {}
        self.passes: dict[tuple[int, ...] | None, dict[int, KnownFrame]] = {}


class FaceMemory:
    """Faces by file; the least recently used file is dropped first."""

    def __init__(self) -> None:
        self._files: OrderedDict[tuple[str | None, int, int], _File] = OrderedDict()

    def of_file(self, file: Item | ItemFile, sampled: tuple[int, ...] | None) -> KnownFaces:
        """The faces of a file that are known.

        Parameters
        ----------
        file : Item or ItemFile
        sampled : tuple of int or None
            The frames of the pass; None for all frames or for a picture.
        """
        key = (file.path, file.bytes, file.mtime_ns)
        known = self._files.setdefault(key, _File())
        self._files.move_to_end(key)
        total = sum(len(one.frames) for one in self._files.values())
        while total > KEPT_FRAMES and len(self._files) > 1:
            total -= len(self._files.popitem(last=False)[1].frames)
        return KnownFaces(known.passes.setdefault(sampled, {}), known.frames)


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A frame of an item: its index and its pixels, (H, W, 3) uint8."""

    index: int
    image: npt.NDArray[np.uint8]


class ItemSearch(Protocol):
    """Finds the faces of one item."""

    def faces(self, frames: Sequence[Frame]) -> list[FrameFaces | str]:
        """The faces of the next frames; for a frame whose faces cannot be determined, the reason.

        Raises
        ------
        ItemError
            If there can be no faces for this item.
        """
        ...


def takes_decoded(recipe: Recipe) -> bool:
    """Whether faces are searched for in the frames as they are decoded; other steps may change frames or drop some."""
    return [step.use for step in recipe.chain[:2]] == ["decode", "faces"]


class FaceSearch:
    """Made once per worker: loads the detector, or opens the boxes.

    Parameters
    ----------
    recipe : Recipe
    detector : FaceDetector or None
        By default one is loaded here, unless the recipe gives the boxes.
    """

    def __init__(self, recipe: Recipe, detector: FaceDetector | None = None) -> None:
        self._sidecar: Sidecar | None = None
        self._detector: FaceDetector | None = None
        if recipe.boxes is not None:
            self._sidecar = open_sidecar(recipe.boxes, recipe.boxes_scale)
        else:
            self._detector = make_detector(recipe) if detector is None else detector
        self._memory = FaceMemory() if recipe.boxes_from is not None else None
        self._recipe = recipe

    @contextmanager
    def of_item(self, item: Item, sampled: tuple[int, ...] | None) -> Iterator[ItemSearch]:
        """The search for one item.

        Damage in another item's file is reported by the frames that lack faces. A description of the damage itself
        would depend on how much of the file had to be read, and so on what this worker already knew.

        Parameters
        ----------
        item : Item
        sampled : tuple of int or None
            Indices of the item's frames, if they are known.
        """
        other = item.files.get(BOXES_FROM)
        if self._sidecar is not None:
            yield _Given(self._sidecar.faces(item.name if other is None else other.name))
            return
        assert self._detector is not None
        if other is None:
            known = None
            if self._memory is not None and takes_decoded(self._recipe) and item.path is not None:
                known = self._memory.of_file(item, sampled)
                if sampled is None and is_video(item.name):  # the indices of this pass's frames are not known
                    known = known._replace(by_pass={})
            yield _Detecting(self._detector, known)
            return
        assert self._memory is not None
        companion = Companion(BOXES_FROM, other, sampled)
        try:
            yield _DetectingOn(self._detector, companion, self._memory.of_file(other, sampled))
        finally:
            companion.close()


class _Given:
    """Gives known faces by frame."""

    def __init__(self, known: Mapping[int, FrameFaces]) -> None:
        self._known = known

    def faces(self, frames: Sequence[Frame]) -> list[FrameFaces | str]:
        """See `ItemSearch`."""
        return [self._known.get(frame.index, "no box is given for it") for frame in frames]


class _Detecting:
    """Detects on the item's own frames."""

    def __init__(self, detector: FaceDetector, known: KnownFaces | None) -> None:
        self._detector = detector
        self._known = known

    def faces(self, frames: Sequence[Frame]) -> list[FrameFaces | str]:
        """See `ItemSearch`."""
        found = _detect(self._detector, [frame.image for frame in frames])
        if self._known is not None:
            for frame, faces in zip(frames, found, strict=True):
                self._known.add(frame.index, KnownFrame(frame.image.shape, faces))
        return list[FrameFaces | str](found)


class _DetectingOn:
    """Detects on the frames of another item with the same indices."""

    def __init__(self, detector: FaceDetector, other: Companion, known: KnownFaces) -> None:
        self._detector = detector
        self._other = other
        self._known = known

    def faces(self, frames: Sequence[Frame]) -> list[FrameFaces | str]:
        """See `ItemSearch`."""
        new: dict[int, npt.NDArray[np.uint8]] = {}
        for index in (frame.index for frame in frames if frame.index not in self._known.by_pass):
            picture = self._other.picture(index)
            if picture is not None and index in self._known.by_frame:
                self._known.add(index, self._known.by_frame[index])
            elif picture is not None:
                new[index] = picture
        found = _detect(self._detector, list(new.values()))
        for (index, picture), faces in zip(new.items(), found, strict=True):
            self._known.add(index, KnownFrame(picture.shape, faces))
        return [self._faces(frame) for frame in frames]

    def _faces(self, frame: Frame) -> FrameFaces | str:
        known = self._known.by_pass.get(frame.index)
        name = self._other.file.name
        if known is None:
            return f"no undamaged frame with that index in {name!r}, whose boxes are used"
        if known.shape != frame.image.shape:
            sizes = " and ".join(f"{shape[1]} x {shape[0]}" for shape in (frame.image.shape, known.shape))
            raise ItemError(
                f"boxes_from {name!r}: expected frames of the same size, found {sizes} at frame {frame.index}"
            )
        return known.faces


def _detect(detector: FaceDetector, pictures: list[npt.NDArray[np.uint8]]) -> list[FrameFaces]:
    found = detector.detect(pictures) if pictures else ()
    return [FrameFaces(frame.boxes, frame.scores, frame.points) for frame in found]
