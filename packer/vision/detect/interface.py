"""The interface of every detector, packer's and users', and the check of its results."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from packer.vision.detect.detections import FARTHEST, Detections, Faces, are_boxes, touch_frame
from packer.vision.faults import describe_error, describe_line, find_memory_error
from shardspec.errors import ItemError, ShardspecError, UsageError
from shardspec.wording import counted

Frame = npt.NDArray[np.uint8]

_DECLARED = ("name", "sha256", "license")


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
    """Runs a detector and checks its results; fulfils ``packer.vision.detect.detections.FaceDetector``.

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
