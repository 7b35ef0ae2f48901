"""Base class of sample transforms, and access to the fields of a sample."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from readers.arguments import as_probability
from readers.augment.masks import as_mask_names
from shardspec.errors import UsageError

Sample = dict[str, Any]
Params = TypeVar("Params")
Image = npt.NDArray[np.generic]


class Transform(ABC, Generic[Params]):
    """Base of sample transforms: draw the random parameters, then apply them (`readers.transforms.SeededTransform`).

    Parameters
    ----------
    p : float, in [0, 1]
        Probability that the transform is applied.
    masks : sequence of str or None
        Fields aligned with the image pixel by pixel, (H, W) or (H, W, C), which move with it. None: all fields named
        ``mask``, ``*_mask`` or ``*_image`` (as ``packer build --also`` names them) with the image's height and width.
        Named fields must be such arrays. ``()``: none.

    Notes
    -----
    No state is kept between calls, so a transform is safe across threads, fork and pickle. ``image`` may be a clip,
    (T, H, W, C). Every other field then has the same first axis, which ``matrix`` may lack. One draw serves the whole
    clip.
    """

    seeded = True

    def __init__(self, p: float, masks: Sequence[str] | None = None) -> None:
        self.p = as_probability(type(self).__name__, p)
        self.masks = as_mask_names(masks, type(self).__name__)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the transformed sample: a new dict, or the given one if nothing changes."""
        if rng.random() >= self.p:
            return sample
        return self.apply(sample, self.draw(sample, rng))

    def draw(self, sample: Sample, rng: np.random.Generator) -> Params:
        """Draw all random parameters of one application; by default there are none."""
        return None  # type: ignore[return-value]

    @abstractmethod
    def apply(self, sample: Sample, params: Params) -> Sample:
        """Apply drawn parameters to a sample. The same parameters give the same result."""

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({values})"


def get_field(sample: Sample, name: str, user: str) -> npt.NDArray[Any]:
    """Return a field that a transform needs; a UsageError tells how to read it."""
    value = sample.get(name)
    if not isinstance(value, np.ndarray):
        raise UsageError(
            place=f"{user} needs the field {name!r}",
            expected="an array",
            found=f"{'none' if value is None else type(value).__name__}; read it with fields=[..., {name!r}]",
        )
    return value


def get_image(sample: Sample, user: str) -> npt.NDArray[np.uint8]:
    """Return the image, (H, W, C), or the clip, (T, H, W, C); it must be uint8."""
    image = get_field(sample, "image", user)
    if image.dtype != np.uint8 or image.ndim not in (3, 4):
        raise UsageError(
            place=user,
            expected="image as uint8 (H, W, C) or (T, H, W, C)",
            found=f"{image.dtype} {image.shape}; normalise after augmenting",
        )
    return image


BOXES = ("regions", "boxes")
"""Fields of boxes: those of the face's parts, in the order of `shardspec.points.REGIONS`, and any others."""

_BOX_NUMBERS = 4


def present(sample: Sample, names: Sequence[str], kind: type = np.ndarray) -> list[str]:
    """Return the names whose values in a sample are arrays (`kind`), or in a batch tensors."""
    return [name for name in names if isinstance(sample.get(name), kind)]


def boxes_of(sample: Sample) -> list[str]:
    """Return the names of the box fields of a sample: (..., 4) floating, left, top, right and bottom in pixels."""
    return [name for name in present(sample, BOXES) if are_boxes(sample[name].shape, sample[name].dtype.kind == "f")]


def are_boxes(shape: Sequence[int], floating: bool) -> bool:
    """Return whether an array may hold boxes. Transforms leave other arrays under these names unchanged."""
    return floating and len(shape) > 0 and shape[-1] == _BOX_NUMBERS


def per_frame(value: npt.NDArray[Any], ndim: int) -> Iterator[npt.NDArray[Any]]:
    """Iterate over the frames of a clip, or yield a single value; `ndim` is the number of axes of a frame."""
    return iter(value.reshape(-1, *value.shape[-ndim:]) if value.ndim > ndim else (value,))


def valid_frames(sample: Sample, count: int) -> npt.NDArray[np.bool_]:
    """Return which of `count` frames have valid landmarks, (count,). Without ``landmarks_valid``, all frames do."""
    return np.broadcast_to(np.asarray(sample.get("landmarks_valid", True), np.bool_).reshape(-1), (count,))
