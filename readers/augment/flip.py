"""The mirrors."""

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from readers.augment.base import Picture, Sample, Transform, get_image
from readers.augment.geometry import move
from readers.augment.masks import masks_of


class HorizontalFlip(Transform[None]):
    """Mirrors picture, masks, landmarks, hull, regions and matrix; the person's left becomes the right.

    Parameters
    ----------
    p : float
    masks : sequence of str or None
        See `Transform`.

    Raises
    ------
    UsageError
        When called: if no layout of `shardspec.points` has the number of landmarks or hull points.
    """

    def __init__(self, p: float = 0.5, masks: Sequence[str] | None = None) -> None:
        super().__init__(p, masks)

    def draw(self, sample: Sample, rng: np.random.Generator) -> None:
        """Nothing: a mirror has no parameters."""

    def apply(self, sample: Sample, params: None) -> Sample:
        """The mirrored sample."""
        image = get_image(sample, "HorizontalFlip")
        out = move(sample, np.array([[-1.0, 0.0, image.shape[-2]], [0.0, 1.0, 0.0]]))
        clip = image.ndim == 4
        for name in ("image", *masks_of(sample, image, self.masks, "HorizontalFlip")):
            out[name] = _mirrored(sample[name], clip)
        return out


class VerticalFlip(Transform[None]):
    """Mirrors picture, masks, landmarks, hull, regions and matrix from top to bottom.

    The picture of a mirror shows the person's left as the right, whichever way up, so they are swapped here too.

    Parameters
    ----------
    p : float
    masks : sequence of str or None
        See `Transform`.

    Raises
    ------
    UsageError
        When called: if no layout of `shardspec.points` has the number of landmarks or hull points.
    """

    def __init__(self, p: float = 0.5, masks: Sequence[str] | None = None) -> None:
        super().__init__(p, masks)

    def draw(self, sample: Sample, rng: np.random.Generator) -> None:
        """Nothing: a mirror has no parameters."""

    def apply(self, sample: Sample, params: None) -> Sample:
        """The mirrored sample."""
        image = get_image(sample, "VerticalFlip")
        out = move(sample, np.array([[1.0, 0.0, 0.0], [0.0, -1.0, image.shape[-3]]]))
        rows = 1 if image.ndim == 4 else 0
        for name in ("image", *masks_of(sample, image, self.masks, "VerticalFlip")):
            out[name] = np.flip(sample[name], rows).copy()  # whole rows: numpy is as fast as OpenCV here
        return out


def _mirrored(picture: Picture, clip: bool) -> npt.NDArray[np.generic]:
    """A picture with its columns in reverse; OpenCV does that ten times faster than numpy."""
    if clip:
        out = np.empty_like(picture)
        for target, frame in zip(out, picture, strict=True):
            target[...] = _mirrored(frame, False)
        return out
    if picture.dtype != np.uint8:
        return np.ascontiguousarray(picture[:, ::-1])
    return np.asarray(cv2.flip(picture, 1)).reshape(picture.shape)
