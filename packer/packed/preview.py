"""A contact sheet: samples of a packed dataset side by side, with their geometry, each above its key."""

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly.samples import PackedSamples
from packer.jobs.progress import ProgressListener, Stage, listener_of
from packer.jobs.result import Result
from packer.workspace.durable import write_durably
from readers.drawing.sheet import GEOMETRY, Sheet, columns_for, draw_sample
from shardspec.errors import UsageError
from shardspec.layout import Layout
from shardspec.schema import Field, Schema
from shardspec.wording import counted

DEFAULT_COUNT = 64
DEFAULT_CELL = 224
"""Side in pixels of the square that each picture is fitted into."""


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
    across = min(len(rows), columns or columns_for(len(rows)))
    sheet, shown = Sheet(across, -(-len(rows) // across), cell), picture_field(samples.schema, path).name
    with Stage(listener_of(progress), "drawing", len(rows), "samples") as stage:
        for place, row in enumerate(rows):
            sample = samples.read([row])[0]
            picture = draw_sample(np.asarray(sample[shown], np.uint8), sample, cell)
            sheet.put(place, picture, _caption(sample, samples.schema, row, captioned))
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
