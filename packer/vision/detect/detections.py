"""Detections in a batch of frames (ragged arrays, never object arrays), and MTCNN's arithmetic of boxes.

The arithmetic follows facenet-pytorch's conventions and rounds to float32. Boxes are (n, 4) float32: left, top, right,
bottom. As in the reference, some steps take ends as inclusive (width = right - left + 1) and some do not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_MAX_MATRIX = 1024  # boxes whose pairwise overlaps are held at once; if there are more, each is compared with the rest


def square(boxes: FloatArray) -> FloatArray:
    """Grow the shorter side of each box to the longer one, about the centre."""
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    side = np.maximum(width, height)
    half = np.float32(0.5)
    left = boxes[:, 0] + width * half - side * half
    top = boxes[:, 1] + height * half - side * half
    return np.stack([left, top, left + side, top + side], axis=1)


def regress(boxes: FloatArray, corrections: FloatArray, inclusive: int) -> FloatArray:
    """Move each edge by a fraction of the box's size; ``inclusive`` (0 or 1) is added to the size."""
    width = boxes[:, 2:3] - boxes[:, 0:1] + np.float32(inclusive)
    height = boxes[:, 3:4] - boxes[:, 1:2] + np.float32(inclusive)
    moved: FloatArray = boxes + corrections * np.concatenate([width, height, width, height], axis=1)
    return moved


def crop_windows(boxes: FloatArray, width: int, height: int) -> tuple[IntArray, BoolArray]:
    """Return the pixels of a (height, width) image that each box covers.

    Boxes count pixels from one and their ends are inclusive, so box [1, 1, 20, 20] covers pixels [0, 20).

    Returns
    -------
    windows : ndarray, (n, 4), int64
        Left, top, right, bottom (exclusive), clipped to the image.
    valid : ndarray, (n,), bool
        False where no part of the box is inside the image. (The reference skips such crops without dropping their
        boxes, so that its later results belong to the wrong boxes; callers here drop both.)
    """
    whole = np.trunc(np.clip(boxes, -(2.0**31), 2.0**31)).astype(np.int64)
    left, top = np.maximum(whole[:, 0], 1) - 1, np.maximum(whole[:, 1], 1) - 1
    right, bottom = np.minimum(whole[:, 2], width), np.minimum(whole[:, 3], height)
    return np.stack([left, top, right, bottom], axis=1), (right > left) & (bottom > top)


def nms(boxes: FloatArray, scores: FloatArray, threshold: float) -> IntArray:
    """Non-maximum suppression by intersection over union, as ``torchvision.ops.nms``, ties included.

    Returns the indices of the boxes that stay, best score first (equal scores: in their order).
    """
    return _suppress(boxes, np.argsort(-scores, kind="stable"), threshold, inclusive=0, minimum=False)


def min_nms(boxes: FloatArray, scores: FloatArray, threshold: float) -> IntArray:
    """Non-maximum suppression by intersection over the smaller area, ends inclusive: the reference's last step."""
    return _suppress(boxes, descending(scores), threshold, inclusive=1, minimum=True)


def descending(values: FloatArray) -> IntArray:
    """Return the indices that sort values from the largest to the smallest, equal values in the reference's order.

    The reference reads numpy's default sort from its end. So of two equal values, the later one comes first; the order
    of more than three depends on the processor's instructions. A stable sort would keep another of several equal faces.
    """
    return np.argsort(values)[::-1]


def _suppress(boxes: FloatArray, order: IntArray, threshold: float, inclusive: int, minimum: bool) -> IntArray:
    boxes, count = boxes[order], len(order)
    limit = _round_down(threshold)
    overlaps = partial(overlap, inclusive=inclusive, minimum=minimum)
    alive = np.ones(count, np.bool_)
    matrix = overlaps(boxes[:, None], boxes[None]) > limit if count <= _MAX_MATRIX else None
    kept = []
    for i in range(count):
        if not alive[i]:
            continue
        kept.append(i)
        alive &= ~(overlaps(boxes[i], boxes) > limit if matrix is None else matrix[i])
    return order[np.array(kept, np.int64)]


def _round_down(threshold: float) -> np.float32:
    """Return the largest float32 up to the threshold: torchvision compares with the double."""
    nearest = np.float32(threshold)
    return nearest if float(nearest) <= threshold else np.nextafter(nearest, np.float32(0))


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


FARTHEST = 2**24
"""Limit of coordinates, in pixels: below it float32 represents every whole number."""


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


def are_boxes(boxes: npt.NDArray[np.floating]) -> npt.NDArray[np.bool_]:
    """Return which rows of (N, 4) are finite and have an area, (N,)."""
    possible = (np.abs(boxes) < FARTHEST).all(axis=1)  # NaN is not
    return np.asarray(possible & (boxes[:, :2] < boxes[:, 2:]).all(axis=1), np.bool_)


def touch_frame(boxes: npt.NDArray[np.floating], height: int, width: int) -> npt.NDArray[np.bool_]:
    """Return which rows of (N, 4) contain a part of a frame, (N,)."""
    return np.asarray((boxes[:, :2] < (width, height)).all(axis=1) & (boxes[:, 2:] > 0).all(axis=1), np.bool_)
