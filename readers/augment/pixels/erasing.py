"""Random erasing: a random rectangle is painted over."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from readers.arguments import as_number, as_pair, as_range
from readers.augment.base import Sample, get_field
from readers.augment.masks import masks_of
from readers.augment.pixels.canvas import Canvas, PixelTransform
from readers.augment.pixels.floats import encoded
from readers.seeding import uniforms
from shardspec.errors import UsageError
from shardspec.wording import shorten

_TRIES = 10


@dataclass(frozen=True)
class _Box:
    top: int
    left: int
    height: int
    width: int
    noise: npt.NDArray[np.float32] | None  # (height, width, C), standard normal


class RandomErasing(PixelTransform[_Box | None]):
    """Paint over a random rectangle, as torchvision's ``v2.RandomErasing`` and timm's.

    Usually put after `Normalize`, where 0 is the mean colour. Geometry is kept, and so are masks unless they have a
    fill.

    Parameters
    ----------
    p : float, in [0, 1]
        Probability of erasing.
    scale : (float, float), in (0, 1]
        Smallest and largest area of the rectangle, as a share of the image's.
    ratio : (float, float)
        Smallest and largest ratio of height to width, drawn log-uniformly.
    value : float, sequence of float, or "random"
        New value, for all channels or one per channel, in the image's range: 0 to 255 in uint8, a normalised number
        after `Normalize`. ``"random"`` draws every number separately: from a standard normal distribution in floating
        images, uniformly from 0 to 255 in uint8.
    fill_mask : int or None
        Value of the rectangle in masks; None leaves masks unchanged.
    masks : sequence of str or None
        Fields that count as masks; None: those named ``mask``, ``*_mask`` or ``*_image``, of the image's size.

    Raises
    ------
    UsageError
        When created: if an argument is out of range. When called: if the value does not fit the image.

    Notes
    -----
    A clip has the same rectangle in every frame. If ten drawn rectangles do not fit, nothing is painted.
    """

    def __init__(
        self,
        p: float = 0.5,
        scale: tuple[float, float] = (0.02, 0.33),
        ratio: tuple[float, float] = (0.3, 3.3),
        value: Any = 0,
        fill_mask: int | None = None,
        masks: Sequence[str] | None = None,
    ) -> None:
        super().__init__(p, masks)
        self.scale = as_range("RandomErasing", "scale", scale)
        self.ratio = as_pair("RandomErasing: ratio", ratio)
        if not 0 < self.ratio[0] <= self.ratio[1] < np.inf:
            raise UsageError(place="RandomErasing", expected="a ratio (least, largest) above 0", found=ratio)
        self.value = _as_value(value)
        self.fill_mask = fill_mask

    def draw(self, sample: Sample, rng: np.random.Generator) -> _Box | None:
        """Draw the rectangle; None if none fits."""
        height, width, channels = get_field(sample, "image", "RandomErasing").shape[-3:]
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(_TRIES):
            size, shape, y, x = uniforms(rng, 4)
            area = (self.scale[0] + size * (self.scale[1] - self.scale[0])) * height * width
            aspect = math.exp(low + shape * (high - low))
            h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < h < height and 0 < w < width:
                noise = rng.standard_normal((h, w, channels), np.float32) if self.value == "random" else None
                return _Box(int(y * (height - h + 1)), int(x * (width - w + 1)), h, w, noise)
        return None

    def paint(self, canvas: Canvas, params: _Box | None) -> None:
        """Paint over the rectangle."""
        if params is None:
            return
        place = np.s_[params.top : params.top + params.height, params.left : params.left + params.width]
        for pixels in canvas.images:
            values = pixels.writable()
            values[place] = self._fill(values, params)
        if self.fill_mask is not None:
            canvas.fields = dict(canvas.fields)
            image = canvas.fields["image"]
            for name in masks_of(canvas.fields, image, self.masks, "RandomErasing"):
                mask = canvas.fields[name].copy()
                mask[(slice(None), *place) if canvas.clip else place] = self.fill_mask
                canvas.fields[name] = mask

    def _fill(self, values: npt.NDArray[Any], box: _Box) -> npt.NDArray[Any]:
        if box.noise is not None:
            if values.dtype != np.uint8:
                return encoded(box.noise, values.dtype)
            # the lowest byte of a normal number is uniformly distributed
            return np.frombuffer(box.noise.tobytes(), np.uint8)[:: box.noise.itemsize].reshape(box.noise.shape)
        fill = np.asarray(self.value, np.float32)
        if fill.ndim and len(fill) != values.shape[-1]:
            raise UsageError(
                place="RandomErasing",
                expected="one value, or one per channel",
                found=f"{len(fill)} for an image of {values.shape[-1]} channels",
            )
        if values.dtype != np.uint8:
            return encoded(fill, values.dtype)
        if not (fill >= 0).all() or not (fill <= 255).all():
            raise UsageError(place="RandomErasing", expected="values from 0 to 255 in uint8 images", found=self.value)
        return fill.astype(np.uint8)


def _as_value(value: Any) -> float | tuple[float, ...] | str:
    if isinstance(value, str):
        if value != "random":
            raise UsageError(
                place="RandomErasing", expected="value as a number, one per channel, or 'random'", found=shorten(value)
            )
        return value
    if isinstance(value, Sequence | np.ndarray):
        numbers = tuple(as_number("RandomErasing: value", number) for number in value)
    else:
        numbers = (as_number("RandomErasing: value", value),)
    if not numbers or not np.isfinite(numbers).all():
        raise UsageError(
            place="RandomErasing", expected="value as a finite number, or one per channel", found=shorten(value)
        )
    return numbers if isinstance(value, Sequence | np.ndarray) else numbers[0]
