"""A contact sheet: samples of a packed dataset side by side, with their geometry, each above its key."""

import io
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from packer.assembly.samples import PackedSamples
from packer.jobs.progress import ProgressListener, Stage, listener_of
from packer.jobs.result import Result
from packer.packed.draw import draw
from packer.vision.geometry.resize import resize_exact
from packer.workspace.durable import write_durably
from shardspec.errors import UsageError
from shardspec.layout import Layout
from shardspec.schema import Field, Schema
from shardspec.wording import counted

DEFAULT_COUNT = 64
DEFAULT_CELL = 224
"""Side in pixels of the square that each picture is fitted into."""

GEOMETRY = {"landmarks": (2, 2), "hull": (2, 2), "regions": (2, 4)}
"""Fields that are drawn, with their number of axes and the size of the last axis; other shapes are not our fields."""
_MAX_SHEET_PIXELS = 200 * 10**6
_BACKGROUND, _TEXT, _FAINT = (24, 24, 24), (240, 240, 240), (170, 170, 170)
_FONT_PX = 13
_GAP = 6


@dataclass(frozen=True, repr=False)
class PreviewResult(Result):
    """A contact sheet, and the samples that it shows.

    Attributes
    ----------
    path : Path
        The sheet.
    rows : tuple of int
        Rows of the samples, in the order in which they are shown.
    """

    path: Path
    rows: tuple[int, ...]

    def describe(self) -> str:
        """The sheet in one line."""
        rows = f"rows {self.rows[0]} to {self.rows[-1]}"
        return f"{self.path}: {counted(len(self.rows), 'sample')}, {rows}, each above its key"

    def to_json(self) -> dict[str, Any]:
        """The sheet and its rows as JSON."""
        return {"out": str(self.path), "samples": len(self.rows), "rows": list(self.rows)}


