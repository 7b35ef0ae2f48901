"""Points in an image that is bent by a displacement per pixel."""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_STEPS = 80
_CLOSE = 1e-3  # pixels


def bent_points(points: FloatArray, field: npt.NDArray[np.floating]) -> FloatArray:
    """Return the positions of points after the image was bent.

    Parameters
    ----------
    points : ndarray, (N, 2), float64
        x and y, where pixel centres are integers.
    field : ndarray, (H, W, 2), floating
        Displacement of every pixel of the bent image: how far right and down of it in the old image its colour comes
        from. Outside the image, the displacement at the border counts.

    Notes
    -----
    The new position p of a point q solves p + field(p) = q. Each point takes separate steps, halved while they increase
    the error. Where the image is folded, one of several positions is found. Points that are not finite are returned as
    they are.
    """
    finite = np.isfinite(points).all(axis=1)
    if not finite.all():
        out = points.copy()
        out[finite] = bent_points(points[finite], field)
        return out
    places = points - _at(field, points)
    miss = places + _at(field, places) - points
    share = np.ones(len(points))
    for _ in range(_STEPS):
        far = np.abs(miss).max(axis=1) > _CLOSE
        if not far.any():
            break
        trial = places[far] - share[far, None] * miss[far]
        missed = trial + _at(field, trial) - points[far]
        better = np.abs(missed).max(axis=1) < np.abs(miss[far]).max(axis=1)
        rows = np.flatnonzero(far)
        places[rows[better]], miss[rows[better]] = trial[better], missed[better]
        share[rows[~better]] /= 2
    return places


def _at(field: npt.NDArray[np.floating], places: FloatArray) -> FloatArray:
    """Return the displacement at positions between pixels, (N, 2), interpolated bilinearly."""
    height, width = field.shape[:2]
    inside = np.clip(places, 0, (width - 1, height - 1))
    first = np.minimum(inside.astype(np.int64), (max(width - 2, 0), max(height - 2, 0)))
    right, down = (inside - first).T[..., None]
    x, y = first.T
    beside, below = np.minimum(x + 1, width - 1), np.minimum(y + 1, height - 1)
    upper = field[y, x] * (1 - right) + field[y, beside] * right
    lower = field[below, x] * (1 - right) + field[below, beside] * right
    found: FloatArray = upper * (1 - down) + lower * down
    return found
