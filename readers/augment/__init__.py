"""Augmentation of face samples: image, landmarks, hull, regions, masks and matrix change together.

A transform is called with a sample, a dict of numpy values, and a `numpy.random.Generator`. It draws its parameters
from the generator and applies them to all fields. It returns a new dict with new arrays and does not write to its
input. `readers.seeding` makes the generator from (seed, epoch, row), so any number of workers gives the same result.

Names resolve on first use: importing the package loads neither OpenCV, torch nor a library of transforms.
"""

from typing import TYPE_CHECKING

from shardspec.registry import ImportTarget, lazy_names

if TYPE_CHECKING:
    from readers.augment.batched import BatchCompose, BatchCrop, BatchDropRegion, BatchFlip, BatchNormalize
    from readers.augment.compose import Compose, OneOf
    from readers.augment.crop import CropJitter
    from readers.augment.flip import HorizontalFlip, VerticalFlip
    from readers.augment.hull import BlackoutHull, KeepHull
    from readers.augment.libraries.albumentations import Albumentations
    from readers.augment.libraries.torchvision import Torchvision
    from readers.augment.paint import DropRegion, LandmarkCutout
    from readers.augment.pixels.blur import GaussianBlur
    from readers.augment.pixels.color_jitter import ColorJitter
    from readers.augment.pixels.erasing import RandomErasing
    from readers.augment.pixels.floats import Normalize, ToFloat
    from readers.augment.pixels.mixing import BatchCutMix, BatchMixUp
    from readers.augment.pixels.policies import RandAugment, TrivialAugment
    from readers.augment.temporal.crop import TimeCrop
    from readers.augment.temporal.frames import PerFrame
    from readers.augment.temporal.mask import TimeMask
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Albumentations": ImportTarget("readers.augment.libraries.albumentations:Albumentations", "augment"),
            "BatchCompose": ImportTarget("readers.augment.batched:BatchCompose", "torch"),
            "BatchCrop": ImportTarget("readers.augment.batched:BatchCrop", "torch"),
            "BatchCutMix": ImportTarget("readers.augment.pixels.mixing:BatchCutMix", "torch"),
            "BatchDropRegion": ImportTarget("readers.augment.batched:BatchDropRegion", "torch"),
            "BatchFlip": ImportTarget("readers.augment.batched:BatchFlip", "torch"),
            "BatchMixUp": ImportTarget("readers.augment.pixels.mixing:BatchMixUp", "torch"),
            "BatchNormalize": ImportTarget("readers.augment.batched:BatchNormalize", "torch"),
            "BlackoutHull": ImportTarget("readers.augment.hull:BlackoutHull", "pack"),
            "ColorJitter": ImportTarget("readers.augment.pixels.color_jitter:ColorJitter", "pack"),
            "Compose": ImportTarget("readers.augment.compose:Compose"),
            "CropJitter": ImportTarget("readers.augment.crop:CropJitter", "pack"),
            "DropRegion": ImportTarget("readers.augment.paint:DropRegion"),
            "GaussianBlur": ImportTarget("readers.augment.pixels.blur:GaussianBlur", "pack"),
            "HorizontalFlip": ImportTarget("readers.augment.flip:HorizontalFlip", "pack"),
            "KeepHull": ImportTarget("readers.augment.hull:KeepHull", "pack"),
            "LandmarkCutout": ImportTarget("readers.augment.paint:LandmarkCutout"),
            "Normalize": ImportTarget("readers.augment.pixels.floats:Normalize", "pack"),
            "OneOf": ImportTarget("readers.augment.compose:OneOf"),
            "PerFrame": ImportTarget("readers.augment.temporal.frames:PerFrame"),
            "RandAugment": ImportTarget("readers.augment.pixels.policies:RandAugment", "pack"),
            "RandomErasing": ImportTarget("readers.augment.pixels.erasing:RandomErasing", "pack"),
            "TimeCrop": ImportTarget("readers.augment.temporal.crop:TimeCrop"),
            "TimeMask": ImportTarget("readers.augment.temporal.mask:TimeMask", "pack"),
            "ToFloat": ImportTarget("readers.augment.pixels.floats:ToFloat", "pack"),
            "Torchvision": ImportTarget("readers.augment.libraries.torchvision:Torchvision", "augment"),
            "TrivialAugment": ImportTarget("readers.augment.pixels.policies:TrivialAugment", "pack"),
            "VerticalFlip": ImportTarget("readers.augment.flip:VerticalFlip", "pack"),
        },
    )

__all__ = [
    "Albumentations",
    "BatchCompose",
    "BatchCrop",
    "BatchCutMix",
    "BatchDropRegion",
    "BatchFlip",
    "BatchMixUp",
    "BatchNormalize",
    "BlackoutHull",
    "ColorJitter",
    "Compose",
    "CropJitter",
    "DropRegion",
    "GaussianBlur",
    "HorizontalFlip",
    "KeepHull",
    "LandmarkCutout",
    "Normalize",
    "OneOf",
    "PerFrame",
    "RandAugment",
    "RandomErasing",
    "TimeCrop",
    "TimeMask",
    "ToFloat",
    "Torchvision",
    "TrivialAugment",
    "VerticalFlip",
]
