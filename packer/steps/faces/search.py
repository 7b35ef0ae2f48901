"""Find an item's faces: by a detector on the item's or another item's frames, or in boxes from the user."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.recipe import Recipe
from packer.sources.item import BOXES_FROM, Item, ItemFile
from packer.steps.chain import STILL, Sample, require_image
from packer.steps.faces.boxes import Boxes, open_boxes
from packer.steps.faces.frame import FrameFaces
from packer.steps.faces.tracks import make_thumbnail
from packer.steps.second_image import CompanionFile
from packer.vision.detect import Detector
from packer.vision.detect.interface import CheckedDetector, FaceDetector
from shardspec.errors import ItemError
from shardspec.registry import import_target

BATCH_FRAMES = 4
"""Number of frames of one item in a batch of the detector."""

SAME_TIME_S = 1e-3
"""Largest difference between the time of a frame and its recorded time, in seconds."""

KEPT_FRAMES = 20_000
"""Number of frames whose faces a worker caches, about 2 KB each."""

Sampled = tuple[int, ...] | None
"""Indices of the frames that a pass over a file returns; None for all frames, or for an image."""

_UNKNOWN: Sampled = ()
"""Key of a pass with unknown indices, which shares no frames with other passes."""


class FaceSearch:
    """Opens the recipe's boxes, or loads the detector unless one is passed. Made once per worker."""

    def __init__(self, recipe: Recipe, detector: FaceDetector | None = None) -> None:
        self._boxes: Boxes | None = None
        self._detector: FaceDetector | None = None
        if recipe.boxes is not None:
            self._boxes = open_boxes(recipe.boxes, recipe.boxes_scale)
        else:
            self._detector = make_detector(recipe) if detector is None else detector
        self._memory = FaceMemory() if recipe.boxes_from is not None else None
        self._recipe = recipe

    @contextmanager
    def of_item(self, item: Item, sampled: Sampled) -> "Iterator[ItemSearch]":
        """Open the search for one item, whose frames have the indices `sampled` if they are known.

        Damage in another item's file is reported by the frames that lack faces. A description of the damage itself
        would depend on how much of the file had to be read, and so on the faces that this worker already knew.
        """
        other = item.files.get(BOXES_FROM)
        if self._boxes is not None:
            file = item if other is None else other
            yield _GivenBoxes(self._boxes.faces(file.name, file.bytes), self._boxes.no_box, timed=other is None)
            return
        assert self._detector is not None
        if other is None:
            known = None
            if self._memory is not None and takes_decoded(self._recipe) and item.path is not None:
                passes = self._memory.of_file(item)
                known = passes.setdefault(_UNKNOWN if sampled is None and item.medium.is_sequence else sampled, {})
            yield _Detecting(self._detector, known, repeats=takes_decoded(self._recipe))
            return
        assert self._memory is not None
        second = CompanionFile(BOXES_FROM, other, sampled)
        try:
            yield _DetectingOn(self._detector, second, self._memory.of_file(other), sampled)
        finally:
            second.close()


class ItemSearch(ABC):
    """Finds the faces of one item."""

    @abstractmethod
    def faces(self, frames: Sequence[Sample]) -> list[FrameFaces | str]:
        """Return the faces of the next frames (samples with ``frame`` and ``image``), or why they are unknown.

        Raises
        ------
        ItemError
            If no faces can be found for this item at all.
        """

    def unused(self) -> int:
        """Return the number of boxes from the user that belong to none of the frames so far."""
        return 0


class _GivenBoxes(ItemSearch):
    """Looks up known faces by frame.

    Parameters
    ----------
    known : mapping of int to FrameFaces or str
        The faces of a frame, or the reason why it has none.
    no_box : str
        The reason for all other frames.
    timed : bool
        Whether frames must have the times that were recorded with the faces.
    """

    def __init__(self, known: Mapping[int, FrameFaces | str], no_box: str, *, timed: bool) -> None:
        self._known = known
        self._no_box = no_box
        self._timed = timed
        self._asked: set[int] = set()

    def faces(self, frames: Sequence[Sample]) -> list[FrameFaces | str]:
        self._asked.update(frame["frame"] for frame in frames)
        return [self._faces(frame) for frame in frames]

    def unused(self) -> int:
        unused = (faces for frame, faces in self._known.items() if frame not in self._asked)
        return sum(len(faces) for faces in unused if isinstance(faces, FrameFaces))

    def _faces(self, frame: Sample) -> FrameFaces | str:
        known = self._known.get(frame["frame"], self._no_box)
        if isinstance(known, str):
            return known
        shape = frame["image"].shape
        if known.shape is not None and known.shape != shape:
            sizes = " and ".join(f"{width} x {height}" for height, width, _ in (known.shape, shape))
            raise ItemError(place="boxes", expected="frames of the same size as their boxes", found=sizes)
        if self._timed and known.time is not None and abs(known.time - frame["time"]) > SAME_TIME_S:
            raise ItemError(
                place="boxes",
                expected=f"frame {frame['frame']} at {known.time:g} s, as when its boxes were packed",
                found=f"it at {frame['time']:g} s",
            )
        return replace(known, thumbnail=make_thumbnail(frame["image"]))


