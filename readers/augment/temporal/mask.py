"""Time masking: random runs of frames are blanked."""

from collections.abc import Sequence

import numpy as np

from readers.arguments import as_count
from readers.augment.base import Sample, Transform, get_field
from readers.augment.pixels.floats import encoded
from readers.augment.temporal.frames import count_frames, part_of
from shardspec.errors import UsageError
from shardspec.wording import shorten


class TimeMask(Transform[list[tuple[int, int]]]):
    """Blank random runs of frames, as SpecAugment and auto_avsr do.

    Parameters
    ----------
    length : int
        Maximum number of frames of a mask; each mask draws 1 to `length`.
    every : int, optional
        Number of frames for which there is one mask: 25 gives four masks in a clip of 100 frames, which may overlap. By
        default a clip has one mask.
    fill : float
        Value of blanked pixels, in the image's range: 0 to 255, or a normalised number after `Normalize`, where 0 is
        the mean.
    fields : sequence of str
        Fields that are blanked: ``("image",)``, ``("audio",)``, or both at the same times. Fields other than ``image``
        are set to 0.
    p : float, in [0, 1]
        Probability of masking.

    Raises
    ------
    UsageError
        When created: if an argument is out of range. When called: if ``image`` is not a clip, a field is missing, or
        `fill` does not fit a uint8 image.

    Notes
    -----
    Daniel S. Park et al., SpecAugment, Interspeech 2019. Each mask is drawn without regard to the others.
    """

    def __init__(
        self,
        length: int,
        every: int | None = None,
        fill: float = 0,
        fields: Sequence[str] = ("image",),
        p: float = 1.0,
    ) -> None:
        super().__init__(p, ())
        self.length = as_count("TimeMask: length", length, unit="frame")
        self.every = None if every is None else as_count("TimeMask: every", every, unit="frame")
        self.fill = fill
        if isinstance(fields, str) or not fields:
            raise UsageError(place="TimeMask", expected="fields as a list such as ['image']", found=shorten(fields))
        self.fields = tuple(fields)

    def draw(self, sample: Sample, rng: np.random.Generator) -> list[tuple[int, int]]:
        """Draw the first frame of each mask, and the frame after its last one."""
        frames = count_frames(sample, "TimeMask")
        masks = 1 if self.every is None else -(-frames // self.every)
        sizes = rng.integers(1, min(self.length, frames) + 1, masks)
        starts = rng.integers(frames - sizes + 1)
        return list(zip(starts.tolist(), (starts + sizes).tolist(), strict=True))

    def apply(self, sample: Sample, params: list[tuple[int, int]]) -> Sample:
        """Blank the frames on copies of the fields."""
        frames = count_frames(sample, "TimeMask")
        out = dict(sample)
        for name in self.fields:
            value = out[name] = get_field(sample, name, "TimeMask").copy()
            fill = np.asarray(self.fill if name == "image" else 0)
            if value.dtype == np.uint8 and not 0 <= fill <= 255:
                raise UsageError(place="TimeMask", expected="a fill from 0 to 255 in uint8 images", found=self.fill)
            if name == "image" and value.dtype != np.uint8:
                fill = encoded(fill, value.dtype)
            for start, stop in params:
                value[part_of(sample, name, start, stop, frames)] = fill
        return out
