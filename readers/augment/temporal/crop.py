"""A random part of a clip in time."""

import numpy as np

from readers.arguments import as_count
from readers.augment.base import Sample, Transform
from readers.augment.temporal.frames import count_frames, fields_in_time, part_of, sound_of


class TimeCrop(Transform[tuple[int, int]]):
    """Cut a random run of frames out of a clip, with its sound.

    Every array and list that has one value for each frame is cut, and ``audio``, (T · n,), to the same part of its
    length. For clips of one length of a stored video, ``ds.clips(length, stride=None, start="random")`` reads less:
    only the frames that are kept.

    Parameters
    ----------
    length : int
        Number of frames that are kept. Shorter clips stay whole.
    p : float, in [0, 1]
        Probability of cutting.

    Raises
    ------
    UsageError
        When called: if ``image`` is not a clip.
    """

    def __init__(self, length: int, p: float = 1.0) -> None:
        super().__init__(p, ())
        self.length = as_count("TimeCrop: length", length, unit="frame")

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[int, int]:
        """Draw the first frame and the frame after the last one."""
        frames = count_frames(sample, "TimeCrop")
        length = min(self.length, frames)
        start = int(rng.integers(frames - length + 1))
        return start, start + length

    def apply(self, sample: Sample, params: tuple[int, int]) -> Sample:
        """Cut all fields in time."""
        frames = count_frames(sample, "TimeCrop")
        names = [*fields_in_time(sample, frames), *sound_of(sample)]
        return sample | {name: sample[name][part_of(sample, name, *params, frames)] for name in names}
