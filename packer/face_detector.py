"""The detector of a recipe."""

from packer.detect import Detector
from packer.recipe import Recipe


def make_detector(recipe: Recipe) -> Detector:
    """Load the detector: the same one in every process, whoever asks it."""
    screen = screens(recipe)
    if recipe.parity:
        return Detector(recipe.detector, device=recipe.device, screen=screen)
    return Detector.dataset(recipe.min_face, runtime=recipe.detector, device=recipe.device, screen=screen)


def screens(recipe: Recipe) -> bool:
    """Whether the detector takes a coarse look first where it can; not for parity, since that look's margins are measured, not proven."""
    return not recipe.parity
