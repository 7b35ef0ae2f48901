"""Show samples in a notebook: images with their geometry as SVG, and the fields in a table."""

import base64
import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from readers.drawing.geometry import COLOURS, GEOMETRY, of_frame, shapes_of
from readers.drawing.images import ImageFrames, Scale, as_image
from readers.drawing.values import describe_value, printable
from shardspec.columns import evenly
from shardspec.errors import UsageError

_SIDE = 160
"""Length of an image's longer side in pixels."""
_TEXT = 60
_FRAMES = 8
"""Largest number of frames of a clip that are shown."""


@dataclass(frozen=True, repr=False)
class SampleRow:
    """Samples side by side. A notebook shows images and a table; elsewhere its repr is one line of text.

    Attributes
    ----------
    rows : tuple of int
    samples : tuple of dict
    title : str
    classes : tuple of str or None
        Names of the labels.
    """

    rows: tuple[int, ...]
    samples: tuple[Mapping[str, Any], ...]
    title: str
    classes: Sequence[str] | None = None

    def __repr__(self) -> str:
        return f"<{len(self.rows)} samples of {self.title}>"

    def _repr_html_(self) -> str:
        """Return HTML for notebooks, with escaped texts and without external resources."""
        found = [_image_of(sample) for sample in self.samples]
        scale = Scale(image.frames for image in found if image is not None)
        images = "".join(
            _figure(row, sample, image, scale)
            for row, sample, image in zip(self.rows, self.samples, found, strict=True)
            if image is not None
        )
        names = list(dict.fromkeys(name for sample in self.samples for name in sample))
        head = "".join(f"<th>{row}</th>" for row in self.rows)
        lines = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th>"
            + "".join(
                f"<td style='text-align:left'>{self._cell(name, sample.get(name))}</td>" for sample in self.samples
            )
            + "</tr>"
            for name in names
        )
        return (
            f"<div><p>{escape(printable(self.title))}</p>"
            f"<div style='display:flex;flex-wrap:wrap;gap:6px'>{images}</div>"
            f"<details><summary>fields</summary><table><tr><th></th>{head}</tr>{lines}</table></details></div>"
        )

    def _cell(self, name: str, value: Any) -> str:
        if value is None:
            return ""
        return escape(describe_value(value, self.classes if name == "label" else None, longest=_TEXT))


def _image_of(sample: Mapping[str, Any]) -> ImageFrames | None:
    """Return the field ``image`` as the network gets it, or the first packed image."""
    with suppress(UsageError):
        return as_image(sample.get("image"), "image")
    return next((as_image(value, name) for name, value in sample.items() if _is_image(value)), None)


def _figure(row: int, sample: Mapping[str, Any], image: ImageFrames, scale: Scale) -> str:
    """Return a sample's image, or the frames of its clip, with geometry."""
    length = len(image.frames)
    geometry = {name: sample[name] for name in (*GEOMETRY, "landmarks_valid") if name in sample}
    return "".join(
        _frame(
            f"row {row}, frame {t}" if image.strip else f"row {row}",
            scale(image.frames[t]),
            {name: of_frame(name, value, t, length) for name, value in geometry.items()},
        )
        for t in evenly(length, _FRAMES)
    )


def _frame(title: str, image: npt.NDArray[np.uint8], geometry: Mapping[str, Any]) -> str:
    """Return an image with its geometry as SVG."""
    height, width = image.shape[:2]
    factor = _SIDE / max(height, width)
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG", compress_level=1)
    data = base64.b64encode(file.getvalue()).decode()
    paths = "".join(
        f"<path d='{shape.path}' fill='none' stroke='#{bytes(COLOURS[shape.kind]).hex()}' stroke-linecap='round' "
        f"stroke-width='{4 if shape.layer == 'points' else 1.5}' vector-effect='non-scaling-stroke'/>"
        for shape in shapes_of(geometry)
    )
    return (
        f"<svg width='{max(1, round(width * factor))}' height='{max(1, round(height * factor))}' "
        f"viewBox='0 0 {width} {height}' preserveAspectRatio='none'><title>{title}</title>"
        f"<image width='{width}' height='{height}' href='data:image/png;base64,{data}'/>{paths}</svg>"
    )


def _is_image(value: Any) -> bool:
    shape = np.shape(value)
    return getattr(value, "dtype", None) == np.uint8 and len(shape) == 3 and shape[2] == 3 and min(shape) > 0
