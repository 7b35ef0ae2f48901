"""The pack stage: raw images and videos, preprocessed once and in parallel, into a packed dataset.

Names resolve on first use, so that ``import packer`` loads neither torch nor a format library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packer.builds.build import build, dry_run
    from packer.builds.estimate import Estimate
    from packer.builds.job import BuildResult
    from packer.recipe import Recipe, StepSpec
    from packer.recipe.options import BuildOptions

_NAMES = {
    "BuildOptions": "packer.recipe.options",
    "BuildResult": "packer.builds.job",
    "Estimate": "packer.builds.estimate",
    "Recipe": "packer.recipe",
    "StepSpec": "packer.recipe",
    "build": "packer.builds.build",
    "dry_run": "packer.builds.build",
}

__all__ = ["BuildOptions", "BuildResult", "Estimate", "Recipe", "StepSpec", "build", "dry_run"]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'packer' has no attribute {name!r}")
    value = getattr(import_module(_NAMES[name]), name)
    globals()[name] = value
    return value
