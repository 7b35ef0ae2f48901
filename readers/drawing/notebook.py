"""Samples in a notebook: pictures with their geometry, and the fields as a table, as HTML."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from PIL import Image

from readers.drawing.draw import COLOURS
from readers.drawing.svg import overlay
from readers.drawing.values import describe_value, printable

_SIDE = 160
"""Pixels of a picture's longer side."""
_TEXT = 60


@dataclass(frozen=True, repr=False)
class Strip:
    """Samples side by side. A notebook shows pictures and a table; elsewhere it is one line of text.

    Attributes
    ----------
    rows : tuple of int
    samples : tuple of dict
    title : str
    classes : tuple of str or None
        The names of the labels.
    """

    rows: tuple[int, ...]
    samples: tuple[Mapping[str, Any], ...]
    title: str
    classes: Sequence[str] | None = None

    def __repr__(self) -> str:
        return f"<{len(self.rows)} samples of {self.title}>"

    def _repr_html_(self) -> str:
        """For notebooks. Every text is escaped, and nothing is loaded."""
        pictures = "".join(_figure(row, sample) for row, sample in zip(self.rows, self.samples, strict=True))
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
            f"<div style='display:flex;flex-wrap:wrap;gap:6px'>{pictures}</div>"
            f"<details><summary>fields</summary><table><tr><th></th>{head}</tr>{lines}</table></details></div>"
        )

    def _cell(self, name: str, value: Any) -> str:
        if value is None:
            return ""
        return escape(describe_value(value, self.classes if name == "label" else None, longest=_TEXT))


def _figure(row: int, sample: Mapping[str, Any]) -> str:
    """A sample's picture with its geometry over it."""
    found = next(
        (np.asarray(sample[name]) for name in ("image", *sample) if name in sample and _is_picture(sample[name])), None
    )
    if found is None:
        return ""
    height, width = found.shape[:2]
    scale = _SIDE / max(height, width, 1)
    size = f"width='{max(1, round(width * scale))}' height='{max(1, round(height * scale))}'"
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(found)).save(file, "PNG", compress_level=1)
    data = base64.b64encode(file.getvalue()).decode()
    paths = "".join(
        f"<path d='{shape.path}' fill='none' stroke='{_hex(COLOURS[shape.kind])}' stroke-linecap='round' "
        f"stroke-width='{4 if shape.layer == 'points' else 1.5}' vector-effect='non-scaling-stroke'/>"
        for shape in overlay(sample)
    )
    return (
        f"<div style='position:relative;line-height:0' title='row {row}'>"
        f"<img {size} style='image-orientation:none' src='data:image/png;base64,{data}'>"
        f"<svg {size} viewBox='0 0 {width} {height}' style='position:absolute;left:0;top:0'>{paths}</svg></div>"
    )


def _is_picture(value: Any) -> bool:
    shape = np.shape(value)
    return getattr(value, "dtype", None) == np.uint8 and len(shape) == 3 and shape[2] == 3 and min(shape) > 0


def _hex(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
