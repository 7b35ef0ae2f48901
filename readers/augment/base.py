"""The base of all transforms of a sample, and access to a sample's fields."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from readers.arguments import as_probability
from readers.augment.masks import as_mask_names
from shardspec.errors import UsageError

Sample = dict[str, Any]
Params = TypeVar("Params")
Picture = npt.NDArray[np.generic]


class Transform(ABC, Generic[Params]):
    """A transform that draws first and applies afterwards; fulfils `readers.transforms.SeededTransform`.

    Parameters
    ----------
    p : float, in [0, 1]
        How often it is applied.
    masks : sequence of str or None
        Fields that lie on the picture pixel by pixel, (H, W) or (H, W, C), and move with it. None: all fields named
        ``mask``, ``*_mask`` or ``*_image`` (as ``packer build --also`` names them) that have the picture's height and
        width. Fields that are listed must be such arrays. ``()``: none.

    Notes
    -----
    No state is kept between calls, so a transform is safe across threads, fork and pickle. ``image`` may be a clip,
    (T, H, W, C); every other field then has the same first axis, except for ``matrix``, which may have it; one draw
    serves the whole clip.
    """

    seeded: ClassVar[Literal[True]] = True

    def __init__(self, p: float, masks: Sequence[str] | None = None) -> None:
        self.p = as_probability(type(self).__name__, p)
        self.masks = as_mask_names(masks, type(self).__name__)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """The transformed sample: a new dict, or the given one if there is nothing to do."""
        if rng.random() >= self.p:
            return sample
        return self.apply(sample, self.draw(sample, rng))

    @abstractmethod
    def draw(self, sample: Sample, rng: np.random.Generator) -> Params:
        """Draw the parameters of one application: everything random about it."""

    @abstractmethod
    def apply(self, sample: Sample, params: Params) -> Sample:
        """Apply drawn parameters to a sample. The same parameters give the same result."""

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({values})"


class Fusible(ABC):
    """A transform that a `Compose` calls together with its neighbours of the same kind, which saves passes."""

    p: float

    @staticmethod
    @abstractmethod
    def together(
        transforms: Sequence[Any], sample: Sample, rng: np.random.Generator, out: npt.NDArray[Any] | None = None
    ) -> Sample:
        """The sample after the last of some transforms of this kind: what calling them one by one gives.

        `out` is memory for ``image``, which may become the result's.
        """


def get_field(sample: Sample, name: str, user: str) -> npt.NDArray[Any]:
    """A field that a transform needs.

    Raises
    ------
    UsageError
        If the sample has no such field.
    """
    value = sample.get(name)
    if not isinstance(value, np.ndarray):
        raise UsageError(
            f"{user} needs the field {name!r}: expected an array, found "
            f"{'none' if value is None else type(value).__name__}; read it with fields=[..., {name!r}]"
        )
    return value


def get_image(sample: Sample, user: str) -> npt.NDArray[np.uint8]:
    """The picture, (H, W, C), or the clip, (T, H, W, C).

    Raises
    ------
    UsageError
        If there is none, or it is not uint8 with three or four axes.
    """
    image = get_field(sample, "image", user)
    if image.dtype != np.uint8 or image.ndim not in (3, 4):
        raise UsageError(
            f"{user}: expected image as uint8 (H, W, C) or (T, H, W, C), found {image.dtype} {image.shape}; "
            "normalise after augmenting"
        )
    return image


BOXES = ("regions", "boxes")
"""Fields of boxes: those of the face's parts, in the order of `shardspec.points.REGIONS`, and any others."""

_BOX_NUMBERS = 4


def present(sample: Sample, names: Sequence[str]) -> list[str]:
    """Return the given fields that the sample has as arrays."""
    return [name for name in names if isinstance(sample.get(name), np.ndarray)]


def boxes_of(sample: Sample) -> list[str]:
    """The fields of boxes that the sample has, (..., 4) floating: left, top, right, bottom in pixels."""
    return [name for name in present(sample, BOXES) if are_boxes(sample[name].shape, sample[name].dtype.kind == "f")]


def are_boxes(shape: Sequence[int], floating: bool) -> bool:
    """Return whether an array of a shape may be boxes; any other belongs to the user and is left alone."""
    return floating and len(shape) > 0 and shape[-1] == _BOX_NUMBERS


def per_frame(value: npt.NDArray[Any], ndim: int) -> Iterator[npt.NDArray[Any]]:
    """The values of a clip one by one, or the value itself; `ndim` is that of one."""
    return iter(value.reshape(-1, *value.shape[-ndim:]) if value.ndim > ndim else (value,))


def valid_frames(sample: Sample, count: int) -> npt.NDArray[np.bool_]:
    """In which of `count` frames the landmarks are valid, (count,): in all if there is no field ``landmarks_valid``."""
    return np.broadcast_to(np.asarray(sample.get("landmarks_valid", True), np.bool_).reshape(-1), (count,))
