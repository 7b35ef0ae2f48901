"""Albumentations pipelines on picture, masks, landmarks, hull, regions and matrix together, from a given generator.

Supported are the last MIT-licensed versions, 2.0.0 to 2.0.8. The successor AlbumentationsX has the same import name
under another licence (AGPL-3.0 or commercial) and is refused.
"""

import importlib
import os
import random
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from types import MethodType
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from readers.augment.libraries.adapter import Adapter, Masks, Points, names_of, parts_of
from readers.augment.libraries.bending import bent_points
from shardspec.errors import MissingDependencyError, UsageError
from shardspec.wording import shorten

_BENDING = ("ElasticTransform", "GridDistortion", "OpticalDistortion", "PiecewiseAffine", "ThinPlateSpline")
"""Transforms that move the picture by a map of all pixels; they lose key points, or are off by pixels."""

_FROM_CORNERS = (
    "CropAndPad",
    "RandomGridShuffle",
    "RandomResizedCrop",
    "RandomSizedCrop",
    "Resize",
)
"""Transforms that take whole numbers, which are pixel centres in key points, for the corners of pixels or of tiles."""

_SCALING = ("LongestMaxSize", "RandomScale", "SmallestMaxSize")
"""Transforms that do so too, and scale points by a number of which the picture's sides are whole pixels."""

_NEEDY = {
    "BBoxSafeRandomCrop": "boxes",
    "CropNonEmptyMaskIfExists": "its own mask",
    "RandomSizedBBoxSafeCrop": "boxes",
}
"""What transforms need that they do not declare."""

_GIVEN = frozenset({"image", "images", "keypoints"})

_INSTALL = 'pip install "facepack[augment]" (albumentations>=2.0,<=2.0.8)'


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


class Albumentations(Adapter):
    """Applies an Albumentations pipeline to a sample; fulfils `readers.transforms.SeededTransform`.

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
        When made: if `transforms` are not transforms of Albumentations, or one needs more than picture and points, such
        as boxes. When called: if a transform changes the number
        of points, or the pipeline is not affine and the sample has a ``matrix``.

    Notes
    -----
    Safe across threads (each has its own copy of the pipeline), fork and pickle. Where Albumentations itself loses key
    points or is off by more than a fraction of a pixel, they are moved here: in transforms that bend the picture
    (``ElasticTransform``, ``GridDistortion``, ``OpticalDistortion``, ``PiecewiseAffine``, ``ThinPlateSpline``), in those
    that scale it, and in ``RandomGridShuffle``. After ``PiecewiseAffine``, which may fold the picture, about one point in
    a hundred is still off by a pixel or more.
    """

    def __init__(self, transforms: Any, masks: Sequence[str] | None = None) -> None:
        library = load_albumentations()
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
            raise UsageError(
                f"Albumentations: expected a list of its transforms, or a Compose, found {shorten(transforms)}"
            )
        keypoints = library.KeypointParams(format="xy", remove_invisible=False)
        with warnings.catch_warnings():  # a pipeline that moves no points is not a mistake
            warnings.filterwarnings("ignore", message="Got processor for keypoints, but no transform to process it")
            pipeline = library.Compose(list(chain), keypoint_params=keypoints, p=p)
            _add_masks(pipeline, ["mask mask"])  # it warns at the first only, here where warnings are ignored
        for part in parts_of(pipeline):
            _check(part)
        super().__init__(pipeline, masks)

    def __repr__(self) -> str:
        return f"Albumentations({names_of(self._transform)})"

    def prepared(self, transform: Any) -> Any:
        """The pipeline with points that go where their pixels go (see `Adapter.prepared`)."""
        library = load_albumentations()
        bending, corners, scaling = (
            tuple(getattr(library, name) for name in names) for names in (_BENDING, _FROM_CORNERS, _SCALING)
        )
        for part in parts_of(transform):
            if isinstance(part, bending):
                part._key2func["keypoints"] = MethodType(_bent, part)
            elif isinstance(part, corners + scaling):
                part._key2func["keypoints"] = MethodType(_scaled if isinstance(part, scaling) else _from_corner, part)
                if getattr(part, "mask_interpolation", None) == cv2.INTER_NEAREST:
                    part.mask_interpolation = cv2.INTER_NEAREST_EXACT  # the other takes the pixel at the corner
        return transform

    def call(
        self,
        transform: Any,
        image: npt.NDArray[np.uint8],
        masks: Mapping[str, npt.NDArray[Any]],
        points: Points | None,
        rng: np.random.Generator,
    ) -> tuple[npt.NDArray[Any], Masks, Points | None]:
        """Call the pipeline once (see `Adapter.call`)."""
        transform.set_random_state(rng, random.Random(int(rng.integers(2**63))))  # noqa: S311 -- nothing here is secret
        many = "s" if image.ndim == 4 else ""
        targets = {name: f"mask{many} {name}" for name in masks}
        _add_masks(transform, targets.values())
        data: dict[str, Any] = {f"image{many}": image.copy()}
        data |= {targets[name]: _as_opencv(mask, name) for name, mask in masks.items()}
        if points is not None:
            data["keypoints"] = points - np.float32(0.5)
        result = transform(**data)
        if points is not None and not np.array_equal(result["keypoints"], data["keypoints"]):
            points = np.asarray(result["keypoints"], np.float32) + np.float32(0.5)
        return result[f"image{many}"], {name: np.asarray(result[targets[name]]) for name in masks}, points

    def _dropped(self, transform: Any) -> str:
        return (
            f"one of {names_of(transform)} drops points; give it keypoint_remapping_method='direct' if it has that, "
            "or leave it out"
        )


def _bent(self: Any, keypoints: npt.NDArray[Any], map_x: Any, map_y: Any, **params: Any) -> npt.NDArray[Any]:
    """Key points in a bent picture, of which Albumentations loses some and moves others by pixels too much."""
    height, width = map_x.shape[:2]
    field = np.stack([map_x - np.arange(width), map_y - np.arange(height)[:, None]], axis=-1)
    out = keypoints.copy()
    out[:, :2] = bent_points(keypoints[:, :2].astype(np.float64), field)
    return out


def _from_corner(self: Any, keypoints: npt.NDArray[Any], **params: Any) -> npt.NDArray[Any]:
    """Key points that are measured from the picture's corner, and not from the middle of its first pixel."""
    half = np.zeros_like(keypoints[:1])
    half[:, :2] = 0.5
    moved: npt.NDArray[Any] = type(self).apply_to_keypoints(self, keypoints + half, **params) - half
    return moved


def _scaled(self: Any, keypoints: npt.NDArray[Any], **params: Any) -> npt.NDArray[Any]:
    """Key points in a resized picture, by its sides, which are whole pixels."""
    height, width = params["shape"][:2]
    picture = self.apply(np.zeros((height, width), np.uint8), **params)
    out = keypoints.copy()
    out[:, :2] = (keypoints[:, :2] + 0.5) * (picture.shape[1] / width, picture.shape[0] / height) - 0.5
    return out


def _check(part: Any) -> None:
    """Refuse what needs more than the picture, its masks and its points."""
    name = type(part).__name__
    declared = [target for target in getattr(part, "targets_as_params", ()) if target not in _GIVEN]
    needed = _NEEDY.get(name) or (shorten(declared[0]) if declared else None)
    if needed is not None:
        raise UsageError(f"Albumentations: {name} needs {needed}, which is not given with a sample: leave it out")


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
