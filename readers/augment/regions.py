"""A transform that paints over regions of the face."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from readers.augment.base import Sample, Transform, get_field
from readers.augment.paint import Fill, check_fill, paint_box, paint_frames
from shardspec.errors import UsageError
from shardspec.points import REGIONS
from shardspec.wording import shorten

ROWS = {name: (row,) for row, name in enumerate(REGIONS)} | {"eyes": (0, 1)}
"""The rows of the field ``regions`` by the names of what may be dropped."""


def check_regions(names: Sequence[str], user: str) -> tuple[str, ...]:
    """Names of `ROWS`.

    Raises
    ------
    UsageError
        If a name is unknown, or there is none.
    """
    if isinstance(names, str) or not names or not set(names) <= set(ROWS):
        raise UsageError(f"{user}: expected regions among {', '.join(sorted(ROWS))}, found {shorten(names)}")
    return tuple(names)


class DropRegion(Transform[str]):
    """Paints over one region, drawn from a list: its box in the ``regions`` field.

    A sample (or frame) whose ``landmarks_valid`` is false stays as it is.

    Parameters
    ----------
    regions : sequence of str
        What may be dropped: ``"eyes"`` (both), ``"left_eye"``, ``"right_eye"``, ``"nose"``, ``"mouth"``. One of them is
        drawn.
    p : float
    fill : int or tuple of int
        Value of the painted pixels.
    fill_mask : int or None
        Value of the masks' pixels there; None leaves masks as they are.
    masks : sequence of str or None
        See `Transform`.
    """

    def __init__(
        self,
        regions: Sequence[str] = ("eyes", "nose", "mouth"),
        p: float = 0.3,
        fill: Fill = 0,
        fill_mask: int | None = None,
        masks: Sequence[str] | None = None,
    ) -> None:
        super().__init__(p, masks)
        self.regions = check_regions(regions, "DropRegion")
        self.fill = check_fill(fill, "DropRegion")
        self.fill_mask = fill_mask

    def draw(self, sample: Sample, rng: np.random.Generator) -> str:
        """The region to drop."""
        return self.regions[int(rng.integers(len(self.regions)))]

    def apply(self, sample: Sample, params: str) -> Sample:
        """The sample without that region."""
        boxes = get_field(sample, "regions", "DropRegion").reshape(-1, len(REGIONS), 4)

        def paint(picture: npt.NDArray[Any], at: int, fill: Fill) -> None:
            for row in ROWS[params]:
                paint_box(picture, boxes[at, row], fill)

        return paint_frames(sample, "DropRegion", paint, fill=self.fill, fill_mask=self.fill_mask, masks=self.masks)
