"""A square cut out around a landmark."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from readers.arguments import as_range
from readers.augment.base import Sample, Transform, get_field, get_image
from readers.augment.paint import Fill, check_fill, paint_box, paint_frames


@dataclass(frozen=True)
class _Cut:
    point: int
    shift: tuple[float, float]  # of the middle, in sides of the square
    side: float  # share of the picture's shorter side


class LandmarkCutout(Transform[_Cut]):
    """Paints a square over one of the sample's landmarks, drawn at random; the landmark lies anywhere in the square.

    A sample (or frame) whose ``landmarks_valid`` is false stays as it is.

    Parameters
    ----------
    side : tuple of float, in (0, 1]
        Least and largest side of the square, as a share of the picture's shorter side.
    p : float
    fill : int or tuple of int
    fill_mask : int or None
        Value of the masks' pixels there; None leaves masks as they are.
    masks : sequence of str or None
        See `Transform`.
    """

    def __init__(
        self,
        side: tuple[float, float] = (0.1, 0.3),
        p: float = 0.3,
        fill: Fill = 0,
        fill_mask: int | None = None,
        masks: Sequence[str] | None = None,
    ) -> None:
        super().__init__(p, masks)
        self.side = as_range("LandmarkCutout", "side", side)
        self.fill = check_fill(fill, "LandmarkCutout")
        self.fill_mask = fill_mask

    def draw(self, sample: Sample, rng: np.random.Generator) -> _Cut:
        """Return which landmark, and the square around it."""
        count = get_field(sample, "landmarks", "LandmarkCutout").shape[-2]
        point = int(rng.integers(count))
        x, y, size = rng.random(3).tolist()
        return _Cut(point, (x - 0.5, y - 0.5), self.side[0] + size * (self.side[1] - self.side[0]))

    def apply(self, sample: Sample, params: _Cut) -> Sample:
        """The sample with the square painted over."""
        landmarks = get_field(sample, "landmarks", "LandmarkCutout")
        side = params.side * min(get_image(sample, "LandmarkCutout").shape[-3:-1])
        middle = landmarks[..., params.point, :].reshape(-1, 2).astype(np.float64) + np.array(params.shift) * side
        boxes = np.concatenate([middle - side / 2, middle + side / 2], axis=1)

        def paint(picture: npt.NDArray[Any], at: int, fill: Fill) -> None:
            paint_box(picture, boxes[at], fill)

        return paint_frames(sample, "LandmarkCutout", paint, fill=self.fill, fill_mask=self.fill_mask, masks=self.masks)
