"""Where an item's faces come from: a detector on its frames, or on those of another item, or boxes that the user gives."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from packer.companion import Companion
from packer.detect.detections import FaceDetector
from packer.face_detector import make_detector
from packer.frame_faces import FrameFaces
from packer.item import BOXES_FROM, Item
from packer.recipe import Recipe
from packer.sidecar import Sidecar, open_sidecar
from packer.suffixes import is_video
from shardspec.errors import ItemError

KEPT_FRAMES = 20_000
"""Frames of other items whose faces a worker remembers: about 1 KB each."""

_FileKey = tuple[str, int, int, tuple[int, ...] | None]
"""Path, size and time of a file, and the frames of it that are sampled: what is found in a damaged one may depend on them, too."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A frame of an item: its index and its pixels, (H, W, 3) uint8."""

    index: int
    image: npt.NDArray[np.uint8]


class ItemSearch(Protocol):
    """Finds the faces of one item."""

    def faces(self, frames: Sequence[Frame]) -> list[FrameFaces | str]:
        """The faces of the next frames; of one that cannot be told, why.

        Raises
        ------
        ItemError
            There can be no faces for this item.
        """
        ...


def takes_decoded(recipe: Recipe) -> bool:
    """Whether faces are looked for in the frames as they are decoded: those that came through other steps may be changed, or fewer."""
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
        self._memory = _Memory() if recipe.boxes_from is not None else None
        self._recipe = recipe

    @contextmanager
    def of_item(self, item: Item, sampled: tuple[int, ...] | None) -> Iterator[ItemSearch]:
        """The search for one item.

        What is damaged in another item's file is told by the frames that lack faces. Its own words would depend on how much of it had to
        be read, and so on what this worker knew before.

        Parameters
        ----------
        item : Item
        sampled : tuple of int or None
            Indices of the item's frames, as far as they are known.
        """
        other = item.files.get(BOXES_FROM)
        if self._sidecar is not None:
            yield _Given(self._sidecar.faces(item.name if other is None else other.name))
            return
        assert self._detector is not None
        if other is None:
            known = None
            told = sampled is not None or not is_video(item.name)
            if self._memory is not None and takes_decoded(self._recipe) and item.path is not None and told:
                known = self._memory.frames((item.path, item.bytes, item.mtime_ns, sampled))
            yield _Detecting(self._detector, known)
            return
        assert self._memory is not None
        companion = Companion(BOXES_FROM, other, sampled)
        try:
            known = self._memory.frames((other.path, other.bytes, other.mtime_ns, sampled))
            yield _DetectingOn(self._detector, companion, known)
        finally:
            companion.close()


class _Known(NamedTuple):
    """The faces of a frame, and its height and width."""

    shape: tuple[int, ...]
    faces: FrameFaces


class _Memory:
    """The faces of files by frame, those used last. They are a function of the file, so nobody can tell who found them."""

    def __init__(self) -> None:
        self._files: OrderedDict[_FileKey, dict[int, _Known]] = OrderedDict()

    def frames(self, key: _FileKey) -> dict[int, _Known]:
        """What is known of a file, to be added to."""
        known = self._files.setdefault(key, {})
        self._files.move_to_end(key)
        total = sum(map(len, self._files.values()))
        while total > KEPT_FRAMES and len(self._files) > 1:
            total -= len(self._files.popitem(last=False)[1])
        return known


class _Given:
    """Faces by frame that are known."""

    def __init__(self, known: Mapping[int, FrameFaces]) -> None:
        self._known = known

    def faces(self, frames: Sequence[Frame]) -> list[FrameFaces | str]:
        """See `ItemSearch`."""
        return [self._known.get(frame.index, "no box is given for it") for frame in frames]


class _Detecting:
    """Detects on the item's own frames."""

    def __init__(self, detector: FaceDetector, known: dict[int, _Known] | None) -> None:
        self._detector = detector
        self._known = known

    def faces(self, frames: Sequence[Frame]) -> list[FrameFaces | str]:
        """See `ItemSearch`."""
        found = _detect(self._detector, [frame.image for frame in frames])
        if self._known is not None:
            for frame, faces in zip(frames, found, strict=True):
                self._known[frame.index] = _Known(frame.image.shape, faces)
        return list[FrameFaces | str](found)


class _DetectingOn:
    """Detects on the frames of another item, those with the same indices."""

    def __init__(self, detector: FaceDetector, other: Companion, known: dict[int, _Known]) -> None:
        self._detector = detector
        self._other = other
        self._known = known

    def faces(self, frames: Sequence[Frame]) -> list[FrameFaces | str]:
        """See `ItemSearch`."""
        pictures: dict[int, Any] = {}
        for frame in frames:
            if frame.index not in self._known:
                pictures[frame.index] = self._other.picture(frame.index)
        there = {index: picture for index, picture in pictures.items() if picture is not None}
        found = _detect(self._detector, list(there.values()))
        for (index, picture), faces in zip(there.items(), found, strict=True):
            self._known[index] = _Known(picture.shape, faces)
        return [self._faces(frame) for frame in frames]

    def _faces(self, frame: Frame) -> FrameFaces | str:
        known = self._known.get(frame.index)
        name = self._other.file.name
        if known is None:
            return f"no whole frame of that index in {name!r}, whose boxes are taken"
        if known.shape != frame.image.shape:
            sizes = " and ".join(f"{shape[1]} x {shape[0]}" for shape in (frame.image.shape, known.shape))
            raise ItemError(
                f"boxes_from {name!r}: expected frames of the same size, found {sizes} at frame {frame.index}"
            )
        return known.faces


def _detect(detector: FaceDetector, pictures: list[npt.NDArray[np.uint8]]) -> list[FrameFaces]:
    found = detector.detect(pictures) if pictures else ()
    return [FrameFaces(frame.boxes, frame.scores, frame.points) for frame in found]
