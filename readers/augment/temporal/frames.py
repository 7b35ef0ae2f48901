"""The frames of a clip: find the fields with one value per frame, and transform each frame separately."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from readers.augment.base import Sample, get_field
from readers.decode.values import JOINED
from readers.transforms import AnyTransform, call_transform, check_transform
from shardspec.errors import UsageError

_CLIP_AXES = 4


class PerFrame:
    """Call a transform with each frame of a clip, so that every frame has separate draws.

    Without it, one draw serves all frames. The transform gets a sample with the frame's value of every field that has
    an axis of time: ``image`` (H, W, 3), ``landmarks`` (K, 2). It must return the same shape for all frames.

    Parameters
    ----------
    transform : callable
        A transform of samples (`readers.transforms`).

    Raises
    ------
    UsageError
        When called: if ``image`` is not a clip, or the frames have different shapes afterwards.

    Examples
    --------
    >>> clips = ds.clips(16, transform=PerFrame(ColorJitter(0.2)))  # doctest: +SKIP
    """

    seeded = True

    def __init__(self, transform: AnyTransform) -> None:
        check_transform("PerFrame", transform)
        self.transform = transform

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the clip with every frame transformed."""
        frames = count_frames(sample, "PerFrame")
        names = fields_in_time(sample, frames)
        outputs = [
            call_transform(self.transform, sample | {name: sample[name][at] for name in names}, rng)
            for at in range(frames)
        ]
        return sample | {
            name: _together(name, [output[name] for output in outputs])
            for name in outputs[0]
            if name in names or name not in sample
        }

    def __repr__(self) -> str:
        return f"PerFrame({self.transform!r})"


def count_frames(sample: Sample, user: str) -> int:
    """Return the number of frames of a clip, or of samples of a sound without images; an image is refused."""
    sounds = sound_of(sample)
    if sounds and "image" not in sample:
        return int(sample[sounds[0]].shape[-1])
    image = get_field(sample, "image", user)
    if image.ndim != _CLIP_AXES or not len(image):
        raise UsageError(
            place=user,
            expected="image as a clip, (T, H, W, C)",
            found=f"{image.dtype} {image.shape}",
            hint="give it to clips: ds.clips(16, transform=…)",
        )
    return len(image)


def fields_in_time(sample: Sample, frames: int) -> list[str]:
    """Return the fields that have one value for each frame: arrays and lists of that length, but no sound."""
    return [
        name
        for name, value in sample.items()
        if name not in JOINED
        and (isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim > 0))
        and len(value) == frames
    ]


def part_of(sample: Sample, name: str, start: int, stop: int, frames: int) -> Any:
    """Return the index of a field's values for the frames start … stop-1. Sound is cut at the nearest sample."""
    if name not in JOINED:
        return slice(start, stop)
    length = sample[name].shape[-1]
    return ..., slice(round(start * length / frames), round(stop * length / frames))


def sound_of(sample: Sample) -> list[str]:
    """Return the fields of sound that a sample has, (T · n,), or (C, N) without images."""
    return [name for name in JOINED if isinstance(sample.get(name), np.ndarray)]


def _together(name: str, values: list[Any]) -> Any:
    shapes: Iterable[Any] = {np.shape(value) for value in values}
    if isinstance(values[0], np.ndarray | np.generic) and shapes != {np.shape(values[0])}:
        raise UsageError(
            place="PerFrame", expected=f"one shape of {name!r} in all frames", found=", ".join(map(str, sorted(shapes)))
        )
    return np.stack(values) if isinstance(values[0], np.ndarray | np.generic) else values
