"""Adapter for Albumentations pipelines.

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

from readers.augment.libraries.adapter import Adapter, Masks, Points, transforms_in
from readers.augment.libraries.bending import bent_points
from shardspec.errors import MissingDependencyError, UsageError
from shardspec.wording import shorten

_BENDING = ("ElasticTransform", "GridDistortion", "OpticalDistortion", "PiecewiseAffine", "ThinPlateSpline")
"""Transforms with a displacement per pixel, which lose key points or misplace them by pixels."""

_FROM_CORNERS = (
    "CropAndPad",
    "RandomGridShuffle",
    "RandomResizedCrop",
    "RandomSizedCrop",
    "Resize",
)
"""Transforms that treat integer coordinates, which are pixel centres in key points, as corners of pixels or tiles."""

_SCALING = ("LongestMaxSize", "RandomScale", "SmallestMaxSize")
"""Transforms like those of `_FROM_CORNERS` that also ignore the rounding of the scaled sides to whole pixels."""

_NEEDY = {
    "BBoxSafeRandomCrop": "boxes",
    "CropNonEmptyMaskIfExists": "its own mask",
    "RandomSizedBBoxSafeCrop": "boxes",
}
"""Data that some transforms need without declaring it."""

_GIVEN = frozenset({"image", "images", "keypoints"})

_INSTALL = 'pip install "facepack[augment]" (albumentations>=2.0,<=2.0.8)'


def load_albumentations() -> Any:
    """Import the library without its check for updates over the network.

    Raises
    ------
    MissingDependencyError
        If it is not installed, its version is not one from 2.0.0 to 2.0.8, or AlbumentationsX is installed instead.
    """
    try:
        other = version("albumentationsx")
    except PackageNotFoundError:
        pass
    else:
        raise MissingDependencyError(
            expected="Albumentations 2.0 (MIT)",
            found=f"AlbumentationsX {other}, which takes its import name under AGPL-3.0 or a commercial licence",
            hint=f"pip uninstall albumentationsx, then {_INSTALL}",
        )
    try:
        found = version("albumentations")
    except PackageNotFoundError:
        raise MissingDependencyError(expected="Albumentations 2.0", found="none", hint=_INSTALL) from None
    numbers = tuple(int(part) for part in found.split(".")[:3] if part.isdigit())
    if not (2, 0) <= numbers <= (2, 0, 8):
        raise MissingDependencyError(expected="Albumentations 2.0.0 to 2.0.8", found=found, hint=_INSTALL)
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    return importlib.import_module("albumentations")  # only after the checks above


class Albumentations(Adapter):
    """Apply an Albumentations pipeline to a whole sample (`readers.augment.libraries.adapter.Adapter`).

    The pipeline's own seeding is not used: it repeats itself in worker processes, and ``Compose.set_random_seed`` gives
    every transform the same seed, so that a flip and a rotation of p=0.5 always come together. Here all transforms draw
    from one stream.

    Parameters
    ----------
    transforms : sequence of albumentations transforms, or albumentations.Compose
        A ``Compose`` contributes its transforms and its `p`; it must not have keypoint or box parameters.
    masks : sequence of str or None
        Fields that move with the image; None: those named ``mask``, ``*_mask`` or ``*_image``, of the image's size.

    Raises
    ------
    MissingDependencyError
        If Albumentations is missing or not one of 2.0.0 to 2.0.8, or AlbumentationsX is installed instead.
    UsageError
        When created: if `transforms` are not transforms of Albumentations, or one needs more than image and points, for
        example boxes. When called: if a transform changes the number of points, or the pipeline is not affine and the
        sample has a ``matrix``.

    Notes
    -----
    Where Albumentations loses key points or misplaces them by more than a fraction of a pixel, they are moved here: in
    transforms that bend the image (``ElasticTransform``, ``GridDistortion``, ``OpticalDistortion``,
    ``PiecewiseAffine``, ``ThinPlateSpline``), in those that scale it, and in ``RandomGridShuffle``. After
    ``PiecewiseAffine``, which may fold the image, about one point in a hundred is still off by a pixel or more.
    """

    advice = "give the one that drops points keypoint_remapping_method='direct' if it has that, or leave it out"

    def __init__(self, transforms: Any, masks: Sequence[str] | None = None) -> None:
        library = load_albumentations()
        p, chain = 1.0, transforms
        if isinstance(transforms, library.Compose):
            if transforms.processors:
                raise UsageError(
                    place="Albumentations",
                    expected="a Compose without keypoint_params and bbox_params, which are set here",
                    found=", ".join(transforms.processors),
                )
            p, chain = transforms.p, transforms.transforms
        known = (library.BasicTransform, library.BaseCompose)
        if not isinstance(chain, list | tuple) or not chain or not all(isinstance(t, known) for t in chain):
            raise UsageError(
                place="Albumentations", expected="a list of its transforms, or a Compose", found=shorten(transforms)
            )
        keypoints = library.KeypointParams(format="xy", remove_invisible=False)
        with warnings.catch_warnings():  # a pipeline that moves no points is not a mistake
            warnings.filterwarnings("ignore", message="Got processor for keypoints, but no transform to process it")
            pipeline = library.Compose(list(chain), keypoint_params=keypoints, p=p)
            _add_masks(pipeline, ["mask mask"])  # only the first one warns, here where warnings are ignored
        for part in transforms_in(pipeline):
            _check(part)
        super().__init__(pipeline, chain, masks)

    def prepared(self, transform: Any) -> Any:
        """Make the pipeline move points with their pixels."""
        library = load_albumentations()
        bending, corners, scaling = (
            tuple(getattr(library, name) for name in names) for names in (_BENDING, _FROM_CORNERS, _SCALING)
        )
        for part in transforms_in(transform):
            if isinstance(part, bending):
                part._key2func["keypoints"] = MethodType(_bent, part)
            elif isinstance(part, corners + scaling):
                part._key2func["keypoints"] = MethodType(_scaled if isinstance(part, scaling) else _from_corner, part)
                if getattr(part, "mask_interpolation", None) == cv2.INTER_NEAREST:
                    part.mask_interpolation = cv2.INTER_NEAREST_EXACT  # INTER_NEAREST takes the pixel at the corner
        return transform

    def call(
        self,
        transform: Any,
        image: npt.NDArray[np.uint8],
        masks: Mapping[str, npt.NDArray[Any]],
        points: Points | None,
        rng: np.random.Generator,
    ) -> tuple[npt.NDArray[Any], Masks, Points | None]:
        """Call the pipeline once."""
        transform.set_random_state(rng, random.Random(int(rng.integers(2**63))))  # noqa: S311 -- nothing here is secret
        many = "s" if image.ndim == 4 else ""
        targets = {name: f"mask{many} {name}" for name in masks}
        _add_masks(transform, targets.values())
        data: dict[str, Any] = {f"image{many}": image.copy()}
        data |= {targets[name]: _as_opencv(mask, name) for name, mask in masks.items()}
        if points is not None:
            data["keypoints"] = points
        result = transform(**data)
        if points is not None:
            points = np.asarray(result["keypoints"], np.float32)
        return result[f"image{many}"], {name: np.asarray(result[targets[name]]) for name in masks}, points


def _bent(self: Any, keypoints: npt.NDArray[Any], map_x: Any, map_y: Any, **params: Any) -> npt.NDArray[Any]:
    """Move key points in a bent image, where Albumentations loses or misplaces some."""
    height, width = map_x.shape[:2]
    field = np.stack([map_x - np.arange(width), map_y - np.arange(height)[:, None]], axis=-1)
    out = keypoints.copy()
    out[:, :2] = bent_points(keypoints[:, :2].astype(np.float64), field)
    return out


def _from_corner(self: Any, keypoints: npt.NDArray[Any], **params: Any) -> npt.NDArray[Any]:
    """Move key points in coordinates that start at the image's corner instead of the first pixel's centre."""
    half = np.zeros_like(keypoints[:1])
    half[:, :2] = 0.5
    moved: npt.NDArray[Any] = type(self).apply_to_keypoints(self, keypoints + half, **params) - half
    return moved


def _scaled(self: Any, keypoints: npt.NDArray[Any], **params: Any) -> npt.NDArray[Any]:
    """Move key points in a resized image by the ratio of its sides, which are whole pixels."""
    height, width = params["shape"][:2]
    scaled = self.apply(np.zeros((height, width), np.uint8), **params)
    out = keypoints.copy()
    out[:, :2] = (keypoints[:, :2] + 0.5) * (scaled.shape[1] / width, scaled.shape[0] / height) - 0.5
    return out


def _check(part: Any) -> None:
    """Refuse transforms that need more than the image, its masks and its points."""
    name = type(part).__name__
    declared = [target for target in getattr(part, "targets_as_params", ()) if target not in _GIVEN]
    needed = _NEEDY.get(name) or (shorten(declared[0]) if declared else None)
    if needed is not None:
        raise UsageError(
            f"{name} needs {needed}, which samples do not have", place="Albumentations", hint="leave it out"
        )


def _as_opencv(mask: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Copy a mask in a dtype that OpenCV can move; values that do not fit are refused."""
    if mask.dtype in (np.bool_, np.float16):
        return mask.astype(np.uint8 if mask.dtype == np.bool_ else np.float32)
    if mask.dtype.kind not in "iu" or np.can_cast(mask.dtype, np.int32):
        return mask.copy()
    limits = np.iinfo(np.int32)
    if mask.size and not limits.min <= mask.min() <= mask.max() <= limits.max:
        raise UsageError(
            place="Albumentations",
            expected=f"masks of values from {limits.min} to {limits.max}",
            found=f"{mask.min()} to {mask.max()} in {name!r}",
            hint="renumber them, or leave it out of masks",
        )
    return mask.astype(np.int32)


def _add_masks(pipeline: Any, targets: Iterable[str]) -> None:
    """Declare masks to a pipeline, each under a separate name, since its list of masks requires equal shapes."""
    new = {target: target.partition(" ")[0] for target in targets if target not in pipeline.additional_targets}
    if new:
        pipeline.add_targets(new)
