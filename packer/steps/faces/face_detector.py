"""The detector of a recipe."""

from packer.recipe import Recipe
from packer.vision.detect import Detector


def make_detector(recipe: Recipe) -> Detector:
    """Load the detector: the same one in every process, whoever asks it.

    Without the coarse look first: in dataset mode it saves a hundredth of the time, and whether it is taken depends on the processor.
    """
    if recipe.parity:
        return Detector(recipe.detector, device=recipe.device, screen=False)
    return Detector.dataset(recipe.min_face, runtime=recipe.detector, device=recipe.device, screen=False)
