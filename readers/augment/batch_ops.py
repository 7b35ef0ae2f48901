"""Operations of batch transforms on images and geometry in torch, with separate parameters for each row."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from readers.augment.base import BOXES, are_boxes, present
from readers.augment.masks import MaskNames, choose_masks, describe_value
from readers.augment.row_random import RowDraws
from shardspec.errors import UsageError

Batch = dict[str, Any]
Forward = TypeVar("Forward", bound=Callable[..., Batch])


def batch_boxes(batch: Batch) -> list[str]:
    """Return the names of the box tensors of a batch: (B, ..., 4) floating, left, top, right and bottom in pixels.

    A list of boxes, which a batch has for samples with different numbers of boxes, is refused.
    """
    for name in BOXES:
        value = batch.get(name)
        if isinstance(value, list) and value and are_boxes(np.shape(value[0]), np.asarray(value[0]).dtype.kind == "f"):
            raise UsageError(
                place=f"field {name!r}",
                expected="equally many boxes in every sample of a batch",
                found="different numbers",
                hint="use a transform of single samples, or read the dataset without that field",
            )
    return [
        name for name in present(batch, BOXES, Tensor) if are_boxes(batch[name].shape, batch[name].is_floating_point())
    ]


def image_of(batch: Batch, user: str, clips: bool = False) -> Tensor:
    """Return the images of a batch, one tensor (B, C, H, W), or (B, T, C, H, W) if `clips` are allowed."""
    image = batch.get("image")
    if not isinstance(image, Tensor) or image.ndim not in ((4, 5) if clips else (4,)):
        expected = f"image as one tensor (B, C, H, W){' or (B, T, C, H, W)' if clips else ''}"
        raise UsageError(place=user, expected=expected, found=describe_value(image))
    return image


def with_clips(forward: Forward) -> Forward:
    """Let a module's method for images (B, C, H, W) take clips (B, T, C, H, W) too, with one draw for each clip.

    The frames become the rows of a batch, with the fields that have the same two first axes.
    """

    @wraps(forward)
    def on_frames(self: Any, batch: Batch, seeds: Tensor | RowDraws | None = None) -> Batch:
        image = image_of(batch, type(self).__name__, clips=True)
        if image.ndim == 4:
            return forward(self, batch, seeds)
        sides = image.shape[:2]
        if seeds is None:
            seeds = torch.randint(1 << 62, (len(image),), device="cpu")
        draws = RowDraws(seeds.numpy()) if isinstance(seeds, Tensor) else seeds
        in_time = [name for name, value in batch.items() if isinstance(value, Tensor) and value.shape[:2] == sides]
        frames = batch | {name: batch[name].flatten(0, 1) for name in in_time}
        with draws.repeated(sides[1]) as repeated:
            out = forward(self, frames, repeated)
        return out | {name: out[name].unflatten(0, sides) for name in in_time if name in out}

    return cast("Forward", on_frames)


def batch_masks(batch: Batch, names: MaskNames, user: str) -> list[str]:
    """Return the names of a batch's masks (`choose_masks`): (B, H, W) or (B, C, H, W) like ``image``."""
    image: Tensor = batch["image"]
    rows, sides = len(image), image.shape[-2:]

    def fits(value: Any) -> bool:
        return isinstance(value, Tensor) and value.ndim in (3, 4) and len(value) == rows and value.shape[-2:] == sides

    wanted = f"a tensor {(rows, *sides)} or {(rows, 'C', *sides)}, aligned with the image"
    return choose_masks(batch, names, user, fits, wanted)


def uniform(image: Tensor, count: int, seeds: Tensor | RowDraws | None) -> Tensor:
    """Draw (B, count) numbers in [0, 1), on the image's device."""
    if seeds is None:
        return torch.rand(len(image), count, device=image.device)
    draws = RowDraws(seeds.numpy()) if isinstance(seeds, Tensor) else seeds
    if len(draws) != len(image):
        raise UsageError(expected=f"seeds for the batch's {len(image)} rows", found=len(draws))
    numbers = torch.from_numpy(draws.uniform(count))
    return numbers.to(image.device, non_blocking=True)


