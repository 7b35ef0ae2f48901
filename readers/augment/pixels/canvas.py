"""The pictures that a chain of transforms works on: in memory of its own, with a look-up table that is not applied yet.

A table maps each of the 256 values of a pixel to its new value. Tables that follow one another become one, which is
applied when a transform needs the pixels, or at the end: then also to floating numbers, at the cost of one pass.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from readers.augment.base import Params, Picture, Sample, Transform, get_field
from readers.decode.values import BFLOAT16
from shardspec.errors import UsageError

Table = npt.NDArray[Any]
"""(256,) for all channels, or (256, C); the dtype is that of the new values."""
TableMaker = Callable[[], Table]
Quick = Callable[[npt.NDArray[Any]], npt.NDArray[Any] | None]


class Pixels:
    """One picture, (H, W, C), on its way through a chain of transforms.

    Parameters
    ----------
    picture : ndarray, (H, W, C), uint8, or a floating dtype
        Not written to.
    out : ndarray, (H, W, C), optional
        Where the floating numbers of a table are put, if they have its dtype.
    """

    def __init__(self, picture: Picture, out: npt.NDArray[Any] | None = None) -> None:
        self._picture: npt.NDArray[Any] = picture
        self._out = out
        self._owned = False
        self._table: Table | TableMaker | None = None
        self._quick: Quick | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """(H, W, C)."""
        return self._picture.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values after the table."""
        table = self._table
        return table.dtype if isinstance(table, np.ndarray) else self._picture.dtype

    def look_up(self, table: Table | TableMaker, quick: Quick | None = None) -> None:
        """Replace each value by its entry in a table; the values must be uint8 so far.

        Parameters
        ----------
        table : ndarray or callable
            A callable makes a table of uint8, if one is needed.
        quick : callable, optional
            Makes of a picture exactly what the table does, in less time, or None if it cannot; it is asked if no other
            table follows.
        """
        if self._table is None:
            self._table, self._quick = table, quick
            return
        first, then = _made(self._table), _made(table)
        self._quick = None
        if then.ndim == first.ndim == 2:
            self._table = then[first, np.arange(then.shape[1])]
        else:  # one of them is for all channels
            self._table = then.take(first.astype(np.intp), axis=0)  # in a fifth of the time of ``then[first]``

    def values(self) -> npt.NDArray[Any]:
        """The pixels as they are now; not to be written to."""
        quick, out = self._quick, self._out
        if self._table is None:
            return self._picture
        made = None if quick is None else quick(self._picture)
        if made is not None:
            self.replace(made)
            return self._picture
        table = _made(self._table)
        if out is not None and out.dtype == table.dtype != np.uint8 and out.shape == self._picture.shape:
            self._picture, self._table, self._owned = _looked_up(self._picture, table, out), None, True
        else:
            self.replace(_looked_up(self._picture, table))
        return self._picture

    def writable(self) -> npt.NDArray[Any]:
        """The pixels as they are now, in memory that may be written to."""
        picture = self.values()
        if not self._owned:
            self._picture, self._owned = picture.copy(), True
        return self._picture

    def replace(self, picture: npt.NDArray[Any]) -> None:
        """Go on with another picture, which must be nobody else's; cv2 drops a last axis of 1, which is put back."""
        self._picture, self._table, self._owned = picture.reshape(*picture.shape[:2], -1), None, True
        self._quick = None


def _made(table: Table | TableMaker) -> Table:
    """The table itself."""
    return table if isinstance(table, np.ndarray) else table()


def _looked_up(picture: npt.NDArray[Any], table: Table, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    """The entries of a table for the values of a picture (H, W, C), uint8; in `out`, if it is given."""
    bits = np.ascontiguousarray(table)
    if table.dtype in (np.float16, BFLOAT16):  # OpenCV moves the bits, whatever they mean
        bits = bits.view(np.uint16)
    if bits.ndim == 2:
        bits = bits[None]
    if out is not None:
        cv2.LUT(picture, bits, out.view(bits.dtype))
        return out
    return np.asarray(cv2.LUT(picture, bits)).reshape(picture.shape).view(table.dtype)


class Canvas:
    """A sample whose pictures are being changed: its fields, and the pictures of ``image``, one or a clip's.

    Parameters
    ----------
    sample : dict
    user : str
        The transform's name, for messages.
    out : ndarray, optional
        Where to put a single picture of floating numbers, if it has this shape and dtype.

    Raises
    ------
    UsageError
        If ``image`` is not an array (H, W, C) or (T, H, W, C).
    """

    def __init__(self, sample: Sample, user: str, out: npt.NDArray[Any] | None = None) -> None:
        image = get_field(sample, "image", user)
        if image.ndim not in (3, 4):
            raise UsageError(f"{user}: expected image as (H, W, C) or (T, H, W, C), found {image.dtype} {image.shape}")
        self.fields = sample
        self.clip = image.ndim == 4
        self.pictures = [Pixels(frame) for frame in image] if self.clip else [Pixels(image, out)]

    def frames(self, user: str) -> list[Pixels]:
        """The pictures, for a transform of uint8 values.

        Raises
        ------
        UsageError
            If the values are floating.
        """
        for picture in self.pictures[:1]:
            if picture.dtype != np.uint8:
                raise UsageError(
                    f"{user}: expected image as uint8, found {name_of(picture.dtype)}: put Normalize or ToFloat after "
                    "it, and only one of them"
                )
        return self.pictures

    def sample(self) -> Sample:
        """The sample with its new pictures: a new dict."""
        values = [picture.values() for picture in self.pictures]
        return {**self.fields, "image": np.stack(values) if self.clip else values[0]}


def name_of(dtype: np.dtype[Any]) -> str:
    """A dtype for messages."""
    return "bfloat16" if dtype == BFLOAT16 else str(dtype)


class PixelTransform(Transform[Params]):
    """The base of transforms of the values of pixels: colours, erasing, numbers for the network."""

    @abstractmethod
    def paint(self, canvas: Canvas, params: Params) -> None:
        """Apply drawn parameters to the pictures of a canvas. The same parameters give the same result."""

    def apply(self, sample: Sample, params: Params) -> Sample:
        """The sample with other pixels."""
        canvas = Canvas(sample, type(self).__name__)
        self.paint(canvas, params)
        return canvas.sample()

    @staticmethod
    def together(
        transforms: Sequence[Any], sample: Sample, rng: np.random.Generator, out: npt.NDArray[Any] | None = None
    ) -> Sample:
        """Transforms of this kind one after the other, with the draws that they would make one by one."""
        canvas = None
        for transform in transforms:
            if rng.random() >= transform.p:
                continue
            if canvas is None:
                canvas = Canvas(sample, type(transform).__name__, out)
            transform.paint(canvas, transform.draw(canvas.fields, rng))
        return sample if canvas is None else canvas.sample()

    def write_image(self, sample: Sample, rng: np.random.Generator, out: npt.NDArray[Any]) -> Sample:
        """The transformed sample, whose picture may be `out` itself (`readers.dataset.transforms.Chain`)."""
        return self.together((self,), sample, rng, out)
