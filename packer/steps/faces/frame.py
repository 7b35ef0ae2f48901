"""The faces of one frame, found by a detector or given by the user, and the choice among them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from packer.recipe import Recipe

NO_TRACK = -1

DETECT_FIELDS = ("box", "box_valid", "score", "track", "landmarks", "landmarks_valid", "frame_size", "source_bytes")
"""The fields that the step ``detect`` adds to a frame's."""

FloatArray = npt.NDArray[np.float32]

Picture = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class FrameFaces:
    """The faces of one frame, in frame pixels.

    Attributes
    ----------
    boxes : ndarray, (N, 4), float32
        Left, top, right, bottom.
    scores : ndarray, (N,), float32
    points : ndarray, (N, 5, 2), float32 or float64
        Right eye, left eye, nose, right and left corner of the mouth (the person's). NaN where a face has none.
    tracks : ndarray, (N,), int64, or None
        `NO_TRACK` for a face without one; None where no tracks were looked for.
    shape : tuple of int or None
        Shape of the frame in which the faces were found, (H, W, 3); None if the user gives them without it.
    time : float or None
        Presentation time of the frame in seconds, where given faces come with it.
    matrices : ndarray, (N, 2, 3), float32, or None
        The matrices by which the faces were cut before; None where they were not.
    """

    boxes: FloatArray
    scores: FloatArray
    points: npt.NDArray[np.floating]
    tracks: npt.NDArray[np.int64] | None = None
    shape: tuple[int, ...] | None = None
    time: float | None = None
    matrices: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.boxes)


@dataclass(frozen=True, slots=True, eq=False)
class Face:
    """One wanted face of a frame.

    Attributes
    ----------
    box : ndarray, (4,), float32
        Left, top, right, bottom in frame pixels; it may reach beyond the frame.
    points : ndarray, (5, 2), float32 or float64, or None
        In frame pixels.
    matrix : ndarray, (2, 3), float32, or None
        The one by which the face was cut before.
    """

    box: npt.NDArray[np.float32]
    score: float
    points: npt.NDArray[np.floating] | None
    track: int
    matrix: FloatArray | None = None

    @property
    def area(self) -> float:
        """Area of the box, in square pixels."""
        return float((self.box[2] - self.box[0]) * (self.box[3] - self.box[1]))


def shorter_sides(boxes: FloatArray) -> FloatArray:
    """The shorter side of each box, (N,), in pixels."""
    return np.asarray(np.minimum(boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]), np.float32)


def counting_faces(found: FrameFaces, recipe: Recipe) -> npt.NDArray[np.intp]:
    """Return which faces of a frame are large and certain enough, (n,)."""
    good = np.isfinite(found.boxes).all(axis=1) & (shorter_sides(found.boxes) >= recipe.min_face)
    return np.flatnonzero(good & (found.scores >= recipe.min_score))


def known_points(points: npt.NDArray[np.floating]) -> npt.NDArray[np.floating] | None:
    """The points of a face; None if it has none."""
    return points if np.isfinite(points).all() else None


def choose_face(rule: str, faces: Sequence[Face], frame: Picture, mask: Picture | None) -> Face:
    """The face that a rule chooses, the first of equals.

    Parameters
    ----------
    rule : str
        A key of `FRAME_RULES`.
    faces : sequence of Face
        At least one.
    frame : ndarray, (H, W, 3), uint8
    mask : ndarray, (H, W, 3), uint8, or None
        The frame's companion image.
    """
    return FRAME_RULES[rule](faces, frame, mask)


def _largest(faces: Sequence[Face], _frame: Picture, _mask: Picture | None) -> Face:
    return max(faces, key=lambda face: face.area)


def _best(faces: Sequence[Face], _frame: Picture, _mask: Picture | None) -> Face:
    return max(faces, key=lambda face: face.score)


def _central(faces: Sequence[Face], frame: Picture, _mask: Picture | None) -> Face:
    """The one whose box's centre is nearest to the frame's."""
    corners = np.array([frame.shape[1], frame.shape[0]], np.float64)  # twice the centre

    def distance(face: Face) -> float:
        box = face.box.astype(np.float64)
        return float(np.square(box[:2] + box[2:] - corners).sum())

    return min(faces, key=distance)


def _masked(faces: Sequence[Face], frame: Picture, mask: Picture | None) -> Face:
    """The one whose box holds most of the mask, by the sum of its values; where no box holds any, the largest."""
    if mask is None:
        return _largest(faces, frame, mask)
    height, width = mask.shape[:2]

    def held(face: Face) -> tuple[int, float]:
        left, top, right, bottom = np.rint(face.box).clip(0, [width, height, width, height]).astype(np.int64).tolist()
        return int(mask[top:bottom, left:right].sum(dtype=np.int64)), face.area

    return max(faces, key=held)


FRAME_RULES: Mapping[str, Callable[[Sequence[Face], Picture, Picture | None], Face]] = {
    "largest": _largest,
    "best": _best,
    "central": _central,
    "masked": _masked,
}