def preview(
    dataset: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    count: int = DEFAULT_COUNT,
    all: bool = False,
    start: int = 0,
    seed: int | None = None,
    columns: int | None = None,
    cell: int = DEFAULT_CELL,
    plain: bool = False,
    progress: bool | ProgressListener = True,
) -> PreviewResult:
    """Write a contact sheet of samples as PNG, replacing the file if it exists.

    Parameters
    ----------
    dataset : path
        A packed dataset with a picture in each sample.
    out : path
        File of the sheet, ``.png``.
    count : int
        Samples to show, at least 1.
    all : bool
        Whether to show all samples from `start` on, whatever `count` is.
    start : int
        The first row to show, at least 0.
    seed : int, optional
        Show rows drawn at random from this seed, in their order, instead of adjacent rows.
    columns : int, optional
        Pictures per row of the sheet; by default about as many as the sheet has rows.
    cell : int
        Side of the square that each picture is fitted into, in pixels, at least 16.
    plain : bool
        Whether to leave out landmarks, hull and regions.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    PreviewResult

    Raises
    ------
    UsageError
        If nothing can be shown, or the sheet would be too large or cannot be written.
    DatasetError
        If the dataset cannot be read.
    """
    path, sheet_path = Path(dataset), Path(out)
    _check(sheet_path, count, start, cell)
    samples, captioned = PackedSamples(path, _wanted(path, geometry=not plain)), _captioned(path)
    rows = _choose(len(samples), None if all else count, start, seed)
    if not rows:
        raise UsageError(f"{path}: expected samples from row {start} on, found {len(samples)} in all")
    across = min(len(rows), columns or max(1, round(np.sqrt(len(rows) * 1.4))))
    sheet = _Sheet(across, -(-len(rows) // across), cell)
    with Stage(listener_of(progress), "drawing", len(rows), "samples") as stage:
        for place, row in enumerate(rows):
            sample = samples.read([row])[0]
            sheet.put(place, _picture(sample, samples.schema, cell), _caption(sample, samples.schema, row, captioned))
            stage.advance()
    file = io.BytesIO()
    sheet.image.save(file, "PNG")
    try:
        write_durably(sheet_path, file.getvalue())
    except OSError as error:
        raise UsageError(f"{sheet_path}: cannot be written: {error.strerror or error}") from error
    return PreviewResult(sheet_path, tuple(rows))


def picture_field(schema: Schema, path: Path) -> Field:
    """The field ``image``, or else the first that holds pictures."""
    pictures = [field for field in schema if field.is_image]
    if not pictures:
        raise UsageError(f"{path}: expected a field with pictures, found {', '.join(schema.names)}")
    return next((field for field in pictures if field.name == "image"), pictures[0])


def _check(out: Path, count: int, start: int, cell: int) -> None:
    if out.suffix.lower() != ".png":
        raise UsageError(f"{out}: expected a name that ends in .png")
    if out.is_dir():
        raise UsageError(f"{out}: expected a file's name, found a folder")
    if start < 0 or count < 1 or cell < 16:
        raise UsageError(f"expected start >= 0, count >= 1 and cell >= 16, found {start}, {count} and {cell}")


def _wanted(path: Path, geometry: bool) -> list[str]:
    """The fields that a sheet needs; no other is read."""
    schema = PackedSamples(path, check="size").schema
    names = ["key", "source", "label", "landmarks_valid", *(GEOMETRY if geometry else ()), *_captioned(path)]
    return list(dict.fromkeys([picture_field(schema, path).name, *(name for name in names if name in schema)]))


def _captioned(path: Path) -> list[str]:
    """The columns whose values stand below the pictures: text and single values."""
    manifest = Layout(path).load()
    fields = [manifest.schema[column.field] for column in manifest.columns]
    return [field.name for field in fields if field.kind == "text" or (field.is_fixed and not field.shape)]


def _choose(total: int, count: int | None, start: int, seed: int | None) -> list[int]:
    left = max(0, total - start)
    number = left if count is None else min(count, left)
    if seed is None:
        return list(range(start, start + number))
    drawn = np.random.Generator(np.random.PCG64(seed)).choice(left, number, replace=False)
    return sorted((start + drawn).tolist())


def _picture(sample: Mapping[str, Any], schema: Schema, cell: int) -> npt.NDArray[np.uint8]:
    """A sample's picture with its geometry, fitted into a cell."""
    image = np.asarray(sample[picture_field(schema, Path()).name], np.uint8)
    height, width = image.shape[:2]
    scale = max(1, cell // max(height, width, 1))
    drawn = {
        name: sample[name]
        for name, looks in GEOMETRY.items()
        if name in sample and (np.ndim(sample[name]), np.shape(sample[name])[-1:]) == (looks[0], looks[1:])
    }
    valid = bool(sample.get("landmarks_valid", True))
    canvas = draw(image, **(drawn if valid else {}), valid=valid, scale=scale)
    height, width = canvas.shape[:2]
    if max(height, width) > cell:
        share = cell / max(height, width)
        canvas = resize_exact(canvas, (max(1, round(height * share)), max(1, round(width * share))))
    return canvas


def _caption(sample: Mapping[str, Any], schema: Schema, row: int, columns: Sequence[str]) -> list[str]:
    """The key (or the row); the class, or the source where there is no class, and the values of `columns`."""
    lines, below = [str(sample.get("key", f"row {row}"))], []
    if "label" in sample:
        below.append(_value(schema["label"], sample["label"]))
    elif "source" in sample:
        below.append(str(sample["source"]))
    below += [_value(schema[name], sample[name]) for name in columns if name != "label"]
    return [*lines, ", ".join(below)] if below else lines


def _value(field: Field, value: Any) -> str:
    """A value as a caption has it: a class by its name, any other with the name of its field."""
    if field.classes is not None and 0 <= int(value) < len(field.classes):
        return field.classes[int(value)]
    return f"{field.name} {value:.4g}" if field.dtype[1] == "f" else f"{field.name} {value}"


class _Sheet:
    """Cells in rows, each with two lines of text below."""

    def __init__(self, across: int, down: int, cell: int) -> None:
        self._across, self._cell = across, cell
        self._font = ImageFont.load_default(_FONT_PX)
        self._line = _FONT_PX + 3
        self._pitch = (cell + _GAP, cell + 2 * self._line + _GAP)
        size = (across * self._pitch[0] + _GAP, down * self._pitch[1] + _GAP)
        if size[0] * size[1] > _MAX_SHEET_PIXELS:
            raise UsageError(
                f"expected a sheet of {_MAX_SHEET_PIXELS // 10**6} megapixels at most, found {size[0]} x {size[1]}: "
                "ask for fewer samples with --count and --start, or a smaller --cell"
            )
        self.image = Image.new("RGB", size, _BACKGROUND)
        self._pen = ImageDraw.Draw(self.image)

    def put(self, place: int, picture: npt.NDArray[np.uint8], caption: Sequence[str]) -> None:
        """Fill one cell."""
        left = _GAP + place % self._across * self._pitch[0]
        top = _GAP + place // self._across * self._pitch[1]
        height, width = picture.shape[:2]
        corner = (left + (self._cell - width) // 2, top + (self._cell - height) // 2)
        self.image.paste(Image.fromarray(picture), corner)
        for number, text in enumerate(caption):
            where = (left, top + self._cell + 1 + number * self._line)
            self._pen.text(where, self._fit(text), fill=_FAINT if number else _TEXT, font=self._font)

    def _fit(self, text: str) -> str:
        """The text on one line, without its middle if it is too wide."""
        text = textwrap.shorten(text.encode("utf-8", "replace").decode(), 400, placeholder="…")
        if self._font.getlength(text) <= self._cell:
            return text
        for kept in range(len(text) - 1, 1, -1):
            shorter = f"{text[: kept // 2]}…{text[len(text) - (kept - kept // 2) :]}"
            if self._font.getlength(shorter) <= self._cell:
                return shorter
        return text[:1]
