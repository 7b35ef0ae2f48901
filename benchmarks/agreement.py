"""How well two detectors agree on the same frames: for parity tests and benchmarks."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from packer import Detections

__all__ = ["Agreement", "compare", "pairwise_iou"]

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Agreement:
    """Match a reference's faces with those that another detector found.

    Attributes
    ----------
    missing : ndarray, (n, 5), float32
        Box and score of each of the reference's faces that has no partner, a face of IoU 0.5 or more.
    extra : ndarray, (m, 5), float32
        Box and score of each of the other detector's faces that has no partner.
    iou : ndarray, (k,), float32
        IoU of each reference face with its partner, if it has one.
    point_errors : ndarray, (k,), float32
        Largest distance between the five points of a pair, pixels.
    """

    missing: FloatArray
    extra: FloatArray
    iou: FloatArray
    point_errors: FloatArray


def pairwise_iou(first: FloatArray, second: FloatArray) -> FloatArray:
    """Intersection over union of each pair of boxes, (n, 4) and (m, 4) to (n, m)."""
    a, b = first[:, None], second[None]
    sizes = np.maximum(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0)
    shared = sizes[..., 0] * sizes[..., 1]
    areas = [np.prod(box[..., 2:] - box[..., :2], axis=-1) for box in (a, b)]
    iou: FloatArray = shared / (areas[0] + areas[1] - shared)
    return iou


def compare(
    reference: Detections, other: Detections, min_side: float = 40, min_score: float = 0, shorter: bool = False
) -> Agreement:
    """Match the faces of two results on the same frames.

    Parameters
    ----------
    reference, other : Detections
        Of the same number of frames.
    min_side : float
        Pixels. Faces whose longer side is smaller need no partner, but can be one.
    min_score : float
        Faces of a lower probability need no partner, but can be one.
    shorter : bool
        Compare ``min_side`` with the shorter side, which leaves out more faces.

    Returns
    -------
    Agreement
    """
    if len(reference) != len(other):
        raise ValueError(f"expected results on the same frames, found {len(reference)} and {len(other)} frames")
    missing: list[FloatArray] = []
    extra: list[FloatArray] = []
    iou: list[FloatArray] = []
    errors: list[FloatArray] = []
    for ours, theirs in zip(other, reference, strict=True):
        table = pairwise_iou(theirs.boxes, ours.boxes)
        for faces, best, lost in (
            (theirs, table.max(axis=1, initial=0), missing),
            (ours, table.max(axis=0, initial=0), extra),
        ):
            sizes = faces.boxes[:, 2:] - faces.boxes[:, :2]
            sides = sizes.min(axis=1) if shorter else sizes.max(axis=1)
            wanted = (sides >= min_side) & (faces.scores > min_score)
            lost.append(np.column_stack([faces.boxes, faces.scores])[wanted & (best < 0.5)])
            if faces is theirs:
                rows = np.flatnonzero(wanted & (best >= 0.5))
                partners = table[rows].argmax(axis=1) if len(rows) else rows
                iou.append(best[rows])
                distances = np.linalg.norm(theirs.points[rows] - ours.points[partners], axis=2)
                errors.append(distances.max(axis=1, initial=0))
    nothing, none = np.zeros((0, 5), np.float32), np.zeros(0, np.float32)
    return Agreement(
        np.concatenate([nothing, *missing]),
        np.concatenate([nothing, *extra]),
        np.concatenate([none, *iou]),
        np.concatenate([none, *errors]),
    )
