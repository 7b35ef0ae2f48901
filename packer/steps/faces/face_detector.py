"""The detector of a recipe."""

from packer.recipe import Recipe
from packer.vision.detect import Detector


def make_detector(recipe: Recipe) -> Detector:
    """Load the detector: the same one in every process that asks for it."""
    if recipe.parity:
        return Detector(recipe.detector, device=recipe.device)
    return Detector.dataset(recipe.min_face, runtime=recipe.detector, device=recipe.device)