def choose(numbers: Tensor, count: int) -> Tensor:
    """Turn numbers in [0, 1) into equally likely integers 0 … count - 1."""
    return (numbers * count).long().clamp_(max=count - 1)


def over(rows: Tensor, value: Tensor) -> Tensor:
    """Reshape one value per row so that it broadcasts over the other axes."""
    return rows.view(-1, *(1,) * (value.ndim - 1))


def move_batch_geometry(batch: Batch, matrix: Tensor) -> Batch:
    """Map the geometry of every row by its matrix (B, 2, 3), old crop pixels to new ones. Points keep their order.

    The matrices scale and mirror but do not rotate: only their diagonals and last columns count.
    """
    out = dict(batch)
    # Not a matrix product, which autocast and TF32 would round.
    scale, shift = matrix.diagonal(dim1=1, dim2=2), matrix[:, :, 2]
    for name in present(batch, ("landmarks", "hull"), Tensor):
        points = batch[name]
        out[name] = points * scale[:, None].to(points.dtype) + shift[:, None].to(points.dtype)
    for name in batch_boxes(batch):
        boxes = batch[name]
        ends = boxes.reshape(len(boxes), -1, 2, 2)  # two opposite corners suffice
        ends = ends * scale[:, None, None].to(boxes.dtype) + shift[:, None, None].to(boxes.dtype)
        out[name] = torch.cat([ends.amin(2), ends.amax(2)], -1).view(boxes.shape)
    for name in present(batch, ("matrix",), Tensor):
        old = batch[name]
        new = old * scale[:, :, None].to(old.dtype)
        new[:, :, 2] += shift.to(old.dtype)
        out[name] = new
    return out


def window(value: Tensor, left: Tensor, top: Tensor, size: int) -> Tensor:
    """Cut a (B, …, size, size) window out of each row of (B, …, H, W); dtype and memory format are kept."""
    reach = torch.arange(size, device=value.device)
    return _gather(value, top[:, None] + reach, left[:, None] + reach)


def sampled(value: Tensor, left: Tensor, top: Tensor, side: Tensor, size: int) -> Tensor:
    """Resize squares of (B, C, H, W) bilinearly to (B, C, size, size) float32.

    Pixel (0, 0) covers [0, 1) x [0, 1).
    """
    height, width = value.shape[-2:]
    x, y = (2 * places / end - 1 for places, end in zip(_centres(left, top, side, size), (width, height), strict=True))
    grid = torch.stack([x[:, None, :].expand(-1, size, -1), y[:, :, None].expand(-1, -1, size)], -1)
    return functional.grid_sample(
        value.to(torch.float32), grid, mode="bilinear", padding_mode="border", align_corners=False
    )


def picked(value: Tensor, left: Tensor, top: Tensor, side: Tensor, size: int) -> Tensor:
    """Resize squares of (B, …, H, W) to (B, …, size, size) by the nearest pixel, which creates no new values."""
    ends = value.shape[:-3:-1]
    columns, rows = (
        places.floor().long().clamp_(0, end - 1)
        for places, end in zip(_centres(left, top, side, size), ends, strict=True)
    )
    return _gather(value, rows, columns)


def _gather(value: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the pixels of (B, …, H, W) in rows (B, h) and columns (B, w): (B, …, h, w)."""
    batch = torch.arange(len(value), device=value.device)[:, None, None]
    if value.ndim == 3:
        return value[batch, rows[:, :, None], columns[:, None, :]]
    return value.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _centres(left: Tensor, top: Tensor, side: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the pixel centres of the result in old coordinates: x and y, (B, size) each."""
    steps = (torch.arange(size, device=side.device, dtype=torch.float32) + 0.5) / size
    return left[:, None] + steps * side[:, None], top[:, None] + steps * side[:, None]
