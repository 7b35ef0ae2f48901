"""Base of the adapters for other libraries: a copy of the transform per thread, and geometry that follows the image."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from readers.augment.base import Sample, boxes_of, get_image, present
from readers.augment.geometry import enclosing, relabel
from readers.augment.masks import as_mask_names, masks_of
from shardspec.errors import UsageError

# Small right-angled triangles that go through the transform with the landmarks, to detect mirroring and affine maps.
# Their positions are uneven shares of the sides, so that few of them cross a seam where an image is cut into tiles.
_PLACES = np.array([[0.22, 0.31], [0.77, 0.22], [0.31, 0.77], [0.69, 0.69], [0.46, 0.54]])  # of width and height
_TRIANGLE = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])  # pixels
_PLAUSIBLE = 4  # triangles this many times larger or smaller than the median were torn apart and do not count
_TOLERANCE = 0.02  # pixels: error of float32 points under an exact map, in an image of a few thousand pixels

Points = npt.NDArray[np.float32]
Masks = dict[str, npt.NDArray[Any]]


class Adapter(ABC):
    """Base of adapters that call another library's transform with a whole sample.

    * All draws come from the generator passed with the sample. Global generators are neither used nor changed.
    * Landmarks and hull keep all their points, even those that leave the image.
    * If the transform mirrors the image, left and right are swapped in landmarks, hull and regions.
    * The box of a region becomes the upright box around its four moved corners.
    * Masks take the nearest pixel, so no new values appear except the library's fill (0). Erasing leaves masks
    unchanged.
    * ``matrix`` follows affine transforms; others are refused if the sample has one.

    Parameters
    ----------
    transform : Any
        Pipeline of the library.
    chain : iterable
        Transforms of the pipeline, named in messages.
    masks : sequence of str or None
        Fields that move with the image; None: those named ``mask``, ``*_mask`` or ``*_image``, of the image's size.

    Notes
    -----
    Safe across threads, each of which has its own copy of the transform, and across fork and pickle. One draw serves
    all frames of a clip.
    """

    seeded = True
    pixel_centre: ClassVar[float] = 0.5
    """Coordinate of the first pixel's centre, minus the library's coordinate of it."""
    advice: ClassVar[str] = "leave out the transform that drops points"
    """Advice about transforms that drop points, for messages."""

    def __init__(self, transform: Any, chain: Iterable[Any], masks: Sequence[str] | None) -> None:
        self.masks = as_mask_names(masks, type(self).__name__)
        self._transform = transform
        self._names = [type(part).__name__ for part in chain]
        self._restore()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._names})"

    def _restore(self) -> None:
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._restore()

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the transformed sample, a new dict. The arrays of the given sample are not written to."""
        user = type(self).__name__
        image = get_image(sample, user)
        transform = getattr(self._local, "transform", None)
        if transform is None:
            transform = self._local.transform = self.prepared(deepcopy(self._transform))
        names = masks_of(sample, image, self.masks, user)
        before, places = gather(sample, image.shape[-2], image.shape[-3])
        centre = np.float32(self.pixel_centre)
        given = before - centre if places else None
        changed, masks, after = self.call(transform, image, {name: sample[name] for name in names}, given, rng)
        out = dict(sample)
        if given is not None and after is not None and not np.array_equal(after, given):
            if after.shape != given.shape:
                raise UsageError(
                    place=user,
                    expected=f"{len(given)} points back from {self._names}",
                    found=len(after),
                    hint=self.advice,
                )
            out = moved(sample, before.astype(np.float64), (after + centre).astype(np.float64), places, user)
        out["image"] = changed
        for name in names:
            out[name] = masks[name].astype(sample[name].dtype, copy=False)
        return out

    def prepared(self, transform: Any) -> Any:
        """Prepare a thread's copy of the transform, which may be changed."""
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
            (H, W) or (H, W, C); those of a clip have the same first axis.
        points : ndarray, (N, 2), float32, or None
            x and y in the library's coordinates. None if the sample has no geometry.
        rng : numpy.random.Generator
            The source of all draws.

        Returns
        -------
        image : ndarray
        masks : dict
        points : ndarray or None
            None if none were passed.
        """


def transforms_in(pipeline: Any) -> Iterator[Any]:
    """Iterate over the transforms of a pipeline, each before those that it contains."""
    held = getattr(pipeline, "transforms", None)
    if not isinstance(held, list | tuple):
        held = pipeline.children() if hasattr(pipeline, "children") else ()  # torch modules
    for part in held:
        yield part
        yield from transforms_in(part)


def gather(sample: Sample, width: int, height: int) -> tuple[Points, dict[str, slice]]:
    """Collect all points of a sample in one array (N, 2), and the slice of each field in it.

    The points are the reference points, the landmarks, the hull and the corners of the regions and boxes. The slices
    are empty if the sample has no geometry.
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
    """Return a new dict with the geometry of a sample after the points of `gather` have moved.

    A sample with a matrix is refused if the map of the points is not affine.
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
    """Return whether most of the reference triangles, (3 * count, 2), have changed their orientation."""
    first, second = (triangles[at::3] - triangles[::3] for at in (1, 2))
    turns = first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]
    areas = np.abs(turns)
    middle = np.median(areas)
    votes = turns[(areas * _PLAUSIBLE > middle) & (areas < middle * _PLAUSIBLE)]
    return bool(np.sign(votes).sum() < 0)


def _followed(
    matrix: npt.NDArray[Any], before: npt.NDArray[np.float64], after: npt.NDArray[np.float64], user: str
) -> npt.NDArray[Any]:
    known = np.column_stack([before, np.ones(len(before))])
    affine = np.linalg.lstsq(known, after)[0].T
    miss = np.abs(known @ affine.T - after).max()
    if miss > _TOLERANCE:
        raise UsageError(
            (
                "the field 'matrix' can follow only affine transforms, and this pipeline bends the image "
                f"(by {miss:.2f} pixels or more)"
            ),
            place=user,
            hint="read the dataset without that field",
        )
    new = affine[:, :2] @ matrix
    new[..., 2] += affine[:, 2]
    followed: npt.NDArray[Any] = new.astype(matrix.dtype)
    return followed