class _Detecting(ItemSearch):
    """Detects faces in the item's own frames, and adds the faces to `known`.

    If `repeats`, consecutive frames with the same index are the same frame, in which faces are detected once.
    """

    def __init__(self, detector: FaceDetector, known: dict[int, FrameFaces] | None, *, repeats: bool) -> None:
        self._detector = detector
        self._known = known
        self._repeats = repeats
        self._last: dict[int, FrameFaces] = {}

    def faces(self, frames: Sequence[Sample]) -> list[FrameFaces | str]:
        keys = [frame["frame"] for frame in frames] if self._repeats else range(len(frames))
        new = {key: frame["image"] for key, frame in zip(keys, frames, strict=True) if key not in self._last}
        found = self._last | dict(zip(new, _detect(self._detector, list(new.values())), strict=True))
        if self._repeats:
            self._last = {keys[-1]: found[keys[-1]]}
        if self._known is not None:
            self._known |= found
        return [found[key] for key in keys]


class _DetectingOn(ItemSearch):
    """Detects faces in the frames of another item with the same indices.

    Faces from a pass over the same sampled frames are reused without reading the file again. Faces from other passes
    are reused if this pass yields the frame too: a frame looks the same in each pass, but in a damaged file a pass may
    lack it.
    """

    def __init__(
        self,
        detector: FaceDetector,
        other: CompanionFile,
        passes: "dict[Sampled, dict[int, FrameFaces]]",
        sampled: Sampled,
    ) -> None:
        self._detector = detector
        self._other = other
        self._passes = passes
        self._known = passes.setdefault(sampled, {})

    def faces(self, frames: Sequence[Sample]) -> list[FrameFaces | str]:
        new: dict[int, npt.NDArray[np.uint8]] = {}
        for index in (frame["frame"] for frame in frames if frame["frame"] not in self._known):
            image = self._other.image(index)
            if image is None:
                continue
            before = next((known[index] for known in self._passes.values() if index in known), None)
            if before is None:
                new[index] = image
            else:
                self._known[index] = before
        self._known |= zip(new, _detect(self._detector, list(new.values())), strict=True)
        return [self._faces(frame) for frame in frames]

    def _faces(self, frame: Sample) -> FrameFaces | str:
        index, shape = frame["frame"], frame["image"].shape
        known = self._known.get(index)
        name = self._other.file.name
        if known is None:
            return f"no undamaged frame with that index in {name!r}, whose boxes are used"
        if known.shape is not None and known.shape != shape:
            sizes = " and ".join(f"{width} x {height}" for height, width, _ in (shape, known.shape))
            raise ItemError(
                place=f"boxes_from {name!r}", expected="frames of the same size", found=f"{sizes} at frame {index}"
            )
        return known


class FaceMemory:
    """Faces by file, pass and frame; the least recently used file is dropped first."""

    def __init__(self) -> None:
        self._files: OrderedDict[tuple[Any, ...], dict[Sampled, dict[int, FrameFaces]]] = OrderedDict()

    def of_file(self, file: Item | ItemFile) -> dict[Sampled, dict[int, FrameFaces]]:
        """Return the known faces of a file by pass; the caller adds to them."""
        key = (file.path, file.bytes, file.mtime_ns, file.member)
        passes = self._files.setdefault(key, {})
        self._files.move_to_end(key)
        total = sum(map(_frames_in, self._files.values()))
        while total > KEPT_FRAMES and len(self._files) > 1:
            total -= _frames_in(self._files.popitem(last=False)[1])
        return passes


def _frames_in(passes: Mapping[Sampled, Mapping[int, FrameFaces]]) -> int:
    return sum(map(len, passes.values()))


def make_detector(recipe: Recipe) -> CheckedDetector:
    """Load the detector of a recipe. Every process uses this function, so all have the same detector.

    Raises
    ------
    UsageError, MissingDependencyError
        If the detector cannot be made.
    """
    if recipe.has_custom_detector:
        return CheckedDetector(recipe.detector, import_target(recipe.detector, what="--detector"), recipe.device)
    return CheckedDetector("MTCNN", partial(_make_mtcnn, recipe), recipe.device)


def _make_mtcnn(recipe: Recipe, device: str) -> Detector:
    if recipe.parity:
        return Detector(recipe.detector, device=device)
    return Detector.dataset(recipe.min_face, runtime=recipe.detector, device=device)


def takes_decoded(recipe: Recipe) -> bool:
    """Return whether faces are searched for in decoded frames, unchanged by other steps."""
    return [step.use for step in recipe.chain[:2]] in (["decode", "faces"], ["decode", "detect"])


def as_frame(sample: Sample) -> Sample:
    """Return a sample with an image. An image from the source becomes frame 0, as if it had been decoded."""
    require_image(sample)
    return sample if "frame" in sample else {**STILL, **sample}


def _detect(detector: FaceDetector, images: Sequence[npt.NDArray[np.uint8]]) -> list[FrameFaces]:
    found = detector.detect(images) if images else ()
    return [
        FrameFaces(*faces, shape=image.shape, thumbnail=make_thumbnail(image))
        for image, faces in zip(images, found, strict=True)
    ]
