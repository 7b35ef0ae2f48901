"""Adapter for transforms of torchvision v2."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import MethodType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms import v2

from readers.augment.libraries.adapter import Adapter, Masks, Points, transforms_in
from readers.augment.libraries.bending import bent_points
from readers.augment.libraries.tensors import image_array, image_tensor, mask_array, mask_tensor
from readers.augment.libraries.torch_random import TorchDraws
from shardspec.errors import UsageError
from shardspec.wording import cut, shorten

_IMAGES_ALONE = (v2.AugMix, v2.AutoAugment, v2.RandAugment, v2.TrivialAugmentWide)
_BATCHES = (v2.CutMix, v2.MixUp)
_SEVERAL = (v2.FiveCrop, v2.TenCrop)
_NEED_BOXES = (v2.RandomIoUCrop, v2.SanitizeBoundingBoxes)


class Torchvision(Adapter):
    """Apply transforms of torchvision v2 to a whole sample (`readers.augment.libraries.adapter.Adapter`).

    Points move with the pixels under them. torchvision's own key points are off by a pixel after a flip, and by more
    after ``ElasticTransform``.

    Parameters
    ----------
    transforms : v2 transform, or sequence of them
    masks : sequence of str or None
        Fields that move with the image; None: those named ``mask``, ``*_mask`` or ``*_image``, of the image's size.

    Raises
    ------
    UsageError
        When created: if `transforms` are not of ``torchvision.transforms.v2``, mix the images of a batch, make several
        images of one, need object boxes, or follow ``v2.ToPureTensor``, after which only the image would move. When
        called: if a transform cannot take the sample, for example `v2.RandAugment` with masks or points (ours can), if
        it drops points, or if it bends the image and the sample has a ``matrix``.

    Notes
    -----
    The image is passed as uint8 and keeps the dtype that the transforms give it: ``v2.ToDtype(torch.float32,
    scale=True)`` followed by ``v2.Normalize`` makes floating images, after which only `RandomErasing` of ours may
    follow.
    """

    pixel_centre = 0.0
    advice = "leave out the one that drops points, such as SanitizeKeyPoints"

    def __init__(self, transforms: Any, masks: Sequence[str] | None = None) -> None:
        chain = list(transforms) if isinstance(transforms, list | tuple | nn.Sequential) else [transforms]
        if not chain:
            raise UsageError(place="Torchvision", expected="one transform or more", found="none")
        pipeline = v2.Compose(chain)
        parts = list(transforms_in(pipeline))
        for part in parts:
            _check(part)
        if any(isinstance(part, v2.ToPureTensor) for part in parts[:-1]):
            raise UsageError(
                "transforms after ToPureTensor would move only the image",
                place="Torchvision",
                hint="put it last, or leave it out",
            )
        super().__init__(pipeline, chain, masks)

    def prepared(self, transform: Any) -> Any:
        """Make erasing leave masks unchanged."""
        for part in transforms_in(transform):
            if isinstance(part, v2.RandomErasing):
                part._call_kernel = MethodType(_erased, part)
        return transform

    def call(
        self,
        transform: Any,
        image: npt.NDArray[np.uint8],
        masks: Mapping[str, npt.NDArray[Any]],
        points: Points | None,
        rng: np.random.Generator,
    ) -> tuple[npt.NDArray[Any], Masks, Points | None]:
        """Call the transforms once, on the CPU, whatever torch's default device is."""
        axes = image.ndim - 1
        kind = tv_tensors.Video if axes == 3 else tv_tensors.Image
        # As a context, a device costs time in every operation, so it is entered only if it is not the default.
        on_cpu = nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
        with torch.no_grad(), on_cpu, TorchDraws(int(rng.integers(2**63))):
            data: dict[str, Any] = {"image": kind(image_tensor(image))}
            if masks:
                data["masks"] = {name: ExactMask(mask_tensor(mask, axes, name)) for name, mask in masks.items()}
            if points is not None:
                canvas = (image.shape[-3], image.shape[-2])
                data["points"] = ExactPoints(torch.from_numpy(points.astype(np.float64)), canvas_size=canvas)
            result = self._called(transform, data)
        moved = None if points is None else result["points"].as_subclass(Tensor).numpy().astype(np.float32)
        return (
            image_array(result["image"], axes),
            {name: mask_array(result["masks"][name], mask, axes) for name, mask in masks.items()},
            moved,
        )

    def _called(self, transform: Any, data: dict[str, Any]) -> dict[str, Any]:
        try:
            result: dict[str, Any] = transform(data)
        except TypeError as error:
            alone = [type(part).__name__ for part in transforms_in(transform) if isinstance(part, _IMAGES_ALONE)]
            if alone and len(data) > 1:
                raise UsageError(
                    f"{alone[0]} of torchvision cannot move masks and points",
                    place="Torchvision",
                    hint=(
                        "use readers.augment.RandAugment or TrivialAugment, or read the dataset without "
                        f"{_fields(data)} (fields=[…], masks=())"
                    ),
                ) from error
            if "float" in str(error):
                raise UsageError(
                    f"{cut(str(error), 200)} Put v2.ToDtype(torch.float32, scale=True) before it", place="Torchvision"
                ) from error
            raise
        return result


class ExactPoints(tv_tensors.KeyPoints):  # type: ignore[misc] # torchvision has no types
    """Key points that move exactly, in coordinates in which pixel (0, 0) covers [0, 1) x [0, 1).

    torchvision scales points in these coordinates, but mirrors them as if pixel centres were integers, rounds them
    where an image is bent, and ignores that a rotated and expanded image is rounded up to whole pixels.
    """


