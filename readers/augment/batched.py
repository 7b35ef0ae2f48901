"""Augmentation of whole batches in torch, on the device that the batch is on.

A batch is a dict of tensors: ``image`` (B, C, H, W), uint8 in channels_last memory as the readers give it, or floating;
and, if they are read, ``landmarks`` (B, K, 2), ``hull`` (B, P, 2), ``regions`` (B, 4, 4), ``matrix`` (B, 2, 3),
``landmarks_valid`` (B,), and masks (B, H, W) or (B, C, H, W). A module that is called gives a new dict and writes into
no tensor of the given one; `BatchModule.forward_`, which the readers call with batches of their own, may write into
them. Other fields pass through.

Called with a batch and one seed per row, as the readers call a ``batch_transform`` (`readers.loader.device`), a module
draws for each row from its seed, and so from (seed, epoch, row). What it makes of a row is a function of that row and
its seed alone, but for `BatchMixUp` and `BatchCutMix`, which need the row before it too, and for modules of other
libraries in a `BatchCompose`, whose draws depend on the seeds of the whole batch. Called with the batch alone, a module
draws from the process's generator of torch, which is not repeatable at another number of ranks.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from readers.arguments import as_count, as_probability, as_range
from readers.augment.batch_ops import choose, image_of, masks_of, move, over, picked, sampled, uniform, window
from readers.augment.draws import RowDraws
from readers.augment.geometry import mirror_orders
from readers.augment.libraries.modules import OtherModule, Values, looked_at
from readers.augment.masks import as_mask_names
from readers.augment.paint import ROWS, check_regions
from shardspec.errors import UsageError
from shardspec.points import REGIONS
from shardspec.wording import shorten

Batch = dict[str, Any]
Seeds = Tensor | RowDraws | None
"""One seed per row, int64 (B,) on the CPU; or the draws, from which earlier modules may have taken some."""


class BatchModule(nn.Module):
    """The base of modules for batches.

    Attributes
    ----------
    seeded : bool
        True: they take one seed per row.
    keeps_range : bool
        Whether they leave the range of the pictures' values as it is. Such a module also gives every tensor one name
        and keeps none of them, since what comes after it in a `BatchCompose` may write into their memory. A module of
        your own with another range, or of which a tensor has two names, leaves this False.
    """

    seeded: Literal[True] = True
    keeps_range = False

    @property
    def threaded(self) -> bool:
        """True if it may be called by several threads at once, as `readers.Loader` does for batches on the CPU."""
        return True

    def forward(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """The transformed batch."""
        raise NotImplementedError

    def forward_(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """The transformed batch, perhaps in the memory of the given one, which nobody else refers to."""
        result: Batch = self(batch, seeds)
        return result


class BatchCompose(BatchModule):
    """Modules one after the other; those that are not a `BatchModule` (Kornia's, or functions) get the image alone.

    One rule holds for the values of pictures: uint8 is 0 to 255, and other libraries get floating pictures from 0 to 1,
    as they expect them. Kornia, which takes no uint8, gets floating pictures always. The chain converts where that is
    needed, `BatchNormalize` takes either range, and what would be misread is refused.

    With seeds, the draws of torch in other modules depend on them alone, and on the place in the chain: the same batch
    comes out the same. torchvision's modules draw once for the whole batch, and so does Kornia with ``same_on_batch``;
    a warning says so.

    Parameters
    ----------
    modules : sequence of nn.Module or callable
        A callable that is no module is called with the image, (B, C, H, W), and gives an image.

    Raises
    ------
    UsageError
        When made: if something is not callable, or is a transform of samples. When called: if a module would misread
        the range of the pictures' values, or gives back no image.
    """

    def __init__(self, modules: Sequence[nn.Module | Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        if not isinstance(modules, Iterable):
            raise UsageError(f"BatchCompose: expected a list of modules, found {shorten(modules)}: write […]")
        self.chain = nn.ModuleList(m if isinstance(m, BatchModule) else OtherModule(m) for m in modules)
        self._seen: dict[int, Values] = {}  # what was looked at once: the values at the start, and after a module

    @property
    def threaded(self) -> bool:
        """True if all of its modules may be called by several threads at once; those of other libraries may not."""
        return all(isinstance(module, BatchModule) and module.threaded for module in self.chain)

    def forward(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """The batch after the last of them."""
        return self._begin(batch, seeds, False)

    def forward_(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """The batch after the last of them, perhaps in the memory of the given one."""
        return self._begin(batch, seeds, True)

    def _begin(self, batch: Batch, seeds: Seeds, owned: bool) -> Batch:
        draws = RowDraws(seeds.numpy()) if isinstance(seeds, Tensor) else seeds
        return self._run(batch, draws, self._look(-1, batch.get("image")), owned)[0]

    def _run(
        self, batch: Batch, draws: RowDraws | None, values: Values, owned: bool, path: tuple[int, ...] = ()
    ) -> tuple[Batch, Values, bool]:
        """The batch after the last of them, the range of its pictures' values then, and whether its memory is ours.

        The path is the chain's place in the chain around it, after the path of that one.
        """
        for place, module in enumerate(self.chain):
            if isinstance(module, BatchCompose):
                batch, values, owned = module._run(batch, draws, values, owned, (*path, place))
            elif isinstance(module, BatchNormalize):
                batch, values = module.normalized(batch, values), Values.UNIT if module.is_plain else Values.NORMAL
            elif isinstance(module, OtherModule):
                image, owned = image_of(batch, module.name), False  # it may keep what it gives back
                kept, found = module.call(image, values, draws, (*path, place))
                batch = {**batch, "image": found}
                values = self._look(place, found) if kept is None else kept
                if place not in self._seen and kept is Values.NORMAL:
                    module.check_not_cut(image, found)
                    self._seen[place] = kept
            elif isinstance(module, BatchModule) and module.keeps_range:
                batch = module.forward_(batch, draws) if owned else module(batch, draws)
            else:
                batch, owned = module(batch, draws), False  # of the user's own: it may give one tensor two names
                values = self._look(place, batch.get("image"))
        return batch, values, owned

    def _look(self, place: int, image: Any) -> Values:
        """The range of a picture's values. Floating ones are looked at once, since that waits for the device."""
        if not isinstance(image, Tensor) or not image.is_floating_point():
            return Values.BYTES
        found = self._seen.get(place) or looked_at(image)
        if found is not Values.ANY:
            self._seen[place] = found
        return found


class BatchFlip(BatchModule):
    """Mirrors each picture with probability p, with masks and geometry; the person's left becomes the right.

    Parameters
    ----------
    p : float
    masks : sequence of str or None
        See `readers.augment.base.Transform`; here (B, H, W) or (B, C, H, W).
    """

    keeps_range = True

    def __init__(self, p: float = 0.5, masks: Sequence[str] | None = None) -> None:
        super().__init__()
        self.p = as_probability("BatchFlip", p)
        self.masks = as_mask_names(masks, "BatchFlip")

    def forward(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """The batch with some of its pictures mirrored."""
        image = image_of(batch, "BatchFlip")
        flips = uniform(image, 1, seeds)[:, 0] < self.p
        out = dict(batch)
        for name in ("image", *masks_of(batch, self.masks, "BatchFlip")):
            out[name] = torch.where(over(flips, batch[name]), batch[name].flip(-1), batch[name])
        mirror = image.new_tensor([[-1.0, 0.0, image.shape[-1]], [0.0, 1.0, 0.0]], dtype=torch.float32)
        keep = image.new_tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float32)
        moved = move(out, torch.where(over(flips, mirror[None]), mirror, keep))
        for name, order in mirror_orders(batch, Tensor).items():
            index = torch.from_numpy(order.copy()).to(image.device)
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

    keeps_range = True

    def __init__(self, size: int, scale: tuple[float, float] | None = None, masks: Sequence[str] | None = None) -> None:
        super().__init__()
        self.size = as_count("BatchCrop: size", size, unit="pixel")
        self.scale = None if scale is None else as_range("BatchCrop", "scale", scale)
        self.masks = as_mask_names(masks, "BatchCrop")

    def forward(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """The batch with another crop of each picture."""
        image = image_of(batch, "BatchCrop")
        height, width = image.shape[-2:]
        least, most = (self.size, self.size) if self.scale is None else (s * min(height, width) for s in self.scale)
        if most > min(height, width):
            raise UsageError(f"BatchCrop: expected pictures of {self.size} pixels or more, found {width} x {height}")
        size, x, y = uniform(image, 3, seeds).unbind(1)
        side = least + size * (most - least)
        left, top = x * (width - side), y * (height - side)
        out = dict(batch)
        if self.scale is None:
            # whole pixels from 0 to the room there is, all equally likely
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
    keeps_range = True

    def __init__(self, regions: Sequence[str] = ("eyes", "nose", "mouth"), p: float = 0.3, fill: float = 0) -> None:
        super().__init__()
        names = check_regions(regions, "BatchDropRegion")
        self.p, self.fill = as_probability("BatchDropRegion", p), fill
        table = torch.zeros(len(names), len(REGIONS), dtype=torch.bool)
        for at, name in enumerate(names):
            table[at, list(ROWS[name])] = True
        self.register_buffer("table", table, persistent=False)

    def forward(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """The batch without some regions."""
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
    """Turns pictures from 0 … 255 into (x / 255 - mean) / std.

    In a `BatchCompose`, it takes pictures from 0 to 1 as well.

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
        self.is_plain = not any(mean) and set(std) == {1}  # pictures are then from 0 to 1
        spread = torch.tensor(std).view(-1, 1, 1)
        self.register_buffer("scale", 1 / (255 * spread), persistent=False)
        self.register_buffer("shift", -torch.tensor(mean).view(-1, 1, 1) / spread, persistent=False)

    def forward(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """The batch with floating pictures."""
        return self.normalized(batch, Values.BYTES)

    def normalized(self, batch: Batch, values: Values) -> Batch:
        """The batch with floating pictures, of which the values were from 0 to 255, or from 0 to 1.

        Raises
        ------
        UsageError
            If the values are neither.
        """
        if values is Values.NORMAL:
            raise UsageError(
                f"BatchNormalize: expected pictures from 0 to 255 or from 0 to 1, found others: they are {values.value} "
                "by a module before it, or before the chain; once is enough"
            )
        image = image_of(batch, "BatchNormalize")
        scale, shift = self.scale.to(image.device, torch.float32), self.shift.to(image.device, torch.float32)
        if values is Values.UNIT:
            scale = scale * 255
        return {**batch, "image": (image * scale + shift).to(self.dtype)}
