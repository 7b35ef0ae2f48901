"""Albumentations pipelines on picture, masks, landmarks, hull, regions and matrix together, from a given generator.

Supported are the last MIT-licensed versions, 2.0.0 to 2.0.8. The successor AlbumentationsX has the same import name
under another licence (AGPL-3.0 or commercial) and is refused.
"""

import importlib
import os
import random
import threading
import warnings
from collections.abc import Iterable, Sequence
from copy import deepcopy
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from readers.augment.base import Sample, get_image, present
from readers.augment.geometry import relabel
from readers.augment.masks import as_mask_names, masks_of
from shardspec.errors import MissingDependencyError, UsageError

_INSTALL = 'pip install "facepack[augment]" (albumentations>=2.0,<=2.0.8)'
# Small right-angled triangles that go through the pipeline with the landmarks: what becomes of them shows what the
# pipeline did to the picture.
_PLACES = np.array([[0.2, 0.2], [0.8, 0.2], [0.2, 0.8], [0.8, 0.8], [0.45, 0.55]])  # shares of width and height
_TRIANGLE = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])  # pixels
_TOLERANCE = 0.02  # pixels: the error that float32 keypoints add to an exact map in a picture of some thousand pixels


def load_albumentations() -> Any:
    """The library, imported without the check for updates that it would otherwise make over the network.

    Raises
    ------
    MissingDependencyError
        If it is not installed, its version is not one from 2.0.0 to 2.0.8, or AlbumentationsX is installed in its
        place.
    """
    try:
        other = version("albumentationsx")
    except PackageNotFoundError:
        pass
    else:
        raise MissingDependencyError(
            f"expected Albumentations 2.0 (MIT), found AlbumentationsX {other}, which takes its import name under "
            f"AGPL-3.0 or a commercial licence: pip uninstall albumentationsx, then {_INSTALL}"
        )
    try:
        found = version("albumentations")
    except PackageNotFoundError:
        raise MissingDependencyError(f"expected Albumentations 2.0, found none: {_INSTALL}") from None
    numbers = tuple(int(part) for part in found.split(".")[:3] if part.isdigit())
    if not (2, 0) <= numbers <= (2, 0, 8):
        raise MissingDependencyError(f"expected Albumentations 2.0.0 to 2.0.8, found {found}: {_INSTALL}")
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    return importlib.import_module("albumentations")  # here, not at the top: only after the checks above


class Albumentations:
    """Applies an Albumentations pipeline to a sample; fulfils `readers.seeding.SeededTransform`.

    * All draws come from the generator that is given with the sample. The pipeline's own seeding is not used: in worker
      processes it repeats itself, and `Compose.set_random_seed` gives every transform the same seed, so that a flip and
      a rotation of p=0.5 always come together. Here all transforms draw from one stream.
    * Landmarks and hull keep all their points (``remove_invisible=False``), even those that leave the picture.
    * If the pipeline mirrors, left and right are swapped in landmarks, hull and regions.
    * A region's box becomes the upright box around its four mapped corners.
    * ``matrix`` follows, as long as the pipeline is affine.

    Parameters
    ----------
    transforms : sequence of albumentations transforms, or albumentations.Compose
        A ``Compose`` gives its transforms and its `p`; it must not have keypoint or box parameters of its own.
    masks : sequence of str or None
        See `readers.augment.base.Transform`.

    Raises
    ------
    MissingDependencyError
        As for `load_albumentations`.
    UsageError
        When made: if `transforms` are not transforms of Albumentations. When called: if a transform changes the number
        of points, or the pipeline is not affine and the sample has a ``matrix``.

    Notes
    -----
    Safe across threads (each has its own copy of the pipeline), fork and pickle. Points are handed over in the
    coordinates of Albumentations, in which pixel centres are whole numbers. Its resizing transforms scale such numbers
    without regard to the half pixel, so points are off by half a pixel times (scale - 1).
    """

    seeded: ClassVar[Literal[True]] = True

    def __init__(self, transforms: Any, masks: Sequence[str] | None = None) -> None:
        library = load_albumentations()
        self.masks = as_mask_names(masks, "Albumentations")
        p, chain = 1.0, transforms
        if isinstance(transforms, library.Compose):
            if transforms.processors:
                raise UsageError(
                    "Albumentations: expected a Compose without keypoint_params and bbox_params, which are set here, "
                    f"found {', '.join(transforms.processors)}"
                )
            p, chain = transforms.p, transforms.transforms
        known = (library.BasicTransform, library.BaseCompose)
        if not isinstance(chain, list | tuple) or not chain or not all(isinstance(t, known) for t in chain):
            raise UsageError(f"Albumentations: expected a list of its transforms, or a Compose, found {transforms!r}")
        keypoints = library.KeypointParams(format="xy", remove_invisible=False)
        with warnings.catch_warnings():  # a pipeline that moves no points is not a mistake
            warnings.filterwarnings("ignore", message="Got processor for keypoints, but no transform to process it")
            self._pipeline = library.Compose(list(chain), keypoint_params=keypoints, p=p)
            _add_masks(self._pipeline, ["mask mask"])  # it warns at the first only, here where warnings are ignored
        self._restore()

    def _restore(self) -> None:
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._restore()

    def __repr__(self) -> str:
        return f"Albumentations({[type(transform).__name__ for transform in self._pipeline.transforms]})"

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """The transformed sample, a new dict. The arrays of the given one are not written to."""
        pipeline = getattr(self._local, "pipeline", None)
        if pipeline is None:
            pipeline = self._local.pipeline = deepcopy(self._pipeline)
        pipeline.set_random_state(rng, random.Random(int(rng.integers(2**63))))  # noqa: S311 -- nothing here is secret
        image = get_image(sample, "Albumentations")
        clip = image.ndim == 4
        height, width = image.shape[-3:-1]
        points, places = _gather(sample, (width, height))
        points -= np.float32(0.5)
        data: dict[str, Any] = {"images" if clip else "image": image.copy(), "keypoints": points}
        masks = {
            f"{'masks' if clip else 'mask'} {name}": name
            for name in masks_of(sample, image, self.masks, "Albumentations")
        }
        _add_masks(pipeline, masks)
        data |= {target: _as_opencv(sample[name], name) for target, name in masks.items()}
        result = pipeline(**data)
        moved = np.asarray(result["keypoints"], np.float32)
        if moved.shape != points.shape:
            raise UsageError(
                f"Albumentations: expected {len(points)} points back, found {len(moved)}: one of "
                f"{[type(t).__name__ for t in pipeline.transforms]} drops points; give it "
                "keypoint_remapping_method='direct' if it has that, or leave it out"
            )
        still = np.array_equal(moved, points)
        out = (
            dict(sample)
            if still
            else _moved(sample, points.astype(np.float64) + 0.5, moved.astype(np.float64) + 0.5, places)
        )
        out["image"] = result["images" if clip else "image"]
        for target, name in masks.items():
            out[name] = np.asarray(result[target]).astype(sample[name].dtype, copy=False)
        return out


