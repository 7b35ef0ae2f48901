"""What a user chooses: the recipe, the options of a build, their checks, and what `auto` stands for."""

from packer.recipe.recipe import DEFAULT_FACE_SIZE, PRESETS, TEXT_LISTS, TRACK_RULES, Recipe, refuse_unknown
from packer.recipe.steps import StepSpec
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
