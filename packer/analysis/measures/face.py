"""Pose and size of a face from its landmarks, and how much of its crop is outside the frame."""

from typing import Any

import numpy as np
import numpy.typing as npt

from packer.analysis.measures.pixels import Pixels, pixels_of
from packer.vision.geometry.affine import apply, invert
from packer.vision.landmarks.shape import MEAN_FIVE, FloatArray, five_points
from shardspec.points import layout_of

_DEPTH = np.array([0.0, 0.0, -0.613, -0.103, -0.103])
"""Depth of the five points behind the eyes, in distances between the eyes: that of MediaPipe's canonical face model."""

MODEL: FloatArray = np.column_stack([MEAN_FIVE, _DEPTH])
"""The five points in space, (5, 3): x right, y down, z away from the camera, in distances between the eyes."""
MODEL.setflags(write=False)

_BLACK = 24
"""Level up to which a pixel may be the fill outside of a frame, after compression with loss."""


_FEW = 0.05
"""Share of black pixels along an edge of a crop that may be those of a dark image."""


class Face:
    """Measure the pose and the size of faces from landmarks of any layout.

    ``yaw``: degrees, −90 to 90, positive if the face turns to the right of the image. ``pitch``: degrees, −90 to 90,
    positive upwards. ``roll``: degrees, −180 to 180, positive if the head is tilted clockwise in the image. The head is
    turned by yaw first, then pitch, then roll. The angles are those of the rotation by which `MODEL`, seen from far away,
    fits the five points best.
    ``eye_distance``: pixels of the source, between the centres of the eyes; of the stored image without ``matrix``.
    ``outside``: with ``matrix``, share of the crop that is outside the frame, 0 to 1. Exact at the left and at the top;
    at the right and at the bottom, where the black fill begins.
    """

    version = "1"

    def __call__(
        self, image: Any, landmarks: Any, landmarks_valid: Any = None, matrix: Any = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Measure each face of a batch. Faces without valid landmarks are masked."""
        points = landmarks.cpu().numpy().astype(np.float64)
        valid = np.isfinite(points).all(axis=(1, 2))
        if landmarks_valid is not None:
            valid &= landmarks_valid.cpu().numpy()
        matrices = None if matrix is None else matrix.cpu().numpy().astype(np.float64)
        layout = layout_of(points.shape[1]).name
        found = np.zeros((len(points), 4))
        for row in np.flatnonzero(valid).tolist():
            five = five_points(points[row], layout)
            pose = pose_of(five)
            eyes = five[1] - five[0]
            if matrices is not None:
                eyes = np.linalg.solve(matrices[row][:, :2], eyes)
            valid[row] = pose is not None
            found[row] = (*(pose or (0, 0, 0)), np.hypot(*eyes))
        columns = zip(("yaw", "pitch", "roll", "eye_distance"), found.astype(np.float32).T, strict=True)
        measured: dict[str, npt.NDArray[Any]] = {name: np.ma.MaskedArray(values, ~valid) for name, values in columns}
        if matrices is not None:
            shares = [share_outside(one, to) for one, to in zip(pixels_of(image), matrices, strict=True)]
            measured["outside"] = np.array(shares, np.float32)
        return measured


def pose_of(five: FloatArray) -> tuple[float, float, float] | None:
    """Return yaw, pitch and roll in degrees from five points, (5, 2); None if they lie on a line."""
    centred, model = five - five.mean(axis=0), MODEL - MODEL.mean(axis=0)
    affine = np.linalg.lstsq(model, centred, rcond=None)[0].T
    left, sizes, right = np.linalg.svd(affine, full_matrices=False)
    if sizes[-1] <= 1e-6 * sizes[0] or not sizes[0]:
        return None
    rows = left @ right  # the two orthonormal rows closest to the affine map
    forward = np.cross(rows[0], rows[1])
    yaw = np.arctan2(forward[0], forward[2])
    pitch = -np.arcsin(np.clip(forward[1], -1, 1))
    roll = np.arctan2(-rows[0, 1], rows[1, 1])
    return float(np.degrees(yaw)), float(np.degrees(pitch)), float(np.degrees(roll))


def share_outside(image: Pixels, matrix: FloatArray) -> float:
    """Return the share of a crop that is outside its frame.

    Parameters
    ----------
    matrix : (2, 3)
        Maps the frame to the crop.
    """
    height, width = image.shape[:2]
    back = invert(matrix)
    corners = apply(back, [(0, 0), (width, 0), (0, height), (width, height)])
    edges = (image[0], image[-1], image[:, 0], image[:, -1])
    if corners.min() >= 0 and not any((edge.max(axis=1) <= _BLACK).mean() > _FEW for edge in edges):
        return 0.0
    y, x = np.mgrid[:height, :width] + 0.5
    frame = apply(back, np.column_stack([x.ravel(), y.ravel()]))
    inside = (frame >= 0).all(axis=1)
    seen = inside & (image.max(axis=2).ravel() > _BLACK)
    if not seen.any():
        return 1.0
    step = 1 / np.sqrt(abs(np.linalg.det(matrix[:, :2])))
    inside &= (frame <= frame[seen].max(axis=0) + step).all(axis=1)
    return float(1 - inside.mean())
