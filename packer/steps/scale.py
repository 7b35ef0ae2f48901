"""The step ``resize``: resize images to one size, by area averaging when shrinking, with their masks and geometry."""

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.recipe import Recipe
from packer.recipe.buckets import Bucket, nearest_bucket
from packer.steps.chain import REPORT, Sample, Step, require_image
from packer.steps.report import ItemReport, is_larger
from packer.vision.decode.limits import MAX_PIXELS
from packer.vision.geometry.resize import resize_exact, resize_nearest, resize_shorter, scale_geometry, shift_geometry
from shardspec.errors import ItemError
from shardspec.fields import is_further_image, is_mask_name


def make_scaling(recipe: Recipe) -> Step:
    """Make the step of a recipe with a size or with buckets."""
    shapes = recipe.shapes
    scale = None if recipe.size is None or shapes else make_scale(recipe, recipe.size)

    def resize(samples: Iterator[Sample]) -> Iterator[Sample]:
        for sample in samples:
            require_image(sample)
            if scale is None:
                height, width = sample["image"].shape[:2]
                bucket = nearest_bucket(shapes, width, height)
                sample = {**_crop_to_ratio(sample, bucket), "bucket": str(bucket)}
                image = resize_exact(sample["image"], (bucket.height, bucket.width))
            else:
                image = scale(sample["image"])
            old, new = sample["image"].shape[:2], image.shape[:2]
            report: ItemReport | None = sample.get(REPORT)  # a custom step may have dropped it
            if report is not None:
                report.enlarged += is_larger(new, old)
            further = _further(sample, old, new)
            _check_resample(further, recipe)
            masks = {name: _fit(name, recipe)(value, new) for name, value in further.items()}
            masks |= {name: resize_nearest(value, new) for name, value in _maps(sample, old, new).items()}
            yield {**sample, **scale_geometry(sample, old, new), **masks, "image": image}

    return resize


def make_scale(recipe: Recipe, size: int) -> Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.uint8]]:
    """Return the function that resizes ``image`` to `size`."""
    scale = resize_exact if recipe.resize == "exact" else resize_shorter

    def resize(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        if recipe.resize == "shorter":
            _check_proportions(image.shape[:2], size)
        return scale(image, size)

    return resize


def _crop_to_ratio(sample: Sample, bucket: Bucket) -> Sample:
    """Crop the middle of ``image`` and of its masks to the ratio of a bucket's sides, in whole pixels."""
    height, width = old = sample["image"].shape[:2]
    new_width = min(width, max(1, (2 * height * bucket.width + bucket.height) // (2 * bucket.height)))
    new_height = min(height, max(1, (2 * width * bucket.height + bucket.width) // (2 * bucket.width)))
    top, left = (height - new_height) // 2, (width - new_width) // 2
    if (new_height, new_width) == old:
        return sample
    images = {"image": sample["image"], **_further(sample, old, (0, 0)), **_maps(sample, old, (0, 0))}
    cropped = {name: value[top : top + new_height, left : left + new_width] for name, value in images.items()}
    return {**sample, **shift_geometry(sample, (-left, -top)), **cropped}


def _further(sample: Sample, old: tuple[int, int], new: tuple[int, int]) -> dict[str, npt.NDArray[np.uint8]]:
    """Return the other images of the same size as ``image``, which are resized with it if `old` and `new` differ."""
    if old == new:
        return {}
    return {
        name: value
        for name, value in sample.items()
        if isinstance(name, str) and is_further_image(name) and _is_image(value, old)
    }


def _maps(sample: Sample, old: tuple[int, int], new: tuple[int, int]) -> dict[str, npt.NDArray[Any]]:
    """Return masks and label maps of the size of ``image``: arrays (H, W) or (H, W, C) that are not images."""
    if old == new:
        return {}
    return {
        name: value
        for name, value in sample.items()
        if isinstance(name, str)
        and is_mask_name(name)
        and isinstance(value, np.ndarray)
        and value.ndim in (2, 3)
        and value.shape[:2] == old
        and not (is_further_image(name) and _is_image(value, old))
    }


def _fit(name: str, recipe: Recipe) -> Callable[[npt.NDArray[np.uint8], tuple[int, int]], npt.NDArray[np.uint8]]:
    """Return the function that resizes an image field other than ``image``, as ``also_resample`` says.

    By default, the image of ``also`` is resized by nearest pixel, because it may be a label map. If the step ``faces``
    has already averaged it in a crop, it is averaged again.
    """
    keeps = name == recipe.also_field and all(step.use != "faces" for step in recipe.chain)
    return (
        resize_nearest
        if recipe.also_resample == "nearest" or (recipe.also_resample is None and keeps)
        else resize_exact
    )


def _check_resample(further: Collection[str], recipe: Recipe) -> None:
    """Refuse to average an image that may be a label map, unless the user chose averaging."""
    unsaid = [name for name in further if name != recipe.also_field]
    if unsaid and recipe.also_resample is None:
        raise ItemError(
            place="also_resample",
            expected=f"area or nearest to resize {', '.join(map(repr, unsaid))} as well",
            found="neither",
            hint="choose nearest for label maps, whose values must not be mixed, otherwise area",
        )


def _is_image(value: Any, sides: tuple[int, int]) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.shape == (*sides, 3)


def _check_proportions(sides: tuple[int, int], size: int) -> None:
    """Refuse a narrow strip, whose longer side would grow beyond the limit of pixels."""
    shorter, longer = min(sides), max(sides)
    if size * size * longer > MAX_PIXELS * shorter:
        raise ItemError(
            expected=f"at most {MAX_PIXELS} pixels after the shorter side is scaled to {size}",
            found=f"an image of {sides[1]} x {sides[0]}",
        )
