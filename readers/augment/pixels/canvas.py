"""Images on their way through a chain of transforms, with a look-up table that is not applied yet.

A table maps each of the 256 values of a pixel to a new value. Consecutive tables are merged into one. It is applied
when a transform needs the pixels, or at the end, where the conversion to floating numbers then costs no extra pass.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from readers.augment.base import Image, Params, Sample, Transform, get_field
from readers.decode.values import BFLOAT16
from shardspec.errors import UsageError

Table = npt.NDArray[Any]
"""(256,) for all channels, or (256, C), in the dtype of the new values."""
TableMaker = Callable[[], Table]
Quick = Callable[[npt.NDArray[Any]], npt.NDArray[Any] | None]


class Pixels:
    """One image, (H, W, C), on its way through a chain of transforms.

    Parameters
    ----------
    image : ndarray, (H, W, C), uint8, or a floating dtype
        Never written to.
    out : ndarray, (H, W, C), optional
        Memory for the floating numbers of a table, used if it has their dtype.
    """

    def __init__(self, image: Image, out: npt.NDArray[Any] | None = None) -> None:
        self._image: npt.NDArray[Any] = image
        self._out = out
        self._owned = False
        self._table: Table | TableMaker | None = None
        self._quick: Quick | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """(H, W, C)."""
        return self._image.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values after the pending table."""
        table = self._table
        return table.dtype if isinstance(table, np.ndarray) else self._image.dtype

    def look_up(self, table: Table | TableMaker, quick: Quick | None = None) -> None:
        """Replace each value by its entry in a table; the values must still be uint8.

        Parameters
        ----------
        table : ndarray or callable
            A callable makes a uint8 table if one is needed.
        quick : callable, optional
            Does exactly what the table does, in less time, or returns None if it cannot. Called only if no other table
            follows.
        """
        if self._table is None:
            self._table, self._quick = table, quick
            return
        first, then = _made(self._table), _made(table)
        self._quick = None
        if then.ndim == first.ndim == 2:
            self._table = then[first, np.arange(then.shape[1])]
        else:  # at least one table is for all channels
            self._table = then.take(first.astype(np.intp), axis=0)  # five times faster than ``then[first]``

    def values(self) -> npt.NDArray[Any]:
        """Apply the pending table and return the pixels, which must not be written to."""
        quick, out = self._quick, self._out
        if self._table is None:
            return self._image
        made = None if quick is None else quick(self._image)
        if made is not None:
            self.replace(made)
            return self._image
        table = _made(self._table)
        if out is not None and out.dtype == table.dtype != np.uint8 and out.shape == self._image.shape:
            self._image, self._table, self._owned = _looked_up(self._image, table, out), None, True
        else:
            self.replace(_looked_up(self._image, table))
        return self._image

    def writable(self) -> npt.NDArray[Any]:
        """Return the current pixels in memory that may be written to."""
        image = self.values()
        if not self._owned:
            self._image, self._owned = image.copy(), True
        return self._image

    def replace(self, image: npt.NDArray[Any]) -> None:
        """Continue with another image, to which nothing else refers. A last axis of 1, which cv2 drops, is restored."""
        self._image, self._table, self._owned = image.reshape(*image.shape[:2], -1), None, True
        self._quick = None


def _made(table: Table | TableMaker) -> Table:
    return table if isinstance(table, np.ndarray) else table()


def _looked_up(image: npt.NDArray[Any], table: Table, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    """Look up the values of a uint8 image (H, W, C) in a table; the result goes into `out` if that is given."""
    bits = np.ascontiguousarray(table)
    if table.dtype in (np.float16, BFLOAT16):  # OpenCV only copies the bits
        bits = bits.view(np.uint16)
    if bits.ndim == 2:
        bits = bits[None]
    if out is not None:
        cv2.LUT(image, bits, out.view(bits.dtype))
        return out
    return np.asarray(cv2.LUT(image, bits)).reshape(image.shape).view(table.dtype)


class Canvas:
    """A sample whose images are being changed: its fields, and its image or the frames of its clip.

    Parameters
    ----------
    user : str
        Name of the transform, for messages.
    out : ndarray, optional
        Memory for a single floating image, used if it has the right shape and dtype.
    """

    def __init__(self, sample: Sample, user: str, out: npt.NDArray[Any] | None = None) -> None:
        image = get_field(sample, "image", user)
        if image.ndim not in (3, 4):
            raise UsageError(
                place=user, expected="image as (H, W, C) or (T, H, W, C)", found=f"{image.dtype} {image.shape}"
            )
        self.fields = sample
        self.clip = image.ndim == 4
        self.images = [Pixels(frame) for frame in image] if self.clip else [Pixels(image, out)]

    def frames(self, user: str) -> list[Pixels]:
        """Return the images, for a transform of uint8 values; floating images are refused."""
        for image in self.images[:1]:
            if image.dtype != np.uint8:
                raise UsageError(
                    place=user,
                    expected="image as uint8",
                    found=name_of(image.dtype),
                    hint="put Normalize or ToFloat after it, and only one of them",
                )
        return self.images

    def sample(self) -> Sample:
        """Return a new dict: the sample with its new images."""
        values = [image.values() for image in self.images]
        return {**self.fields, "image": np.stack(values) if self.clip else values[0]}


def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype, for messages."""
    return "bfloat16" if dtype == BFLOAT16 else str(dtype)


class PixelTransform(Transform[Params]):
    """Base of transforms of pixel values: colours, erasing, conversion to floating numbers."""

    @abstractmethod
    def paint(self, canvas: Canvas, params: Params) -> None:
        """Apply drawn parameters to the images of a canvas. The same parameters give the same result."""

    def apply(self, sample: Sample, params: Params) -> Sample:
        """Return the sample with changed pixels."""
        canvas = Canvas(sample, type(self).__name__)
        self.paint(canvas, params)
        return canvas.sample()

    @staticmethod
    def together(
        transforms: Sequence[Any], sample: Sample, rng: np.random.Generator, out: npt.NDArray[Any] | None = None
    ) -> Sample:
        """Apply several transforms of this kind, with the draws that they would make one by one.

        `out` is memory for ``image``, which the result may use.
        """
        canvas = None
        for transform in transforms:
            if rng.random() >= transform.p:
                continue
            if canvas is None:
                canvas = Canvas(sample, type(transform).__name__, out)
            transform.paint(canvas, transform.draw(canvas.fields, rng))
        return sample if canvas is None else canvas.sample()

    def write_image(self, sample: Sample, rng: np.random.Generator, out: npt.NDArray[Any]) -> Sample:
        """Return the transformed sample, which may have its image in `out` (`readers.dataset.chain.Chain`)."""
        return self.together((self,), sample, rng, out)
