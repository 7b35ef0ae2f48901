"""Conversion of a sample's image and masks to tensors for torchvision, and back."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from readers.decode.values import BFLOAT16
from shardspec.errors import UsageError


def image_tensor(image: npt.NDArray[np.uint8]) -> Tensor:
    """Copy an image (…, H, W, C) to a tensor (…, C, H, W), uint8."""
    return torch.from_numpy(np.moveaxis(image, -1, -3).copy())


def mask_tensor(mask: npt.NDArray[Any], axes: int, name: str) -> Tensor:
    """Copy a mask to a tensor (C, H, W), or (T, C, H, W) for a clip, in float32, which every operation can move.

    Parameters
    ----------
    mask : ndarray, (H, W) or (H, W, C); for a clip with the same first axis
    axes : int
        Number of axes of the image without its channels: 2, or 3 for a clip.
    name : str
        Name of the mask, for messages.

    Raises
    ------
    UsageError
        If float32 cannot hold a value.
    """
    stack = mask[..., None] if mask.ndim == axes else mask
    values = np.moveaxis(stack, -1, -3).astype(np.float32)
    if not np.can_cast(mask.dtype, np.float32):
        with np.errstate(invalid="ignore"):
            back = np.moveaxis(values, -3, -1).astype(mask.dtype)
        if not np.array_equal(back, stack, equal_nan=mask.dtype.kind == "f"):
            raise UsageError(
                place="Torchvision",
                expected="masks of values that float32 can hold (integers up to 2**24)",
                found=f"{mask.dtype} with others in {name!r}",
                hint="renumber them, or leave it out of masks",
            )
    return torch.from_numpy(np.ascontiguousarray(values))


def image_array(image: Any, axes: int) -> npt.NDArray[Any]:
    """Convert torchvision's result, (C, H, W) or (T, C, H, W), to an array with the channels last."""
    if not isinstance(image, Tensor) or image.ndim != axes + 1:
        found = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
        wanted = "(C, H, W)" if axes == 2 else "(T, C, H, W)"
        raise UsageError(place="Torchvision", expected=f"the image back as a tensor {wanted}", found=found)
    tensor = image.as_subclass(Tensor).movedim(-3, -1).contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(BFLOAT16)
    return tensor.numpy()


def mask_array(mask: Tensor, like: npt.NDArray[Any], axes: int) -> npt.NDArray[Any]:
    """Convert the result of `mask_tensor` to an array with the axes and the dtype of the original mask."""
    values = np.moveaxis(mask.as_subclass(Tensor).numpy(), -3, -1)
    return np.ascontiguousarray(values[..., 0] if like.ndim == axes else values).astype(like.dtype)
