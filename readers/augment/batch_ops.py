"""Operations of the batched transforms on pictures and geometry, each row by its own parameters, in torch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from readers.augment.base import BOXES, are_boxes
from readers.augment.draws import RowDraws
from readers.augment.masks import MaskNames, choose_masks
from shardspec.errors import UsageError
from shardspec.points import REGION_FLIP, flip_permutation, hull_flip_of, layout_of

Batch = dict[str, Any]


def present(batch: Batch, names: Sequence[str]) -> list[str]:
    """Return the given fields that the batch has as tensors."""
    return [name for name in names if isinstance(batch.get(name), Tensor)]


def boxes_of(batch: Batch) -> list[str]:
    """The fields of boxes that the batch has as tensors, (B, ..., 4) floating: left, top, right, bottom in pixels.

    Raises
    ------
    UsageError
        If the samples have different numbers of boxes, which a batch has in a list.
    """
    for name in BOXES:
        value = batch.get(name)
        if isinstance(value, list) and value and are_boxes(np.shape(value[0]), np.asarray(value[0]).dtype.kind == "f"):
            raise UsageError(
                f"field {name!r}: expected as many boxes in every sample of a batch, found different numbers: use a "
                "transform of single samples, or read the dataset without that field"
            )
    return [name for name in present(batch, BOXES) if are_boxes(batch[name].shape, batch[name].is_floating_point())]


def masks_of(batch: Batch, names: MaskNames, user: str) -> list[str]:
    """The masks of a batch, (B, H, W) or (B, C, H, W) where ``image`` is (B, C, H, W) (`readers.augment.masks`).

    Raises
    ------
    UsageError
        If a named mask is missing, or is not such a tensor.
    """
    image: Tensor = batch["image"]
    rows, sides = len(image), image.shape[-2:]

    def fits(value: Any) -> bool:
        return isinstance(value, Tensor) and value.ndim in (3, 4) and len(value) == rows and value.shape[-2:] == sides

    wanted = f"a tensor {(rows, *sides)} or {(rows, 'C', *sides)}, which lies on the image"
    return choose_masks(batch, names, user, fits, wanted)


def uniform(image: Tensor, count: int, seeds: Tensor | RowDraws | None) -> Tensor:
    """(B, count) numbers in [0, 1), on the picture's device."""
    if seeds is None:
        return torch.rand(len(image), count, device=image.device)
    draws = RowDraws(seeds.numpy()) if isinstance(seeds, Tensor) else seeds
    if len(draws) != len(image):
        raise UsageError(f"expected seeds for the batch's {len(image)} rows, found {len(draws)}")
    numbers = torch.from_numpy(draws.uniform(count))
    return numbers.to(image.device, non_blocking=True)


def choose(numbers: Tensor, count: int) -> Tensor:
    """Integers 0 … count - 1 from numbers in [0, 1), equally likely; rounding never reaches `count`."""
    return (numbers * count).long().clamp_(max=count - 1)


def over(rows: Tensor, value: Tensor) -> Tensor:
    """A value per row, shaped so that it is broadcast over the other axes."""
    return rows.view(-1, *(1,) * (value.ndim - 1))


def move(batch: Batch, matrix: Tensor) -> Batch:
    """Map the geometry of every row by its matrix (B, 2, 3), old crop pixels to new ones; nothing is renumbered.

    The matrices scale and mirror, and do not rotate: only their diagonals and last columns count.
    """
    out = dict(batch)
    # Not a matrix product, which autocast and TF32 would round.
    scale, shift = matrix.diagonal(dim1=1, dim2=2), matrix[:, :, 2]
    for name in present(batch, ("landmarks", "hull")):
        points = batch[name]
        out[name] = points * scale[:, None].to(points.dtype) + shift[:, None].to(points.dtype)
    for name in boxes_of(batch):
        boxes = batch[name]
        ends = boxes.reshape(len(boxes), -1, 2, 2)  # two opposite corners suffice
        ends = ends * scale[:, None, None].to(boxes.dtype) + shift[:, None, None].to(boxes.dtype)
        out[name] = torch.cat([ends.amin(2), ends.amax(2)], -1).view(boxes.shape)
    for name in present(batch, ("matrix",)):
        old = batch[name]
        new = old * scale[:, :, None].to(old.dtype)
        new[:, :, 2] += shift.to(old.dtype)
        out[name] = new
    return out


def orders(batch: Batch) -> dict[str, Any]:
    """How a mirror renumbers the points of each field."""
    found: dict[str, Any] = {}
    for name in present(batch, ("landmarks",)):
        found[name] = flip_permutation(layout_of(batch[name].shape[1]).name).copy()
    for name in present(batch, ("hull",)):
        found[name] = hull_flip_of(batch[name].shape[1]).copy()
    for name in present(batch, ("regions",)):
        found[name] = REGION_FLIP.copy()
    return found


def window(value: Tensor, left: Tensor, top: Tensor, size: int) -> Tensor:
    """A (B, …, size, size) window of each row of (B, …, H, W), its dtype and memory format kept."""
    reach = torch.arange(size, device=value.device)
    return _gather(value, top[:, None] + reach, left[:, None] + reach)


def sampled(value: Tensor, left: Tensor, top: Tensor, side: Tensor, size: int) -> Tensor:
    """Squares of (B, C, H, W), resized bilinearly to (B, C, size, size) float32.

    Pixel (0, 0) covers [0, 1) x [0, 1).
    """
    height, width = value.shape[-2:]
    x, y = (2 * places / end - 1 for places, end in zip(_centres(left, top, side, size), (width, height), strict=True))
    grid = torch.stack([x[:, None, :].expand(-1, size, -1), y[:, :, None].expand(-1, -1, size)], -1)
    return functional.grid_sample(
        value.to(torch.float32), grid, mode="bilinear", padding_mode="border", align_corners=False
    )


def picked(value: Tensor, left: Tensor, top: Tensor, side: Tensor, size: int) -> Tensor:
    """Squares of (B, …, H, W), resized to (B, …, size, size) by the pixel at each centre; no value is new."""
    ends = value.shape[:-3:-1]
    columns, rows = (
        places.floor().long().clamp_(0, end - 1)
        for places, end in zip(_centres(left, top, side, size), ends, strict=True)
    )
    return _gather(value, rows, columns)


def _gather(value: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The pixels of (B, …, H, W) in rows (B, h) and columns (B, w): (B, …, h, w)."""
    batch = torch.arange(len(value), device=value.device)[:, None, None]
    if value.ndim == 3:
        return value[batch, rows[:, :, None], columns[:, None, :]]
    return value.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _centres(left: Tensor, top: Tensor, side: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The pixel centres of the result in the old picture: x and y, (B, size) each."""
    steps = (torch.arange(size, device=side.device, dtype=torch.float32) + 0.5) / size
    return left[:, None] + steps * side[:, None], top[:, None] + steps * side[:, None]
