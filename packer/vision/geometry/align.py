"""Aligned crops: the five points of a face brought onto a template by a similarity."""

import cv2
import numpy as np
import numpy.typing as npt

from packer.vision.geometry.affine import check_frame, check_matrix
from packer.vision.geometry.warp import MAX_SIDE, bilinear

_TEMPLATE_SIZE = 112
# The five points of InsightFace's ArcFace template for 112 x 112 (insightface/utils/face_align.py, `arcface_dst`).
# There the centre of a pixel is a whole number; half a pixel is added where the template is used.
_TEMPLATE = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]],
)


def align_matrix(points: npt.ArrayLike, size: int, margin: float = 0.0) -> npt.NDArray[np.float64]:
    """Map the frame so that five points come as near to the ArcFace template as a similarity can bring them.

    Least squares over rotation, one scale and translation, without reflection (Umeyama, IEEE TPAMI 13 (4), 1991; in the
    plane it is one division of complex numbers).

    Parameters
    ----------
    points : array_like, (5, 2)
        Eye, eye, nose, mouth corner, mouth corner in frame pixels, those on the image's left (the person's right, in an
        upright face) first, as MTCNN gives them.
    size : int, pixels
        Side of the crop.
    margin : float, > -0.5
        Share of the template's side that is added to the template on each side.

    Returns
    -------
    ndarray, (2, 3), float64
        Frame to crop. Every value is exact in float32.

    Raises
    ------
    ValueError
        If the points are not finite or are all the same, or if the size or the margin is out of range.
    """
    source = np.asarray(points, np.float64)
    if source.shape != (5, 2) or not np.isfinite(source).all():
        raise ValueError(f"expected five finite points, found shape {source.shape}")
    if size < 1 or not (np.isfinite(margin) and margin > -0.5):
        raise ValueError(f"expected a size of at least 1 and a margin above -0.5, found {size} and {margin}")
    target = (_TEMPLATE + 0.5 + margin * _TEMPLATE_SIZE) * (size / (_TEMPLATE_SIZE * (1 + 2 * margin)))
    z, w = source @ (1, 1j), target @ (1, 1j)
    z_mean, w_mean = z.mean(), w.mean()
    spread = (np.abs(z - z_mean) ** 2).sum()
    factor = (np.conj(z - z_mean) * (w - w_mean)).sum() / spread if spread > 0 else 0
    if factor == 0:
        raise ValueError(f"expected five points that differ, found {source.tolist()}")
    shift = w_mean - factor * z_mean
    matrix = np.array([[factor.real, -factor.imag, shift.real], [factor.imag, factor.real, shift.imag]], np.float32)
    return matrix.astype(np.float64)


def warp(frame: npt.NDArray[np.uint8], matrix: npt.ArrayLike, size: int) -> npt.NDArray[np.uint8]:
    """Cut what a matrix maps onto (0, 0, size, size), rotation and all.

    Shrinking by up to n times, n x n bilinear values per crop pixel are averaged; enlarging, a crop pixel is the
    bilinear value at its centre. Anything outside the frame counts as black. `cut` is exact and faster where nothing is
    rotated.

    Parameters
    ----------
    frame : ndarray, (H, W, 3), uint8
    matrix : array_like, (2, 3)
        Frame to crop.
    size : int, pixels

    Returns
    -------
    ndarray, (size, size, 3), uint8, C-contiguous
    """
    check_frame(frame)
    affine = check_matrix(matrix)
    if not 1 <= size <= MAX_SIDE:
        raise ValueError(f"expected a crop size from 1 to {MAX_SIDE} pixels, found {size}")
    smallest = float(np.linalg.svd(affine[:, :2], compute_uv=False)[-1])
    if smallest == 0:
        raise ValueError(f"expected a matrix that can be inverted, found {affine.tolist()}")
    samples = int(np.clip(np.ceil(1 / smallest - 1e-6), 1, MAX_SIDE // size))
    warped = bilinear(frame, affine * samples, size * samples)
    if samples > 1:
        return np.asarray(cv2.resize(warped, (size, size), interpolation=cv2.INTER_AREA), np.uint8)
    return warped
