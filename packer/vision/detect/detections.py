"""Detections in a batch of frames: ragged arrays, never object arrays."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

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
