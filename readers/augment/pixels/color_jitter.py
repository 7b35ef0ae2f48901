"""Random changes of brightness, contrast, saturation and hue."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from readers.arguments import as_number, as_pair
from readers.augment.base import Sample
from readers.augment.pixels.canvas import Canvas, Pixels, PixelTransform
from readers.augment.pixels.colors import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    check_channels,
)
from readers.seeding import uniforms
from shardspec.errors import UsageError
from shardspec.wording import shorten

Range = float | tuple[float, float] | None

_CHANGES: tuple[tuple[str, Callable[[Pixels, float], None]], ...] = (
    ("brightness", adjust_brightness),
    ("contrast", adjust_contrast),
    ("saturation", adjust_saturation),
    ("hue", adjust_hue),
)


class _Jitter(NamedTuple):
    order: tuple[int, ...]  # indices of `_CHANGES`
    factors: tuple[float | None, ...]  # by index; None skips the change


class ColorJitter(PixelTransform[_Jitter]):
    """Change brightness, contrast, saturation and hue in a random order, as torchvision's ``v2.ColorJitter``.

    Parameters
    ----------
    brightness, contrast, saturation : float, or (float, float), or None
        Bounds of the uniformly drawn factor, 0 or more; one number x means (max(0, 1 - x), 1 + x). None skips the
        change.
    hue : float, or (float, float), or None
        Bounds of the uniformly drawn turn of the colour circle, from -0.5 to 0.5; one number x means (-x, x).
    p : float, in [0, 1]
        Probability of any change.

    Raises
    ------
    UsageError
        When created: if a bound is out of range. When called: if the image is floating, or does not have one or three
        channels.

    Notes
    -----
    With the same factors in the same order, brightness equals torchvision's bit for bit, and each other change is
    within one grey level of it (for factors up to 2). In a `Compose`, a final change of brightness or contrast is
    merged with the table of `Normalize` or `ToFloat`.
    """

    def __init__(
        self,
        brightness: Range = None,
        contrast: Range = None,
        saturation: Range = None,
        hue: Range = None,
        p: float = 1.0,
    ) -> None:
        super().__init__(p)
        self.brightness = _factors("brightness", brightness)
        self.contrast = _factors("contrast", contrast)
        self.saturation = _factors("saturation", saturation)
        self.hue = _bounds("hue", hue, -0.5, 0.5)

    def draw(self, sample: Sample, rng: np.random.Generator) -> _Jitter:
        """Draw the order and the factors."""
        order = list(range(len(_CHANGES)))
        rng.shuffle(order)  # the same as `permutation`, three times faster and without releasing the GIL
        bounds = (self.brightness, self.contrast, self.saturation, self.hue)
        factors = [
            None if between is None else between[0] + share * (between[1] - between[0])
            for between, share in zip(bounds, uniforms(rng, len(_CHANGES)), strict=True)
        ]
        return _Jitter(tuple(order), tuple(factors))

    def paint(self, canvas: Canvas, params: _Jitter) -> None:
        """Change the colours; each frame of a clip has its own mean grey."""
        for image in canvas.frames("ColorJitter"):
            check_channels(image, "ColorJitter")
            for number in params.order:
                factor = params.factors[number]
                if factor is not None:
                    _CHANGES[number][1](image, factor)


def _factors(name: str, value: Any) -> tuple[float, float] | None:
    if value is None or isinstance(value, Sequence | np.ndarray):
        return _bounds(name, value, 0.0, np.inf)
    spread = as_number(f"ColorJitter: {name}", value)
    if not 0 <= spread < np.inf:
        raise UsageError(
            place="ColorJitter", expected=f"{name} as 0 or more, or as (least, largest)", found=shorten(value)
        )
    return (max(0.0, 1 - spread), 1 + spread) if spread else None


def _bounds(name: str, value: Any, floor: float, ceiling: float) -> tuple[float, float] | None:
    if value is None:
        return None
    if isinstance(value, Sequence | np.ndarray):
        least, most = as_pair(f"ColorJitter: {name}", value)
    else:
        most = as_number(f"ColorJitter: {name}", value)
        least = -most
    if not floor <= least <= most <= ceiling or most == np.inf:
        limits = f"from {floor} to {ceiling}" if np.isfinite(ceiling) else f"of {floor:.0f} or more"
        raise UsageError(place="ColorJitter", expected=f"{name} as (least, largest) {limits}", found=shorten(value))
    return least, most
