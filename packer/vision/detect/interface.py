"""The interface of every detector, packer's and users', its results in a batch of frames, and their check."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from packer.vision.faults import describe_error, describe_line, find_memory_error
from shardspec.errors import ItemError, ShardspecError, UsageError
from shardspec.wording import counted

FloatArray = npt.NDArray[np.float32]
Frame = npt.NDArray[np.uint8]

FARTHEST = 2**24
"""Limit of coordinates, in pixels: below it float32 represents every whole number."""

_DECLARED = ("name", "sha256", "license")


class Faces(NamedTuple):
    """The faces of one frame: boxes, (N, 4), scores, (N,), and points, (N, 5, 2)."""

    boxes: FloatArray
    scores: FloatArray
    points: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Detections:
    """The faces of a batch of frames.

    Attributes
    ----------
    boxes : ndarray, (N, 4), float32
        Left, top, right, bottom in frame pixels, in facenet-pytorch's own convention (see the notes). Boxes are not
        clipped: they may reach outside the frame.
    scores : ndarray, (N,), float32
        Probability of a face, in (thresholds[2], 1].
    points : ndarray, (N, 5, 2), float32
        x, y in frame pixels of the left eye, right eye, nose, left and right mouth corner, left and right *as the
        viewer sees them* on an upright face: MTCNN's "left eye" is the person's right eye.
    offsets : ndarray, (frames + 1,), int64
        The faces of frame ``i`` are rows ``offsets[i]`` to ``offsets[i + 1]`` (exclusive), largest box first.

    Notes
    -----
    The numbers are those of ``facenet_pytorch.MTCNN.detect``. Its arithmetic counts pixels from one and takes ends as
    inclusive in some steps and not in others, so a box is right to about a pixel; nothing is shifted here, so that the
    results of both can be compared number by number.
    """

    boxes: FloatArray
    scores: FloatArray
    points: FloatArray
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Count frames (not faces)."""
        return len(self.offsets) - 1

    def __getitem__(self, frame: int) -> Faces:
        """Return the faces of one frame."""
        if not -len(self) <= frame < len(self):
            raise IndexError(f"expected a frame in [0, {len(self)}), found {frame}")
        rows = slice(*self.offsets[frame % len(self) :][:2].tolist())
        return Faces(self.boxes[rows], self.scores[rows], self.points[rows])

    def __iter__(self) -> Iterator[Faces]:
        """Iterate over frames."""
        return (self[frame] for frame in range(len(self)))

    @classmethod
    def of_frames(cls, frames: Sequence[Faces]) -> "Detections":
        """Join the faces of frames, in order."""
        return cls.concatenate([cls(*faces, np.array([0, len(faces.boxes)], np.int64)) for faces in frames])

    @classmethod
    def concatenate(cls, parts: "Sequence[Detections]") -> "Detections":
        """Join the frames of several results, in order."""
        counts = np.concatenate([np.zeros(1, np.int64), *(np.diff(part.offsets) for part in parts)])
        return cls(
            np.concatenate([np.zeros((0, 4), np.float32), *(part.boxes for part in parts)]),
            np.concatenate([np.zeros(0, np.float32), *(part.scores for part in parts)]),
            np.concatenate([np.zeros((0, 5, 2), np.float32), *(part.points for part in parts)]),
            np.cumsum(counts),
        )


class FaceDetector(Protocol):
    """Finds faces: in this process, or by asking another."""

    def detect(self, frames: Sequence[npt.NDArray[np.uint8]]) -> Detections:
        """Find the faces in each frame, (H, W, 3) uint8 RGB."""
        ...


class CustomDetector(Protocol):
    """A detector as a user may write it; `packer.Detector` is one, too.

    It may also have ``version``, a string, and ``weights``, a dict of strings with any of ``name``, ``sha256`` and
    ``license``. They are recorded in the manifest, and a build is resumed only with the same values.
    """

    def detect(self, frames: Sequence[Frame], /) -> Iterable[tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]]:
        """Find the faces in frames of one item.

        Parameters
        ----------
        frames : sequence of ndarray, (H, W, 3), uint8
            RGB. They must not be changed.

        Returns
        -------
        iterable of tuple
            For each frame, in order:

            * boxes, (N, 4): left, top, right, bottom in pixels of the frame. They may reach outside the frame.
            * scores, (N,): in [0, 1].
            * points, (N, 5, 2): x, y in pixels of the frame of the person's right eye, left eye, nose tip, right and
              left corner of the mouth.
        """
        ...


class BadDetectionsError(ItemError):
    """A detector returned something other than `CustomDetector.detect` should."""


