"""Painting over parts of pictures in place."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from readers.augment.base import Sample, get_image, per_frame, valid_frames
from readers.augment.masks import MaskNames, masks_of
from shardspec.errors import UsageError
from shardspec.wording import shorten

Fill = int | tuple[int, ...]


def check_fill(fill: Fill, user: str) -> Fill:
    """A grey value, or one value per channel.

    Raises
    ------
    UsageError
        If a value is not an integer from 0 to 255.
    """
    values = fill if isinstance(fill, tuple) else (fill,)
    if not values or not all(isinstance(value, int) and 0 <= value <= 255 for value in values):
        raise UsageError(f"{user}: expected a fill from 0 to 255, or one per channel, found {shorten(fill)}")
    return fill


def paint_frames(
    sample: Sample,
    user: str,
    paint: Callable[[npt.NDArray[Any], int, Fill], None],
    *,
    fill: Fill,
    fill_mask: int | None,
    masks: MaskNames,
) -> Sample:
    """Paint on copies of the picture, and of the masks if they have a fill, frame by frame.

    Parameters
    ----------
    sample : dict
        Frames whose ``landmarks_valid`` is false stay as they are.
    user : str
        The transform's name, for messages.
    paint : callable
        Called with a picture (H, W, ...) to write into, the frame's index (0 outside clips), and the fill.
    fill : int or tuple of int
    fill_mask : int or None
        None leaves the masks as they are.
    masks : tuple of str or None
        See `readers.augment.masks`.

    Returns
    -------
    dict
        A new one.
    """
    image = get_image(sample, user)
    clip = image.ndim == 4
    valid = valid_frames(sample, len(image) if clip else 1)
    if not valid.any():
        return sample
    out = dict(sample)
    fills: dict[str, Fill] = {"image": fill}
    if fill_mask is not None:
        fills |= dict.fromkeys(masks_of(sample, image, masks, user), fill_mask)
    for name, value in fills.items():
        out[name] = sample[name].copy()
        for at, frame in enumerate(per_frame(out[name], out[name].ndim - clip)):
            if valid[at]:
                paint(frame, at, value)
    return out


def paint_box(picture: npt.NDArray[Any], box: npt.NDArray[Any], fill: Fill) -> None:
    """Set the pixels of a (H, W, ...) picture whose centres lie in a box (left, top, right, bottom)."""
    height, width = picture.shape[:2]
    left, top, right, bottom = (min(max(float(edge), -1.0), max(height, width) + 1.0) for edge in box)
    rows = slice(max(_first(top), 0), max(_first(bottom), 0))
    columns = slice(max(_first(left), 0), max(_first(right), 0))
    picture[rows, columns] = fill


def _first(edge: float) -> int:
    """The first pixel whose centre is not before an edge."""
    return int(np.ceil(edge - 0.5))
