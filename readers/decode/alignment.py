"""What lies in the pixels of the stored picture, and so is wrong beside a plan that decodes other pixels."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from readers.decode.plans import DecodePlan
from shardspec.errors import UsageError
from shardspec.fields import is_mask_name
from shardspec.picture_fields import PIXEL_AXES
from shardspec.schema import Field, Schema

_NUMBERS = {"matrix": 3, **{name: len(axes) for name, axes in PIXEL_AXES.items()}}
"""Fields in the pixels of ``image``, or from the frame's to them: (n, k) floating, and their k."""


def check_alignment(schema: Schema, plans: Mapping[str, DecodePlan]) -> None:
    """Refuse fields that would no longer lie on ``image`` as it is decoded.

    Geometry (``landmarks``, ``hull``, ``regions``, ``matrix``, and fields with a point layout) lies on the picture as it is stored. Masks
    (``mask``, ``*_mask``, ``*_image``) lie on it pixel by pixel, and still do if they have an equal plan: plans that draw, draw alike
    for all fields of a sample.

    Parameters
    ----------
    schema : Schema
        The fields that are read.
    plans : dict of str to DecodePlan

    Raises
    ------
    UsageError
        There is such a field; the message names it and what can be done.
    """
    if "image" not in schema:
        return
    plan = plans.get("image")
    left = [field.name for field in schema if _is_geometry(field)] if _moves(plan) else []
    masks = [name for name in _masks(schema) if plans.get(name) != plan and (_moves(plan) or _moves(plans.get(name)))]
    if not left and not masks:
        return
    planned = ", ".join(f"{name!r}: {plans[name]}" for name in ("image", *masks) if name in plans)
    raise UsageError(
        f"decode: expected no fields in the pixels of the stored picture where a plan crops, resizes or flips it, found "
        f"{', '.join([*left, *masks])} with {{{planned}}}: leave them out by fields=, or leave out the plan and use a transform of "
        "readers.augment, such as CropJitter or HorizontalFlip, which moves them too"
        + (f"; or give the same plan to image and {', '.join(masks)}" if masks else "")
    )


def _moves(plan: DecodePlan | None) -> bool:
    """Whether a plan gives other pixels than those of the stored picture; one of a caller's own that does not say so may."""
    return plan is not None and bool(getattr(plan, "moves", True))


def _is_geometry(field: Field) -> bool:
    if field.layout is not None:
        return True
    floating = np.issubdtype(field.numpy_dtype, np.floating)
    return floating and len(field.shape) == 2 and field.shape[1] == _NUMBERS.get(field.name)


def _masks(schema: Schema) -> Iterator[str]:
    """Further pictures that may be as large as ``image``."""
    sides: tuple[Any, ...] = schema["image"].shape[:2]
    for field in schema:
        if is_mask_name(field.name) and len(field.shape) in (2, 3):
            known = zip(field.shape, sides, strict=False)
            if all(one is None or other is None or one == other for one, other in known):
                yield field.name
