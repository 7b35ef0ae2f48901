"""User settings: the recipe, the options of a build, their checks, and the resolution of ``auto``."""

from packer.recipe.parsing import StepSpec
from packer.recipe.recipe import DEFAULT_FACE_SIZE, PRESETS, TEXT_LISTS, TRACK_RULES, Recipe, refuse_unknown
from shardspec.fields import field_name

__all__ = [
    "DEFAULT_FACE_SIZE",
    "PRESETS",
    "TEXT_LISTS",
    "TRACK_RULES",
    "Recipe",
    "StepSpec",
    "field_name",
    "refuse_unknown",
]
