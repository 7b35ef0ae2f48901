"""MixUp and CutMix: mixtures of the images of a batch, with soft labels and a separate draw for each row."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from readers.arguments import as_count, as_number, as_probability
from readers.augment.batch_ops import batch_masks, choose, image_of, over, uniform
from readers.augment.batched import Batch, BatchModule, Seeds
from readers.augment.masks import as_mask_names, describe_value
from shardspec.errors import UsageError
from shardspec.wording import span

_SEED_BITS = 24
"""Random bits of a uniform number."""


class _BatchMix(BatchModule):
    """Base of mixtures. Each row is mixed with the previous row, and the first row with the last, as in torchvision."""

    keeps_range = True

    def __init__(self, num_classes: int, alpha: float = 1.0, p: float = 1.0) -> None:
        super().__init__()
        user = type(self).__name__
        self.num_classes = as_count(f"{user}: num_classes", num_classes, unit="class")
        self.alpha = as_number(f"{user}: alpha", alpha)
        if not 0 < self.alpha < np.inf:
            raise UsageError(place=user, expected="alpha above 0", found=alpha)
        self.p = as_probability(user, p)

    def forward(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """Return the batch with mixed images, and ``label`` as class shares, (B, num_classes), float32."""
        return self._mix(batch, seeds, False)

    def forward_(self, batch: Batch, seeds: Seeds = None) -> Batch:
        """Mix like `forward`, on the CPU in the batch's own memory if the dtype allows it."""
        return self._mix(batch, seeds, True)

    def _mix(self, batch: Batch, seeds: Seeds, owned: bool) -> Batch:
        image = image_of(batch, type(self).__name__, clips=True)
        if image.ndim > 4:  # the frames of a clip are mixed as further channels of an image
            mixed = self._mix({**batch, "image": image.flatten(1, 2)}, seeds, False)
            return {**mixed, "image": mixed["image"].unflatten(1, image.shape[1:3])}
        soft = self._soft(batch.get("label"), len(image))
        # On the CPU, because reading them back would wait for the device.
        numbers = uniform(torch.empty(len(image), 0, device="cpu"), 5, seeds)
        kept = self._shares(numbers[:, :3]).to(image.device, non_blocking=True)
        out, kept = self.mixed(batch, kept, numbers[:, 3:].to(image.device, non_blocking=True), owned)
        if image.is_contiguous(memory_format=torch.channels_last):
            out["image"] = out["image"].contiguous(memory_format=torch.channels_last)
        kept = kept[:, None]
        return {**out, "label": soft * kept + soft.roll(1, 0) * (1 - kept)}

    @abstractmethod
    def mixed(self, batch: Batch, kept: Tensor, numbers: Tensor, owned: bool) -> tuple[Batch, Tensor]:
        """Mix the images, given each row's own share (B,), and two numbers in [0, 1), (B, 2).

        Parameters
        ----------
        owned : bool
            Whether the tensors of the batch may be written to.

        Returns
        -------
        batch : dict
        kept : Tensor, (B,), float32
            Each row's own share in the result.
        """

    def _shares(self, numbers: Tensor) -> Tensor:
        """Return each row's own share, (B,), float32: drawn from Beta(alpha, alpha), or 1 if the row is not mixed."""
        drawn = numbers.double().numpy()
        shares = np.ones(len(drawn), np.float32)
        bits = (drawn[:, 1:] * 2**_SEED_BITS).astype(np.int64)
        for row in np.flatnonzero(drawn[:, 0] < self.p):
            shares[row] = np.random.default_rng(bits[row]).beta(self.alpha, self.alpha)
        return torch.from_numpy(shares)

    def _soft(self, label: object, rows: int) -> Tensor:
        """Return the labels as class shares, (B, num_classes), float32."""
        user, classes = type(self).__name__, self.num_classes
        if isinstance(label, Tensor) and label.is_floating_point() and label.shape == (rows, classes):
            return label.float()  # already mixed
        if not isinstance(label, Tensor) or label.is_floating_point() or label.shape != (rows,):
            raise UsageError(
                place=user,
                expected=f"label as whole numbers {(rows,)}, or as shares {(rows, classes)}",
                found=describe_value(label),
            )
        if label.device.type == "cpu" and rows and not 0 <= int(label.min()) <= int(label.max()) < classes:
            raise UsageError(
                place=user,
                expected=f"labels from 0 to {classes - 1}",
                found=span(int(label.min()), int(label.max())),
                hint="give it the dataset's number of classes",
            )
        return torch.nn.functional.one_hot(label.long(), classes).float()


