"""Geometry in the pixels of a picture that is resized: it moves with the picture."""

from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from shardspec.picture_fields import PIXEL_AXES


def scale_geometry(sample: Mapping[str, Any], old: tuple[int, int], new: tuple[int, int]) -> dict[str, Any]:
    """The fields that a resize of ``image`` changes, in the new picture's pixels.

    These are ``landmarks``, ``hull`` and ``regions``, and ``matrix``, which maps frame pixels to the picture's. ``box`` is in
    frame pixels and stays. Since pixel (0, 0) covers [0, 1) x [0, 1), points are multiplied by the ratio of the sizes.

    Parameters
    ----------
    sample : mapping
        Fields that are not floating-point arrays of the expected shape are a user's own, and left alone.
    old, new : (int, int)
        Height and width before and after.

    Returns
    -------
    dict
        The fields that the sample has of these; empty if the size is the same.
    """
    if old == new:
        return {}
    ratios = np.array([new[1] / old[1], new[0] / old[0]])
    changed: dict[str, Any] = {}
    for name, axes in PIXEL_AXES.items():
        value = sample.get(name)
        if _is_floating(value, 2) and value.shape[1] == len(axes):
            changed[name] = (value * ratios[list(axes)]).astype(value.dtype)
    matrix = sample.get("matrix")
    if _is_floating(matrix, 2) and matrix.shape == (2, 3):
        changed["matrix"] = (matrix * ratios[:, None]).astype(matrix.dtype)
    return changed


def _is_floating(value: Any, axes: int) -> TypeGuard[NDArray[np.floating[Any]]]:
    return isinstance(value, np.ndarray) and value.ndim == axes and np.issubdtype(value.dtype, np.floating)
