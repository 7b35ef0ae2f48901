"""Show samples in a notebook: drawn images, and the fields in a table."""

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

from readers.drawing.draw import draw
from readers.drawing.images import ImageFrames, Scale, as_image
from readers.drawing.values import describe_value, printable
from shardspec.errors import UsageError

_SIDE = 160
"""Side of the square for each image in pixels."""
_TEXT = 60


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
        scale = Scale(image.frames for _, image in filter(None, found))
        images = "".join(
            _figure(row, draw(sample, named[1], scale, _SIDE, named[0]))
            for row, sample, named in zip(self.rows, self.samples, found, strict=True)
            if named is not None
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


def _image_of(sample: Mapping[str, Any]) -> tuple[str, ImageFrames] | None:
    """Return the field ``image`` as the network gets it, or the first packed image, with its name."""
    with suppress(UsageError):
        return "image", as_image(sample.get("image"), "image")
    return next(((name, as_image(value, name)) for name, value in sample.items() if _is_image(value)), None)


def _figure(row: int, drawn: npt.NDArray[np.uint8]) -> str:
    file = io.BytesIO()
    Image.fromarray(drawn).save(file, "PNG", compress_level=1)
    data = base64.b64encode(file.getvalue()).decode()
    return f"<img title='row {row}' src='data:image/png;base64,{data}'/>"


def _is_image(value: Any) -> bool:
    shape = np.shape(value)
    return getattr(value, "dtype", None) == np.uint8 and len(shape) == 3 and shape[2] == 3 and min(shape) > 0
