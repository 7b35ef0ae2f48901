"""Adapter for augmentations of Kornia."""

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
from readers.augment.libraries.tensors import image_array, image_tensor, mask_array, mask_tensor
from readers.augment.libraries.torch_random import TorchDraws
from shardspec.errors import UsageError
from shardspec.wording import shorten

_KNOWN = (K.AugmentationBase2D, OperationBase, ImageSequentialBase, nn.Sequential)


class Kornia(Adapter):
    """Apply augmentations of Kornia to a whole sample (`readers.augment.libraries.adapter.Adapter`).

    Each sample has separate draws, regardless of ``same_on_batch``. Kornia gets the image floating, from 0 to 1. The
    result is uint8 from 0 to 255, or float32 as it is if one of the augmentations normalises.

    Where images are resized with ``align_corners=True``, Kornia's default, masks follow another rule than the image: at
    a quarter of the size they are up to 1.5 pixels off at the border. ``align_corners=False`` avoids this.

    Parameters
    ----------
    masks : sequence of str or None
        Fields that move with the image; None: those named ``mask``, ``*_mask`` or ``*_image``, of the image's size.

    Raises
    ------
    UsageError
        When created: if `augmentations` are not image augmentations of Kornia, or mix the images of a batch. When
        called: if an augmentation bends the image and the sample has geometry, which Kornia would not move.
    """

    def __init__(self, augmentations: Any, masks: Sequence[str] | None = None) -> None:
        chain = list(augmentations) if isinstance(augmentations, list | tuple) else [augmentations]
        if not chain:
            raise UsageError(place="Kornia", expected="one augmentation or more", found="none")
        for augmentation in chain:
            if not isinstance(augmentation, nn.Module):
                raise UsageError(
                    place="Kornia", expected="augmentations of kornia.augmentation", found=shorten(augmentation)
                )
            for part in augmentation.modules():
                _check(part, is_top=part is augmentation)
        parts = [part for augmentation in chain for part in augmentation.modules()]
        self._bends = [type(part).__name__ for part in parts if _bends(part)]
        self._floating = any(isinstance(part, K.Normalize | K.Denormalize) for part in parts)
        super().__init__(K.AugmentationSequential(*chain, data_keys=["input"]), chain, masks)

    def prepared(self, transform: Any) -> Any:
        """Make erasing leave masks unchanged."""
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
        """Call the augmentations once."""
        if points is not None and self._bends:
            raise UsageError(
                f"{self._bends[0]} bends the image and leaves points where they were",
                place="Kornia",
                hint="leave it out, or read the dataset without landmarks, hull, regions and matrix",
            )
        axes = image.ndim - 1
        clip = axes == 3
        floating = image_tensor(image).to(torch.float32).div_(255)
        values = [floating if clip else floating[None]]
        keys = ["input"]
        for name, mask in masks.items():
            tensor = mask_tensor(mask, axes, name, "Kornia")
            values.append(tensor if clip else tensor[None])
            keys.append("mask")
        if points is not None:
            values.append(torch.from_numpy(points).expand(len(values[0]), -1, -1).clone())
            keys.append("keypoints")
        _set_same_on_batch(transform, clip)
        with torch.no_grad(), TorchDraws(int(rng.integers(2**63))):
            found = transform(*values, data_keys=keys)
        results: list[Tensor] = list(found) if len(values) > 1 else [found]
        result = results[0] if clip else results[0][0]
        if not self._floating:
            result = result.mul(255).round_().clamp_(0, 255).to(torch.uint8)
        return (
            image_array(result, axes, "Kornia"),
            {
                name: mask_array(value if clip else value[0], mask, axes)
                for (name, mask), value in zip(masks.items(), results[1:], strict=False)
            },
            None if points is None else results[-1][0].numpy(),
        )


def _kept(mask: Tensor, *others: Any, **params: Any) -> Tensor:
    return mask


def _bends(part: nn.Module) -> bool:
    """Return whether an augmentation moves pixels without a matrix, so that Kornia does not move points."""
    return isinstance(part, K.AugmentationBase2D) and not isinstance(part, K.RigidAffineAugmentationBase2D)


def _check(part: nn.Module, is_top: bool) -> None:
    """Refuse modules that cannot move a sample, or need a whole batch."""
    name, of = type(part).__name__, type(part).__module__
    if isinstance(part, K.MixAugmentationBaseV2):
        raise UsageError(
            f"{name} mixes the images of a batch", place="Kornia", hint="use readers.augment.BatchMixUp or BatchCutMix"
        )
    if isinstance(part, PatchSequential | VideoSequential):
        raise UsageError(
            place="Kornia", expected="augmentations of whole images", found=name, hint="write K.ImageSequential"
        )
    if (is_top and not isinstance(part, _KNOWN)) or of.startswith("kornia.geometry"):
        raise UsageError(
            place="Kornia", expected="augmentations of kornia.augmentation, which move points and masks too", found=name
        )


def _set_same_on_batch(transform: nn.Module, same: bool) -> None:
    """Set whether one draw serves all images of a call, which are the frames of a clip."""
    for part in transform.modules():
        if getattr(part, "same_on_batch", None) is not None:
            setattr(part, "same_on_batch", same)  # noqa: B010 -- typed as a submodule