class ExactMask(tv_tensors.Mask):  # type: ignore[misc] # torchvision has no types
    """A mask that is resized by the nearest pixel; torchvision takes the pixel at the corner."""


def _erased(self: Any, functional: Callable[..., Any], value: Any, *args: Any, **params: Any) -> Any:
    """Paint over the image alone, without torchvision's warning about masks and points."""
    if isinstance(value, ExactMask | ExactPoints):
        return value
    return v2.Transform._call_kernel(self, functional, value, *args, **params)


def _like(points: ExactPoints, places: Tensor, canvas: tuple[int, int] | None = None) -> ExactPoints:
    """Return points at new positions, on the same canvas or another one (height, width)."""
    wrapped: ExactPoints = tv_tensors.wrap(places, like=points, canvas_size=canvas or points.canvas_size)
    return wrapped


def _mirrored(points: ExactPoints, **others: Any) -> ExactPoints:
    plain = points.as_subclass(Tensor).clone()
    plain[..., 0] = points.canvas_size[1] - plain[..., 0]
    return _like(points, plain)


def _upside_down(points: ExactPoints, **others: Any) -> ExactPoints:
    plain = points.as_subclass(Tensor).clone()
    plain[..., 1] = points.canvas_size[0] - plain[..., 1]
    return _like(points, plain)


def _padded(points: ExactPoints, padding: Any, **others: Any) -> ExactPoints:
    """Move points in a padded image, for every padding mode; torchvision moves them only for ``constant``."""
    plain, canvas = v2.functional.pad_keypoints(points.as_subclass(Tensor), points.canvas_size, padding)
    return _like(points, plain, canvas)


def _turned(
    points: ExactPoints, angle: float, expand: bool = False, center: list[float] | None = None, **others: Any
) -> ExactPoints:
    """Move points in a rotated image; an expanded image has whole pixels and keeps its middle."""
    height, width = points.canvas_size
    plain, _ = v2.functional.rotate_keypoints(points.as_subclass(Tensor), (height, width), angle, center=center)
    canvas = (height, width)
    if expand:
        turned = v2.functional.rotate_image(torch.zeros(1, height, width), angle, expand=True, center=center)
        canvas = (turned.shape[-2], turned.shape[-1])
        plain = plain + plain.new_tensor([canvas[1] - width, canvas[0] - height]) / 2
    return _like(points, plain, canvas)


def _bent(points: ExactPoints, displacement: Tensor, **others: Any) -> ExactPoints:
    """Move points in a bent image, whose displacement is given in halves of the image's sides."""
    height, width = points.canvas_size
    field = displacement[0].double().numpy() * (width / 2, height / 2)
    plain = points.as_subclass(Tensor).reshape(-1, 2).numpy()
    places = torch.from_numpy(bent_points(plain - 0.5, field) + 0.5)
    return _like(points, places.reshape(points.shape))


def _resized(mask: ExactMask, size: list[int] | None, max_size: int | None = None, **others: Any) -> ExactMask:
    nearest = v2.InterpolationMode.NEAREST_EXACT
    plain = v2.functional.resize_image(mask.as_subclass(Tensor), size, interpolation=nearest, max_size=max_size)
    wrapped: ExactMask = tv_tensors.wrap(plain, like=mask)
    return wrapped


def _cut_and_resized(
    mask: ExactMask, top: int, left: int, height: int, width: int, size: list[int], **others: Any
) -> ExactMask:
    cut_out = v2.functional.crop_mask(mask.as_subclass(Tensor), top, left, height, width)
    return _resized(tv_tensors.wrap(cut_out, like=mask), size)


for _functional, _kernel in (
    (v2.functional.horizontal_flip, _mirrored),
    (v2.functional.vertical_flip, _upside_down),
    (v2.functional.pad, _padded),
    (v2.functional.rotate, _turned),
    (v2.functional.elastic, _bent),
):
    v2.functional.register_kernel(_functional, ExactPoints)(_kernel)

v2.functional.register_kernel(v2.functional.resize, ExactMask)(_resized)
v2.functional.register_kernel(v2.functional.resized_crop, ExactMask)(_cut_and_resized)


def _check(part: Any) -> None:
    """Refuse transforms that cannot move a sample, or need a whole batch."""
    name, module = type(part).__name__, type(part).__module__
    if isinstance(part, _BATCHES):
        raise UsageError(
            f"{name} mixes the images of a batch", place="Torchvision", hint=f"use readers.augment.Batch{name}"
        )
    if isinstance(part, _SEVERAL):
        raise UsageError(
            f"{name} makes several images of one, but a sample has a single image",
            place="Torchvision",
            hint="leave it out",
        )
    if isinstance(part, _NEED_BOXES):
        raise UsageError(
            f"{name} needs boxes of objects, which samples do not have", place="Torchvision", hint="leave it out"
        )
    if name == "ToTensor" and module.startswith("torchvision."):
        raise UsageError(
            "ToTensor converts only images of Pillow or numpy and would leave the image as it is",
            place="Torchvision",
            hint="write v2.ToDtype(torch.float32, scale=True)",
        )
    if not isinstance(part, v2.Transform | nn.Sequential | nn.ModuleList):
        old = module.startswith("torchvision.transforms.") and hasattr(v2, name)
        found = f"{name} of torchvision.transforms: write v2.{name}" if old else shorten(part)
        raise UsageError(place="Torchvision", expected="transforms of torchvision.transforms.v2", found=found)


def _fields(data: Mapping[str, Any]) -> str:
    return " and ".join("geometry" if name == "points" else name for name in data if name != "image")