class BatchMixUp(_BatchMix):
    """Blend each image with the previous image, as torchvision's ``v2.MixUp``, but with a separate share for each row.

    The share is drawn from Beta(alpha, alpha). ``label`` becomes (B, num_classes): the same blend of both labels, as
    torch's cross-entropy takes it. uint8 images become float32, still from 0 to 255. All other fields, including masks
    and geometry, are unchanged.

    Parameters
    ----------
    num_classes : int
        Number of classes; labels range from 0 to num_classes - 1.
    alpha : float
        Above 0.
    p : float, in [0, 1]
        Probability of each row to be mixed.

    Raises
    ------
    UsageError
        When created: if an argument is out of range. When called: if ``image`` is not a tensor (B, C, H, W), or
        ``label`` is neither (B,) nor mixed before.
    """

    def mixed(self, batch: Batch, kept: Tensor, numbers: Tensor, owned: bool) -> tuple[Batch, Tensor]:
        """Blend the images."""
        image: Tensor = batch["image"]
        if _by_rows(image):
            own = image if image.is_floating_point() and owned else image.to(_blended(image), copy=True)
            for row, before in _from_the_last(own):
                own_share = float(kept[row])
                if own_share < 1:
                    own[row].mul_(own_share).add_(before, alpha=1 - own_share)
            return {**batch, "image": own}, kept
        values = image.to(_blended(image))
        share = over(kept, values).to(values.dtype)
        return {**batch, "image": values * share + values.roll(1, 0) * (1 - share)}, kept


class BatchCutMix(_BatchMix):
    """Paste a rectangle of the previous image into each image, like torchvision's ``v2.CutMix``, but one per row.

    The rectangle covers a share of the image drawn from Beta(alpha, alpha), and is clipped at the border. ``label``
    becomes (B, num_classes): both labels weighted by their shares of the pixels. Masks follow the image; all other
    fields are unchanged.

    Parameters
    ----------
    num_classes, alpha, p
        As for `BatchMixUp`.
    masks : sequence of str or None
        Masks, (B, H, W) or (B, C, H, W); None: those named ``mask``, ``*_mask`` or ``*_image``, of the image's size.

    Raises
    ------
    UsageError
        As for `BatchMixUp`.
    """

    def __init__(
        self, num_classes: int, alpha: float = 1.0, p: float = 1.0, masks: Sequence[str] | None = None
    ) -> None:
        super().__init__(num_classes, alpha, p)
        self.masks = as_mask_names(masks, "BatchCutMix")

    def mixed(self, batch: Batch, kept: Tensor, numbers: Tensor, owned: bool) -> tuple[Batch, Tensor]:
        """Paste the rectangles."""
        image: Tensor = batch["image"]
        height, width = image.shape[-2:]
        half = 0.5 * (1 - kept.double()).sqrt()
        left, right = _side(choose(numbers[:, 0], width), half, width)
        top, bottom = _side(choose(numbers[:, 1], height), half, height)
        pasted = (right - left) * (bottom - top)
        out, names = dict(batch), ("image", *batch_masks(batch, self.masks, "BatchCutMix"))
        if _by_rows(image):
            corners = torch.stack([left, top, right, bottom], 1).tolist()
            for name in names:
                own = out[name] = batch[name] if owned else batch[name].clone()
                for row, before in _from_the_last(own):
                    x, y, end_x, end_y = corners[row]
                    own[row, ..., y:end_y, x:end_x] = before[..., y:end_y, x:end_x]
        else:
            x, y = torch.arange(width, device=image.device), torch.arange(height, device=image.device)
            columns = (x >= left[:, None]) & (x < right[:, None])
            rows = (y >= top[:, None]) & (y < bottom[:, None])
            inside = rows[:, :, None] & columns[:, None, :]  # (B, H, W)
            for name in names:
                value: Tensor = batch[name]
                out[name] = torch.where(inside if value.ndim == 3 else inside[:, None], value.roll(1, 0), value)
        return out, 1 - pasted.float() / (height * width)


def _by_rows(image: Tensor) -> bool:
    """Return whether to mix row by row: fewer passes over memory on the CPU, but too many small operations on a GPU."""
    return image.device.type == "cpu"


def _from_the_last(values: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield each row and the row before it, starting with the last, so that rows may be changed in place."""
    last = values[-1].clone() if len(values) else None
    for row in range(len(values) - 1, -1, -1):
        yield row, values[row - 1] if row or last is None else last


def _blended(image: Tensor) -> torch.dtype:
    return image.dtype if image.is_floating_point() else torch.float32


def _side(middle: Tensor, half: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return the first pixel inside and the first pixel beyond a rectangle, along one axis."""
    reach = (half * length).long()
    return (middle - reach).clamp(min=0), (middle + reach).clamp(max=length)