class CheckedDetector:
    """Runs a detector and checks its results; fulfils `FaceDetector`.

    Parameters
    ----------
    name : str
        The detector's name in the recipe, for messages.
    make : callable
        Makes the detector from the name of the device.

    Raises
    ------
    UsageError
        If the detector cannot be made, or declares something other than strings.
    """

    def __init__(self, name: str, make: Callable[[str], Any], device: str) -> None:
        self._name = f"detector {name}"
        file = getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)
        self._file = str(file) if ":" in name else ""
        try:
            detector = make(device)
        except ShardspecError:
            raise
        except Exception as error:
            if find_memory_error(error) is not None:
                raise
            raise UsageError(f"cannot be made on {device}: {self._describe(error)}", place=self._name) from error
        if not callable(getattr(detector, "detect", None)):
            raise UsageError(place=self._name, expected="an object with a method detect", found=type(detector).__name__)
        self._detector: CustomDetector = detector
        self.declared = declare(self._name, getattr(detector, "weights", {}), getattr(detector, "version", None))

    def new_frame(self, height: int, width: int) -> Frame:
        """Return uninitialised memory for a frame, (height, width, 3): the detector's own if it provides some."""
        make = getattr(self._detector, "new_frame", None)
        frame: Frame = np.empty((height, width, 3), np.uint8) if make is None else make(height, width)
        return frame

    def detect(self, frames: Sequence[Frame]) -> Detections:
        """Find the faces in each frame, (H, W, 3) RGB; the largest come first.

        Raises
        ------
        BadDetectionsError
            If the detector returns something other than `CustomDetector.detect` should.
        ItemError
            If the detector raises an error.
        """
        try:
            returned = self._detector.detect(frames)
            found = list(returned) if isinstance(returned, Iterable) else returned
        except Exception as error:
            raise ItemError(self._describe(error), place=self._name) from error
        if not isinstance(found, list) or len(found) != len(frames):
            what = counted(len(found), "element") if isinstance(found, list) else type(found).__name__
            raise BadDetectionsError(
                f"{self._name}: expected a list of (boxes, scores, points) for {counted(len(frames), 'frame')}, "
                f"found {what}"
            )
        return Detections.of_frames(
            [self._check(faces, *frame.shape[:2]) for faces, frame in zip(found, frames, strict=True)]
        )

    def _check(self, found: Any, height: int, width: int) -> Faces:
        try:
            with np.errstate(over="ignore"):
                boxes, scores, points = (np.asarray(array, np.float32) for array in found)
        except (RuntimeError, TypeError, ValueError) as error:  # torch: "Tensor that requires grad"
            raise BadDetectionsError(
                f"{self._name}: expected three arrays (boxes, scores, points) for a frame: {describe_error(error)}"
            ) from error
        if boxes.size == scores.size == points.size == 0:
            return Faces(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros((0, 5, 2), np.float32))
        count = len(boxes) if boxes.ndim else 0
        shapes = [array.shape for array in (boxes, scores, points)]
        if shapes != [(count, 4), (count,), (count, 5, 2)]:
            raise BadDetectionsError(
                f"{self._name}: expected boxes (N, 4), scores (N,) and points (N, 5, 2), "
                f"found {', '.join(map(str, shapes))}"
            )
        self._refuse(boxes, are_boxes(boxes), "finite boxes with left < right and top < bottom")
        self._refuse(boxes, touch_frame(boxes, height, width), f"boxes that touch their frame ({width} x {height})")
        self._refuse(scores, (scores >= 0) & (scores <= 1), "scores from 0 to 1")
        self._refuse(points, np.asarray((np.abs(points) < FARTHEST).all(axis=(1, 2))), "finite points")
        order = np.argsort(-(boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]), kind="stable")
        return Faces(boxes[order], scores[order], points[order])

    def _refuse(self, values: npt.NDArray[np.float32], good: npt.NDArray[np.bool_], expected: str) -> None:
        if not good.all():
            raise BadDetectionsError(f"{self._name}: expected {expected}, found {values[~good][0].tolist()}")

    def _describe(self, error: Exception) -> str:
        return f"{describe_error(error)}{describe_line(error, self._file)}"


def declare(name: str, weights: object, version: object = None) -> dict[str, str]:
    """Return what a detector declares about itself, as entries of a plan's runtime.

    Raises
    ------
    UsageError
        If the version is not a string, or the weights are not a dict of strings with any of the keys ``name``,
        ``sha256``, ``license``.
    """
    if not isinstance(version, str | None):
        raise UsageError(place=name, expected="a text as its version", found=f"{version!r}")
    if not isinstance(weights, Mapping) or any(
        key not in _DECLARED or not isinstance(value, str) for key, value in weights.items()
    ):
        raise UsageError(
            place=name, expected=f"weights as a dict of texts {', '.join(_DECLARED)}", found=f"{weights!r}"
        )
    entries = {f"detector weights {key}": value for key, value in weights.items()}
    return entries if version is None else {"detector version": version, **entries}


def are_boxes(boxes: npt.NDArray[np.floating]) -> npt.NDArray[np.bool_]:
    """Return which rows of (N, 4) are finite and have an area, (N,)."""
    possible = (np.abs(boxes) < FARTHEST).all(axis=1)  # NaN is not
    return np.asarray(possible & (boxes[:, :2] < boxes[:, 2:]).all(axis=1), np.bool_)


def touch_frame(boxes: npt.NDArray[np.floating], height: int, width: int) -> npt.NDArray[np.bool_]:
    """Return which rows of (N, 4) contain a part of a frame, (N,)."""
    return np.asarray((boxes[:, :2] < (width, height)).all(axis=1) & (boxes[:, 2:] > 0).all(axis=1), np.bool_)


def overlap(a: npt.NDArray[Any], b: npt.NDArray[Any], *, inclusive: int = 0, minimum: bool = False) -> npt.NDArray[Any]:
    """Intersection over union (or over the smaller area) of boxes (..., 4), which broadcast; 0 for boxes without area.

    ``inclusive`` (0 or 1) is added to widths and heights.
    """
    one = np.float32(inclusive)
    width = np.minimum(a[..., 2], b[..., 2]) - np.maximum(a[..., 0], b[..., 0]) + one
    height = np.minimum(a[..., 3], b[..., 3]) - np.maximum(a[..., 1], b[..., 1]) + one
    shared = np.maximum(width, 0) * np.maximum(height, 0)
    areas = [(box[..., 2] - box[..., 0] + one) * (box[..., 3] - box[..., 1] + one) for box in (a, b)]
    whole = np.minimum(*areas) if minimum else areas[0] + areas[1] - shared
    overlaps: npt.NDArray[Any] = np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)
    return overlaps
