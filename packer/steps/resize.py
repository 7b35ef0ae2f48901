"""``resize``: pictures to one size, by area averaging where they shrink; geometry in their pixels goes with them."""

from collections.abc import Iterator

from packer.decode.limits import MAX_PIXELS
from packer.geometry.resize import resize_exact, resize_shorter
from packer.geometry.scaling import scale_geometry
from packer.pipeline import Sample, Step
from packer.recipe import Recipe
from shardspec.errors import ItemError


def make(recipe: Recipe, _detector: object = None) -> Step:
    """The step of a recipe; without a size, or with ``resize="none"``, pictures pass as they are."""
    size = recipe.size
    if size is None or recipe.resize == "none":
        return lambda samples: samples
    scale = resize_exact if recipe.resize == "exact" else resize_shorter

    def resize(samples: Iterator[Sample]) -> Iterator[Sample]:
        for sample in samples:
            if recipe.resize == "shorter":
                _check_proportions(sample["image"].shape[:2], size)
            image = scale(sample["image"], size)
            yield {**sample, **scale_geometry(sample, sample["image"].shape[:2], image.shape[:2]), "image": image}

    return resize


def _check_proportions(sides: tuple[int, int], size: int) -> None:
    """Refuse a thin strip of a picture, whose longer side would grow beyond what a picture may have."""
    shorter, longer = min(sides), max(sides)
    if size * size * longer > MAX_PIXELS * shorter:
        raise ItemError(
            f"expected at most {MAX_PIXELS} pixels once the shorter side has {size}, found a picture of {sides[1]} x {sides[0]}"
        )
