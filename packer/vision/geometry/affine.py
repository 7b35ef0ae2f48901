"""Apply, invert and check 2x3 matrices."""

import numpy as np
import numpy.typing as npt


def apply(matrix: npt.ArrayLike, points: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Map points, (..., 2), by a 2x3 matrix."""
    affine = check_matrix(matrix)
    return np.asarray(points, np.float64) @ affine[:, :2].T + affine[:, 2]


def invert(matrix: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the inverse of a 2x3 matrix.

    Raises
    ------
    ValueError
        If the matrix maps the plane onto a line or a point.
    """
    affine = check_matrix(matrix)
    (a, b, tx), (c, d, ty) = affine.tolist()
    determinant = a * d - b * c
    if determinant == 0:
        raise ValueError(f"expected a matrix that can be inverted, found {affine.tolist()}")
    a, b, c, d = d / determinant, -b / determinant, -c / determinant, a / determinant
    return np.array([[a, b, -(a * tx + b * ty)], [c, d, -(c * tx + d * ty)]])


def check_matrix(matrix: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return a matrix as float64; a `ValueError` if it is not (2, 3) and finite."""
    affine = np.asarray(matrix, np.float64)
    if affine.shape != (2, 3) or not np.isfinite(affine).all():
        raise ValueError(f"expected a finite (2, 3) matrix, found shape {affine.shape} with {affine.tolist()}")
    return affine


def check_frame(frame: npt.NDArray[np.uint8]) -> None:
    """Raise a `ValueError` unless a frame is ``uint8 (H, W, 3)`` with at least one pixel."""
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8 or not frame.size:
        raise ValueError(f"expected a frame of shape (H, W, 3) and dtype uint8, found {frame.shape} {frame.dtype}")
