"""Augmentation of whole batches in torch, on the device that holds the batch.

A batch is a dict of tensors: ``image`` (B, C, H, W), uint8 in channels_last memory as the readers yield it, or
floating; and, if they are read, ``landmarks`` (B, K, 2), ``hull`` (B, P, 2), ``regions`` (B, 4, 4), ``matrix``
(B, 2, 3), ``landmarks_valid`` (B,), and masks (B, H, W) or (B, C, H, W). Other fields pass through. In a batch of
clips all of them have an axis of time, (B, T, ...), and one draw serves all frames of a clip. Calling a module returns
a new dict and writes to no tensor of the given one. `BatchModule.forward_`, which the readers call with batches
that they own, may write to them.

The readers call a ``batch_transform`` with a batch and one seed per row (`readers.loader.device`). Each row's result is
then a function of the row and its seed, and so of (seed, epoch, row). There are two exceptions: `BatchMixUp` and
`BatchCutMix` also need the row before, and the draws of other libraries' modules depend on the seeds of the whole
batch. Called with the batch alone, a module draws from torch's global generator, which is not repeatable when the
number of ranks changes.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from readers.arguments import as_count, as_probability, as_range
from readers.augment.batch_ops import (
    batch_masks,
    choose,
    image_of,
    move_batch_geometry,
    over,
    picked,
    sampled,
    uniform,
    window,
    with_clips,
)
from readers.augment.geometry import mirror_orders
from readers.augment.libraries.batch_modules import OtherModule, ValueRange, looked_at
from readers.augment.masks import as_mask_names
from readers.augment.paint import ROWS, check_regions
from readers.augment.row_random import RowDraws
from shardspec.errors import UsageError
from shardspec.points import REGIONS
from shardspec.wording import shorten

Batch = dict[str, Any]
Seeds = Tensor | RowDraws | None
"""One seed per row, int64 (B,) on the CPU; or the draws made from them, which earlier modules may have advanced."""


class BatchModule(nn.Module):
    """Base of batch transforms.

    Attributes
    ----------
    seeded : bool
        True: the module takes one seed per row.
    keeps_range : bool
        True if the module does not change the range of image values, returns every tensor under one name and keeps no
        reference to them. The next module in a `BatchCompose` may then write to their memory. Leave it False in custom
        modules that do any of these.
    """

    seeded: Literal[True] = True
    keeps_range = False

    @property
    def threaded(self) -> bool:
        """True if several threads may call the module at once, as `readers.Loader` does for batches on the CPU."""
        return True

    def forward(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """Return the transformed batch."""
        raise NotImplementedError

    def forward_(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """Return the transformed batch, which may reuse the memory of the given one."""
        result: Batch = self(batch, seeds)
        return result


class BatchCompose(BatchModule):
    """Chain of batch modules. Modules of other libraries and functions get the image alone.

    uint8 images range from 0 to 255, and other libraries get floating images from 0 to 1, as they expect. Kornia always
    gets floating images, since it does not take uint8. The chain converts images where needed, `BatchNormalize` takes
    either range, and images that a module would misread are refused.

    With seeds, torch draws inside other modules depend only on the seeds and the position in the chain, so the same
    batch gives the same result. torchvision's modules draw once for the whole batch, and so does Kornia with
    ``same_on_batch``; a warning says so.

    Parameters
    ----------
    modules : sequence of nn.Module or callable
        A callable that is not a module is called with the image, (B, C, H, W), and returns an image.

    Raises
    ------
    UsageError
        When created: if an item is not callable, or is a sample transform. When called: if a module would misread the
        range of the image values, or does not return an image.
    """

    def __init__(self, modules: Sequence[nn.Module | Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        if not isinstance(modules, Iterable):
            raise UsageError(
                place="BatchCompose", expected="a list of modules", found=shorten(modules), hint="write […]"
            )
        self.chain = nn.ModuleList()
        for module in modules:
            if type(module) is BatchCompose:
                self.chain.extend(module.chain)
            else:
                self.chain.append(module if isinstance(module, BatchModule) else OtherModule(module))
        self._seen: dict[int, ValueRange] = {}  # examined ranges, by the place of the module before; -1 at the start

    @property
    def threaded(self) -> bool:
        """True if several threads may call all of its modules at once. Those of other libraries do not allow it."""
        return all(isinstance(module, BatchModule) and module.threaded for module in self.chain)

    def forward(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """Return the batch after the last module."""
        return self._run(batch, seeds, False)

    def forward_(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """Return the batch after the last module, which may reuse the memory of the given one."""
        return self._run(batch, seeds, True)

    def _run(self, batch: Batch, seeds: Seeds, owned: bool) -> Batch:
        """Return the batch after the last module; `owned` batches may be written to."""
        draws = RowDraws(seeds.numpy()) if isinstance(seeds, Tensor) else seeds
        values = self._look(-1, batch.get("image"))
        for place, module in enumerate(self.chain):
            if isinstance(module, BatchNormalize):
                batch, values = (
                    module.normalized(batch, values),
                    ValueRange.UNIT if module.is_plain else ValueRange.NORMAL,
                )
            elif isinstance(module, OtherModule):
                image = image_of(batch, module.name, clips=True)
                frames, owned = image.flatten(0, -4), False  # the module may keep its result
                kept, found = module.call(frames, values, draws, place)
                batch = {**batch, "image": found.view(*image.shape[:-3], *found.shape[1:])}
                values = self._look(place, found) if kept is None else kept
                if place not in self._seen and kept is ValueRange.NORMAL:
                    module.check_not_cut(frames, found)
                    self._seen[place] = kept
            elif isinstance(module, BatchModule) and module.keeps_range:
                batch = module.forward_(batch, draws) if owned else module(batch, draws)
            else:
                batch, owned = module(batch, draws), False  # a custom module may return one tensor under two names
                values = self._look(place, batch.get("image"))
        return batch

    def _look(self, place: int, image: Any) -> ValueRange:
        """Return the range of image values. Floating ones are examined only once, because that waits for the device."""
        if not isinstance(image, Tensor) or not image.is_floating_point():
            return ValueRange.BYTES
        found = self._seen.get(place) or looked_at(image)
        if found is not ValueRange.ANY:
            self._seen[place] = found
        return found


class BatchFlip(BatchModule):
    """Mirror each image with probability p, with masks and geometry; the person's left becomes the right.

    Parameters
    ----------
    p : float, in [0, 1]
        Probability of each row to be mirrored.
    masks : sequence of str or None
        Masks, (B, H, W) or (B, C, H, W); None: those named ``mask``, ``*_mask`` or ``*_image``, of the image's size.
    """

    keeps_range = True

    def __init__(self, p: float = 0.5, masks: Sequence[str] | None = None) -> None:
        super().__init__()
        self.p = as_probability("BatchFlip", p)
        self.masks = as_mask_names(masks, "BatchFlip")

    @with_clips
    def forward(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """Mirror some of the images."""
        image = image_of(batch, "BatchFlip")
        flips = uniform(image, 1, seeds)[:, 0] < self.p
        out = dict(batch)
        for name in ("image", *batch_masks(batch, self.masks, "BatchFlip")):
            out[name] = torch.where(over(flips, batch[name]), batch[name].flip(-1), batch[name])
        mirror = image.new_tensor([[-1.0, 0.0, image.shape[-1]], [0.0, 1.0, 0.0]], dtype=torch.float32)
        keep = image.new_tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float32)
        moved = move_batch_geometry(out, torch.where(over(flips, mirror[None]), mirror, keep))
        for name, order in mirror_orders(batch, Tensor).items():
            index = torch.from_numpy(order.copy()).to(image.device)
            moved[name] = torch.where(over(flips, moved[name]), moved[name][:, index], moved[name])
        return moved


class BatchCrop(BatchModule):
    """Cut a random square out of each image; geometry follows.

    Without `scale`, a square of `size` pixels is copied. With it, a square of random size is sampled bilinearly (masks:
    nearest pixel) and the image becomes float32, still from 0 to 255 if it was uint8.

    Parameters
    ----------
    size : int, pixels
        Side of the result.
    scale : tuple of float, in (0, 1], or None
        Smallest and largest side of the square as a share of the image's shorter side.
    masks : sequence of str or None
        Masks, (B, H, W) or (B, C, H, W); None: those named ``mask``, ``*_mask`` or ``*_image``, of the image's size.
    """

    keeps_range = True

    def __init__(self, size: int, scale: tuple[float, float] | None = None, masks: Sequence[str] | None = None) -> None:
        super().__init__()
        self.size = as_count("BatchCrop: size", size, unit="pixel")
        self.scale = None if scale is None else as_range("BatchCrop", "scale", scale)
        self.masks = as_mask_names(masks, "BatchCrop")

    @with_clips
    def forward(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """Crop each image."""
        image = image_of(batch, "BatchCrop")
        height, width = image.shape[-2:]
        least, most = (self.size, self.size) if self.scale is None else (s * min(height, width) for s in self.scale)
        if most > min(height, width):
            raise UsageError(
                place="BatchCrop", expected=f"images of {self.size} pixels or more", found=f"{width} x {height}"
            )
        size, x, y = uniform(image, 3, seeds).unbind(1)
        side = least + size * (most - least)
        left, top = x * (width - side), y * (height - side)
        out = dict(batch)
        if self.scale is None:
            # whole pixels, all equally likely
            left, top = choose(x, width - self.size + 1), choose(y, height - self.size + 1)
        for name in ("image", *batch_masks(batch, self.masks, "BatchCrop")):
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
        return move_batch_geometry(out, rows)


class BatchDropRegion(BatchModule):
    """Paint over one region of each image with probability p: its box in the ``regions`` field.

    Rows whose ``landmarks_valid`` is false stay unchanged.

    Parameters
    ----------
    regions : sequence of str
        As for `readers.augment.DropRegion`.
    p : float, in [0, 1]
        Probability of each row to be painted.
    fill : float
        Value of the painted pixels.
    """

    table: Tensor
    keeps_range = True

    def __init__(self, regions: Sequence[str] = ("eyes", "nose", "mouth"), p: float = 0.3, fill: float = 0) -> None:
        super().__init__()
        names = check_regions(regions, "BatchDropRegion")
        self.p, self.fill = as_probability("BatchDropRegion", p), fill
        table = torch.zeros(len(names), len(REGIONS), dtype=torch.bool)
        for at, name in enumerate(names):
            table[at, list(ROWS[name])] = True
        self.register_buffer("table", table, persistent=False)

    @with_clips
    def forward(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """Paint over some regions."""
        image = image_of(batch, "BatchDropRegion")
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
    """Convert images from 0 … 255 to (x / 255 - mean) / std. In a `BatchCompose`, images from 0 to 1 work too.

    Parameters
    ----------
    mean, std : sequence of float
        One per channel, for images from 0 to 1; ImageNet's by default.
    dtype : torch.dtype
        Of the result.
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
            raise UsageError(
                place="BatchNormalize", expected="as many means as positive stds", found=f"{mean} and {std}"
            )
        self.dtype = dtype
        self.is_plain = not any(mean) and set(std) == {1}  # results range from 0 to 1
        spread = torch.tensor(std).view(-1, 1, 1)
        self.register_buffer("scale", 1 / (255 * spread), persistent=False)
        self.register_buffer("shift", -torch.tensor(mean).view(-1, 1, 1) / spread, persistent=False)

    def forward(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """Normalise the images."""
        return self.normalized(batch, ValueRange.BYTES)

    def normalized(self, batch: Batch, values: ValueRange) -> Batch:
        """Normalise images whose values range from 0 to 255 or from 0 to 1.

        Raises
        ------
        UsageError
            If the values have another range.
        """
        if values is ValueRange.NORMAL:
            raise UsageError(
                place="BatchNormalize",
                expected="images from 0 to 255 or from 0 to 1",
                found="others",
                hint=f"they were already {values.value}, by a module before it or before the chain: normalise once",
            )
        image = image_of(batch, "BatchNormalize", clips=True)
        scale, shift = self.scale.to(image.device, torch.float32), self.shift.to(image.device, torch.float32)
        if values is ValueRange.UNIT:
            scale = scale * 255
        return {**batch, "image": (image * scale + shift).to(self.dtype)}
