"""Augmentations of Kornia on picture, masks, landmarks, hull, regions and matrix together."""

from collections.abc import Mapping, Sequence
from typing import Any

import kornia.augmentation as K  # noqa: N812 -- as its own documentation does
import numpy as np
import numpy.typing as npt
import torch
from kornia.augmentation.auto.operations.base import OperationBase
from kornia.augmentation.container import PatchSequential, VideoSequential
from kornia.augmentation.container.base import ImageSequentialBase
from torch import Tensor, nn

from readers.augment.libraries.adapter import Adapter, Masks, Points
from readers.augment.libraries.draws import TorchDraws
from readers.augment.libraries.tensors import mask_array, mask_tensor, picture_array, picture_tensor
from shardspec.errors import UsageError
from shardspec.wording import shorten

_KNOWN = (K.AugmentationBase2D, OperationBase, ImageSequentialBase, nn.Sequential)


class Kornia(Adapter):
    """Applies augmentations of Kornia to a sample; fulfils `readers.transforms.SeededTransform`.

    * All draws come from the generator that is given with the sample; torch's own is neither used nor changed. Each
      sample is drawn for alone, whatever ``same_on_batch`` says.
    * Kornia gets the picture floating, from 0 to 1. It comes back as uint8 from 0 to 255, unless one of the
      augmentations normalises: then as it is, float32.
    * Landmarks and hull keep all their points, even those that leave the picture.
    * If the augmentations mirror, left and right are swapped in landmarks, hull and regions.
    * A region's box becomes the upright box around its four mapped corners.
    * Masks are moved by the nearest pixel, so no new value appears but Kornia's padding (0). `RandomErasing` leaves them
      alone. Where pictures are resized
      with ``align_corners=True``, Kornia's default, its masks go by the other rule: at a quarter of the size they
      are up to 1.5 pixels off, at the rim. ``align_corners=False`` makes the two meet.
    * ``matrix`` follows, as long as the augmentations are affine.

    Parameters
    ----------
    augmentations : module of kornia.augmentation, or sequence of them
    masks : sequence of str or None
        See `readers.augment.base.Transform`.

    Raises
    ------
    UsageError
        When made: if `augmentations` are not Kornia's augmentations of pictures, or mix the pictures of a batch. When
        called: if an augmentation bends the picture and the sample has geometry, which Kornia would leave where it was.

    Notes
    -----
    Safe across threads (each has its own copy), fork and pickle. One draw serves all frames of a clip.
    """

    def __init__(self, augmentations: Any, masks: Sequence[str] | None = None) -> None:
        chain = list(augmentations) if isinstance(augmentations, list | tuple) else [augmentations]
        if not chain:
            raise UsageError("Kornia: expected one augmentation or more, found none")
        for augmentation in chain:
            if not isinstance(augmentation, nn.Module):
                raise UsageError(
                    f"Kornia: expected augmentations of kornia.augmentation, found {shorten(augmentation)}"
                )
            for part in augmentation.modules():
                _check(part, is_top=part is augmentation)
        parts = [part for augmentation in chain for part in augmentation.modules()]
        self._names = [type(augmentation).__name__ for augmentation in chain]
        self._bends = [type(part).__name__ for part in parts if _bends(part)]
        self._floating = any(isinstance(part, K.Normalize | K.Denormalize) for part in parts)
        super().__init__(K.AugmentationSequential(*chain, data_keys=["input"]), masks)

    def __repr__(self) -> str:
        return f"Kornia({self._names})"

    def prepared(self, transform: Any) -> Any:
        """The augmentations, of which those that paint leave masks alone (see `Adapter.prepared`)."""
        for part in transform.modules():
            if isinstance(part, K.RandomErasing):
                part.apply_transform_mask = _kept
        return transform

    def call(
        self,
        transform: Any,
        image: npt.NDArray[np.uint8],
        masks: Mapping[str, npt.NDArray[Any]],
        points: Points | None,
        rng: np.random.Generator,
    ) -> tuple[npt.NDArray[Any], Masks, Points | None]:
        """Call the augmentations once (see `Adapter.call`)."""
        if points is not None and self._bends:
            raise UsageError(
                f"Kornia: {self._bends[0]} bends the picture and leaves points where they were: leave it out, or read "
                "the dataset without landmarks, hull, regions and matrix"
            )
        axes = image.ndim - 1
        clip = axes == 3
        picture = picture_tensor(image).to(torch.float32).div_(255)
        values = [picture if clip else picture[None]]
        keys = ["input"]
        for name, mask in masks.items():
            tensor = mask_tensor(mask, axes, name, "Kornia")
            values.append(tensor if clip else tensor[None])
            keys.append("mask")
        if points is not None:
            places = torch.from_numpy(points - np.float32(0.5))
            values.append(places.expand(len(values[0]), -1, -1).clone())
            keys.append("keypoints")
        _set_same_on_batch(transform, clip)
        with torch.no_grad(), TorchDraws(int(rng.integers(2**63))):
            found = transform(*values, data_keys=keys)
        results: list[Tensor] = list(found) if len(values) > 1 else [found]
        moved = None
        if points is not None:
            moved = points
            if not torch.equal(results[-1][0], values[-1][0]):
                moved = results[-1][0].numpy() + np.float32(0.5)
        result = results[0] if clip else results[0][0]
        if not self._floating:
            result = result.mul(255).round_().clamp_(0, 255).to(torch.uint8)
        return (
            picture_array(result, axes, "Kornia"),
            {
                name: mask_array(value if clip else value[0], mask, axes)
                for (name, mask), value in zip(masks.items(), results[1:], strict=False)
            },
            moved,
        )


def _kept(mask: Tensor, *others: Any, **params: Any) -> Tensor:
    return mask


def _bends(part: nn.Module) -> bool:
    """Return whether an augmentation moves pixels by no matrix, so that Kornia does not move points."""
    return isinstance(part, K.AugmentationBase2D) and not isinstance(part, K.RigidAffineAugmentationBase2D)


def _check(part: nn.Module, is_top: bool) -> None:
    """Refuse what cannot move a sample, or needs a whole batch."""
    name, of = type(part).__name__, type(part).__module__
    if isinstance(part, K.MixAugmentationBaseV2):
        raise UsageError(f"Kornia: {name} mixes the pictures of a batch: use readers.augment.BatchMixUp or BatchCutMix")
    if isinstance(part, PatchSequential | VideoSequential):
        raise UsageError(f"Kornia: expected augmentations of whole pictures, found {name}: write K.ImageSequential")
    if (is_top and not isinstance(part, _KNOWN)) or of.startswith("kornia.geometry"):
        raise UsageError(
            f"Kornia: expected augmentations of kornia.augmentation, which move points and masks too, found {name}"
        )


def _set_same_on_batch(transform: nn.Module, same: bool) -> None:
    """Return whether one draw serves all pictures of a call, which are the frames of a clip."""
    for part in transform.modules():
        if getattr(part, "same_on_batch", None) is not None:
            setattr(part, "same_on_batch", same)  # noqa: B010 -- typed as a submodule