def _as_opencv(mask: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """A copy of a mask in a dtype that OpenCV can move, with the same values.

    Raises
    ------
    UsageError
        If a value does not fit.
    """
    if mask.dtype in (np.bool_, np.float16):
        return mask.astype(np.uint8 if mask.dtype == np.bool_ else np.float32)
    if mask.dtype.kind not in "iu" or np.can_cast(mask.dtype, np.int32):
        return mask.copy()
    limits = np.iinfo(np.int32)
    if mask.size and not limits.min <= mask.min() <= mask.max() <= limits.max:
        raise UsageError(
            f"Albumentations: expected masks of values from {limits.min} to {limits.max}, found {mask.min()} to "
            f"{mask.max()} in {name!r}: renumber them, or leave it out of masks"
        )
    return mask.astype(np.int32)


def _add_masks(pipeline: Any, targets: Iterable[str]) -> None:
    """Declare masks to a pipeline, each under a name of its own, since its list of masks must have one shape."""
    new = {target: target.partition(" ")[0] for target in targets if target not in pipeline.additional_targets}
    if new:
        pipeline.add_targets(new)


def _gather(sample: Sample, size: tuple[int, int]) -> tuple[npt.NDArray[np.float32], dict[str, slice]]:
    """All points of a sample as one array (N, 2), and where each field's are in it.

    The points are the reference points, the landmarks, the hull and the corners of the regions.
    """
    parts = {"": (_PLACES[:, None] * size + _TRIANGLE).reshape(-1, 2)}
    for name in present(sample, ("landmarks", "hull")):
        parts[name] = sample[name].reshape(-1, 2)
    for name in present(sample, ("regions",)):
        parts[name] = sample[name][..., [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 2)
    ends = np.cumsum([len(part) for part in parts.values()]).tolist()
    places = {name: slice(end - len(part), end) for (name, part), end in zip(parts.items(), ends, strict=True)}
    return np.concatenate(list(parts.values())).astype(np.float32), places


def _moved(
    sample: Sample, before: npt.NDArray[np.float64], after: npt.NDArray[np.float64], places: dict[str, slice]
) -> Sample:
    """A new dict with the geometry of a sample after the points of `_gather` have moved."""
    out = dict(sample)
    for name in (name for name in places if name):
        old = sample[name]
        if name == "regions":
            corners = after[places[name]].reshape(*old.shape[:-1], 4, 2)
            out[name] = np.concatenate([corners.min(axis=-2), corners.max(axis=-2)], axis=-1).astype(old.dtype)
        else:
            out[name] = after[places[name]].reshape(old.shape).astype(old.dtype)
    before, after = before[places[""]], after[places[""]]
    if "matrix" in out:
        out["matrix"] = _followed(out["matrix"], before, after)
    first, second = (after[at::3] - after[::3] for at in (1, 2))
    turns = np.sign(first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0])
    return relabel(out) if turns.sum() < 0 else out


def _followed(
    matrix: npt.NDArray[Any], before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]
) -> npt.NDArray[Any]:
    """The matrix of a crop whose points have moved."""
    known = np.column_stack([before, np.ones(len(before))])
    affine = np.linalg.lstsq(known, after)[0].T
    miss = np.abs(known @ affine.T - after).max()
    if miss > _TOLERANCE:
        raise UsageError(
            f"Albumentations: the field 'matrix' can follow affine transforms only, and this pipeline bends the "
            f"picture (by {miss:.2f} pixels or more): read the dataset without that field"
        )
    new = affine[:, :2] @ matrix
    new[..., 2] += affine[:, 2]
    followed: npt.NDArray[Any] = new.astype(matrix.dtype)
    return followed
