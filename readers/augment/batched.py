"""Augmentation of whole batches in torch, on the device that the batch is on.

A batch is a dict of tensors: ``image`` (B, C, H, W), uint8 in channels_last memory as the readers give it, or floating; and, if
read, ``landmarks`` (B, K, 2), ``hull`` (B, P, 2), ``regions`` (B, 4, 4), ``matrix`` (B, 2, 3), ``landmarks_valid`` (B,), and
masks (B, H, W) or (B, C, H, W). Every module gives a new dict with new tensors; other fields pass through.

Called with a batch and one seed per row, as the readers call a ``batch_transform`` (`readers.loader.device`), a module is a function
of each row and its seed, and so of (seed, epoch, row). Called with the batch alone it draws from torch's generator of the
process, which is not repeatable at another number of ranks.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from readers.arguments import as_count, as_probability, as_range
from readers.augment.batch_ops import choose, masks_of, move, orders, over, picked, sampled, uniform, window
from readers.augment.draws import RowDraws
from readers.augment.masks import as_mask_names
from shardspec.errors import UsageError
from shardspec.points import REGIONS

__all__ = ["BatchCompose", "BatchCrop", "BatchDropRegion", "BatchFlip", "BatchModule", "BatchNormalize"]

Batch = dict[str, Any]
Seeds = Tensor | RowDraws | None
"""int64 (B,) on the CPU, one per row; or draws that earlier modules have begun."""


class BatchModule(nn.Module):
    """What the modules of this file share. `seeded` says that they take one seed per row."""

    seeded: Literal[True] = True

    def forward(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """The transformed batch."""
        raise NotImplementedError


class BatchCompose(BatchModule):
    """Modules one after the other; those that are no `BatchModule` (Kornia's, say) get the image alone.

    Parameters
    ----------
    modules : sequence of nn.Module
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.chain = nn.ModuleList(modules)

    def forward(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """The batch after the last of them."""
        draws = RowDraws(seeds.numpy()) if isinstance(seeds, Tensor) else seeds
        for module in self.chain:
            own = isinstance(module, BatchModule)
            batch = module(batch, draws) if own else {**batch, "image": module(batch["image"])}
        return batch


class BatchFlip(BatchModule):
    """Mirrors each picture with probability p, with masks and geometry; the person's left becomes the right.

    Parameters
    ----------
    p : float
    masks : sequence of str or None
        See `readers.augment.base.Transform`; here (B, H, W) or (B, C, H, W).
    """

    def __init__(self, p: float = 0.5, masks: Sequence[str] | None = None) -> None:
        super().__init__()
        self.p = as_probability("BatchFlip", p)
        self.masks = as_mask_names(masks, "BatchFlip")

    def forward(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """The batch with some of its pictures mirrored."""
        image = _image(batch, "BatchFlip")
        flips = uniform(image, 1, seeds)[:, 0] < self.p
        out = dict(batch)
        for name in ("image", *masks_of(batch, self.masks, "BatchFlip")):
            out[name] = torch.where(over(flips, batch[name]), batch[name].flip(-1), batch[name])
        mirror = image.new_tensor([[-1.0, 0.0, image.shape[-1]], [0.0, 1.0, 0.0]], dtype=torch.float32)
        keep = image.new_tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float32)
        moved = move(out, torch.where(over(flips, mirror[None]), mirror, keep))
        for name, order in orders(batch).items():
            index = torch.as_tensor(order, device=image.device)
            moved[name] = torch.where(over(flips, moved[name]), moved[name][:, index], moved[name])
        return moved


class BatchCrop(BatchModule):
    """Cuts a random square out of each picture; geometry follows.

    Without `scale`, a square of `size` pixels is copied as it is. With it, a square of a random share of the picture is
    sampled bilinearly (masks: nearest pixel); the picture is then float32, still from 0 to 255 if it was uint8.

    Parameters
    ----------
    size : int, pixels
        Side of the result.
    scale : tuple of float, in (0, 1], or None
        Least and largest side of the square as a share of the picture's shorter side.
    masks : sequence of str or None
        See `readers.augment.base.Transform`; here (B, H, W) or (B, C, H, W).
    """

    def __init__(self, size: int, scale: tuple[float, float] | None = None, masks: Sequence[str] | None = None) -> None:
        super().__init__()
        self.size = as_count("BatchCrop: size", size, unit="pixel")
        self.scale = None if scale is None else as_range("BatchCrop", "scale", scale)
        self.masks = as_mask_names(masks, "BatchCrop")

    def forward(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """The batch with another crop of each picture."""
        image = _image(batch, "BatchCrop")
        height, width = image.shape[-2:]
        least, most = (self.size, self.size) if self.scale is None else (s * min(height, width) for s in self.scale)
        if most > min(height, width):
            raise UsageError(f"BatchCrop: expected pictures of {self.size} pixels or more, found {width} x {height}")
        size, x, y = uniform(image, 3, seeds).unbind(1)
        side = least + size * (most - least)
        left, top = x * (width - side), y * (height - side)
        out = dict(batch)
        if self.scale is None:
            # of the whole places 0 … room, each is equally likely
            left, top = choose(x, width - self.size + 1), choose(y, height - self.size + 1)
        for name in ("image", *masks_of(batch, self.masks, "BatchCrop")):
            if self.scale is None:
                out[name] = window(batch[name], left, top, self.size)
            else:
                take = sampled if name == "image" else picked
                out[name] = take(batch[name], left, top, side, self.size)
        if image.is_contiguous(memory_format=torch.channels_last):
            out["image"] = out["image"].contiguous(memory_format=torch.channels_last)
        k = self.size / side
        zero = torch.zeros_like(k)
        rows = torch.stack([torch.stack([k, zero, -k * left], 1), torch.stack([zero, k, -k * top], 1)], 1)
        return move(out, rows)


class BatchDropRegion(BatchModule):
    """Paints over one region of each picture with probability p: its box in the ``regions`` field.

    Rows whose ``landmarks_valid`` is false stay as they are.

    Parameters
    ----------
    regions : sequence of str
        As for `readers.augment.DropRegion`.
    p : float
    fill : float
        Value of the painted pixels.
    """

    table: Tensor

    def __init__(self, regions: Sequence[str] = ("eyes", "nose", "mouth"), p: float = 0.3, fill: float = 0) -> None:
        super().__init__()
        rows = {name: [row] for row, name in enumerate(REGIONS)} | {"eyes": [0, 1]}
        if isinstance(regions, str) or not regions or not set(regions) <= set(rows):
            raise UsageError(f"BatchDropRegion: expected regions among {', '.join(sorted(rows))}, found {regions!r}")
        self.p, self.fill = as_probability("BatchDropRegion", p), fill
        table = torch.zeros(len(regions), len(REGIONS), dtype=torch.bool)
        for at, name in enumerate(regions):
            table[at, rows[name]] = True
        self.register_buffer("table", table, persistent=False)

    def forward(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """The batch without some regions."""
        image = _image(batch, "BatchDropRegion")
        if "regions" not in batch:
            raise UsageError(
                "BatchDropRegion needs the field 'regions', found none; read it with fields=[..., 'regions']"
            )
        acts, which = uniform(image, 2, seeds).unbind(1)
        hits = acts < self.p
        if "landmarks_valid" in batch:
            hits = hits & batch["landmarks_valid"]
        chosen = self.table.to(image.device)[choose(which, len(self.table))] & hits[:, None]  # (B, 4)
        left, top, right, bottom = batch["regions"].unbind(-1)  # (B, 4) each
        x = torch.arange(image.shape[-1], device=image.device) + 0.5
        y = torch.arange(image.shape[-2], device=image.device) + 0.5
        columns = (x >= left[..., None]) & (x < right[..., None]) & chosen[..., None]  # (B, 4, W)
        rows = (y >= top[..., None]) & (y < bottom[..., None])  # (B, 4, H)
        covered = (rows[..., :, None] & columns[..., None, :]).any(1)  # (B, H, W)
        return {**batch, "image": image.clone().masked_fill_(covered[:, None], self.fill)}


class BatchNormalize(BatchModule):
    """Turns pictures from 0 … 255 into (x / 255 - mean) / std.

    Parameters
    ----------
    mean, std : sequence of float
        One per channel, for pictures from 0 to 1; ImageNet's by default.
    dtype : torch.dtype
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if len(mean) != len(std) or min(std) <= 0:
            raise UsageError(f"BatchNormalize: expected as many means as positive stds, found {mean} and {std}")
        self.dtype = dtype
        spread = torch.tensor(std).view(-1, 1, 1)
        self.register_buffer("scale", 1 / (255 * spread), persistent=False)
        self.register_buffer("shift", -torch.tensor(mean).view(-1, 1, 1) / spread, persistent=False)

    def forward(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """The batch with floating pictures."""
        image = _image(batch, "BatchNormalize")
        scale, shift = self.scale.to(image.device, torch.float32), self.shift.to(image.device, torch.float32)
        return {**batch, "image": (image * scale + shift).to(self.dtype)}


def _image(batch: Batch, user: str) -> Tensor:
    image = batch.get("image")
    if not isinstance(image, Tensor) or image.ndim != 4:
        found = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise UsageError(f"{user}: expected image as one tensor (B, C, H, W), found {found}")
    return image
