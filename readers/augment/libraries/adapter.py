"""Code shared by the adapters for transforms of other libraries.

A copy per thread, and geometry that follows the image.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from readers.augment.base import Sample, boxes_of, get_image, present
from readers.augment.geometry import enclosing, relabel
from readers.augment.masks import as_mask_names, masks_of
from shardspec.errors import UsageError

# Small right-angled triangles that go through the transform with the landmarks: what becomes of them shows what it did
# to the picture. Their places are no round shares, so that few of them lie across a seam where a picture is cut to tiles.
_PLACES = np.array([[0.22, 0.31], [0.77, 0.22], [0.31, 0.77], [0.69, 0.69], [0.46, 0.54]])  # of width and height
_TRIANGLE = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])  # pixels
_PLAUSIBLE = 4  # times greater or smaller than the median triangle: those that were torn apart tell nothing
_TOLERANCE = 0.02  # pixels: the error that float32 points add to an exact map in a picture of some thousand pixels

Points = npt.NDArray[np.float32]
Masks = dict[str, npt.NDArray[Any]]


class Adapter(ABC):
    """Calls a transform of another library with all of a sample; fulfils `readers.transforms.SeededTransform`.

    Parameters
    ----------
    masks : sequence of str or None
        See `readers.augment.base.Transform`.

    Notes
    -----
    Safe across threads, each of which has its own copy of the transform, and across fork and pickle.
    """

    seeded: ClassVar[Literal[True]] = True

    def __init__(self, transform: Any, masks: Sequence[str] | None) -> None:
        self.masks = as_mask_names(masks, type(self).__name__)
        self._transform = transform
        self._restore()

    def _restore(self) -> None:
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._restore()

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """The transformed sample, a new dict. The arrays of the given one are not written to."""
        user = type(self).__name__
        image = get_image(sample, user)
        transform = getattr(self._local, "transform", None)
        if transform is None:
            transform = self._local.transform = self.prepared(deepcopy(self._transform))
        names = masks_of(sample, image, self.masks, user)
        before, places = gather(sample, image.shape[-2], image.shape[-3])
        picture, masks, after = self.call(
            transform, image, {name: sample[name] for name in names}, before if places else None, rng
        )
        out = dict(sample)
        if after is not None and not np.array_equal(after, before):
            if after.shape != before.shape:
                raise UsageError(
                    f"{user}: expected {len(before)} points back, found {len(after)}: {self._dropped(transform)}"
                )
            out = moved(sample, before.astype(np.float64), after.astype(np.float64), places, user)
        out["image"] = picture
        for name in names:
            out[name] = masks[name].astype(sample[name].dtype, copy=False)
        return out

    def prepared(self, transform: Any) -> Any:
        """A thread's own copy of the transform, made ready for calls; it may be changed."""
        return transform

    @abstractmethod
    def call(
        self,
        transform: Any,
        image: npt.NDArray[np.uint8],
        masks: Mapping[str, npt.NDArray[Any]],
        points: Points | None,
        rng: np.random.Generator,
    ) -> tuple[npt.NDArray[Any], Masks, Points | None]:
        """Call the library's transform once.

        Parameters
        ----------
        transform : Any
            The thread's own copy.
        image : ndarray, (H, W, C) or (T, H, W, C), uint8
            Must not be written to, like the masks.
        masks : mapping
            (H, W) or (H, W, C), for a clip after its first axis.
        points : ndarray, (N, 2), float32, or None
            x and y, where pixel (0, 0) covers [0, 1) x [0, 1). None if the sample has no geometry.
        rng : numpy.random.Generator
            The source of all draws.

        Returns
        -------
        image : ndarray
        masks : dict
        points : ndarray or None
            None if none were given.
        """

    def _dropped(self, transform: Any) -> str:
        """Return advice about points that a transform has dropped."""
        return "leave out the transform that drops points"


def parts_of(pipeline: Any) -> Iterator[Any]:
    """The transforms of a pipeline, each before those that it holds."""
    held = getattr(pipeline, "transforms", None)
    if not isinstance(held, list | tuple):
        held = pipeline.children() if hasattr(pipeline, "children") else ()  # of a module of torch
    for part in held:
        yield part
        yield from parts_of(part)


def names_of(pipeline: Any) -> list[str]:
    """The names of a pipeline's own transforms, for messages."""
    return [type(part).__name__ for part in pipeline.transforms]


def gather(sample: Sample, width: int, height: int) -> tuple[Points, dict[str, slice]]:
    """All points of a sample as one array (N, 2), and where each field's are in it.

    The points are the reference points, the landmarks, the hull and the corners of the regions and boxes. Empty places: the
    sample has no geometry.
    """
    boxes = boxes_of(sample)
    names = [*present(sample, ("landmarks", "hull")), *boxes]
    parts = {"": (_PLACES[:, None] * (width, height) + _TRIANGLE).reshape(-1, 2)}
    for name in names:
        parts[name] = sample[name][..., [0, 1, 2, 1, 2, 3, 0, 3]] if name in boxes else sample[name]
    parts = {name: part.reshape(-1, 2) for name, part in parts.items()}
    ends = np.cumsum([len(part) for part in parts.values()]).tolist()
    places = {name: slice(end - len(part), end) for (name, part), end in zip(parts.items(), ends, strict=True)}
    if not names and not present(sample, ("matrix",)):
        places = {}
    return np.concatenate(list(parts.values())).astype(np.float32), places


def moved(
    sample: Sample,
    before: npt.NDArray[np.float64],
    after: npt.NDArray[np.float64],
    places: Mapping[str, slice],
    user: str,
) -> Sample:
    """A new dict with the geometry of a sample after the points of `gather` have moved.

    Raises
    ------
    UsageError
        If the sample has a matrix and the points were not moved by an affine map.
    """
    out, boxes = dict(sample), boxes_of(sample)
    for name in (name for name in places if name):
        old = sample[name]
        if name in boxes:
            out[name] = enclosing(after[places[name]].reshape(*old.shape[:-1], 4, 2), old.dtype)
        else:
            out[name] = after[places[name]].reshape(old.shape).astype(old.dtype)
    before, after = before[places[""]], after[places[""]]
    if "matrix" in present(sample, ("matrix",)):
        out["matrix"] = _followed(out["matrix"], before, after, user)
    return relabel(out) if _mirrored(after) else out


def _mirrored(triangles: npt.NDArray[np.float64]) -> bool:
    """Return whether most of the reference triangles, (3 times their number, 2), have turned over."""
    first, second = (triangles[at::3] - triangles[::3] for at in (1, 2))
    turns = first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]
    areas = np.abs(turns)
    middle = np.median(areas)
    votes = turns[(areas * _PLAUSIBLE > middle) & (areas < middle * _PLAUSIBLE)]
    return bool(np.sign(votes).sum() < 0)


def _followed(
    matrix: npt.NDArray[Any], before: npt.NDArray[np.float64], after: npt.NDArray[np.float64], user: str
) -> npt.NDArray[Any]:
    """The matrix of a crop whose points have moved."""
    known = np.column_stack([before, np.ones(len(before))])
    affine = np.linalg.lstsq(known, after)[0].T
    miss = np.abs(known @ affine.T - after).max()
    if miss > _TOLERANCE:
        raise UsageError(
            f"{user}: the field 'matrix' can follow affine transforms only, and this pipeline bends the "
            f"picture (by {miss:.2f} pixels or more): read the dataset without that field"
        )
    new = affine[:, :2] @ matrix
    new[..., 2] += affine[:, 2]
    followed: npt.NDArray[Any] = new.astype(matrix.dtype)
    return followed
