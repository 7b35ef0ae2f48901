"""The pack stage: raw images and videos, preprocessed once and in parallel, into a packed dataset.

Names resolve on first use, so that ``import packer`` loads neither torch nor a format library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packer.api import build, dry_run
    from packer.estimate import Estimate
    from packer.job import BuildResult
    from packer.options import BuildOptions
    from packer.recipe import Recipe, StepSpec

_NAMES = {
    "BuildOptions": "packer.options",
    "BuildResult": "packer.job",
    "Estimate": "packer.estimate",
    "Recipe": "packer.recipe",
    "StepSpec": "packer.recipe",
    "build": "packer.api",
    "dry_run": "packer.api",
}

__all__ = ["BuildOptions", "BuildResult", "Estimate", "Recipe", "StepSpec", "build", "dry_run"]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'packer' has no attribute {name!r}")
    value = getattr(import_module(_NAMES[name]), name)
    globals()[name] = value
    return value
