"""``resize``: resize images to one size, together with their masks and geometry."""

from packer.recipe import Recipe
from packer.steps.chain import Step, StepResources, unchanged
from shardspec.registry import import_target


def make(recipe: Recipe, _resources: StepResources) -> Step:
    """Make the step of a recipe; without a size or buckets, or with ``resize="none"``, images pass unchanged."""
    if not recipe.resizes:
        return unchanged
    # Not imported above, because images that are not resized do not need its libraries.
    step: Step = import_target("packer.steps.scale:make_scaling", what="step 'resize'", extra="pack")(recipe)
    return step
