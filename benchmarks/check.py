"""Checks of the samples of a loader: each comes once, points with their labels, pixels as in the source."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.data import SourceImages

_JPEG_LEVELS = 6.0
"""Largest mean difference of a decoded crop from the pixels that were encoded, levels of 255: quality 90 with 4:2:0."""
_PHOTO_LEVELS = 12.0
"""How far a crop's mean may be outside the range of the means of its photo's tiles."""
_TILE = 32
_NORMALISED = (-2.1180, 2.6401)
"""The least and the largest value of an image normalised by ImageNet's means and deviations."""
_ROUNDING = 0.001
_SPREAD = 0.3


def check_epoch(batches: Iterable[Mapping[str, Any]], options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the batches of an epoch against the source.

    Parameters
    ----------
    options : mapping
        ``source`` (folder), ``kind`` and ``batch`` as the arm was made with, and ``recipe`` if pixels are changed.

    Returns
    -------
    dict
        ``samples``, and ``order_correlation`` between the order of the epoch and that of the source: 0 is a full
        shuffle.

    Raises
    ------
    ValueError
        If a sample is wrong, missing or repeated.
    """
    source = SourceImages(Path(options["source"]), str(options["kind"]))
    seen = [_check_batch(batch, source, str(options.get("recipe", ""))) for batch in batches]
    labels = np.concatenate(seen) if seen else np.empty(0, np.int64)
    if len(np.unique(labels)) != len(labels):
        raise ValueError(f"{len(labels) - len(np.unique(labels))} samples came twice in an epoch")
    repeats = int(options.get("repeats", 1))
    # The last batch of each worker process may be left out.
    least = repeats * len(source) - 2 * int(options["batch"])
    if len(labels) < least:
        raise ValueError(f"expected {least} samples or more, found {len(labels)}")
    correlation = float(np.corrcoef(np.arange(len(labels)), labels)[0, 1]) if len(labels) > 1 else 0.0
    return {"samples": len(labels), "order_correlation": correlation}


def _check_batch(batch: Mapping[str, Any], source: SourceImages, recipe: str) -> npt.NDArray[np.int64]:
    labels = np.array(batch["label"], np.int64).reshape(-1)
    rows = labels % len(source)
    points = np.asarray(batch["landmarks"], np.float32).reshape(len(labels), 5, 2)
    stored = source.landmarks[rows]
    if recipe != "randaugment" and not np.array_equal(points, stored):  # our RandAugment moves them
        raise ValueError("landmarks that are not those of their label")
    images = np.asarray(batch["image"])
    if images.shape[1] == 3:
        images = images.transpose(0, 2, 3, 1)
    dtype = np.dtype(np.float32 if recipe else np.uint8)
    if images.shape != (len(labels), 224, 224, 3) or images.dtype != dtype:
        raise ValueError(f"expected images of 224 × 224 in {dtype}, found {images.shape}, {images.dtype}")
    if recipe:
        _check_normalised(images)
        return labels
    some = range(len(labels)) if source.kind == "raw" else range(0, len(labels), 32)
    for i in some:
        _check_pixels(images[i], source, int(rows[i]))
    return labels


def _check_normalised(images: npt.NDArray[np.float32]) -> None:
    """Return whether values are those of normalised images, and different enough from each other to show one."""
    low, high = float(images.min()), float(images.max())
    if not _NORMALISED[0] - _ROUNDING <= low < 0 < high <= _NORMALISED[1] + _ROUNDING:
        raise ValueError(f"expected values from {_NORMALISED[0]} to {_NORMALISED[1]}, found {low} to {high}")
    spread = images.std((1, 2, 3))
    if np.median(spread) < _SPREAD:
        raise ValueError(f"expected images, found ones of a standard deviation of {np.median(spread):.3f}")


def _check_pixels(image: npt.NDArray[np.uint8], source: SourceImages, row: int) -> None:
    expected = source.pixels(row)
    if source.kind == "raw":
        if not np.array_equal(image, expected):
            raise ValueError(f"sample {row}: pixels that are not those of the source")
        return
    if source.kind == "jpeg":
        away = float(np.abs(image.astype(np.int16) - expected).mean())
        if away > _JPEG_LEVELS:
            raise ValueError(f"sample {row}: {away:.1f} levels from the source in the mean")
        return
    # A random crop of a photo: its mean is within the range of those of the photo's tiles.
    height, width = (side // _TILE * _TILE for side in expected.shape[:2])
    tiles = expected[:height, :width].reshape(height // _TILE, _TILE, width // _TILE, _TILE, 3).mean((1, 3))
    mean = image.mean((0, 1))
    low, high = tiles.min((0, 1)) - _PHOTO_LEVELS, tiles.max((0, 1)) + _PHOTO_LEVELS
    if not bool(((mean >= low) & (mean <= high)).all()) or not image.any():
        raise ValueError(f"sample {row}: a crop with the mean colour {mean.round()}, which its photo has nowhere")
