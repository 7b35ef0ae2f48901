"""Augmentation of face samples: pictures, landmarks, hull, regions, masks and matrix together, drawn from a given generator.

Every transform of a sample is called with the sample, a dict of numpy values, and a `numpy.random.Generator`; it first draws
its parameters from the generator and then applies them to all fields alike. It makes a new dict and new arrays and never
writes into those that it was given. Given the generator of (seed, epoch, row) (`readers.seeding`), the result is a function
of those integers, at any number of workers.

Names resolve on first use: importing the package loads neither OpenCV, torch nor Albumentations.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from readers.augment.albumentations import Albumentations
    from readers.augment.compose import Compose, OneOf
    from readers.augment.cutout import LandmarkCutout
    from readers.augment.flip import HorizontalFlip
    from readers.augment.hull import BlackoutHull, KeepHull
    from readers.augment.jitter import CropJitter
    from readers.augment.regions import DropRegion

__all__ = [
    "Albumentations",
    "BlackoutHull",
    "Compose",
    "CropJitter",
    "DropRegion",
    "HorizontalFlip",
    "KeepHull",
    "LandmarkCutout",
    "OneOf",
]

_MODULES = {
    "Albumentations": "albumentations",
    "BlackoutHull": "hull",
    "Compose": "compose",
    "CropJitter": "jitter",
    "DropRegion": "regions",
    "HorizontalFlip": "flip",
    "KeepHull": "hull",
    "LandmarkCutout": "cutout",
    "OneOf": "compose",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"readers.augment.{_MODULES[name]}"), name)
