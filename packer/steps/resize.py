"""``resize``: bring pictures to one size, together with their masks and geometry."""

from packer.recipe import Recipe
from packer.steps.chain import Step, StepResources
from shardspec.registry import import_target


def make(recipe: Recipe, _resources: StepResources) -> Step:
    """The step of a recipe; without a size, or with ``resize="none"``, pictures pass as they are."""
    size = recipe.size
    if size is None or recipe.resize == "none":
        return lambda samples: samples
    # Not imported above: pictures that stay as they are need none of its libraries.
    step: Step = import_target("packer.steps.scale:make_scaling", what="step 'resize'", extra="pack")(recipe, size)
    return step
