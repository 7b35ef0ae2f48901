"""Transforms that paint over parts of the face, and their base class."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from readers.arguments import as_range
from readers.augment.base import Params, Sample, Transform, get_field, get_image, per_frame, valid_frames
from readers.augment.masks import masks_of
from shardspec.errors import UsageError
from shardspec.points import REGIONS
from shardspec.wording import shorten

Fill = int | tuple[int, ...]
Painter = Callable[[npt.NDArray[Any], int, Fill], None]
"""Called with an image (H, W, ...) to write to, the frame's index (0 outside clips), and the fill."""

ROWS = {name: (row,) for row, name in enumerate(REGIONS)} | {"eyes": (0, 1)}
"""Rows of the field ``regions`` by the names that users give."""


class Painting(Transform[Params]):
    """Base of transforms that paint over parts of the face.

    Samples and frames whose ``landmarks_valid`` is false stay unchanged.

    Parameters
    ----------
    p : float, in [0, 1]
        Probability of painting.
    fill : int or tuple of int, 0 to 255
        Value of the painted pixels, one for all channels or one per channel.
    fill_mask : int or None
        Value of the painted pixels in masks; None leaves masks unchanged.
    masks : sequence of str or None
        Fields that count as masks (`Transform`).
    """

    def __init__(
        self, p: float = 0.3, fill: Fill = 0, fill_mask: int | None = None, masks: Sequence[str] | None = None
    ) -> None:
        super().__init__(p, masks)
        self.fill = check_fill(fill, type(self).__name__)
        self.fill_mask = fill_mask

    @abstractmethod
    def painter(self, sample: Sample, params: Params) -> Painter:
        """Return the function that paints one frame in place."""

    def apply(self, sample: Sample, params: Params) -> Sample:
        """Paint on copies of the image, and of the masks if they have a fill."""
        user = type(self).__name__
        image = get_image(sample, user)
        clip = image.ndim == 4
        paint = self.painter(sample, params)
        valid = valid_frames(sample, len(image) if clip else 1)
        if not valid.any():
            return sample
        out = dict(sample)
        fills: dict[str, Fill] = {"image": self.fill}
        if self.fill_mask is not None:
            fills |= dict.fromkeys(masks_of(sample, image, self.masks, user), self.fill_mask)
        for name, value in fills.items():
            out[name] = sample[name].copy()
            for at, frame in enumerate(per_frame(out[name], out[name].ndim - clip)):
                if valid[at]:
                    paint(frame, at, value)
        return out


class DropRegion(Painting[str]):
    """Paint over one region, drawn from a list: its box in the ``regions`` field.

    Samples and frames whose ``landmarks_valid`` is false stay unchanged.

    Parameters
    ----------
    regions : sequence of str
        Regions to draw from: ``"eyes"`` (both), ``"left_eye"``, ``"right_eye"``, ``"nose"``, ``"mouth"``.
    p, fill, fill_mask, masks
        Probability of painting; colour of painted pixels, 0 to 255, in the image and in masks (None leaves masks
        unchanged); fields that count as masks (None: those named ``mask``, ``*_mask`` or ``*_image``, of the image's
        size).
    """

    def __init__(
        self,
        regions: Sequence[str] = ("eyes", "nose", "mouth"),
        p: float = 0.3,
        fill: Fill = 0,
        fill_mask: int | None = None,
        masks: Sequence[str] | None = None,
    ) -> None:
        super().__init__(p, fill, fill_mask, masks)
        self.regions = check_regions(regions, "DropRegion")

    def draw(self, sample: Sample, rng: np.random.Generator) -> str:
        """Draw the region."""
        return self.regions[int(rng.integers(len(self.regions)))]

    def painter(self, sample: Sample, params: str) -> Painter:
        """Return the function that paints the boxes of the region."""
        boxes = get_field(sample, "regions", "DropRegion").reshape(-1, len(REGIONS), 4)

        def paint(image: npt.NDArray[Any], at: int, fill: Fill) -> None:
            for row in ROWS[params]:
                _paint_box(image, boxes[at, row], fill)

        return paint


@dataclass(frozen=True)
class _Hole:
    point: int
    shift: tuple[float, float]  # of the square's centre from the landmark, in sides of the square
    side: float  # share of the image's shorter side


class LandmarkCutout(Painting[_Hole]):
    """Paint a square over a random landmark, which may be anywhere in the square.

    Samples and frames whose ``landmarks_valid`` is false stay unchanged.

    Parameters
    ----------
    side : tuple of float, in (0, 1]
        Smallest and largest side of the square, as a share of the image's shorter side.
    p, fill, fill_mask, masks
        Probability of painting; colour of painted pixels, 0 to 255, in the image and in masks (None leaves masks
        unchanged); fields that count as masks (None: those named ``mask``, ``*_mask`` or ``*_image``, of the image's
        size).
    """

    def __init__(
        self,
        side: tuple[float, float] = (0.1, 0.3),
        p: float = 0.3,
        fill: Fill = 0,
        fill_mask: int | None = None,
        masks: Sequence[str] | None = None,
    ) -> None:
        super().__init__(p, fill, fill_mask, masks)
        self.side = as_range("LandmarkCutout", "side", side)

    def draw(self, sample: Sample, rng: np.random.Generator) -> _Hole:
        """Draw the landmark and the square around it."""
        count = get_field(sample, "landmarks", "LandmarkCutout").shape[-2]
        point = int(rng.integers(count))
        x, y, size = rng.random(3).tolist()
        return _Hole(point, (x - 0.5, y - 0.5), self.side[0] + size * (self.side[1] - self.side[0]))

    def painter(self, sample: Sample, params: _Hole) -> Painter:
        """Return the function that paints the square."""
        landmarks = get_field(sample, "landmarks", "LandmarkCutout")
        side = params.side * min(get_image(sample, "LandmarkCutout").shape[-3:-1])
        middle = landmarks[..., params.point, :].reshape(-1, 2).astype(np.float64) + np.array(params.shift) * side
        boxes = np.concatenate([middle - side / 2, middle + side / 2], axis=1)
        return lambda image, at, fill: _paint_box(image, boxes[at], fill)


def check_fill(fill: Fill, user: str) -> Fill:
    """Check a fill: an integer from 0 to 255, or one per channel."""
    values = fill if isinstance(fill, tuple) else (fill,)
    if not values or not all(isinstance(value, int) and 0 <= value <= 255 for value in values):
        raise UsageError(place=user, expected="a fill from 0 to 255, or one per channel", found=shorten(fill))
    return fill


def check_regions(names: Sequence[str], user: str) -> tuple[str, ...]:
    """Check the names of one region or more (`ROWS`)."""
    if isinstance(names, str) or not names or not set(names) <= set(ROWS):
        raise UsageError(place=user, expected=f"regions among {', '.join(sorted(ROWS))}", found=shorten(names))
    return tuple(names)


def _paint_box(image: npt.NDArray[Any], box: npt.NDArray[Any], fill: Fill) -> None:
    """Set the pixels of an image (H, W, ...) whose centres are in a box (left, top, right, bottom)."""
    height, width = image.shape[:2]
    edges = (min(max(float(edge), -1.0), max(height, width) + 1.0) for edge in box)
    # the first pixel whose centre is not before each edge
    left, top, right, bottom = (max(int(np.ceil(edge - 0.5)), 0) for edge in edges)
    image[top:bottom, left:right] = fill
